//! A stand-in for a server, for tests of your own code: the very [`Locks`], and no Redis. Feature
//! `testing`.
//!
//! On a real server it takes long waits to try your code with a lock that is busy, ends, or is
//! taken away. Here a test moves the clock, and takes locks away when it likes.
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
//! A wait of a minute that is over at once; in a test of a job, use the job's own [`Locks`]:
//!
//! ```
//! # use std::{thread, time::Duration};
//! # use leasehold::{Error, testing::StandIn};
//! let stand_in = StandIn::new();
//! stand_in.steal("report"); // from nobody: somebody else has it, for ten seconds
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
//! Whatever a real server answers about locks, the stand-in answers too: the same tests run against
//! both.
//!
//! # What it does not do
//! - It stores nothing but locks. What a job [commits](crate::Lease::commit) is recorded instead: a
//!   test looks it up, and says beforehand what a
//!   [`commit_returning`](crate::Lease::commit_returning) is answered.
//! - No connection leads to it. [`Lease::transaction`](crate::Lease::transaction), which would read
//!   what is not stored, and [`Lease::commit_on`](crate::Lease::commit_on) are an
//!   [`Error::Invalid`](crate::Error::Invalid). The plain functions and the
//!   [`Watchdog`](crate::Watchdog) need a real server.
//! - It has no replicas: [`Options::replicas`](crate::Options::replicas) asks for nothing.
//! - It answers without a server's delays.
//!
//! # What a job commits
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
//! let too_late = lease.commit(|pipe| { pipe.set("report:text", "no"); });
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
    /// With no lock held.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Locks on this stand-in, as those of a process of their own. Clones of one are of the same
    /// process.
    ///
    /// A [reentrant](Locks::reentrant) lock is the thread's, whichever of them it is of: to have
    /// two processes in one thread, give each an [owner](crate::Options::owner).
    ///
    /// # Errors
    /// [`Error::Thread`](crate::Error::Thread): a thread could not be started.
    pub fn locks(&self) -> Result<Locks> {
        Locks::on(Arc::new(self.clone()))
    }

    /// Lets so much time pass: for leases, waits, and whatever else looks at the clock. It runs
    /// with the machine's otherwise.
    ///
    /// Like a machine that was suspended: a lease that ends in this time is lost, and is not
    /// renewed on the way. Let time pass in steps of less than half a lease to see it renewed. A
    /// lock that is not renewed is free when its lease has passed, to the nanosecond. What is due
    /// by then has been done on return, and all [callbacks](crate::LostSignal::notify) and
    /// [hooks](crate::Events) have been called; an acquire that waits returns soon after.
    ///
    /// A hundred years at most, all in all.
    pub fn advance(&self, by: Duration) {
        self.state.clock.advance(by);
        self.of_each(|observer| observer.disturbed(Disturbance::ClockMoved));
        self.settle();
    }

    /// Ends a lock, as if its lease had run out on the server before a renewal got through. False:
    /// nobody had it.
    ///
    /// The holder knows on return, and its callbacks have been called, unless the server is
    /// [gone](Self::disconnect). The name is the lock's, or its whole key where its prefix is not
    /// `lock:`.
    #[allow(clippy::must_use_candidate, reason = "mostly it is known")]
    pub fn expire(&self, name: &str) -> bool {
        self.disturb(name, Store::expire)
    }

    /// Gives a lock to somebody else, who holds it for ten seconds, whether it was held or not:
    /// until then it is contended.
    ///
    /// The holder knows on return, as by [`expire`](Self::expire). It stays of the kind it was; one
    /// that is free becomes a [mutex](Locks::lock). For other kinds have other
    /// [`locks`](Self::locks) take it.
    #[allow(
        clippy::must_use_candidate,
        reason = "whoever has the token has the lock"
    )]
    pub fn steal(&self, name: &str) -> Token {
        self.steal_for(name, Duration::from_secs(10))
    }

    /// As [`steal`](Self::steal), for so long, rounded up to milliseconds: for a holder that is
    /// soon gone, or one
    /// that does not let go.
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

    /// The commits so far, in this order: by [`Lease::commit`](crate::Lease::commit),
    /// [`commit_returning`](crate::Lease::commit_returning),
    /// [`commit_once`](crate::Lease::commit_once) and
    /// [`commit_and_release`](crate::Lease::commit_and_release), under whatever lock.
    ///
    /// Also what got no answer, and what was answered by an error that a test has set. Not what was
    /// found to be executed before, nor what a [failover](Self::fail_over) has lost.
    #[must_use]
    pub fn commits(&self) -> Vec<Commit> {
        self.state.store.lock().commits.executed()
    }

    /// Sets the answer to the next commit that is executed: a value for each of its commands, also
    /// for those that it marks [`ignore`](redis::Pipeline::ignore). Called again before that, it is
    /// for the commit after that one.
    ///
    /// A commit that nothing was set for is answered `OK` for each command. One with another number
    /// of commands than values is an [`Error::Invalid`](crate::Error::Invalid), and not executed.
    /// Errors of the server among the values are told as a server's: as
    /// [`Error::Partial`](crate::Error::Partial), unless nothing at all was executed.
    pub fn answer_next_commit(&self, answers: impl IntoIterator<Item = Value>) {
        let answers = answers.into_iter().collect();
        self.state.store.lock().commits.answer_next(answers);
    }

    /// Executes the next question, whose answer does not arrive: an acquire, a release, a
    /// commit, a `verify` or a mark is an [`Error::Unknown`](crate::Error::Unknown), unless it has
    /// time to ask again. Not what the watchdog asks by itself; nor a commit that comes to nothing,
    /// since the lock is lost or it was executed before.
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

    /// A replica takes the server's place that has not heard of the last writes: what was acquired,
    /// renewed, released, marked or committed in this time, a minute at most, has not been.
    ///
    /// On return every holder knows whether it still has its lock.
    pub fn fail_over(&self, lost: Duration) {
        let nanos = u64::try_from(lost.as_nanos()).unwrap_or(u64::MAX);
        let now = self.now();
        self.state.store.lock().forget_the_last(nanos, now);
        // Nobody knows what the new master has.
        if self.is_there() {
            self.reconnect();
        }
    }

    /// From now on nothing gets through, as without a network: an acquire or a release is an
    /// [`Error::Pool`](crate::Error::Pool), renewals fail, and leases run out. An acquire that
    /// waits already goes on waiting to its end, as for a server that restarts. The stand-in itself
    /// can still [`expire`](Self::expire) and [`steal`](Self::steal): the holder does not know.
    ///
    /// Of a server that goes in the middle of a question there is also
    /// [`Error::Unknown`](crate::Error::Unknown): see [`lose_next_answer`](Self::lose_next_answer).
    pub fn disconnect(&self) {
        self.state.is_there.store(false, Ordering::SeqCst);
    }

    /// The server can be reached again. On return every holder knows whether it still has its lock,
    /// and what could not be given back has been.
    pub fn reconnect(&self) {
        self.state.is_there.store(true, Ordering::SeqCst);
        // As after any new connection: nobody knows what has happened meanwhile.
        self.of_each(|observer| observer.disturbed(Disturbance::Reachable));
        self.settle();
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn").finish_non_exhaustive()
    }
}
