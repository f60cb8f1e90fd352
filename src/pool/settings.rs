//! The settings of a pool.

use std::{io, sync::Arc, thread, time::Duration};

use parking_lot::Mutex;
use redis::Client;
#[cfg(feature = "tls-rustls")]
use redis::TlsCertificates;

#[cfg(feature = "cluster")]
use super::address_map::AddressMap;
#[cfg(feature = "tls-rustls")]
use super::tls::with_certificates;
use super::{
    Pool, PoolInner,
    connector::{Connector, Limits, MasterLocator},
    dial::prepared,
    login::{Access, LoginFunction, LoginResult},
    manager::{Manager, PoolState},
    sentinels::Sentinels,
    url::Target,
};
use crate::{
    error::{Error, Result, ensure},
    event::shielded,
    time::check_length,
};

/// The default limit of clients of a Redis server.
const MAX_SIZE: u32 = 10_000;

/// The settings of a [`Pool`], by value.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Pool, redis::Client};
///
/// let pool = Pool::builder()
///     .max_size(32)
///     .get_timeout(Duration::from_millis(500))
///     .build(&Client::open("redis://127.0.0.1/").unwrap())?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    max_size: u32,
    pub(crate) get_timeout: Duration,
    connect_timeout: Duration,
    io_timeout: Duration,
    login: Option<LoginFunction>,
    #[cfg(feature = "tls-rustls")]
    certificates: Option<TlsCertificates>,
    #[cfg(feature = "cluster")]
    pub(crate) address_map: Option<AddressMap>,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        let two_seconds = Duration::from_secs(2);
        Self {
            max_size: 10,
            get_timeout: two_seconds,
            connect_timeout: two_seconds,
            io_timeout: two_seconds,
            login: None,
            #[cfg(feature = "tls-rustls")]
            certificates: None,
            #[cfg(feature = "cluster")]
            address_map: None,
        }
    }
}

impl PoolBuilder {
    /// Sets the greatest number of connections, 1 to 10,000. Default 10.
    ///
    /// A thread needs one while it calls functions on it. Each costs the server about 15 kB of
    /// memory. With fewer connections than threads, threads wait for each other, up to
    /// [`get_timeout`](Self::get_timeout).
    pub fn max_size(mut self, connections: u32) -> Self {
        self.max_size = connections;
        self
    }

    /// Bounds [`Pool::get`], including the wait while all connections are lent and the time to
    /// connect. 1 ms to 24 h, default 2 s.
    ///
    /// A long time-out hides a pool that is too small; a short one fails during a load peak that
    /// would have passed.
    pub fn get_timeout(mut self, timeout: Duration) -> Self {
        self.get_timeout = timeout;
        self
    }

    /// Bounds an attempt to connect, log in and read the server's version. 1 ms to 24 h, default 2
    /// s.
    ///
    /// An attempt never takes longer than [`get_timeout`](Self::get_timeout), so this matters only
    /// if it is shorter. A short time-out detects sooner that a host is gone, but gives up on one
    /// that is distant or busy: Linux resends a lost packet of the connect only after a second.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Bounds a write, and the wait for a reply. 1 ms to 24 h, default 2 s.
    ///
    /// A short time-out detects a silent server sooner, but mistakes a slow one for silent, and
    /// then it is unknown whether the command was executed ([`Error::Unknown`]). A connection that
    /// was lent for this long is closed when it comes back, so borrowing connections for longer
    /// means opening them more often.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.io_timeout = timeout;
        self
    }

    /// Calls this function for the user and password of each new connection to a server, for
    /// example for a token that is valid for an hour. An empty user is the server's default user.
    /// Default: the login in the URL, or of the client.
    ///
    /// It replaces the login in the URL for all connections to the servers, including those of the
    /// locks' own threads. Sentinels keep theirs.
    ///
    /// Open connections stay as they are: no `AUTH` is sent on them. A server may close them when
    /// their token expires. Then a held lock is renewed on a new connection, and a wait for a lock
    /// continues; a call in progress, or the next one, may fail with [`Error::Unknown`]. If the
    /// server refuses a login, the function is called once more, and a different login is tried at
    /// once. If it returns the same login, the refusal is the error, which ends a wait: let the
    /// server accept the new password before it refuses the old one.
    ///
    /// **It runs on the threads that renew leases, and they wait for it**: return a token that you
    /// already have, and fetch the next one on a thread of your own. Its time is part of
    /// [`connect_timeout`](Self::connect_timeout): if it takes longer, that attempt to connect
    /// fails. If it fails or panics, the result is [`Error::Pool`] with the text of its error, and
    /// the next attempt calls it again. It must not use this pool.
    ///
    /// ```
    /// # fn token_at_hand() -> std::io::Result<String> { Ok("x".into()) }
    /// let pool = leasehold::Pool::builder()
    ///     .login(|| Ok(("app".into(), token_at_hand()?)))
    ///     .connect("redis://10.0.0.1/")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn login(
        mut self,
        user_and_password: impl Fn() -> LoginResult + Send + Sync + 'static,
    ) -> Self {
        self.login = Some(LoginFunction::new(user_and_password));
        self
    }

    /// Sets the CA that issued the servers' certificates, in place of the system's, and the client
    /// certificate and key that servers require; all in PEM. Sentinels get the same. Requires the
    /// feature `tls-rustls`.
    ///
    /// The URL must begin with `rediss`: otherwise, or if the PEM is not valid, building the pool
    /// fails with [`Error::Invalid`].
    ///
    /// ```no_run
    /// use std::fs::read;
    ///
    /// use leasehold::{Locks, Pool, redis::{ClientTlsConfig, TlsCertificates}};
    ///
    /// let certificates = TlsCertificates {
    ///     root_cert: Some(read("ca.pem")?),
    ///     client_tls: Some(ClientTlsConfig {
    ///         client_cert: read("client.pem")?,
    ///         client_key: read("client.key")?,
    ///     }),
    /// };
    /// let settings = Pool::builder().certificates(certificates);
    /// let locks = Locks::connect_with("rediss+sentinel://10.0.0.1,10.0.0.2/mymaster", settings)?;
    /// # anyhow::Ok(())
    /// ```
    #[cfg(feature = "tls-rustls")]
    pub fn certificates(mut self, certificates: TlsCertificates) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// Maps the host and port that a node of a cluster announces to those that reach it from here.
    /// Default: no mapping.
    ///
    /// For a cluster behind network address translation or in containers; and with TLS, if the
    /// certificates contain names, or if the nodes announce their ports without TLS (`tls-cluster
    /// no`).
    ///
    /// The closure must return the same result for the same node each time, return an unknown
    /// node's pair unchanged, and not block. It is not applied to the nodes in the URL.
    ///
    /// ```
    /// let nodes = leasehold::Pool::builder()
    ///     .address_map(|host, port| match host {
    ///         "172.18.0.2" => (String::from("redis.example.org"), port + 1_000),
    ///         host => (host.to_owned(), port),
    ///     })
    ///     .connect_nodes("redis+cluster://redis.example.org:8000")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "cluster")]
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Self {
        self.address_map = Some(AddressMap(Arc::new(map)));
        self
    }

    /// Builds the pool. Opens no connection and does not block.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: a size or a time-out is outside its limits, or the client's settings
    ///   are not valid.
    /// - [`Error::Thread`]: the pool's own threads could not be started. r2d2 panics then; the
    ///   panic is caught, after the panic hook has written it to stderr.
    pub fn build(self, client: &Client) -> Result<Pool> {
        let access = self.access(client)?;
        self.build_to(access, None)
    }

    /// Builds the pool for a URL, as for [`Pool::connect`]. Opens no connection and does not block.
    ///
    /// # Errors
    /// As for [`build`](Self::build), and if the URL is not valid.
    ///
    /// ```
    /// let watched = "redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster";
    /// let pool = leasehold::Pool::builder().max_size(32).connect(watched)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect(self, url: &str) -> Result<Pool> {
        self.build_at(Target::of(url)?)
    }

    pub(crate) fn build_at(self, target: Target) -> Result<Pool> {
        match target {
            Target::Server(client) => self.build(&client),
            Target::Watched {
                sentinels,
                master,
                server,
            } => self.build_on_sentinels(&sentinels, &master, &server),
            #[cfg(feature = "cluster")]
            Target::Nodes(_) => {
                let reason = "a pool leads to one server, and a Redis Cluster has several: use \
                              `Locks`, or `Nodes` for a connection to each master";
                Err(Error::invalid("url", reason))
            }
        }
    }

    /// Builds the pool for the server that these sentinels name as the master of this name.
    ///
    /// For settings that a [URL](Pool::connect) cannot express. `server` has the settings of the
    /// connections to the master: password, database, TLS. Its address is not used. Opens no
    /// connection and does not block.
    ///
    /// # Errors
    /// As for [`build`](Self::build), and if there is no sentinel or the name is not valid for a
    /// master.
    ///
    /// ```
    /// use leasehold::redis::Client;
    ///
    /// let sentinels = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    ///     .map(|host| Client::open(format!("redis://:of-the-sentinels@{host}:26379/")).unwrap());
    /// let server = Client::open("redis://:of-the-servers@master/").unwrap();
    /// let pool = leasehold::Pool::builder().build_on_sentinels(&sentinels, "mymaster", &server)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn build_on_sentinels(
        self,
        sentinels: &[Client],
        master: &str,
        server: &Client,
    ) -> Result<Pool> {
        let sentinels = sentinels.iter().map(|client| self.prepared(client));
        let sentinels = Sentinels::new(sentinels.collect::<Result<_>>()?, master)?;
        let access = self.access(server)?;
        self.build_to(access, Some(Arc::new(sentinels)))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let is_size = (1..=MAX_SIZE).contains(&self.max_size);
        ensure(is_size, "max_size", "it must be between 1 and 10,000")?;
        check_length("get_timeout", self.get_timeout)?;
        check_length("connect_timeout", self.connect_timeout)?;
        check_length("io_timeout", self.io_timeout)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connect: self.connect_timeout.min(self.get_timeout),
            answer: self.io_timeout,
        }
    }

    pub(crate) fn access(&self, client: &Client) -> Result<Access> {
        Ok(Access::new(self.prepared(client)?, self.login.clone()))
    }

    #[cfg_attr(
        not(feature = "tls-rustls"),
        allow(clippy::unused_self, reason = "without TLS it has no certificates")
    )]
    fn prepared(&self, client: &Client) -> Result<Client> {
        let client = prepared(client)?;
        #[cfg(feature = "tls-rustls")]
        if let Some(certificates) = &self.certificates {
            return with_certificates(&client, certificates);
        }
        Ok(client)
    }

    pub(crate) fn build_to(
        self,
        access: Access,
        locator: Option<Arc<dyn MasterLocator>>,
    ) -> Result<Pool> {
        self.check()?;
        let connector = Connector::new(access, locator, self.limits());
        let state = Arc::new(PoolState::new(connector, self.get_timeout));
        let builder = r2d2::Pool::builder()
            .max_size(self.max_size)
            .min_idle(Some(0))
            .test_on_check_out(false)
            .connection_timeout(twice_the_retry_interval(self.get_timeout))
            .error_handler(Box::new(r2d2::NopErrorHandler));
        // r2d2 starts threads here. If it cannot, it panics, and the panic hook prints.
        try_threads().map_err(Error::thread)?;
        let connections = shielded(|| builder.build_unchecked(Manager(Arc::clone(&state))));
        let connections =
            connections.ok_or_else(|| Error::thread(io::Error::other("a thread of the pool")))?;
        Ok(Pool {
            inner: Arc::new(PoolInner {
                connections,
                state,
                callers: Arc::default(),
            }),
        })
    }
}

/// Starts as many threads as r2d2 does, and as many again: the system counts one for a moment after
/// it has ended.
fn try_threads() -> io::Result<()> {
    const THREADS: usize = 6;
    let until_all_run = Arc::new(Mutex::new(()));
    let held = until_all_run.lock();
    let start = |_| {
        let until_all_run = Arc::clone(&until_all_run);
        thread::Builder::new().spawn(move || drop(until_all_run.lock()))
    };
    let threads: io::Result<Vec<_>> = (0..THREADS).map(start).collect();
    drop(held);
    for thread in threads? {
        // The thread does not panic.
        let _ = thread.join();
    }
    Ok(())
}

/// Returns the connection time-out for r2d2, whose pause between failed attempts grows to half of
/// it. A longer pause would delay a server that is back, and while no call waits, an attempt costs
/// nothing.
fn twice_the_retry_interval(get_timeout: Duration) -> Duration {
    get_timeout.clamp(Duration::from_millis(20), Duration::from_millis(100))
}
