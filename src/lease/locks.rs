//! What a user holds before.

use std::{
    fmt, process,
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{RedisResult, Value};

use super::{
    acquire,
    guard::Lease,
    inspection::Inspection,
    keeper::{Keeper, Limits},
    options::Options,
    server::{Heard, Patience, RedisServer, Server},
    waiting::Queues,
};
use crate::{
    Owner, Pool, Result,
    error::Operation,
    name::LockName,
    recipes::{holding::Kind, inspect::understood},
    script::{self, Call, yes_or_no},
    time::Clock,
};

/// Locks of all kinds on one server: guards that wait in turn, renew themselves and know when they are lost. Cloning it
/// shares it.
///
/// Beside the pool it has three connections and two threads of its own, however many locks there are: one connection
/// that listens for releases, one on which those who wait ask for their locks, and the
/// [`Watchdog`](crate::Watchdog)'s. They are opened when they are needed first. All end with the last clone, lock and
/// lease; the thread that listens a tenth of a second later, or when a connect that is under way has failed.
///
/// A third thread is there while somebody wants to be [called](crate::LostSignal::notify).
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
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
    options: Options,
}

/// What all clones, locks and leases share.
pub(super) struct Shared {
    pub(super) server: Arc<dyn Server>,
    pub(super) clock: Clock,
    pub(super) keeper: Arc<Keeper>,
    pub(super) queues: Queues,
    /// A child has a copy of all this after a fork.
    pub(super) process: u32,
}

impl Locks {
    /// Locks on the server of this URL, with a [`Pool`] of its own; see [`Pool::connect`].
    ///
    /// Opens no connection and waits for nothing.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the URL cannot be read.
    /// - [`Error::Thread`](crate::Error::Thread): a thread could not be started.
    pub fn connect(url: &str) -> Result<Self> {
        Self::new(&Pool::connect(url)?)
    }

    /// Locks that share a pool with other work.
    ///
    /// A lock takes a connection of the pool for the moment of an acquire or a release, and none while it waits or holds.
    ///
    /// # Errors
    /// [`Error::Thread`](crate::Error::Thread): a thread could not be started.
    pub fn new(pool: &Pool) -> Result<Self> {
        Self::on(Arc::new(RedisServer::new(pool)))
    }

    /// Locks on this server, real or not.
    pub(crate) fn on(server: Arc<dyn Server>) -> Result<Self> {
        let clock = server.clock();
        let limits = Limits {
            connect: server.connect_timeout(),
            answer: server.io_timeout(),
        };
        let shared = Arc::new(Shared {
            clock,
            keeper: Keeper::start(server.link(), limits, true, clock)?,
            queues: Queues::new(clock),
            process: process::id(),
            server,
        });
        let heard: Weak<Shared> = Arc::downgrade(&shared);
        shared.server.tell(heard)?;
        Ok(Self {
            shared,
            options: Options::new(),
        })
    }

    /// The same locks, held in another way from now on.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            options,
        }
    }

    /// The lock of this name for one holder at a time: [`recipes::mutex`](crate::recipes::mutex).
    pub fn lock(&self, name: &str) -> Lock {
        self.of_kind(Kind::Mutex, name)
    }

    /// The lock of this name for one owner at a time, who may enter again:
    /// [`recipes::reentrant`](crate::recipes::reentrant). The owner is the thread, unless [`Options::owner`] names one.
    pub fn reentrant(&self, name: &str) -> Lock {
        self.of_kind(Kind::Reentrant, name)
    }

    /// The lock of this name for any number of readers: [`recipes::read_write`](crate::recipes::read_write).
    pub fn read(&self, name: &str) -> Lock {
        self.of_kind(Kind::Read, name)
    }

    /// The lock of this name for one writer, and no reader beside: [`recipes::read_write`](crate::recipes::read_write).
    pub fn write(&self, name: &str) -> Lock {
        self.of_kind(Kind::Write, name)
    }

    fn of_kind(&self, kind: Kind, name: &str) -> Lock {
        Lock {
            locks: self.clone(),
            kind,
            name: name.to_owned(),
        }
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// A thread of ours has let a lock go.
    pub(super) fn released(&self, key: &str) {
        self.queues.released(key);
    }
}

impl Heard for Shared {
    fn changed(&self, key: &str) {
        self.queues.changed(key);
        self.keeper.changed(key);
    }

    fn anything(&self) {
        self.queues.anything();
        self.keeper.look_at_all();
    }

    fn relies(&self) -> bool {
        !self.queues.is_empty() || self.keeper.leases() > 0
    }

    fn heartbeat(&self) {
        if !self.queues.is_empty() && !self.server.line_is_alive() {
            self.queues.anything();
        }
    }

    #[cfg(feature = "testing")]
    fn clock_moved(&self) {
        self.queues.clock_moved();
        self.keeper.clock_moved();
    }

    #[cfg(feature = "testing")]
    fn settle(&self, longest: Duration) {
        self.keeper.settle(longest);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.keeper.is_a_copy() {
            return;
        }
        self.server.close();
        self.keeper.close();
    }
}

/// One lock, of whatever kind: to be acquired as often as you like, by any thread.
///
/// Making it sends nothing. A name that cannot be a lock's is an error of whatever is done with it first.
#[derive(Clone, Debug)]
#[must_use]
pub struct Lock {
    locks: Locks,
    kind: Kind,
    name: String,
}

impl Lock {
    /// The same lock, held in another way.
    pub fn with(mut self, options: Options) -> Self {
        self.locks.options = options;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the lock, waiting up to `timeout` for it.
    ///
    /// Threads of this process that want the same lock are served first in, first out, and only the first of them asks the
    /// server, when it says that something has happened to the lock. A thread that waits has no connection of the pool.
    /// There is always one try, even for a wait of nothing; `Duration::MAX` waits for ever. While it waits it survives a
    /// server that restarts or is silent; then the last failure is the answer, and not `Contended`. A server that cannot be
    /// reached by the first attempt is an error at once.
    ///
    /// One round trip on a free lock. The wait ends at `timeout`, at most one I/O time-out of the pool later while the server
    /// is silent.
    ///
    /// # Errors
    /// - [`Error::Contended`](crate::Error::Contended): somebody else had it all the time.
    /// - [`Error::Invalid`](crate::Error::Invalid): the name or an option. Nothing was sent.
    /// - [`Error::Unknown`](crate::Error::Unknown): no answer came, so it may be ours. It is given back as soon as the
    ///   server answers, or ends with its lease.
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::TooOld`](crate::Error::TooOld): no connection.
    /// - [`Error::WrongKind`](crate::Error::WrongKind): the key is no lock of this kind.
    /// - [`Error::Redis`](crate::Error::Redis): the server refused.
    pub fn acquire(&self, timeout: Duration) -> Result<Lease> {
        let operation = Operation::new("Lock::acquire", &self.name);
        self.acquire_as(operation, timeout)?
            .ok_or_else(|| operation.contended())
    }

    /// Takes the lock if it is free. `Ok(None)`: somebody else has it.
    ///
    /// One round trip. Does not stand in the queue, so that it may be faster than those who do.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), except `Contended`.
    pub fn try_acquire(&self) -> Result<Option<Lease>> {
        let operation = Operation::new("Lock::try_acquire", &self.name);
        self.acquire_as(operation, Duration::ZERO)
    }

    /// Runs something while the lock is held, and releases it on return and on panic.
    ///
    /// Waits as [`acquire`](Self::acquire) does. What runs is not stopped when the lease is lost: it may ask the lease.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); it has not run then. And [`Error::Lost`](crate::Error::Lost): it has run, but the
    /// lease ended first, so that somebody else may have had the lock at the same time.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # fn count_pages() -> u64 { 0 }
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let pages = locks
    ///     .lock("report:daily")
    ///     .run(Duration::from_secs(5), |_lease| count_pages())?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn run<T>(&self, timeout: Duration, run: impl FnOnce(&Lease) -> T) -> Result<T> {
        let lease = self.acquire(timeout)?;
        let done = run(&lease);
        match lease.release() {
            // It was held until now; that nobody knows whether it has been let go does not undo what was done.
            Ok(()) | Err(crate::Error::Unknown { .. } | crate::Error::Pool { .. }) => Ok(done),
            Err(error) => Err(error),
        }
    }

    /// Who has the lock, since when and for how long still, and how many threads of this process wait for it.
    ///
    /// One round trip; changes nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid), [`Error::Pool`](crate::Error::Pool) and
    /// [`Error::Redis`](crate::Error::Redis), as [`acquire`](Self::acquire).
    pub fn inspect(&self) -> Result<Inspection> {
        let lock = self.lock_name()?;
        let operation = Operation::new("Lock::inspect", &self.name);
        let asked = self.ask(&script::inspect(&lock))?;
        let found = asked
            .and_then(|answer| understood(&answer))
            .map_err(|error| operation.failed(error))?;
        let waiting_here = self.locks.shared.queues.waiting(lock.key());
        Ok(Inspection::new(found, waiting_here))
    }

    /// Takes the lock away from whoever has it, all readers included: for operators. False: nobody had it.
    ///
    /// The holder is told, where the server tells of changes, but may write until it knows: a fencing token stops that.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect), and [`Error::Unknown`](crate::Error::Unknown): no answer came.
    pub fn force_release(&self) -> Result<bool> {
        let lock = self.lock_name()?;
        let operation = Operation::new("Lock::force_release", &self.name);
        let asked = self.ask(&script::force_release(&lock))?;
        self.locks.shared.released(lock.key());
        asked
            .and_then(|answer| yes_or_no(&answer))
            .map_err(|error| operation.unanswered(None, error))
    }

    fn ask(&self, call: &Call) -> Result<RedisResult<Value>> {
        let asked = self.locks.shared.server.ask(call, Patience::USUAL)?;
        Ok(asked.answer)
    }

    fn acquire_as(&self, operation: Operation<'_>, timeout: Duration) -> Result<Option<Lease>> {
        let (shared, options) = (&self.locks.shared, &self.locks.options);
        acquire::acquire(
            operation,
            shared,
            options,
            self.kind,
            self.lock_name()?,
            self.owner(),
            timeout,
        )
    }

    fn lock_name(&self) -> Result<LockName> {
        LockName::prefixed(&self.locks.options.prefix, &self.name)
    }

    fn owner(&self) -> Owner {
        match (&self.locks.options.owner, self.kind) {
            (Some(owner), _) => owner.clone(),
            (None, Kind::Reentrant) => Owner::current_thread(),
            (None, _) => Owner::described(),
        }
    }
}
