//! The pool: sockets with time-outs, and connections that are clean when they are lent.
//!
//! Callers of the plain functions borrow from it with [`Pool::get`], the library's own calls with
//! `get_for`. A [`Connector`] opens the connections that `server` keeps outside it.
//!
//! Locks, each held briefly: in [`manager`] the last failure to connect, and the moment at which a
//! connection broke. A call that waits while all connections are lent may have `turns` locked, and
//! locks only these two meanwhile. While sentinels or cluster nodes are asked, their `asking` is
//! locked, and `known` within it briefly. A thread that need not ask does not wait for `asking`. No
//! other lock of the library is taken meanwhile.

#[cfg(feature = "cluster")]
mod address_map;
mod connector;
mod dial;
mod login;
mod manager;
mod reasons;
mod sentinels;
mod settings;
#[cfg(feature = "tls-rustls")]
mod tls;
mod url;

use std::{
    fmt, mem,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use redis::Client;

use crate::{
    cancel::Cancel,
    error::{Error, Result},
    time::{self, Deadline},
};
#[cfg(feature = "cluster")]
pub(crate) use address_map::AddressMap;
#[cfg(feature = "cluster")]
pub(crate) use connector::{Address, CLOCK_SKEW, MasterLocator, MasterPlace};
pub(crate) use connector::{Connector, Epoch, Limits, Opened, Process};
#[cfg(feature = "cluster")]
pub(crate) use dial::{asked, with_address};
#[cfg(feature = "cluster")]
pub(crate) use login::Access;
pub use manager::PooledConnection;
use manager::{Manager, PoolState};
pub(crate) use reasons::{failure, is_unknown_command};
#[cfg(feature = "cluster")]
pub(crate) use reasons::{last_that_may_pass, no_useful_answer};
pub use settings::PoolBuilder;
pub(crate) use url::Target;
#[cfg(feature = "cluster")]
pub(crate) use url::nodes_of;

/// A call follows at most this many `MOVED` of a Redis Cluster before it fails: two nodes that name
/// each other lead nowhere. Counted by `Nodes::run`, the calls in `server/cluster.rs`, and a wait
/// for a lock.
pub(crate) const HOPS: u32 = 5;

/// A call that waits for a new connection checks this often whether the attempt has failed.
const POLL: Duration = Duration::from_millis(2);
/// While all connections are lent, a waiting call checks this often whether it was cancelled, or a
/// broken connection has come back.
const POLL_LENT: Duration = Duration::from_millis(10);
/// A call that still waits after this time asks r2d2 for another connection.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A pool of blocking connections for the functions of this crate. A clone is the same pool.
///
/// It is r2d2 with what a lock needs:
/// - every socket has a connect, a read and a write time-out, and `TCP_NODELAY`;
/// - a connection is opened only when a call waits for one;
/// - lending a connection sends nothing, unless it lay idle for 30 s or another one broke since it
///   was last known to be good: then it is sent a `PING`, and replaced if that fails. So after a
///   restart of the server one call fails, not one for each idle connection;
/// - [`get`](Self::get) ends within its own time-out, even if the server is silent, and its error
///   names the cause;
/// - opening a connection to a server that is too old fails with an error that says so;
/// - a connection that broke, or was lent for as long as its read time-out, is closed when it comes
///   back, since only then can a reply be owed on it. So is a connection on which a function of
///   this crate has met bytes that are no reply, or a server that has become a replica (then all
///   others are closed too). Its place in the pool is free at once.
///
/// Connections that were idle for ten minutes, or are half an hour old, are closed within half a
/// minute. r2d2 has three threads for this and for connecting; they end within half a minute after
/// the last clone of the pool is dropped.
///
/// ```no_run
/// use std::time::Duration;
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let token = leasehold::acquire_lock_with_timeout(
///     &mut conn,
///     "report",
///     Duration::from_secs(60),
///     Duration::from_secs(30),
/// )?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # A pool or a connection of your own
/// The plain functions take any `&mut redis::Connection`, so also a connection from an
/// `r2d2::Pool<redis::Client>`:
///
/// ```no_run
/// # use std::time::Duration;
/// use leasehold::{r2d2, redis};
///
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let pool = r2d2::Pool::builder().max_size(4).build(client)?;
/// let mut conn = pool.get()?;
/// let token = leasehold::acquire_lock(&mut conn, "report", Duration::from_secs(5))?;
/// # anyhow::Ok(())
/// ```
///
/// Such a pool has none of the properties above. Its sockets have no time-outs: on a silent server
/// a call never returns, and none of our deadlines can end it (`conn.set_read_timeout` and
/// `conn.set_write_timeout` can). It sends a `PING` each time it lends, opens all its connections
/// when it is built, wakes no waiting thread when a broken connection comes back, and lends a
/// connection on which a reply is still owed: redis-rs skips that reply, after waiting for it.
///
/// A `redis::Client` is refused: it opens a connection for each command, and a `WATCH` on one
/// protects nothing on another.
///
/// ```compile_fail
/// # use std::time::Duration;
/// let mut client = leasehold::redis::Client::open("redis://127.0.0.1/").unwrap();
/// let token = leasehold::acquire_lock(&mut client, "report", Duration::from_secs(5));
/// ```
#[derive(Clone)]
pub struct Pool {
    inner: Arc<PoolInner>,
}

struct PoolInner {
    connections: r2d2::Pool<Manager>,
    state: Arc<PoolState>,
    /// Each connection lent by [`Pool::get`] has a clone.
    callers: Arc<()>,
}

impl Drop for PoolInner {
    /// In a forked child r2d2's pool is not dropped: ending its threads locks a mutex, which one of
    /// them may have held at the fork.
    fn drop(&mut self) {
        if self.state.connector.process().is_forked_child() {
            mem::forget(self.connections.clone());
        }
    }
}

impl Pool {
    /// Creates a pool with the defaults of [`PoolBuilder`], for a URL such as `redis://127.0.0.1/`.
    ///
    /// Opens no connection and does not block. `redis://[[user]:password@]host[:port][/database]`
    /// connects by TCP, `rediss://` by TCP with TLS (feature `tls-rustls`; the system's
    /// certificates, or [others](PoolBuilder#method.certificates)), and `redis+unix:///path` to a
    /// socket on this machine, with the parameters `user` and `pass`. `?protocol=` (`resp2` or
    /// `resp3`) works in any URL, and `?db=` with a socket. Any other parameter is an error, even
    /// one that other libraries understand.
    ///
    /// # Sentinels
    /// `redis+sentinel://[[user]:password@]host[:port][,host[:port]…]/master[/database]` connects
    /// to the server that these sentinels (default port 26379) name as the master with this name;
    /// `rediss+sentinel://` uses TLS for both. User and password are those of the servers;
    /// `?sentinel_user=…&sentinel_password=…` are those of the sentinels. For other settings of the
    /// sentinels see [`PoolBuilder::build_on_sentinels`].
    ///
    /// A sentinel is asked before a connection is opened, and at most once a second when one is
    /// lent, a different one each time. Each new connection is checked with `ROLE`, and must lead
    /// to a master. After a failover, connections to the old master are closed before they are lent
    /// again, and none is lent for half a second, nor while the sentinels contradict each other.
    /// The losses that a failover can cause: [several
    /// servers](crate::docs::guarantees#several-servers).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL is not valid. The error does not repeat the URL, which may
    /// hold a password.
    ///
    /// ```
    /// let pool = leasehold::Pool::connect("redis://127.0.0.1/");
    /// assert!(pool.is_ok());
    /// let pool = leasehold::Pool::connect("127.0.0.1:6379");
    /// assert!(matches!(pool, Err(leasehold::Error::Invalid { argument: "url", .. })));
    /// ```
    pub fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url)
    }

    /// Creates a pool with the defaults of [`PoolBuilder`], for a client with its own settings.
    ///
    /// Opens no connection and does not block. For a client with TLS it makes ring the crypto
    /// provider of the process, unless there is one already: an application that wants another
    /// provider installs it first (rustls: `install_default`).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the client's connection settings are not valid.
    ///
    /// ```
    /// use leasehold::redis::{Client, ConnectionAddr};
    ///
    /// let client = Client::open(ConnectionAddr::Tcp("127.0.0.1".into(), 6379))?;
    /// let pool = leasehold::Pool::new(&client)?;
    /// # anyhow::Ok(())
    /// ```
    pub fn new(client: &Client) -> Result<Self> {
        Self::builder().build(client)
    }

    /// Returns a builder for a pool with other time-outs or another size.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Lends a connection, opening one if none is idle.
    ///
    /// **A thread that keeps a connection while it acquires, releases or commits needs a second
    /// one**: if all connections are held by such threads, they wait for each other until they time
    /// out. Give the connection back first.
    ///
    /// Waits while all are lent, and returns within [`PoolBuilder::get_timeout`] (default 2 s). If
    /// an attempt to connect fails, returns the error at once; the next call retries.
    ///
    /// # Errors
    /// - [`Error::Pool`], with the reason: no connection could be opened, or all are lent.
    /// - [`Error::TooOld`] for a server before Redis 6.2 or Valkey 7.2.
    /// - [`Error::Invalid`] if the URL leads to another kind of server than it says, or no sentinel
    ///   knows the master.
    /// - [`Error::Forked`] in a forked child, if the parent made the pool.
    ///
    /// ```no_run
    /// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
    /// match pool.get() {
    ///     Ok(conn) => drop(conn),
    ///     // "cannot reach redis at 127.0.0.1:6379: Connection refused (os error 111)"
    ///     Err(error) => eprintln!("{:#}", anyhow::Error::from(error)),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn get(&self) -> Result<PooledConnection> {
        self.refuse_forked_child()?;
        self.get_within(self.inner.state.get_timeout)
    }

    /// Like [`get`](Self::get), with another time-out, and without the check for a forked child.
    pub(crate) fn get_within(&self, longest: Duration) -> Result<PooledConnection> {
        let mut conn = self.get_for(true, longest, longest, None)?;
        conn.caller = Some(Arc::clone(&self.inner.callers));
        Ok(conn)
    }

    /// Like [`get`](Self::get), for calls of this crate itself, and without the check for a forked
    /// child. Waits at most `whole`, and at most `wait_while_all_lent` while all are lent. `cancel`
    /// ends the wait only while all are lent. For a call that asks for a lock it waits until the
    /// master grants locks, and keeps no connection from others meanwhile.
    pub(crate) fn get_for(
        &self,
        asks_for_a_lock: bool,
        wait_while_all_lent: Duration,
        whole: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<PooledConnection> {
        let whole = whole.min(self.get_timeout());
        let deadline = Deadline::after(whole);
        let connector = &self.inner.state.connector;
        loop {
            let epoch = connector.epoch_for(asks_for_a_lock, deadline, cancel)?;
            let conn = self.lend(wait_while_all_lent.min(whole), deadline, cancel)?;
            if !asks_for_a_lock || conn.epoch() == epoch {
                return Ok(conn);
            }
        }
    }

    fn lend(
        &self,
        wait_while_all_lent: Duration,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<PooledConnection> {
        loop {
            let mut connection = self.idle_or_new(wait_while_all_lent, deadline, cancel)?;
            match self.inner.state.prove(&mut connection, deadline) {
                Ok(()) => {
                    return Ok(PooledConnection {
                        connection,
                        caller: None,
                    });
                }
                Err(error) if deadline.has_passed() => return Err(error),
                // The drop closes the connection. The next one may work.
                Err(_) => {}
            }
        }
    }

    /// Waits for a connection that comes back or is opened.
    ///
    /// r2d2 opens connections on threads of its own. It wakes a waiting call when a connection was
    /// opened, or comes back and can be lent again. It wakes none when an attempt to connect has
    /// failed, or when a broken connection comes back, so the call polls. Another call may take the
    /// connection that was opened for this call: then this call asks r2d2 for one more.
    ///
    /// While all connections are lent, one call at a time waits for r2d2, and the others wait for
    /// the mutex `turns`, which is granted in the order in which they came: so no call is overtaken
    /// for long. A call with a `cancel` does not wait for `turns`, where a cancel could not end its
    /// wait. It is one of the library's own calls, so it soon returns its connection.
    fn idle_or_new(
        &self,
        wait_while_all_lent: Duration,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<r2d2::PooledConnection<Manager>> {
        let (connections, state) = (&self.inner.connections, &self.inner.state);
        if let Some(connection) = connections.try_get() {
            return Ok(connection);
        }
        // No other call waits, so r2d2 opens no connection.
        if Arc::strong_count(&state.waiting) == 1 {
            state.to_come.store(0, Ordering::Relaxed);
        }
        let (asked, _waiting) = (time::now(), Arc::clone(&state.waiting));
        let give_up_all_lent_at = Deadline::after(wait_while_all_lent).or_sooner(deadline.moment());
        let mut asks_at = Deadline::after(Duration::ZERO);
        let mut turn = None;
        loop {
            let are_all_lent = connections.state().connections == connections.max_size();
            let is_called_off = cancel.is_some_and(Cancel::is_cancelled);
            if are_all_lent && (give_up_all_lent_at.has_passed() || is_called_off) {
                return Err(self.all_are_lent(wait_while_all_lent));
            }
            if deadline.has_passed() {
                return Err(state.no_answer());
            }
            if let Some(failure) = state.failure_since(asked) {
                return Err(failure);
            }
            if !are_all_lent {
                turn = None;
            } else if turn.is_none() && cancel.is_none() {
                turn = state.turns.try_lock_for(give_up_all_lent_at.remaining());
                continue;
            }
            let found = if are_all_lent {
                (connections.get_timeout(give_up_all_lent_at.remaining().min(POLL_LENT))).ok()
            } else if asks_at.has_passed() || state.to_come.load(Ordering::Relaxed) == 0 {
                asks_at = Deadline::after(ASK_AGAIN);
                // This asks r2d2 to open one more connection.
                state.to_come.fetch_add(1, Ordering::Relaxed);
                (connections.get_timeout(deadline.remaining().min(POLL))).ok()
            } else {
                thread::sleep(deadline.remaining().min(POLL));
                connections.try_get()
            };
            if let Some(connection) = found {
                return Ok(connection);
            }
        }
    }

    /// The greatest number of connections.
    pub(crate) fn size(&self) -> usize {
        self.inner.connections.max_size() as usize
    }

    /// The longest wait for a connection.
    pub(crate) fn get_timeout(&self) -> Duration {
        self.inner.state.get_timeout
    }

    /// # Errors
    /// [`Error::Forked`] in a forked child, if the parent made the pool.
    pub(crate) fn refuse_forked_child(&self) -> Result<()> {
        self.inner.state.connector.process().refuse_forked_child()
    }

    /// Opens connections like the pool's, which are never lent and do not count towards its size.
    pub(crate) fn connector(&self) -> Connector {
        self.inner.state.connector.clone()
    }

    fn all_are_lent(&self, wait: Duration) -> Error {
        let size = self.size();
        let mut reason = format!(
            "no connection: all {size} of the pool are lent, and none came back within {wait:?}"
        );
        if Arc::strong_count(&self.inner.callers) > size {
            reason.push_str(
                "; all were lent by `Pool::get`: give a connection back before you acquire a lock, \
                 or enlarge the pool",
            );
        }
        Error::pool(reason, None)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("max_size", &self.inner.connections.max_size())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
