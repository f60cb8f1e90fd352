//! A stand-in for a Redis server, for tests of your own code with the real [`Locks`]. Feature
//! `testing`.
//!
//! With a real server, tests of a lock that is busy, expires or is taken away need long waits. Here
//! a test moves the clock and takes locks away at will.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold::testing::StandIn;
//!
//! let stand_in = StandIn::new();
//! let locks = stand_in.locks()?;
//! let lease = locks.lock("report").acquire(Duration::from_secs(5))?;
//!
//! stand_in.steal("report");
//! assert!(lease.check().is_err());
//! assert!(lease.release().is_err());
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! A wait for a lock, without real waiting. (To test a job, use the job's own [`Locks`].)
//!
//! ```
//! # use std::{thread, time::Duration};
//! # use leasehold::{Error, testing::StandIn};
//! let stand_in = StandIn::new();
//! stand_in.steal("report"); // it was free: now somebody else holds it for ten seconds
//! let report = stand_in.locks()?.lock("report");
//! thread::scope(|scope| {
//!     let job = scope.spawn(|| report.acquire(Duration::from_secs(60)));
//!     while report.inspect()?.waiting_here() == 0 {
//!         thread::yield_now();
//!     }
//!     stand_in.advance(Duration::from_secs(10));
//!     assert!(job.join().is_ok_and(|acquired| acquired.is_ok()));
//!     Ok::<(), Error>(())
//! })?;
//! # Ok::<(), Error>(())
//! ```
//!
//! For locks the stand-in replies as a real server does: the same tests run against both.
//!
//! # Limits
//! - It stores only locks. It records what a job [commits](crate::Lease::commit), for the test to
//!   inspect; a test sets the reply to [`commit_returning`](crate::Lease::commit_returning) in
//!   advance.
//! - It has no connections. [`Lease::transaction`](crate::Lease::transaction), which would read
//!   data that is not stored, and [`Lease::commit_on`](crate::Lease::commit_on) return
//!   [`Error::Invalid`](crate::Error::Invalid). The plain functions and the
//!   [`Watchdog`](crate::Watchdog) need a real server.
//! - It has no replicas: [`Options::replicas`](crate::Options::replicas) has no effect.
//! - It replies without delay.
//!
//! # Commits
//! ```
//! # use std::time::Duration;
//! # use leasehold::{Error, redis::Value, testing::StandIn};
//! let stand_in = StandIn::new();
//! let lease = stand_in.locks()?.lock("report").acquire(Duration::from_secs(5))?;
//!
//! stand_in.answer_next_commit([Value::Okay, Value::Int(8)]);
//! let (editions,): (u64,) = lease.commit_returning(|pipe| {
//!     pipe.set("report:text", "all is well").ignore();
//!     pipe.incr("report:editions", 1);
//! })?;
//! assert_eq!(editions, 8);
//! assert_eq!(stand_in.commits()[0].commands()[0], ["SET", "report:text", "all is well"]);
//!
//! stand_in.steal("report");
//! let too_late = lease.commit(|pipe| {
//!     pipe.set("report:text", "no");
//! });
//! assert!(matches!(too_late, Err(Error::Lost { .. })));
//! assert_eq!(stand_in.commits().len(), 1);
//! # Ok::<(), Error>(())
//! ```

mod commit;
mod server;
mod store;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::Value;

pub use commit::Commit;
pub use server::StandIn;
use store::Store;

use crate::{error::Result, locks::Locks, server::Disturbance, time::whole_millis, token::Token};

impl StandIn {
    /// A stand-in with no lock held.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Locks on this stand-in. Each call simulates another process; clones of one [`Locks`] belong
    /// to the same process.
    ///
    /// A [reentrant](Locks::reentrant) lock belongs to the thread, even across two of these. To
    /// simulate two processes in one thread, give each an [owner](crate::Options::owner).
    ///
    /// # Errors
    /// [`Error::Thread`](crate::Error::Thread) if a thread could not be started.
    pub fn locks(&self) -> Result<Locks> {
        Locks::on(Arc::new(self.clone()))
    }

    /// Moves the clock forward, for leases, waits and everything else that reads it. Between calls
    /// the clock runs with the machine's.
    ///
    /// The effect is that of a suspended machine: a lease that ends within this time is lost,
    /// without a renewal on the way. To see renewals, advance in steps of less than half a lease. A
    /// lock that is not renewed is free once its lease has passed, to the nanosecond. Before the
    /// call returns, all due work has been done, and all [callbacks](crate::LostSignal::notify) and
    /// [hooks](crate::Events) have been called. A waiting acquire returns soon after.
    ///
    /// All calls together can advance by at most 100 years.
    pub fn advance(&self, by: Duration) {
        self.state.clock.advance(by);
        self.for_each_observer(|observer| observer.disturbed(Disturbance::ClockMoved));
        self.settle();
    }

    /// Ends a lock, as if its lease had expired on the server before a renewal succeeded. Returns
    /// false if nobody held it.
    ///
    /// When this returns, the holder has noticed and its callbacks have been called, unless the
    /// stand-in is [disconnected](Self::disconnect). `name` is the lock's name, or its whole key if
    /// its prefix is not `lock:`.
    #[allow(clippy::must_use_candidate, reason = "mostly it is known")]
    pub fn expire(&self, name: &str) -> bool {
        self.disturb(name, Store::expire)
    }

    /// Gives a lock, held or free, to somebody else for ten seconds. Returns the new holder's
    /// token.
    ///
    /// As with [`expire`](Self::expire), the previous holder has noticed when this returns. The
    /// lock keeps its kind; a free lock becomes a [mutex](Locks::lock). For other kinds acquire the
    /// lock from other [`locks`](Self::locks).
    #[allow(
        clippy::must_use_candidate,
        reason = "whoever has the token has the lock"
    )]
    pub fn steal(&self, name: &str) -> Token {
        self.steal_for(name, Duration::from_secs(10))
    }

    /// As [`steal`](Self::steal), for another time, rounded up to milliseconds. It simulates a
    /// holder that is soon gone, or one that keeps the lock.
    #[allow(
        clippy::must_use_candidate,
        reason = "whoever has the token has the lock"
    )]
    pub fn steal_for(&self, name: &str, lease: Duration) -> Token {
        let (token, lease) = (Token::random(), whole_millis(lease));
        self.disturb(name, |store, key, now| {
            store.steal(key, token.as_str(), lease, now);
            true
        });
        token
    }

    /// The executed commits of all locks, in order: by [`Lease::commit`](crate::Lease::commit),
    /// [`commit_returning`](crate::Lease::commit_returning),
    /// [`commit_once`](crate::Lease::commit_once) and
    /// [`commit_and_release`](crate::Lease::commit_and_release).
    ///
    /// They include commits whose reply was lost and those whose reply is an error that a test has
    /// set, but not repeats of a `commit_once`, nor commits that a [failover](Self::fail_over)
    /// lost.
    #[must_use]
    pub fn commits(&self) -> Vec<Commit> {
        self.state.store.lock().commits.executed()
    }

    /// Sets the reply to the next executed commit: one value for each command, including those
    /// marked [`ignore`](redis::Pipeline::ignore). Further calls set the replies to the commits
    /// after it.
    ///
    /// Without this, the reply to each command is `OK`. If the number of values differs from the
    /// number of commands, the commit is not executed and returns
    /// [`Error::Invalid`](crate::Error::Invalid). Server errors among the values have the effect
    /// that they have from a server: [`Error::Partial`](crate::Error::Partial), unless nothing at
    /// all was executed.
    pub fn answer_next_commit(&self, answers: impl IntoIterator<Item = Value>) {
        let answers = answers.into_iter().collect();
        self.state.store.lock().commits.answer_next(answers);
    }

    /// Executes the next request but loses its reply: an acquire, a release, a commit, a `verify`
    /// or a mark returns [`Error::Unknown`](crate::Error::Unknown), unless it has time to retry.
    ///
    /// Renewals and other requests in the background do not count, nor does a commit that is not
    /// executed because the lock is lost or it was executed before.
    ///
    /// ```
    /// use leasehold::{Error, testing::StandIn};
    ///
    /// let stand_in = StandIn::new();
    /// let lock = stand_in.locks()?.lock("report");
    /// stand_in.lose_next_answer();
    /// assert!(matches!(lock.try_acquire(), Err(Error::Unknown { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn lose_next_answer(&self) {
        self.state.loses_next.store(true, Ordering::SeqCst);
    }

    /// Replaces the server with a replica that misses the last writes: every acquire, renewal,
    /// release, mark and commit within the time `lost`, at most a minute, is undone.
    ///
    /// When this returns, every holder knows whether it still has its lock.
    pub fn fail_over(&self, lost: Duration) {
        let nanos = u64::try_from(lost.as_nanos()).unwrap_or(u64::MAX);
        let now = self.now();
        self.state.store.lock().undo_last(nanos, now);
        // As after a failover to a new master: everybody has to check.
        if self.is_there() {
            self.reconnect();
        }
    }

    /// Makes the server unreachable, as a broken network does: acquires and releases return
    /// [`Error::Pool`](crate::Error::Pool), renewals fail, and leases expire. An acquire that is
    /// already waiting waits until its deadline, as for a server that restarts. A test can still
    /// call [`expire`](Self::expire) and [`steal`](Self::steal); the holder does not notice.
    ///
    /// A server that fails between request and reply also causes
    /// [`Error::Unknown`](crate::Error::Unknown): see [`lose_next_answer`](Self::lose_next_answer).
    pub fn disconnect(&self) {
        self.state.is_there.store(false, Ordering::SeqCst);
    }

    /// Makes the server reachable again. When this returns, every holder knows whether it still has
    /// its lock, and pending releases have been done.
    pub fn reconnect(&self) {
        self.state.is_there.store(true, Ordering::SeqCst);
        // As after any new connection: notifications may have been missed.
        self.for_each_observer(|observer| observer.disturbed(Disturbance::Reachable));
        self.settle();
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn").finish_non_exhaustive()
    }
}
