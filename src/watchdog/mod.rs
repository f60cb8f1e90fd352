//! [`Watchdog`]: renews locks that plain functions have acquired, and [`Renewal`], the handle of
//! one lease that it keeps. Its threads are those of `renewing`, one keeper for each shard.

mod keep;

pub use keep::Keep;

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "cluster")]
use crate::{cluster::Nodes, pool::CLOCK_SKEW};
use crate::{
    error::{Error, Operation, Result, timed_out},
    pool::{Limits, Pool, Process},
    recipes::Hold,
    renewing::{
        keeper::{Handle, Keeper},
        lease_state::{LeaseState, RenewalState},
        signal::LostSignal,
    },
    server::{PerServer, RenewalsConnection},
    time::{self, Clock, Deadline},
};

/// Renews locks of any kind while the work runs. One thread serves any number of locks.
///
/// A lease should be short, so that a crash does not block others for long, but the work may take
/// longer. The watchdog renews the lease after each third of it, until the [`Renewal`] returned by
/// [`keep`](Self::keep) is dropped.
///
/// - It has its own connection outside the pool, opened with the pool's time-outs at the first
///   renewal. So a renewal never waits for a connection of the pool.
/// - Up to 100 renewals share a round trip. Each has its own reply: the refusal of one does not
///   affect the others.
/// - After a failure it retries on a new connection, with pauses from 10 ms up to 250 ms, until the
///   lease ends by our own clock. If a server restarts or is silent for up to half a lease, no lock
///   that it still has is lost.
/// - With sentinels, one of them is asked for the master each second while there are leases.
/// - A lease is *held*, *lost* or *unknown*: see [`RenewalState`](crate::RenewalState). A failed
///   renewal is not a loss.
/// - A renewal never shortens a lease.
/// - Callbacks run on a second thread, which starts when the first one is registered.
///
/// Dropping the watchdog stops all renewals and its threads. The drop waits for the threads, at
/// most one I/O time-out of the pool in all. Any remaining `Renewal` is `Unknown` until its lease
/// ends by our clock, then lost.
///
/// # Source
/// "自动续期" (automatic renewal) in the notes on Redis locks: a timer, and a script that sets a new
/// end if the lock still exists and is ours.
///
/// # Guarantees
/// - [`Renewal::is_held`] is never true after the lease has ended on the server, provided that the
///   clocks run at the same rate, the server loses no data and no one deletes the lock by hand.
/// - After [`Renewal::stop`] returns, or the renewal is dropped, nothing is sent for that hold,
///   unless the renewing thread gets no processor time for two I/O time-outs while it is sending.
/// - Every wait has a time limit. Its threads end with it, or when a pending connect ends.
///
/// It does not guarantee that the lock is still held when you write: a process can be paused
/// between the check and the write. For that, use a [fencing token](crate::FencingToken) or
/// [`commit_while_held`](crate::commit_while_held).
///
/// # Differences from the notes
/// - Milliseconds instead of whole seconds, and every kind of lock instead of only the reentrant
///   hash.
/// - A renewal never shortens a lease, and a late one cannot affect the next hold.
/// - One thread for all locks instead of a timer for each. It ends with the process, so the lock of
///   a dead process is free after one lease. [`Keep::max_hold`] frees the lock of a holder that
///   hangs.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Pool, Watchdog, acquire_lock_with_timeout, recipes::Hold, release_lock};
///
/// # fn rebuild_next_page() -> Option<()> { None }
/// let pool = Pool::connect("redis://127.0.0.1/")?;
/// let watchdog = Watchdog::new(&pool)?;
///
/// let mut conn = pool.get()?;
/// let (wait, lease) = (Duration::from_secs(30), Duration::from_secs(10));
/// if let Some(token) = acquire_lock_with_timeout(&mut conn, "report", wait, lease)? {
///     let renewal = watchdog.keep(&Hold::mutex("report", &token)?, lease)?;
///     while renewal.is_held() && rebuild_next_page().is_some() {
///         // … hours, if need be …
///     }
///     renewal.stop();
///     release_lock(&mut conn, "report", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Only a hold of this crate's recipes can be kept, since only those can be renewed safely.
/// Anything else does not compile:
///
/// ```compile_fail,E0308
/// # use std::time::Duration;
/// # fn f(watchdog: &leasehold::Watchdog) {
/// watchdog.keep(&String::from("lock:report"), Duration::from_secs(10));
/// # }
/// ```
pub struct Watchdog {
    /// Each has its own thread and connection, so that a silent shard does not delay the others.
    keepers: PerServer<Arc<Keeper>>,
    limits: Limits,
    process: Process,
    /// A lease ends earlier by our clock than on the server, by this much.
    skew: Duration,
}

impl Watchdog {
    /// Starts the renewal thread, with the address, the settings and the time-outs of the pool.
    ///
    /// Opens no connection yet.
    ///
    /// # Errors
    /// - [`Error::Thread`](crate::Error::Thread): the thread could not be started.
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child, and the parent created
    ///   the pool.
    pub fn new(pool: &Pool) -> Result<Self> {
        pool.refuse_forked_child()?;
        let connector = pool.connector();
        let (limits, skew) = (connector.limits(), connector.clock_skew());
        let renewals = Box::new(RenewalsConnection::untracked(connector));
        let keeper = Keeper::start(renewals, limits, Clock::REAL)?;
        Ok(Self {
            keepers: PerServer::One(keeper),
            limits,
            process: Process::current(),
            skew,
        })
    }

    /// Creates a watchdog for a Redis Cluster.
    ///
    /// Each shard has its own thread and connection, started for its first lock, so a shard that is
    /// down or silent does not delay the renewals of the others. Requires the feature `cluster`.
    ///
    /// Renewals continue through failovers of the shard, and after the slot of the lock has moved
    /// to another shard.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Nodes, Watchdog, acquire_lock_with_timeout, recipes::Hold, release_lock};
    ///
    /// let nodes = Nodes::connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000")?;
    /// let watchdog = Watchdog::on_nodes(&nodes);
    ///
    /// let (wait, lease) = (Duration::from_secs(30), Duration::from_secs(10));
    /// let token = nodes.run("report", |conn| {
    ///     acquire_lock_with_timeout(conn, "report", wait, lease)
    /// })?;
    /// if let Some(token) = token {
    ///     let renewal = watchdog.keep(&Hold::mutex("report", &token)?, lease)?;
    ///     // … the work, while `renewal.is_held()` …
    ///     renewal.stop();
    ///     nodes.run("report", |conn| release_lock(conn, "report", &token))?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "cluster")]
    #[must_use]
    pub fn on_nodes(nodes: &Nodes) -> Self {
        let limits = nodes.limits();
        Self {
            keepers: PerServer::of_shards(nodes, move |servers, shard| {
                Keeper::start(servers.untracked_renewals(shard)?, limits, Clock::REAL)
            }),
            limits,
            process: Process::current(),
            skew: CLOCK_SKEW,
        }
    }

    /// Keeps an acquired lock, with the defaults of [`Keep`].
    ///
    /// Renews it at once and waits for the reply, to learn the end of the lease: one round trip.
    /// Without a reply it gives up after at most the connect time-out and two I/O time-outs of the
    /// pool, six seconds by default. On a cluster it may first look up the shard of the lock, for
    /// up to one connect time-out.
    ///
    /// # Errors
    /// After an error the lock is not kept.
    /// - [`Error::Lost`](crate::Error::Lost): the lock is not ours.
    /// - [`Error::Redis`](crate::Error::Redis), [`Error::WrongKind`](crate::Error::WrongKind): the
    ///   server refused.
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::TooOld`](crate::Error::TooOld): no
    ///   connection could be opened, or the server is too old.
    /// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so the lock may have been
    ///   renewed once.
    /// - [`Error::Invalid`](crate::Error::Invalid): the lease is not between 1 ms and 24 h.
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child, in which the threads do
    ///   not run.
    pub fn keep(&self, hold: &Hold, lease: Duration) -> Result<Renewal> {
        self.keep_with(hold, Keep::new(lease))
    }

    /// Keeps an acquired lock, with the given settings.
    ///
    /// Waits as [`keep`](Self::keep) does, unless [`Keep::held_until`] gives the end of the lease.
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): the lock is not ours, or the time of
    ///   [`Keep::held_until`] has passed.
    /// - [`Error::Invalid`](crate::Error::Invalid): a setting of `keep` is out of range.
    /// - All others as [`keep`](Self::keep).
    pub fn keep_with(&self, hold: &Hold, keep: Keep) -> Result<Renewal> {
        Operation::new("Watchdog::keep", hold.lock.text()).run(|operation| {
            let terms = keep.checked(time::now(), self.skew)?;
            self.process.refuse_forked_child()?;
            let Limits { connect, answer } = self.limits;
            let keeper = (self.keepers).of(hold.lock.key(), Deadline::after(connect))?;
            // One connect and one exchange.
            let patience = connect + answer;
            let hold = Arc::new(hold.clone());
            let lease_state = LeaseState::new(&hold, None, None, &terms, None, Clock::REAL);
            let lease = Handle::keep(&keeper, lease_state);
            // From here on an early return stops the renewal.
            let renewal = Renewal {
                lease: lease.clone(),
            };

            let lease_state = lease.lease_state();
            lease_state.wait_for_first_answer(Deadline::after(patience));
            if let Some(reason) = lease_state.lost() {
                return Err(lease_state.lost_error(operation, Some(reason)));
            }
            if lease_state.terms().end.is_none() {
                let silence = || operation.unknown(None, timed_out());
                return Err(lease_state.failure(operation).unwrap_or_else(silence));
            }
            Ok(renewal)
        })
    }
}

impl Watchdog {
    /// Returns the running keepers: none in a forked child, where the list may stay locked forever.
    fn started(&self) -> Vec<Arc<Keeper>> {
        if self.process.is_forked_child() {
            return Vec::new();
        }
        self.keepers.all()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let keepers = self.started();
        // One deadline for all keepers: several may be waiting for a silent shard.
        let deadline = Deadline::after(self.limits.answer);
        for keeper in &keepers {
            keeper.close();
        }
        for keeper in &keepers {
            keeper.wait_until_closed(deadline);
        }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leases: usize = self.started().iter().map(|keeper| keeper.leases()).sum();
        f.debug_struct("Watchdog")
            .field("leases", &leases)
            .finish_non_exhaustive()
    }
}

/// A lease that a [`Watchdog`](crate::Watchdog) renews. Dropping it stops the renewal, and the
/// lease expires.
///
/// Its methods use our own clock and the last reply of the server, and send nothing. A lease counts
/// from before its renewal is sent, so by our clock it never ends later than on the server.
///
/// # Examples
/// ```no_run
/// # fn work_on(page: u32) {}
/// # fn report(renewal: leasehold::Renewal) {
/// for page in 0..1_000 {
///     if !renewal.is_held() {
///         return; // someone else may hold the lock by now
///     }
///     work_on(page);
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it stops the renewal at once"]
pub struct Renewal {
    lease: Handle,
}

impl Renewal {
    /// Returns true until the lease ends, by our clock and the server's replies. Never true after
    /// it has ended on the server, even if the watchdog gets no processor time.
    ///
    /// Also true while the [state](Self::state) is `Unknown` and the end has not come. Does not
    /// detect a lock that was deleted by hand until the reply to the next renewal, nor time during
    /// which the machine was suspended, since its clock stands still then.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns the time left of the lease by our clock; zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.lease_state().remaining()
    }

    /// Returns whether the lease is held, lost or unknown.
    #[must_use]
    pub fn state(&self) -> RenewalState {
        self.lease.lease_state().state()
    }

    /// Returns the error of the last renewal, if it failed.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let lease_state = self.lease.lease_state();
        lease_state.failure(Operation::new("renew", lease_state.lock_name()))
    }

    /// Returns a signal of the loss of the lease: poll it, wait on it, or register a callback.
    #[must_use]
    pub fn lost(&self) -> LostSignal {
        LostSignal::new(self.lease.clone())
    }

    /// Stops the renewal, so that the lock can be released, and returns the last state.
    ///
    /// Waits for a renewal that was already sent, at most two I/O time-outs of the pool: it ends
    /// within one, and the second allows for a thread without processor time. After that nothing is
    /// sent for this hold. The lock itself does not change: release it, or let its lease end.
    ///
    /// Dropping does the same.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers release next, which reports the same"
    )]
    pub fn stop(self) -> RenewalState {
        self.end()
    }

    fn end(&self) -> RenewalState {
        if self.lease.is_forked_child() {
            return RenewalState::Unknown;
        }
        self.lease.stop_by(Deadline::after(Duration::MAX))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.end();
    }
}
