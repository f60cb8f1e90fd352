//! The pool: sockets that time out, connections that come back clean or are closed.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Client, Connection, ErrorKind, IntoConnectionInfo, RedisError, RedisResult};

use crate::{Error, Result, time};

/// The oldest server this library is tested with.
const OLDEST_REDIS: (u32, u32) = (6, 2);
/// A connection that lay idle for longer is asked whether it is still there.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(30);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// A pool of blocking connections for the functions of this crate. Cloning it shares it.
///
/// Beside what `r2d2::Pool<redis::Client>` does, it
/// - gives every socket a connect, a read and a write time-out, and `TCP_NODELAY`;
/// - opens no connection before one is wanted, and sends no `PING` at a checkout, unless the connection lay idle for half
///   a minute or another one broke in the meantime;
/// - says within its own time-out why there is no connection: what the last attempt to connect met, or that all are lent;
/// - names a server as too old when it connects to one;
/// - closes, on return, a connection that broke or was out for as long as its read time-out, since only then can a reply
///   be owed on it.
///
/// ```no_run
/// use std::time::Duration;
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let token = leasehold::acquire_lock_with_timeout(
///     &mut conn,
///     "report",
///     Duration::from_secs(5),
///     Duration::from_secs(30),
/// )?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    connections: r2d2::Pool<Manager>,
    failure: LastFailure,
}

impl Pool {
    /// A pool with the defaults of [`PoolBuilder`], for a URL such as `redis://127.0.0.1/`.
    ///
    /// Opens no connection yet. `rediss://` needs the feature `tls-rustls`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read.
    pub fn connect(url: &str) -> Result<Self> {
        let client = Client::open(url).map_err(|error| Error::invalid("url", error.to_string()))?;
        Self::new(&client)
    }

    /// A pool with the defaults of [`PoolBuilder`], for a client with settings of its own, such as a private CA.
    ///
    /// Opens no connection yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the client's connection settings cannot be used.
    pub fn new(client: &Client) -> Result<Self> {
        Self::builder().build(client)
    }

    /// A pool with other time-outs or another size.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Lends a connection, opening one if none is idle. Gives up after the pool's own time-out.
    ///
    /// # Errors
    /// [`Error::Pool`] with the reason, [`Error::TooOld`] for a server before Redis 6.2 or Valkey 7.2.
    pub fn get(&self) -> Result<PooledConnection> {
        let asked = time::now();
        match self.connections.get() {
            Ok(connection) => Ok(PooledConnection { connection }),
            Err(_) => Err(self.why_none_came_since(asked)),
        }
    }

    fn why_none_came_since(&self, asked: Instant) -> Error {
        let wait = self.connections.connection_timeout();
        match self.failure.since(asked) {
            Some(failure)
                if failure.kind() == ErrorKind::InvalidClientConfig
                    && failure.detail().is_some() =>
            {
                Error::TooOld {
                    found: failure.detail().unwrap_or_default().to_owned(),
                }
            }
            Some(failure) => Error::Pool {
                reason: format!("could not connect within {wait:?}"),
                source: Some(failure),
            },
            None => {
                let (open, size) = (
                    self.connections.state().connections,
                    self.connections.max_size(),
                );
                let reason = format!(
                    "none was free or could be opened within {wait:?}; {open} of {size} are open"
                );
                Error::Pool {
                    reason,
                    source: None,
                }
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("connections", &self.connections.state())
            .finish_non_exhaustive()
    }
}

/// The settings of a [`Pool`], by value.
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    max_size: u32,
    get_timeout: Duration,
    connect_timeout: Duration,
    io_timeout: Duration,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        let two_seconds = Duration::from_secs(2);
        Self {
            max_size: 10,
            get_timeout: two_seconds,
            connect_timeout: two_seconds,
            io_timeout: two_seconds,
        }
    }
}

impl PoolBuilder {
    /// How many connections there may be. Default 10. A thread needs one for as long as it calls functions on it.
    pub fn max_size(mut self, connections: u32) -> Self {
        self.max_size = connections;
        self
    }

    /// How long [`Pool::get`] waits for a connection. Default 2 s. Longer waits hide a pool that is too small.
    pub fn get_timeout(mut self, timeout: Duration) -> Self {
        self.get_timeout = timeout;
        self
    }

    /// How long one attempt to connect may take. Default 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a write, or the wait for a reply, may take. Default 2 s. Shorter tells a silent server sooner, but takes
    /// a slow one for silent.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.io_timeout = timeout;
        self
    }

    /// The pool. Opens no connection yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size of 0, or a time-out that is not between 1 ms and 24 h.
    pub fn build(self, client: &Client) -> Result<Pool> {
        if self.max_size == 0 {
            return Err(Error::invalid("max_size", "it has to be at least 1"));
        }
        check_timeout("get_timeout", self.get_timeout)?;
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_timeout("io_timeout", self.io_timeout)?;

        let failure = LastFailure::default();
        let connections = r2d2::Pool::builder()
            .max_size(self.max_size)
            .min_idle(Some(0))
            .connection_timeout(self.get_timeout)
            .error_handler(Box::new(failure.clone()))
            .build_unchecked(Manager::new(client, self.connect_timeout, self.io_timeout)?);
        Ok(Pool {
            connections,
            failure,
        })
    }
}

fn check_timeout(argument: &'static str, timeout: Duration) -> Result<()> {
    if timeout < Duration::from_millis(1) || timeout > LONGEST_TIMEOUT {
        return Err(Error::invalid(
            argument,
            "it has to be between 1 ms and 24 h",
        ));
    }
    Ok(())
}

/// A connection lent by a [`Pool`]: give `&mut` of it to any function that takes a `&mut redis::Connection`.
pub struct PooledConnection {
    connection: r2d2::PooledConnection<Manager>,
}

impl Deref for PooledConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection.connection
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection.connection
    }
}

impl fmt::Debug for PooledConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledConnection").finish_non_exhaustive()
    }
}

/// What r2d2 is told of our connections.
struct Manager {
    client: Client,
    connect_timeout: Duration,
    io_timeout: Duration,
    /// When a connection was last found broken: those that were idle then may be broken too.
    broken: Mutex<Option<Instant>>,
}

/// A connection and when it was last lent or given back.
struct Lent {
    connection: Connection,
    moved: Instant,
}

impl Manager {
    fn new(client: &Client, connect_timeout: Duration, io_timeout: Duration) -> Result<Self> {
        let settings = client.get_connection_info().clone();
        let tcp = settings.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(
            settings
                .set_tcp_settings(tcp)
                .into_connection_info()
                .map_err(|error| unusable(&error))?,
        );
        Ok(Self {
            client: client.map_err(|error| unusable(&error))?,
            connect_timeout,
            io_timeout,
            broken: Mutex::new(None),
        })
    }

    /// A connection with time-outs, to a server that is new enough.
    fn open(&self) -> RedisResult<Connection> {
        let mut connection = self
            .client
            .get_connection_with_timeout(self.connect_timeout)?;
        connection.set_read_timeout(Some(self.io_timeout))?;
        connection.set_write_timeout(Some(self.io_timeout))?;
        refuse_old_server(&mut connection)?;
        Ok(connection)
    }
}

fn unusable(error: &RedisError) -> Error {
    Error::invalid("client", error.to_string())
}

impl r2d2::ManageConnection for Manager {
    type Connection = Lent;
    type Error = RedisError;

    fn connect(&self) -> RedisResult<Lent> {
        Ok(Lent {
            connection: self.open()?,
            moved: time::now(),
        })
    }

    /// Called at each checkout.
    fn is_valid(&self, lent: &mut Lent) -> RedisResult<()> {
        let doubtful = self
            .broken
            .lock()
            .is_some_and(|broken| lent.moved <= broken);
        if doubtful || lent.moved.elapsed() >= IDLE_BEFORE_PING {
            redis::cmd("PING").exec(&mut lent.connection)?;
        }
        lent.moved = time::now();
        Ok(())
    }

    /// Called when a connection comes back. One that was out for as long as its read time-out may have a reply owed.
    fn has_broken(&self, lent: &mut Lent) -> bool {
        let broken = !redis::ConnectionLike::is_open(&lent.connection)
            || lent.moved.elapsed() >= self.io_timeout;
        lent.moved = time::now();
        if broken {
            *self.broken.lock() = Some(lent.moved);
        }
        broken
    }
}

/// Refuses a server that says it is older than what this library is tested with. One that says nothing is taken.
fn refuse_old_server(connection: &mut Connection) -> RedisResult<()> {
    let info: String = match redis::cmd("INFO").arg("server").query(connection) {
        Ok(info) => info,
        Err(error) if error.is_io_error() => return Err(error),
        Err(_) => return Ok(()),
    };
    match version_in(&info) {
        Some((version, numbers)) if numbers < OLDEST_REDIS => Err((
            ErrorKind::InvalidClientConfig,
            "the server is too old",
            format!("it says {version}"),
        )
            .into()),
        _ => Ok(()),
    }
}

/// Valkey gives a `redis_version` of 7.2 or more beside its own.
fn version_in(info: &str) -> Option<(&str, (u32, u32))> {
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))?
        .trim();
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next()?, numbers.next()?) {
        (Ok(major), Ok(minor)) => Some((version, (major, minor))),
        _ => None,
    }
}

/// What r2d2 met when it last failed to connect; its own error keeps only the text.
#[derive(Clone, Debug, Default)]
struct LastFailure(Arc<Mutex<Option<(Instant, RedisError)>>>);

impl LastFailure {
    fn since(&self, moment: Instant) -> Option<RedisError> {
        self.0
            .lock()
            .clone()
            .filter(|(at, _)| *at >= moment)
            .map(|(_, failure)| failure)
    }
}

impl r2d2::HandleError<RedisError> for LastFailure {
    fn handle_error(&self, error: RedisError) {
        *self.0.lock() = Some((time::now(), error));
    }
}
