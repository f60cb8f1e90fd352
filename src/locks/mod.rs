//! Locks that are waited for, kept and given back: what most users take.
//!
//! `Locks` makes a [`lock`]; [`acquire`] waits for it, with [`attempts`] for what the answers lead
//! to, and makes a [`lease`], the guard. [`release`] hands it over, gives it back, or leaves that
//! to the watchdog's thread. [`run`] does work under a lock, [`commit`] reads and writes while it
//! is held. A [`stack`] is what all of them share: the server, the keeper of the leases and the
//! queues; [`stacks`] says which one a key has.

mod acquire;
mod attempts;
mod commit;
mod lease;
mod lock;
mod options;
mod release;
mod run;
mod stack;
mod stacks;

pub use crate::recipes::{inspect::Holder, once::LastRun, ran::Ran};
pub use commit::Committed;
pub use lease::Lease;
pub use lock::{Inspection, Lock};
pub use options::Options;
pub use run::Once;

use std::sync::Arc;

#[cfg(feature = "cluster")]
use crate::{cluster::Nodes, pool::is_of_a_cluster};
use crate::{
    error::Result,
    pool::Pool,
    recipes::hold::LockKind,
    server::{RedisServer, Server},
};
use options::Settings;
use stacks::Stacks;

/// Locks of all kinds on one server, or on a Redis Cluster: guards that wait in turn, renew
/// themselves and know when they are lost. Cloning it shares it.
///
/// Beside the pool it has three connections and two threads of its own, however many locks there
/// are: one connection that listens for releases, one on which those who wait ask for their locks,
/// and the [`Watchdog`](crate::Watchdog)'s. They are opened when they are needed first. All end
/// with the last clone, lock and lease. Nobody waits for the threads: they end within a tenth of a
/// second, or when a connect or an answer that they wait for has come or failed.
///
/// A third thread is there once a [callback](crate::LostSignal::notify) is registered, or a lock is
/// taken with [`Options::events`].
///
/// On a cluster each shard of which a name is used has all of that for itself, made when it is
/// first used: one that is down, or silent, delays no lock of another. A lock is followed when its
/// slot moves.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// # fn rebuild(edition: Option<leasehold::FencingToken>) {}
/// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
/// let lease = locks.lock("report:daily").acquire(Duration::from_secs(5))?;
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
    /// Locks on the server of this URL, with a [`Pool`] of its own, see [`Pool::connect`]; or, with
    /// the feature `cluster`, on the cluster of a URL such as
    /// `redis+cluster://a:7000,b:7000,c:7000`.
    ///
    /// Opens no connection and waits for nothing. **Make one for a program and keep it**; a clone
    /// shares it. Each one that is made has threads of its own, which go on for up to 30 s after
    /// the last clone is dropped: one for each request would use up what the system allows.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the URL cannot be read.
    /// - [`Error::Thread`](crate::Error::Thread): a thread could not be started. On a cluster that
    ///   is an error of the first use of a shard.
    pub fn connect(url: &str) -> Result<Self> {
        #[cfg(feature = "cluster")]
        if is_of_a_cluster(url) {
            return Ok(Self::on_nodes(&Nodes::connect(url)?));
        }
        Self::new(&Pool::connect(url)?)
    }

    /// Locks that share a pool with other work.
    ///
    /// A lock takes a connection of the pool for the moment of an acquire or a release, and none
    /// while it waits or holds.
    ///
    /// # Errors
    /// - [`Error::Thread`](crate::Error::Thread): a thread could not be started.
    /// - [`Error::Forked`](crate::Error::Forked) in the child of a fork, if the parent made the
    ///   pool.
    pub fn new(pool: &Pool) -> Result<Self> {
        pool.refuse_forked_child()?;
        Self::on(Arc::new(RedisServer::new(pool)))
    }

    /// Locks on a Redis Cluster that share its pools with other work. Opens no connection and
    /// starts no thread: that is done for each shard when a name of it is first used.
    ///
    /// With the feature `cluster`.
    ///
    /// A lock whose slot moves to another shard is followed, also while it is held or waited for.
    /// While the slot is on its way, nothing can be done with a lock that has gone ahead, or that
    /// is free: a wait tries again until its deadline, a call for one I/O time-out, and then the
    /// answer is [`Error::Redis`](crate::Error::Redis) with the code `ASK` or `TRYAGAIN`. A slot
    /// takes a millisecond, usually. A lease whose slot stays open for most of the lease may be
    /// lost.
    ///
    /// Two locks are in one slot if their names have the same part in braces, `{shop}:report` and
    /// `{shop}:orders`: [`Lease::commit`] needs that of the keys that it writes.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, Nodes};
    ///
    /// let nodes = Nodes::connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000")?;
    /// let lock = Locks::on_nodes(&nodes).lock("report:daily");
    /// let lease = lock.acquire(Duration::from_secs(5))?;
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "cluster")]
    #[must_use]
    pub fn on_nodes(nodes: &Nodes) -> Self {
        Self::with_stacks(Stacks::of_shards(nodes))
    }

    /// Locks on this server, real or not.
    pub(crate) fn on(server: Arc<dyn Server>) -> Result<Self> {
        Ok(Self::with_stacks(Stacks::of_server(server)?))
    }

    fn with_stacks(stacks: Stacks) -> Self {
        Self {
            stacks,
            settings: Settings::default(),
        }
    }

    /// These locks, held by these options; what they do not name stays as it was. The `Locks`
    /// that this is asked of does not change.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self {
            stacks: self.stacks.clone(),
            settings: self.settings.clone().changed_by(options),
        }
    }

    /// The lock of this name for one holder at a time: [`recipes::mutex`](crate::recipes::mutex).
    pub fn lock(&self, name: &str) -> Lock {
        self.of_kind(LockKind::Mutex, name)
    }

    /// The lock of this name for one owner at a time, who may enter again:
    /// [`recipes::reentrant`](crate::recipes::reentrant). The owner is the thread, unless
    /// [`Options::owner`] names one.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.reentrant("accounts");
    /// let outer = lock.acquire(Duration::from_secs(5))?;
    /// let inner = lock.acquire(Duration::from_secs(5))?; // the same thread: at once
    /// inner.release()?;
    /// outer.release()?; // now it is free
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn reentrant(&self, name: &str) -> Lock {
        self.of_kind(LockKind::Reentrant, name)
    }

    /// The lock of this name for any number of readers:
    /// [`recipes::read_write`](crate::recipes::read_write).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let one = locks.read("catalogue").acquire(Duration::from_secs(5))?;
    /// let another = locks.read("catalogue").acquire(Duration::from_secs(5))?; // both at once
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn read(&self, name: &str) -> Lock {
        self.of_kind(LockKind::Read, name)
    }

    /// The lock of this name for one writer, and no reader beside:
    /// [`recipes::read_write`](crate::recipes::read_write).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.write("catalogue").acquire(Duration::from_secs(5))?; // new readers wait meanwhile
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn write(&self, name: &str) -> Lock {
        self.of_kind(LockKind::Write, name)
    }

    fn of_kind(&self, kind: LockKind, name: &str) -> Lock {
        Lock::new(&self.stacks, &self.settings, kind, name)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
