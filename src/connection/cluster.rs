//! A Redis Cluster: which shard has a key, and a pool for each shard.
//!
//! [`Nodes`] is what others use. Below it, [`map`] asks the nodes, [`known`] decides what is believed of their answers, which
//! [`layout`] reads, [`shard`] leads the connections of a pool, and [`redirect`] says what a `MOVED` or its like means.
//!
//! Locks: `pools`, for a moment; see [`map`] for its own.

mod answer;
mod known;
mod layout;
mod map;
mod redirect;
mod settings;
mod shard;
mod slot;

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use redis::{Client, Connection, RedisError};

use super::{
    Pool, PooledConnection,
    dial::{self, set_timeouts},
    manager::Limits,
    process::Process,
    settings::PoolBuilder,
};
use crate::{
    error::{Error, Result},
    exchange::asking,
    name::LockName,
    time::{Backoff, Deadline},
};
pub(crate) use known::ShardId;
pub(crate) use layout::Address;
use map::Map;
pub(crate) use redirect::Redirect;
pub use settings::NodesBuilder;
use shard::ToShard;

/// How often a `MOVED` is followed before it is taken for a failure: two nodes that name each other lead nowhere. Counted by [`Nodes::run`],
/// by `locks/acquire/moves.rs` for a wait, and in `server/cluster/` by `member.rs` for a call and by `renewals.rs` for a batch.
pub(crate) const HOPS: u32 = 5;

/// The masters of a Redis Cluster: a [`Pool`] for each shard, made when it is first used. Cloning it shares it.
///
/// The nodes are asked who serves which keys when a key is wanted for the first time, when a node answers `MOVED`, when a
/// connection fails, and every ten seconds while connections are lent. Each new connection is asked for its `ROLE`, and must be
/// to a master. When a replica has taken over, the connections to the master before are closed before they are lent again.
///
/// A function takes a connection to the master that has its lock:
///
/// ```no_run
/// use std::time::Duration;
/// use leasehold::{Nodes, acquire_lock_with_timeout, release_lock};
///
/// let nodes = Nodes::connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000")?;
/// let (wait, lease) = (Duration::from_secs(5), Duration::from_secs(30));
/// let token = nodes.run("report", |conn| {
///     acquire_lock_with_timeout(conn, "report", wait, lease)
/// })?;
/// if let Some(token) = token {
///     // … the work …
///     nodes.run("report", |conn| release_lock(conn, "report", &token))?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// All keys that one function is given have to be in one slot. A hash tag puts a key into the slot of a lock: the lock
/// `{shop}:report` is in the slot of `{shop}:total`. Otherwise the server answers `CROSSSLOT`, and nothing is done.
#[derive(Clone)]
pub struct Nodes {
    inner: Arc<Inner>,
}

struct Inner {
    process: Process,
    map: Arc<Map>,
    pools: Mutex<HashMap<ShardId, Pool>>,
    settings: PoolBuilder,
    /// How to connect to a node; its address counts for nothing.
    client: Client,
}

impl Nodes {
    /// The nodes of a cluster with the defaults of [`NodesBuilder`], for a URL such as
    /// `redis+cluster://10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000`.
    ///
    /// Opens no connection and waits for nothing. `redis+cluster://[[user]:password@]host[:port][,host[:port]…]` names some of
    /// the nodes (port 6379 unless it is named): the others are asked of them. User and password are those of all nodes.
    /// `rediss+cluster://` is with TLS (feature `tls-rustls`, the system's certificates).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL cannot be read. It does not repeat the URL, which may hold a password.
    ///
    /// ```
    /// let nodes = leasehold::Nodes::connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000");
    /// assert!(nodes.is_ok());
    /// let nodes = leasehold::Nodes::connect("redis://10.0.0.1:7000");
    /// assert!(matches!(nodes, Err(leasehold::Error::Invalid { argument: "url", .. })));
    /// ```
    pub fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url)
    }

    /// Nodes with other time-outs, another size of the pools, or other addresses than those that they name.
    pub fn builder() -> NodesBuilder {
        NodesBuilder::default()
    }

    /// Lends a connection to the master that has the lock of this name: the key `lock:` and the name.
    ///
    /// Ends within [`NodesBuilder::get_timeout`] (default 2 s). The nodes may move the lock at any time; then a function on the
    /// connection fails with [`Error::Redis`], the server's word being `MOVED`, and has done nothing. [`run`](Self::run) follows.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a name that no lock can have.
    /// - [`Error::Pool`]: no node says who has the lock, no connection could be opened, or all of the shard's are lent.
    /// - [`Error::TooOld`], [`Error::Forked`]: as [`Pool::get`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let nodes = leasehold::Nodes::connect("redis+cluster://10.0.0.1:7000")?;
    /// let mut conn = nodes.get_for("report")?;
    /// let token = leasehold::acquire_lock(&mut conn, "report", Duration::from_secs(5))?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn get_for(&self, name: &str) -> Result<PooledConnection> {
        self.get_for_key(LockName::new(name)?.key())
    }

    /// Lends a connection to the master that has this key: the key of a lock with another [prefix](crate::Options::prefix), or a
    /// key of your own data.
    ///
    /// # Errors
    /// As [`get_for`](Self::get_for).
    pub fn get_for_key(&self, key: &str) -> Result<PooledConnection> {
        self.refuse_a_copy()?;
        self.lend_for(key, self.deadline())
    }

    /// Runs **one** function of this crate on a connection to the master that has the lock of this name, and again on another
    /// connection if that master answers that the lock has moved.
    ///
    /// The closure is run again only if it returns an [`Error::Redis`] with one of the server's words `MOVED`, `ASK`, `TRYAGAIN`,
    /// `CLUSTERDOWN`, `MASTERDOWN` or `LOADING`: a function that returns such an error has done nothing. `run` follows five `MOVED`
    /// at most; after the other words it pauses for some milliseconds, until [`NodesBuilder::get_timeout`] is over. After an `ASK` the
    /// closure is run at the node that the slot is on its way to as well. A lock is renewed and released there, and whatever else a script
    /// does with its keys is done there. What takes a book lock, or writes under one, is refused there and tried again until the slot has
    /// one place: of a key that has not come yet that node says that it does not exist. An outcome that is [unknown](Error::Unknown)
    /// is never tried again. **If the closure calls two functions and the second is refused, the first is called twice.**
    ///
    /// A function that takes a lock and works under it may find that the lock has moved in between. Then the lock is held by the
    /// [token](Error::token) of an error until it is released, by `run`, or its lease ends: with
    /// [`transaction_with_lock`](crate::transaction_with_lock), which has written nothing then, that is the answer; with
    /// [`with_lock`](crate::with_lock), whose closure has run, it stands in [`Ran::released`](crate::Ran::released). What that closure
    /// sends after the move is refused, and is not followed: `run` does not know what it has done before.
    ///
    /// # Errors
    /// What the closure returns, and as [`get_for`](Self::get_for).
    ///
    /// ```no_run
    /// # use leasehold::{Nodes, Token};
    /// # fn f(nodes: &Nodes, token: &Token) -> leasehold::Result<()> {
    /// let was_ours = nodes.run("report", |conn| leasehold::release_lock(conn, "report", token))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<T>(
        &self,
        name: &str,
        mut function: impl FnMut(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let lock = LockName::new(name)?;
        self.refuse_a_copy()?;
        let deadline = self.deadline();
        let (mut hops, mut pauses) = (0, Backoff::new());
        let mut before = None;
        loop {
            let outcome = match self.lend_for(lock.key(), deadline) {
                Ok(mut conn) => function(&mut conn),
                // The refusal after which it was tried again says more than this error.
                Err(error) => return before.unwrap_or(Err(error)),
            };
            let Err(Error::Redis { source, .. }) = &outcome else {
                return outcome;
            };
            let has_moved = source.code() == Some("MOVED");
            let is_over = match self.redirect(source) {
                None => true,
                Some(Redirect::Moved { .. }) => {
                    hops += 1;
                    hops > HOPS
                }
                Some(Redirect::Ask { to, .. }) => {
                    match self.asked_at(&to, deadline, &mut function) {
                        Some(outcome) => return outcome,
                        None => !pauses.pause(deadline),
                    }
                }
                Some(Redirect::TryAgain | Redirect::Down) => !pauses.pause(deadline),
            };
            if is_over {
                return outcome;
            }
            before = (!has_moved).then_some(outcome);
        }
    }

    /// Runs the function at the node that is being given the slot, which the node that has the slot has just named by an `ASK`.
    /// `None`: the function cannot be done there either.
    fn asked_at<T>(
        &self,
        to: &Address,
        deadline: Deadline,
        function: &mut impl FnMut(&mut Connection) -> Result<T>,
    ) -> Option<Result<T>> {
        let mut conn = self.open_at(to, deadline).ok()?;
        match asking(&mut conn, function) {
            Err(Error::Redis { source, .. }) if self.redirect(&source).is_some() => None,
            outcome => Some(outcome),
        }
    }

    /// The pool of the shard that has this key. Asks for the map if that is unknown or in doubt.
    pub(crate) fn pool_for(&self, key: &str, deadline: Deadline) -> Result<(ShardId, Pool)> {
        let shard = self.shard_for(key, deadline)?;
        Ok((shard, self.pool_of(shard)?))
    }

    /// Which shard has this key. Asks for the map if that is unknown or in doubt.
    pub(crate) fn shard_for(&self, key: &str, deadline: Deadline) -> Result<ShardId> {
        self.inner.map.shard_of(key, deadline)
    }

    /// Which shard has this key, as far as is known: nothing is asked or waited for.
    pub(crate) fn known_shard_of(&self, key: &str) -> Option<ShardId> {
        self.inner.map.known_shard_of(key)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connect: self.inner.settings.longest_attempt(),
            answer: self.inner.settings.io_timeout,
        }
    }

    /// The process that made them, to which the connections belong, also that by which the nodes are asked.
    pub(crate) fn process(&self) -> Process {
        self.inner.process
    }

    /// # Errors
    /// [`Error::Forked`] in the child of a fork.
    pub(crate) fn refuse_a_copy(&self) -> Result<()> {
        self.inner.process.refuse_a_copy()
    }

    /// The pool of a shard: the same one each time, also after a replica has taken over.
    pub(crate) fn pool_of(&self, shard: ShardId) -> Result<Pool> {
        let mut pools = self.inner.pools.lock();
        if let Some(pool) = pools.get(&shard) {
            return Ok(pool.clone());
        }
        let to_shard = Arc::new(ToShard::new(&self.inner.map, shard));
        let pool = (self.inner.settings.clone()).build_to(&self.inner.client, Some(to_shard))?;
        pools.insert(shard, pool.clone());
        Ok(pool)
    }

    /// What an answer says of where to go instead, if it says that. The map learns from it; nothing is asked or waited for.
    pub(crate) fn redirect(&self, error: &RedisError) -> Option<Redirect> {
        Redirect::learnt(&self.inner.map, error)
    }

    /// A connection beside the pools, to the node that a [`Redirect`] names: for an `ASK`, or a `MOVED` to one whose shard is not
    /// known. It is not asked who it is. Ends by the deadline or the time-out for connecting.
    pub(crate) fn open_at(&self, address: &Address, deadline: Deadline) -> Result<Connection> {
        let limit = self.inner.settings.longest_attempt();
        let opened = self.inner.map.open_at(address, deadline).and_then(|conn| {
            set_timeouts(&conn, self.inner.settings.io_timeout)?;
            Ok(conn)
        });
        opened.map_err(|error| dial::failure(address, limit, error))
    }

    /// Where the master of a shard is, as far as is known; asks if that is in doubt.
    pub(crate) fn address_of(&self, shard: ShardId, deadline: Deadline) -> Result<Address> {
        let place = self.inner.map.look(shard, deadline)?;
        Ok(Address::new(&place.host, place.port))
    }

    /// A connection to this address, at which the master of a shard was said to be, has answered.
    pub(crate) fn confirm_at(&self, shard: ShardId, address: &Address) {
        self.inner.map.confirm_at(shard, address);
    }

    /// A connection to the master of this shard has failed.
    pub(crate) fn doubt(&self, shard: ShardId) {
        self.inner.map.doubt(shard);
    }

    fn lend_for(&self, key: &str, deadline: Deadline) -> Result<PooledConnection> {
        let (_, pool) = self.pool_for(key, deadline)?;
        pool.get_by(deadline)
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.inner.settings.get_timeout)
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes")
            .field("shards_in_use", &self.inner.pools.lock().len())
            .finish_non_exhaustive()
    }
}
