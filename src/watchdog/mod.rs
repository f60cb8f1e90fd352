//! [`Watchdog`]: keeps alive what plain functions have acquired. Its threads are those of
//! `renewing`, a keeper for each shard.
//!
//! Locks: the list of the shards' keepers, for a moment, and while a keeper is started, which takes
//! no connection.

mod keep;
mod renewal;

pub use keep::Keep;
pub use renewal::Renewal;

#[cfg(feature = "cluster")]
use std::collections::HashMap;
use std::{fmt, io, sync::Arc, time::Duration};

#[cfg(feature = "cluster")]
use parking_lot::Mutex;

#[cfg(feature = "cluster")]
use crate::{
    cluster::{Nodes, ShardId},
    pool::CLOCK_SKEW,
    server::Servers,
};
use crate::{
    error::{Operation, Result},
    pool::{Pool, Process},
    recipes::Hold,
    renewing::{
        keeper::{Handle, Keeper},
        lease_state::LeaseState,
    },
    server::RenewalsConnection,
    time::{self, Clock, Deadline},
};

/// Keeps locks alive for as long as the work takes: one thread for any number of them, of whatever
/// kind.
///
/// A lease should be short, so that a crash does not keep the others out for long; the work may
/// take longer than that. The watchdog renews the lease after each third of it, until the
/// [`Renewal`] that [`keep`](Self::keep) returns is dropped.
///
/// - It has one connection of its own, beside the pool's, opened with the pool's time-outs when
///   there is something to renew. So no renewal waits for a connection of the pool.
/// - Up to 100 renewals share a round trip. The server answers each by itself: the refusal of one
///   has no effect on the others.
/// - After a failure it tries again soon (10 ms at first, up to 250 ms later), on a new connection,
///   until the lease ends by our own clock. If a server restarts, or is silent, for half a lease,
///   no lock that it still has is lost.
/// - *Held*, *lost* and *unknown* are three answers, see [`RenewalState`](crate::RenewalState). A
///   failure is not a loss.
/// - A renewal never shortens a lease.
/// - The callbacks of a loss run on a second thread, which is started when the first callback is
///   registered.
///
/// Dropping the watchdog stops all renewing and ends its threads; it waits for them for one I/O
/// time-out of the pool at most, on a cluster for each shard that is silent. A `Renewal` that is
/// still there is `Unknown` until its lease ends by our clock, and lost then.
///
/// # Source
/// "自动续期" (automatic renewal) in the notes on Redis locks: a timer, and a script that sets the end
/// anew if the lock is still there and ours.
///
/// # Guarantees
/// - [`Renewal::is_held`] is never true after the lease has ended on the server, provided that the
///   clocks run at the same rate, that the server loses no data and that nobody deletes the lock by
///   hand.
/// - When [`Renewal::stop`] has returned, or the renewal is dropped, nothing is sent for that hold
///   any more; unless the thread got no processor time for two I/O time-outs while it was sending.
/// - Everything that it waits for has a time limit. Its threads end with it, or when a connect that
///   is under way has ended.
///
/// It does not guarantee that the lock is still there when you write: a process can be halted
/// between the question and the write. For that take a [fencing token](crate::FencingToken) or
/// [`commit_while_held`](crate::commit_while_held).
///
/// # Differences from the notes
/// - Milliseconds instead of whole seconds, for every kind of lock and not only for the reentrant
///   hash.
/// - A renewal never shortens, and one that comes late cannot hurt the next hold.
/// - One thread for all locks instead of a timer for each. It ends with the process, so that the
///   lock of a process that has died is free after one lease. [`Keep::max_hold`] frees the lock of
///   a holder that hangs.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Pool, Watchdog, acquire_lock_with_timeout, recipes::Hold, release_lock};
///
/// # fn rebuild_next_page() -> Option<()> { None }
/// let pool = Pool::connect("redis://127.0.0.1/")?;
/// let watchdog = Watchdog::start(&pool)?;
///
/// let mut conn = pool.get()?;
/// let (wait, lease) = (Duration::from_secs(5), Duration::from_secs(10));
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
/// Only what can be renewed safely can be kept: a hold of a recipe of this crate, and not just any
/// key.
///
/// ```compile_fail,E0308
/// # use std::time::Duration;
/// # fn f(watchdog: &leasehold::Watchdog) {
/// watchdog.keep(&String::from("lock:report"), Duration::from_secs(10));
/// # }
/// ```
pub struct Watchdog {
    keepers: Keepers,
    process: Process,
    /// A lease ends by our clock this much sooner than on the server.
    skew: Duration,
}

impl Watchdog {
    /// Starts the thread. It does not connect yet; it takes the address, the settings and the
    /// time-outs from the pool.
    ///
    /// # Errors
    /// - [`Error::Thread`](crate::Error::Thread): the thread could not be started.
    /// - [`Error::Forked`](crate::Error::Forked) in the child of a fork, if the parent made the
    ///   pool.
    pub fn start(pool: &Pool) -> Result<Self> {
        pool.refuse_forked_child()?;
        let connector = pool.connector();
        let (limits, skew) = (connector.limits(), connector.clock_skew());
        let renewals = Box::new(RenewalsConnection::untracked(connector));
        let keeper = Keeper::start(renewals, limits, Clock::REAL)?;
        Ok(Self {
            keepers: Keepers::One(keeper),
            process: Process::current(),
            skew,
        })
    }

    /// A watchdog for a Redis Cluster, with a thread and a connection for each shard, started when
    /// the first lock of the shard is kept: a shard that is down or silent delays no renewal of
    /// another. With the feature `cluster`.
    ///
    /// A lock is kept through failovers of its shard, and when its slot moves to another one: there
    /// too it is renewed.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Nodes, Watchdog, acquire_lock_with_timeout, recipes::Hold, release_lock};
    ///
    /// let nodes = Nodes::connect("redis+cluster://10.0.0.1:7000,10.0.0.2:7000")?;
    /// let watchdog = Watchdog::on_nodes(&nodes);
    ///
    /// let (wait, lease) = (Duration::from_secs(5), Duration::from_secs(10));
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
        Self {
            keepers: Keepers::OfShards(Servers::new(nodes), Mutex::default()),
            process: Process::current(),
            skew: CLOCK_SKEW,
        }
    }

    /// Keeps a lock that was acquired before, with the defaults of [`Keep`].
    ///
    /// Renews it at once and waits for the answer, so that the end of the lease is known: one round
    /// trip. If no answer comes it gives up after the connect and two I/O time-outs of the pool, by
    /// default six seconds, at the latest. On a cluster it may have to be asked first which shard
    /// has the lock, for as long as a connect may take.
    ///
    /// # Errors
    /// Nothing is renewed then.
    /// - [`Error::Lost`](crate::Error::Lost): the lock is not ours, or not any more.
    /// - [`Error::Redis`](crate::Error::Redis), [`Error::WrongKind`](crate::Error::WrongKind): the
    ///   server refused.
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::TooOld`](crate::Error::TooOld): no
    ///   connection could be opened, or not to a server like this.
    /// - [`Error::Unknown`](crate::Error::Unknown): no answer came. The lock may have been renewed
    ///   once.
    /// - [`Error::Invalid`](crate::Error::Invalid): a lease that is not between 1 ms and 24 h.
    /// - [`Error::Forked`](crate::Error::Forked) in the child of a fork, which has none of the
    ///   threads.
    pub fn keep(&self, hold: &Hold, lease: Duration) -> Result<Renewal> {
        self.keep_with(hold, Keep::lease(lease))
    }

    /// Keeps a lock that was acquired before, by the settings of [`Keep`].
    ///
    /// Waits, as [`keep`](Self::keep) does, unless [`Keep::held_until`] says that there is no need
    /// to.
    ///
    /// # Errors
    /// As [`keep`](Self::keep), and [`Error::Lost`](crate::Error::Lost) where the moment given to
    /// [`Keep::held_until`] has passed.
    pub fn keep_with(&self, hold: &Hold, keep: Keep) -> Result<Renewal> {
        let operation = Operation::new("Watchdog::keep", hold.lock_name().text());
        let terms = keep.checked(time::now(), self.skew)?;
        self.process.refuse_forked_child()?;
        let keeper = self.keepers.of(hold.lock_name().key())?;
        // Connecting anew, and one exchange.
        let patience = keeper.limits.connect + keeper.limits.answer;
        let hold = Arc::new(hold.clone());
        let lease_state = LeaseState::new(&hold, None, None, &terms, None, Clock::REAL);
        let lease = Handle::keep(&keeper, lease_state);
        // From here on it is stopped when this function returns early.
        let renewal = Renewal::new(lease.clone());

        let lease_state = lease.lease_state();
        lease_state.wait_for_first_answer(Deadline::after(patience));
        if let Some(reason) = lease_state.lost() {
            return Err(operation.lost_because(Some(reason)));
        }
        if lease_state.terms().end.is_none() {
            let silence =
                || operation.unknown(None, io::Error::from(io::ErrorKind::TimedOut).into());
            return Err(lease_state.failure(operation).unwrap_or_else(silence));
        }
        Ok(renewal)
    }
}

impl Watchdog {
    /// The keepers that run. In a forked child there are none, and the list may be locked for ever.
    fn started(&self) -> Vec<Arc<Keeper>> {
        if self.process.is_forked_child() {
            return Vec::new();
        }
        match &self.keepers {
            Keepers::One(keeper) => vec![Arc::clone(keeper)],
            #[cfg(feature = "cluster")]
            Keepers::OfShards(_, started) => started.lock().values().cloned().collect(),
        }
    }
}

/// Each keeper has a thread and a connection of its own, so that a silent shard delays nothing of
/// another.
enum Keepers {
    One(Arc<Keeper>),
    /// For the shards on which a lock has been kept.
    #[cfg(feature = "cluster")]
    OfShards(Arc<Servers>, Mutex<HashMap<ShardId, Arc<Keeper>>>),
}

impl Keepers {
    /// The keeper of this key. On a cluster the nodes may have to be asked first which shard has
    /// the key.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(
            unused_variables,
            clippy::unnecessary_wraps,
            reason = "one server has all keys"
        )
    )]
    fn of(&self, key: &str) -> Result<Arc<Keeper>> {
        match self {
            Self::One(keeper) => Ok(Arc::clone(keeper)),
            #[cfg(feature = "cluster")]
            Self::OfShards(servers, started) => {
                let limits = servers.nodes().limits();
                let deadline = Deadline::after(limits.connect);
                let (shard, pool) = servers.nodes().pool_for(key, deadline)?;
                let mut started = started.lock();
                if let Some(keeper) = started.get(&shard) {
                    return Ok(Arc::clone(keeper));
                }
                let renewals = servers.untracked_renewals(shard, &pool);
                let keeper = Keeper::start(renewals, limits, Clock::REAL)?;
                started.insert(shard, Arc::clone(&keeper));
                Ok(keeper)
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let keepers = self.started();
        // For all together: those of several shards may each be waiting for an answer.
        let longest = keepers.iter().map(|keeper| keeper.limits.answer).max();
        let deadline = Deadline::after(longest.unwrap_or_default());
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
