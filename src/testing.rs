//! A stand-in for a Redis server, for testing your own code with the real [`Locks`]. Feature
//! `testing`.
//!
//! With a real server, testing a lock that is busy, expires or is taken away needs long waits. Here
//! a test moves the clock and takes locks away directly.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold::testing::StandIn;
//!
//! let stand_in = StandIn::new();
//! let locks = stand_in.locks()?;
//! let lease = locks.lock("report").acquire(Duration::from_secs(30))?;
//!
//! stand_in.steal("report");
//! assert!(lease.check().is_err());
//! assert!(lease.release().is_err());
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! This test waits for a lock without real waiting. (To test a job, use the job's own [`Locks`].)
//!
//! ```
//! # use std::{thread, time::Duration};
//! # use leasehold::{Error, testing::StandIn};
//! let stand_in = StandIn::new();
//! stand_in.steal("report"); // it was free: now someone else holds it for 10 s
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
//! For locks the stand-in behaves like a real server: the same tests run against both.
//!
//! # Data
//! The stand-in stores what a job writes under its lock, and returns it to reads: strings, integers
//! and hashes. A test sets and reads them through [`StandIn::pool`].
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold::{
//!     Error, Lease, Result,
//!     redis::Commands,
//!     testing::{Action, Failure, StandIn},
//! };
//!
//! fn pay(lease: &Lease) -> Result<bool> {
//!     lease.transaction(&["wallet:7"], |conn, pipe| {
//!         let funds: Option<i64> = conn.get("wallet:7")?;
//!         if funds.unwrap_or(0) < 5 {
//!             return Ok(false);
//!         }
//!         pipe.decr("wallet:7", 5).incr("wallet:8", 5);
//!         Ok(true)
//!     })
//! }
//!
//! let stand_in = StandIn::new();
//! let mut conn = stand_in.pool()?.get()?;
//! let () = conn.set("wallet:7", 7)?;
//! let lease = stand_in.locks()?.lock("order:4711").acquire(Duration::from_secs(30))?;
//!
//! assert!(pay(&lease)?);
//! assert_eq!(conn.get::<_, i64>("wallet:8")?, 5);
//! assert!(!pay(&lease)?); // 2 are left
//!
//! let () = conn.set("wallet:7", 7)?;
//! stand_in.fail_next(Action::Commit, Failure::LostReply);
//! assert!(matches!(pay(&lease), Err(Error::Unknown { .. })));
//! assert_eq!(conn.get::<_, i64>("wallet:8")?, 10); // it was paid
//!
//! stand_in.steal("order:4711");
//! assert!(matches!(pay(&lease), Err(Error::Lost { .. })));
//! # Ok::<(), Error>(())
//! ```
//!
//! It executes `GET`, `SET` (with `EX`, `PX`, `NX`, `XX`), `SETEX`, `PSETEX`, `SETNX`, `MGET`,
//! `INCR`, `DECR`, `INCRBY`, `DECRBY`, `HGET`, `HSET`, `HMGET`, `HMSET`, `HGETALL`, `HINCRBY`,
//! `HDEL`, `HEXISTS`, `HLEN`, `EXISTS`, `DEL`, `UNLINK`, `EXPIRE`, `PEXPIRE`, `TTL` and `PTTL`. It
//! refuses other commands with an error that names [`StandIn::answer`], with which a test can reply
//! to them.
//!
//! # Failures
//! [`StandIn::fail_next`] makes the next request fail, [`StandIn::fail`] those that a closure
//! selects, and [`StandIn::disconnect`] all of them.
//!
//! # Limits
//! - The [`Watchdog`](crate::Watchdog) needs a real server.
//! - It has no replicas: [`Options::replicas`](crate::Options::replicas) has no effect.
//! - It replies without delay.

mod commit;
mod connection;
mod failing;
mod server;
mod state;
mod store;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::Value;

pub use commit::Commit;
pub use failing::{Action, Failure};
pub use state::StandIn;
use store::Store;

use crate::{error::Result, locks::Locks, server::Disturbance, time::whole_millis, token::Token};

impl StandIn {
    /// Creates a stand-in on which no lock is held.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates locks on this stand-in. Each call simulates another process; clones of one [`Locks`]
    /// belong to the same process.
    ///
    /// A [reentrant](Locks::reentrant) lock belongs to the thread, even across several of these
    /// [`Locks`]. To simulate two processes in one thread, give each an
    /// [owner](crate::Options::owner).
    ///
    /// # Errors
    /// [`Error::Thread`](crate::Error::Thread): a thread could not be started.
    pub fn locks(&self) -> Result<Locks> {
        Locks::on(Arc::new(self.clone()))
    }

    /// Moves the clock forward, for leases, waits and everything else that reads it. Between calls
    /// the clock runs like the machine's.
    ///
    /// The effect is that of a suspended machine: a lease that ends within this time is lost, with
    /// no renewal in between. To see renewals, advance in steps of less than half a lease. A lock
    /// that is not renewed is free exactly when its lease has passed, to the nanosecond. Before the
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
    /// false if the lock was free.
    ///
    /// When this returns, the holder has noticed and its callbacks have been called, unless the
    /// stand-in is [disconnected](Self::disconnect). `name` is the lock's name, or its whole key if
    /// its prefix is not `lock:`.
    #[allow(clippy::must_use_candidate, reason = "a test usually knows the result")]
    pub fn expire(&self, name: &str) -> bool {
        self.disturb(name, Store::expire)
    }

    /// Gives a lock, held or free, to someone else for ten seconds. Returns the new holder's token.
    ///
    /// As with [`expire`](Self::expire), the previous holder has noticed when this returns. The
    /// lock keeps its kind; a free lock becomes a [mutex](Locks::lock). To hold a free lock of
    /// another kind, acquire it through other [`locks`](Self::locks).
    #[allow(
        clippy::must_use_candidate,
        reason = "the token is needed only to release the lock"
    )]
    pub fn steal(&self, name: &str) -> Token {
        self.steal_for(name, Duration::from_secs(10))
    }

    /// Like [`steal`](Self::steal), for a given time, rounded up to milliseconds. Simulates a
    /// holder that soon releases the lock, or one that keeps it.
    #[allow(
        clippy::must_use_candidate,
        reason = "the token is needed only to release the lock"
    )]
    pub fn steal_for(&self, name: &str, lease: Duration) -> Token {
        let (token, lease) = (Token::random(), whole_millis(lease));
        self.disturb(name, |store, key, now| {
            store.steal(key, token.as_str(), lease, now);
            true
        });
        token
    }

    /// Returns the transactions that were executed under a lock, in order: those of
    /// [`Lease::commit`](crate::Lease::commit) and its variants, and of
    /// [`Lease::transaction`](crate::Lease::transaction), unless they wrote nothing.
    ///
    /// They include those whose reply was lost, and those in which a command was refused, but not
    /// repeats of a `commit_once`.
    #[must_use]
    pub fn commits(&self) -> Vec<Commit> {
        self.state.store.lock().commits.clone()
    }

    /// Replies to commands in place of the stand-in. `answer` is called with the words of each
    /// command of a job, before the stand-in executes it. `None`: the stand-in executes it.
    ///
    /// A [server error](Value::ServerError) has the same effect as from a server. In a transaction
    /// that is [`Error::Partial`](crate::Error::Partial), unless no command was executed. `answer`
    /// must not use the stand-in. A later call of this function replaces it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{redis::Value, testing::StandIn};
    /// let stand_in = StandIn::new();
    /// stand_in.answer(|command| match command {
    ///     ["LPUSH", "jobs", ..] => Some(Value::Int(3)),
    ///     _ => None,
    /// });
    /// let lease = stand_in.locks()?.lock("jobs").acquire(Duration::from_secs(30))?;
    /// let (jobs,): (u64,) = lease.commit_returning(|pipe| {
    ///     pipe.lpush("jobs", "report");
    /// })?;
    /// assert_eq!(jobs, 3);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn answer(&self, answer: impl FnMut(&[&str]) -> Option<Value> + Send + 'static) {
        self.state.store.lock().answer = Some(Box::new(answer));
    }

    /// Makes the next request for this action fail. Each further call makes one more request fail.
    ///
    /// ```
    /// use leasehold::{Error, testing::{Action, Failure, StandIn}};
    ///
    /// let stand_in = StandIn::new();
    /// let lock = stand_in.locks()?.lock("report");
    /// stand_in.fail_next(Action::Acquire, Failure::LostReply);
    /// assert!(matches!(lock.try_acquire(), Err(Error::Unknown { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn fail_next(&self, action: Action, failure: Failure) {
        self.state.failing.fail_next(action, failure);
    }

    /// Calls `decide` for each request, and makes the request fail if it returns a failure.
    ///
    /// `decide` gets the action and the name of the lock (the key, if its prefix is not `lock:`;
    /// all names, for a set). It may use the stand-in, such as to take the lock away just before a
    /// commit. A later call replaces it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use leasehold::{Error, testing::{Action, Failure, StandIn}};
    ///
    /// let stand_in = StandIn::new();
    /// stand_in.fail(|action, lock| match (action, lock) {
    ///     (Action::Commit, "report") => Some(Failure::Refused("OOM no memory")),
    ///     _ => None,
    /// });
    /// let lease = stand_in.locks()?.lock("report").acquire(Duration::from_secs(30))?;
    /// let refused = lease.commit(|pipe| {
    ///     pipe.set("report:text", "all is well");
    /// });
    /// assert!(matches!(refused, Err(Error::Redis { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn fail(&self, decide: impl Fn(Action, &str) -> Option<Failure> + Send + Sync + 'static) {
        self.state.failing.fail(Arc::new(decide));
    }

    /// Makes the server unreachable, like a broken network: renewals fail, and leases expire. A
    /// release returns [`Error::Pool`](crate::Error::Pool), and so does an acquire, at the end of
    /// its wait, which passes in real time. A test can still call [`expire`](Self::expire) and
    /// [`steal`](Self::steal); the holder does not notice.
    ///
    /// A server that fails between request and reply also causes
    /// [`Error::Unknown`](crate::Error::Unknown): see [`fail_next`](Self::fail_next).
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
