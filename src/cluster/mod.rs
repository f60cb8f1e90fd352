//! Connections to the masters of a Redis Cluster, with a pool for each shard.
//!
//! Other modules use [`Nodes`]. [`map`] asks the nodes, [`layout`] parses their answers, and the
//! [`slot_map`] records them.
//!
//! Locks: a [`PerShard`], for a moment and while a value is made. [`map`] lists its own locks.

mod layout;
mod map;
mod slot_map;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Client, Connection, ConnectionAddr, RedisError};

use crate::{
    error::{Error, Operation, Result},
    name::LockName,
    pool::{
        Access, Address, HOPS, Limits, MasterLocator, MasterPlace, Pool, PoolBuilder,
        PooledConnection, Process, failure, nodes_of,
    },
    time::{Backoff, Deadline},
};
use map::Map;
pub(crate) use map::Redirect;
pub(crate) use slot_map::ShardId;
use slot_map::slot_of;

/// The masters of a Redis Cluster, with a [`Pool`] for each shard, made when it is first used. A
/// clone shares the pools. Requires the feature `cluster`.
///
/// The nodes are asked for the map of slots when a key is first used, when a connection fails, when
/// a `MOVED` names an unknown node, and every ten seconds while connections are lent. The first
/// answer is believed until a `MOVED` or an error contradicts it. Each new connection is checked
/// with `ROLE`, and must lead to a master. After a failover, connections to the old master are
/// closed before they are lent again.
///
/// Functions take a connection to the master that has their lock:
///
/// ```no_run
/// use std::time::Duration;
/// use leasehold::{Nodes, acquire_lock_with_timeout, release_lock};
///
/// let nodes = Nodes::connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000")?;
/// let (wait, lease) = (Duration::from_secs(60), Duration::from_secs(30));
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
/// All keys of one call must be in one slot. A hash tag puts a key into the slot of a lock: the
/// lock `{shop}:report` is in the slot of `{shop}:total`. Otherwise the server answers `CROSSSLOT`,
/// and nothing is done.
#[derive(Clone)]
pub struct Nodes {
    inner: Arc<Inner>,
}

struct Inner {
    process: Process,
    map: Arc<Map>,
    pools: PerShard<Pool>,
    settings: PoolBuilder,
    access: Access,
}

impl Nodes {
    /// Creates the nodes with the defaults of [`PoolBuilder`], for a URL such as
    /// `redis+cluster://10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000`.
    ///
    /// Opens no connection and does not block. The URL
    /// `redis+cluster://[[user]:password@]host[:port][,host[:port]…]` contains some of the nodes
    /// (default port 6379), which name the others. User and password are those of all nodes.
    /// `rediss+cluster://` uses TLS (feature `tls-rustls`, the system's certificates).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL is not valid. The error does not repeat the URL, which may
    /// hold a password.
    ///
    /// ```
    /// let nodes = leasehold::Nodes::connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000");
    /// assert!(nodes.is_ok());
    /// let nodes = leasehold::Nodes::connect("redis://10.0.0.1:7000");
    /// assert!(matches!(nodes, Err(leasehold::Error::Invalid { argument: "url", .. })));
    /// ```
    pub fn connect(url: &str) -> Result<Self> {
        Pool::builder().connect_nodes(url)
    }

    /// Lends a connection to the master that has the lock with this name, by the key `lock:` and
    /// the name.
    ///
    /// Returns within [`PoolBuilder::get_timeout`] (default 2 s). The lock's slot may move at any
    /// time; then a function on the connection fails with [`Error::Redis`], whose code is `MOVED`,
    /// and has done nothing. [`run`](Self::run) follows the move.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a name that no lock can have.
    /// - [`Error::Pool`]: no node has named the shard of the lock, no connection could be opened,
    ///   or all connections to the shard are lent.
    /// - [`Error::TooOld`], [`Error::Forked`]: as for [`Pool::get`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let nodes = leasehold::Nodes::connect("redis+cluster://10.0.0.1:7000")?;
    /// let mut conn = nodes.get_for("report")?;
    /// let token = leasehold::acquire_lock(&mut conn, "report", Duration::from_secs(5))?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn get_for(&self, name: &str) -> Result<PooledConnection> {
        Operation::new("Nodes::get_for", name).run(|_| self.get_for_key(LockName::new(name)?.key()))
    }

    /// Lends a connection to the master that has this key: the key of a lock with another
    /// [prefix](crate::Options::prefix), or a key of your own data.
    ///
    /// # Errors
    /// As for [`get_for`](Self::get_for).
    pub fn get_for_key(&self, key: &str) -> Result<PooledConnection> {
        self.inner.process.refuse_forked_child()?;
        self.lend_for(key, self.deadline())
    }

    /// Runs **one** function of this crate on a connection to the master that has the lock with
    /// this name, and reruns it on another connection if that master answers that the lock has
    /// moved.
    ///
    /// The closure is rerun only if it returns an [`Error::Redis`] with one of the codes `MOVED`,
    /// `ASK`, `TRYAGAIN`, `CLUSTERDOWN`, `MASTERDOWN` or `LOADING`: a function that returns such an
    /// error has done nothing. `run` follows at most five `MOVED`; after the other codes it pauses
    /// for some milliseconds and retries until [`PoolBuilder::get_timeout`] is over. It never
    /// retries after an outcome that is [unknown](Error::Unknown). **If the closure calls two
    /// functions and the second is refused, the first is called twice.**
    ///
    /// The lock may move while a function holds it. Then the lock stays held, under the
    /// [token](Error::token) of the error, until it is released with `run`, or its lease ends.
    /// [`transaction_with_lock`](crate::transaction_with_lock) has written nothing in this case,
    /// and `run` returns this error. After [`with_lock`](crate::with_lock), whose closure has run,
    /// the error is in [`Ran::released`](crate::Ran::released). Commands that such a closure sends
    /// after the move are refused, and `run` does not repeat them, because it cannot know what the
    /// closure did before.
    ///
    /// # Errors
    /// The errors of the closure, and those of [`get_for`](Self::get_for).
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
        function: impl FnMut(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        Operation::new("Nodes::run", name).run(|_| self.run_on_master(name, function))
    }

    fn run_on_master<T>(
        &self,
        name: &str,
        mut function: impl FnMut(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let lock = LockName::new(name)?;
        self.inner.process.refuse_forked_child()?;
        let deadline = self.deadline();
        let (mut hops, mut pauses) = (0, Backoff::new());
        let mut before = None;
        loop {
            let outcome = match self.lend_for(lock.key(), deadline) {
                Ok(mut conn) => function(&mut conn),
                // The refusal that caused the retry says more than this error.
                Err(error) => return before.unwrap_or(Err(error)),
            };
            let Err(Error::Redis { source, .. }) = &outcome else {
                return outcome;
            };
            let has_moved = source.code() == Some("MOVED");
            let is_over = match self.redirect(source) {
                None => true,
                Some(Redirect::Moved) => {
                    hops += 1;
                    hops > HOPS
                }
                Some(Redirect::Moving | Redirect::Down) => !pauses.pause(deadline),
            };
            if is_over {
                return outcome;
            }
            before = (!has_moved).then_some(outcome);
        }
    }

    /// The shard that has this key. Asks for the map if the shard is unknown or in doubt.
    pub(crate) fn shard_for(&self, key: &str, deadline: Deadline) -> Result<ShardId> {
        self.inner.map.shard_of(key, deadline)
    }

    /// The shard that has this key, according to the map. Sends nothing and does not wait.
    pub(crate) fn known_shard_of(&self, key: &str) -> Option<ShardId> {
        self.inner.map.known.lock().shard_of(slot_of(key))
    }

    pub(crate) fn limits(&self) -> Limits {
        self.inner.settings.limits()
    }

    /// The process that made these nodes, and owns all their connections.
    pub(crate) fn process(&self) -> Process {
        self.inner.process
    }

    /// The pool of a shard: the same one each time, even after a failover.
    pub(crate) fn pool_of(&self, shard: ShardId) -> Result<Pool> {
        let inner = &self.inner;
        inner.pools.get_or_make(shard, || {
            let map = Arc::clone(&inner.map);
            let to_shard = Arc::new(ShardLocator { map, shard });
            (inner.settings.clone()).build_to(inner.access.clone(), Some(to_shard))
        })
    }

    /// Records a redirect in the map. `None`: the error is not a redirect. Sends nothing and does
    /// not wait.
    pub(crate) fn redirect(&self, error: &RedisError) -> Option<Redirect> {
        self.inner.map.redirect(error)
    }

    /// Checks with a `PING` that the master of a shard answers, on a connection outside the pools:
    /// a frozen master accepts connections and never answers. Ends by the deadline or the connect
    /// time-out.
    pub(crate) fn ping(&self, shard: ShardId, deadline: Deadline) -> Result<()> {
        let map = &self.inner.map;
        let place = map.locate(shard, deadline)?;
        let client = map.access.client(deadline)?;
        let ping = |connection: &mut Connection| match redis::cmd("PING").exec(connection) {
            Err(silence) if silence.is_io_error() => Err(silence),
            // A refusal is an answer.
            _ => Ok(()),
        };
        let asked = map.ask_at(&client, &place.address, deadline, ping);
        asked
            .map(drop)
            .map_err(|error| self.not_reached(shard, error))
    }

    fn not_reached(&self, shard: ShardId, error: RedisError) -> Error {
        let mut known = self.inner.map.known.lock();
        known.set_in_doubt(shard, None, true);
        let address = known
            .place(shard)
            .map(|place| format!("redis at {}", place.address));
        failure(&address.unwrap_or_default(), self.limits().connect, error)
    }

    /// The shards that serve slots, according to the map, and the number of slots that none serves.
    pub(crate) fn shards(&self) -> (BTreeSet<ShardId>, usize) {
        self.inner.map.known.lock().serving()
    }

    /// True if this shard serves a slot, according to the map.
    pub(crate) fn serves_slots(&self, shard: ShardId) -> bool {
        self.inner.map.known.lock().serves_slots(shard)
    }

    fn lend_for(&self, key: &str, deadline: Deadline) -> Result<PooledConnection> {
        let pool = self.pool_of(self.shard_for(key, deadline)?)?;
        pool.get_within(deadline.remaining())
    }

    /// Asks the nodes for the map if it is unknown or in doubt.
    ///
    /// # Errors
    /// No shard is known.
    pub(crate) fn learn_shards(&self, deadline: Deadline) -> Result<()> {
        // The slot of this key may be unserved.
        let asked = self.shard_for("", deadline);
        match asked {
            Err(error) if self.shards().0.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Lends a connection to each master that serves slots, or returns the error for that master.
    ///
    /// # Errors
    /// No shard is known.
    pub(crate) fn lend_each(&self) -> Result<Vec<Result<PooledConnection>>> {
        self.learn_shards(self.deadline())?;
        let lend = |shard| self.pool_of(shard)?.get();
        Ok(self.shards().0.into_iter().map(lend).collect())
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.inner.settings.get_timeout)
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes")
            .field("shards_in_use", &self.inner.pools.all().len())
            .finish_non_exhaustive()
    }
}

/// One value for each shard that has been used, made at its first use.
pub(crate) struct PerShard<T>(Mutex<HashMap<ShardId, T>>);

impl<T: Clone> PerShard<T> {
    pub(crate) fn get_or_make(
        &self,
        shard: ShardId,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut values = self.0.lock();
        if let Some(value) = values.get(&shard) {
            return Ok(value.clone());
        }
        let value = make()?;
        values.insert(shard, value.clone());
        Ok(value)
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().values().cloned().collect()
    }
}

impl<T> Default for PerShard<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Finds the master of a shard for the connections of a pool.
struct ShardLocator {
    map: Arc<Map>,
    shard: ShardId,
}

impl MasterLocator for ShardLocator {
    fn locate(&self, deadline: Deadline) -> Result<MasterPlace> {
        self.map.locate(self.shard, deadline)
    }

    fn epoch(&self) -> u64 {
        self.map.known.lock().epoch(self.shard)
    }

    fn confirm(&self, epoch: u64) {
        let mut known = self.map.known.lock();
        known.set_in_doubt(self.shard, Some(epoch), false);
    }

    /// Does nothing: an attempt to open the next connection to this master says more than the
    /// nodes, and nodes of other shards may be silent.
    fn doubt(&self) {}

    fn not_reached(&self, epoch: u64) {
        let mut known = self.map.known.lock();
        known.set_in_doubt(self.shard, Some(epoch), true);
    }

    fn moved(&self) {
        self.map.known.lock().in_doubt = true;
    }

    fn check(&self, unless_within: Duration) {
        self.map.check(self.shard, unless_within);
    }

    fn master_name(&self) -> String {
        let place = self.map.known.lock().place(self.shard);
        let place = place.map_or_else(String::new, |it| format!(", {}", it.address));
        format!("the master of a shard{place}")
    }
}

impl PoolBuilder {
    /// Builds a pool for each master of a cluster, for a URL as for [`Nodes::connect`]. Opens no
    /// connection and does not block.
    ///
    /// Here `get_timeout` bounds [`Nodes::get_for`], including asking the nodes, and the retries of
    /// [`Nodes::run`] after a node's refusal, and `connect_timeout` also asking the nodes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL is not valid, or a size or a time-out is outside its limits.
    ///
    /// ```
    /// let nodes = leasehold::Pool::builder()
    ///     .max_size(4)
    ///     .connect_nodes("redis+cluster://10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_nodes(self, url: &str) -> Result<Nodes> {
        self.build_on_nodes(&nodes_of(url)?)
    }

    /// Like [`connect_nodes`](Self::connect_nodes) for clients, for settings that a URL cannot
    /// express. Opens no connection and does not block.
    ///
    /// The settings of the first client (password, TLS) are used for all nodes. The other clients
    /// only give their addresses.
    ///
    /// # Errors
    /// As for [`connect_nodes`](Self::connect_nodes), and if there is no client, one does not use
    /// TCP, or one has a database other than 0, the only one of a cluster.
    ///
    /// ```
    /// use leasehold::{Pool, redis::Client};
    ///
    /// let some = ["10.0.0.1", "10.0.0.2"]
    ///     .map(|host| Client::open(format!("redis://:password@{host}:7000/")).unwrap());
    /// let nodes = Pool::builder().build_on_nodes(&some)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn build_on_nodes(self, nodes: &[Client]) -> Result<Nodes> {
        self.check()?;
        let seeds = nodes.iter().map(address_of).collect::<Result<Vec<_>>>()?;
        let first = nodes.first();
        let first = first.ok_or_else(|| Error::invalid("nodes", "at least one is required"))?;
        let access = self.access(first)?;
        let (limit, address_map) = (self.limits().connect, self.address_map.clone());
        Ok(Nodes {
            inner: Arc::new(Inner {
                process: Process::current(),
                map: Arc::new(Map::new(access.clone(), seeds, address_map, limit)),
                pools: PerShard::default(),
                settings: self,
                access,
            }),
        })
    }
}

fn address_of(client: &Client) -> Result<Address> {
    let settings = client.get_connection_info();
    if settings.redis_settings().db() != 0 {
        let reason = "a cluster has only database 0";
        return Err(Error::invalid("nodes", reason));
    }
    match settings.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(Address::new(host, *port))
        }
        _ => Err(Error::invalid("nodes", "they must use TCP")),
    }
}
