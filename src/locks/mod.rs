//! The main API: locks that wait, renew themselves and report a loss.
//!
//! `Locks` creates a [`lock`]. [`acquire`] waits for it, judges the replies with [`attempts`], and
//! creates a [`lease`], the guard; [`adopt`] creates one for a hold of another process. [`release`]
//! hands the lock over, releases it, or leaves the release to the watchdog's thread. [`run`] does
//! work under a lock; [`transacting`] reads and writes while one is held, or a set of them. A
//! [`set`] acquires several locks in one order: [`set_wait`] is its part in the wait for each.
//! [`inspection`] is for operators. They share a [`stack`]: the server, the keeper of the leases
//! and the queues. [`stacks`] maps a key to its stack.

// The documentation lists the functions of a type in the order of these files.
mod lease;
mod lock;

mod acquire;
mod adopt;
mod attempts;
mod commit;
mod held;
mod inspection;
mod release;
mod run;
mod set;
mod set_commit;
mod set_wait;
mod stack;
mod stacks;
mod transacting;

pub use held::HeldLocks;
pub use inspection::Inspection;
pub use lease::Lease;
pub use lock::Lock;
pub use run::Once;
pub use set::{Leases, LockSet};
pub use transacting::Committed;

use std::sync::Arc;

#[cfg(feature = "cluster")]
use crate::cluster::Nodes;
use crate::{
    error::Result,
    name::LockName,
    options::{Options, settings::Settings},
    pool::{Pool, PoolBuilder, Target},
    probe::Probe,
    recipes::LockKind,
    server::{RedisServer, Server},
};
use stacks::Stacks;
use uuid::Uuid;

/// Locks of all kinds on one server, or on a Redis Cluster.
///
/// Its locks wait in turn, renew themselves and report a loss. A clone shares everything.
///
/// Besides the pool it has three connections and two threads of its own, for any number of locks:
/// one connection listens for releases, one carries the attempts of waiting threads, and one is the
/// [`Watchdog`](crate::Watchdog)'s. Each opens at its first use. All close with the last clone,
/// lock and lease. Dropping the last of these does not join the threads: they exit within 100 ms,
/// or when pending I/O ends.
///
/// A third thread starts with the first [callback](crate::LostSignal::notify), or the first lock
/// that is acquired with [`Options::events`].
///
/// On a cluster each shard has its own connections and threads, created at its first use, so a
/// shard that is down or silent does not delay the locks of the others. A lock moves with its slot.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// # fn rebuild(edition: Option<leasehold::FencingToken>) {}
/// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
/// let lease = locks.lock("report:daily").acquire(Duration::from_secs(30))?;
/// rebuild(lease.fencing_token());
/// lease.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    pub(crate) stacks: Stacks,
    pub(crate) settings: Settings,
}

impl Locks {
    /// Creates locks on the server of this URL, with their own [`Pool`].
    ///
    /// [`Pool::connect`] lists the forms of URL. The feature `cluster` adds that of a cluster, such
    /// as `redis+cluster://a:7000,b:7000,c:7000`. [A page](crate::docs::servers) says what to set
    /// on the servers.
    ///
    /// Opens no connection and does not wait. **Create one for the whole program**; clones share
    /// it. Each has its own threads, which may run for up to 30 s after the last clone is dropped:
    /// one per request would exhaust the system's threads.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the URL cannot be read.
    /// - [`Error::Thread`](crate::Error::Thread): a thread could not be started. On a cluster this
    ///   error occurs at the first use of a shard.
    pub fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, Pool::builder())
    }

    /// Like [`connect`](Self::connect), with other settings of the pool (on a cluster, of all
    /// pools): time-outs, a [login](PoolBuilder::login) that changes,
    /// [certificates](PoolBuilder#method.certificates).
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): a setting cannot be used.
    /// - All others as [`connect`](Self::connect).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, Pool};
    ///
    /// let settings = Pool::builder().io_timeout(Duration::from_millis(500));
    /// let locks = Locks::connect_with("redis://10.0.0.1/", settings)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_with(url: &str, settings: PoolBuilder) -> Result<Self> {
        match Target::of(url)? {
            #[cfg(feature = "cluster")]
            Target::Nodes(nodes) => Ok(Self::on_nodes(&settings.build_on_nodes(&nodes)?)),
            target => Self::new(&settings.build_at(target)?),
        }
    }

    /// Creates locks that share a pool with other work.
    ///
    /// An acquire or a release borrows a connection of the pool for its round trip. A thread that
    /// waits for a lock or holds one borrows none.
    ///
    /// # Errors
    /// - [`Error::Thread`](crate::Error::Thread): a thread could not be started.
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child, and the parent created
    ///   the pool.
    pub fn new(pool: &Pool) -> Result<Self> {
        pool.refuse_forked_child()?;
        Self::on(Arc::new(RedisServer::new(pool)))
    }

    /// Creates locks on a Redis Cluster that share its pools with other work.
    ///
    /// Opens no connection and starts no thread: each shard does so at its first use.
    ///
    /// Requires the feature `cluster`.
    ///
    /// A lock moves with its slot to another shard, even while it is held or waited for. While the
    /// slot migrates, a lock that has already moved, or is free, cannot be reached: a wait retries
    /// until its deadline, any other call for one I/O time-out, and then returns
    /// [`Error::Redis`](crate::Error::Redis) with the code `ASK` or `TRYAGAIN`. A commit fails in
    /// the same way even if the lock has not moved yet, except under a mutex. A slot usually
    /// migrates in a millisecond. A lease may be lost if the migration of its slot takes most of
    /// the lease.
    ///
    /// Two names with the same part in braces share a slot: `{shop}:report` and `{shop}:orders`.
    /// The keys that [`Lease::commit`] writes must share the slot of the lock.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, Nodes};
    ///
    /// let nodes = Nodes::connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000")?;
    /// let lock = Locks::on_nodes(&nodes).lock("report:daily");
    /// let lease = lock.acquire(Duration::from_secs(30))?;
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "cluster")]
    #[must_use]
    pub fn on_nodes(nodes: &Nodes) -> Self {
        Self::with_stacks(Stacks::of_shards(nodes))
    }

    /// Creates locks on this server or stand-in.
    pub(crate) fn on(server: Arc<dyn Server>) -> Result<Self> {
        Ok(Self::with_stacks(Stacks::of_server(server)?))
    }

    fn with_stacks(stacks: Stacks) -> Self {
        Self {
            stacks,
            settings: Settings::default(),
        }
    }

    /// Returns these locks with these options. Options that are not set keep their values. `self`
    /// does not change.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self {
            stacks: self.stacks.clone(),
            settings: self.settings.clone().changed_by(options),
        }
    }

    /// Returns the lock of this name for one holder at a time. See
    /// [`recipes::mutex`](crate::recipes::mutex).
    #[doc(alias = "mutex")]
    pub fn lock(&self, name: &str) -> Lock {
        self.of_kind(LockKind::Mutex, name)
    }

    /// Returns the lock of this name for one owner at a time, which may acquire it again.
    ///
    /// The owner is the thread, unless [`Options::owner`] names one. See
    /// [`recipes::reentrant`](crate::recipes::reentrant).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.reentrant("accounts");
    /// let outer = lock.acquire(Duration::from_secs(30))?;
    /// let inner = lock.acquire(Duration::from_secs(30))?; // the same thread: at once
    /// inner.release()?;
    /// outer.release()?; // now it is free
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn reentrant(&self, name: &str) -> Lock {
        self.of_kind(LockKind::Reentrant, name)
    }

    /// Returns the lock of this name for any number of readers. See
    /// [`recipes::read_write`](crate::recipes::read_write).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let one = locks.read("catalogue").acquire(Duration::from_secs(30))?;
    /// let another = locks.read("catalogue").acquire(Duration::from_secs(30))?; // both at once
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn read(&self, name: &str) -> Lock {
        self.of_kind(LockKind::Read, name)
    }

    /// Returns the lock of this name for one writer and no readers. See
    /// [`recipes::read_write`](crate::recipes::read_write).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// // While a writer waits, new readers wait too.
    /// let lease = locks.write("catalogue").acquire(Duration::from_secs(30))?;
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn write(&self, name: &str) -> Lock {
        self.of_kind(LockKind::Write, name)
    }

    /// Returns the semaphore of this name, for at most `permits` holders at a time: 1 to 10,000.
    /// See [`recipes::semaphore`](crate::recipes::semaphore).
    ///
    /// A lease is one permit. It has no fencing token, since the holders have no order.
    /// [`Options::hand_over`] and [`run_once`](Lock::run_once) return
    /// [`Error::Invalid`](crate::Error::Invalid). [`Lease::commit`] and [`Lease::transaction`]
    /// execute only while the permit is held. An acquire, a release or a renewal of another holder
    /// restarts them, and too many of these cause [`Error::Contended`](crate::Error::Contended).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let partner_api = locks.semaphore("partner-api", 3);
    /// let lease = partner_api.acquire(Duration::from_secs(30))?; // one of at most three
    /// println!("{:?} permits are free", partner_api.inspect()?.free_permits());
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn semaphore(&self, name: &str, permits: u32) -> Lock {
        self.of_kind(LockKind::Semaphore { permits }, name)
    }

    /// Returns the set of the mutexes of these names, to acquire all of them or none.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let both = locks.all_of(["account:4711", "account:4712"]);
    /// let leases = both.acquire(Duration::from_secs(30))?;
    /// // move the money
    /// leases.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "multilock")]
    pub fn all_of(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> LockSet {
        LockSet::of(names.into_iter().map(|name| self.lock(name.as_ref())))
    }

    /// Checks what the server offers, and what that means for locks, as a health check at the start
    /// of a program. [`Probe`] lists the checks.
    ///
    /// Opens its own connections, up to three at a time, and sends some 50 commands. Writes one
    /// key, the [prefix](Options::prefix) and `probe:` with a random number, in a script that
    /// deletes it. Leaves the script in the server's cache. A refusal by the server or its access
    /// list is a finding, not an error.
    ///
    /// On a cluster it asks all masters, each with a key of its own, and returns the worst finding
    /// on each topic.
    ///
    /// Ends within 10 s plus one [time-out to connect](crate::PoolBuilder::connect_timeout): the
    /// remaining checks are then [not told](crate::Severity::NotTold).
    ///
    /// # Errors
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::TooOld`](crate::Error::TooOld),
    ///   [`Error::Invalid`](crate::Error::Invalid): no connection, as for
    ///   [`Pool::get`](crate::Pool::get); on a cluster, to none of the masters.
    /// - [`Error::Invalid`](crate::Error::Invalid): the prefix is not valid.
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child.
    ///
    /// # Examples
    /// ```no_run
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let probe = locks.probe()?;
    /// println!("{probe}");
    /// assert!(probe.locks_work());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn probe(&self) -> Result<Probe> {
        self.stacks.process.refuse_forked_child()?;
        let name = format!("probe:{}", Uuid::new_v4());
        self.stacks
            .probe(&LockName::prefixed(&self.settings.prefix, &name)?)
    }

    /// Lists the held locks of all kinds whose names begin with this text, for operators.
    ///
    /// Reads the names of all keys of the server by `SCAN`, on each master of a cluster, and then
    /// looks at each lock, as [`Lock::inspect`](crate::Lock::inspect) does: one round trip per
    /// 1,000 keys, and one per lock. It looks at no more than 10,000 names and ends within 30 s
    /// plus one time-out of the pool: see [`HeldLocks::is_complete`]. A lock that is acquired or
    /// released meanwhile, or whose slot moves, may be missing. Keys that are not locks are
    /// omitted. A lock or a master of a cluster that cannot be asked is one of the
    /// [failures](HeldLocks::failures).
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the prefix is not valid.
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::Redis`](crate::Error::Redis): no server can
    ///   be reached, or they refuse `SCAN`.
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child.
    ///
    /// # Examples
    /// ```no_run
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// for (name, seen) in &locks.held("report:")? {
    ///     println!("{name}: {:?}", seen.holders());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn held(&self, begin: &str) -> Result<HeldLocks> {
        self.list_held(begin)
    }

    fn of_kind(&self, kind: LockKind, name: &str) -> Lock {
        Lock::new(&self.stacks, &self.settings, kind, name)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
