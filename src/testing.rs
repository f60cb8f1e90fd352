//! A stand-in for a server, for tests of your own code: the very [`Locks`], and no Redis. Feature `testing`.
//!
//! What your code does when a lock is busy, ends, or is taken away cannot be tried on a real server without long waits. Here a
//! test moves the clock, and takes locks away when it likes.
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
//! A wait of a minute, over at once; whoever tests a job takes its [`Locks`] for it:
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
//! Whatever a real server answers, the stand-in answers too: one suite of behaviours runs against both. Not its delays; and it
//! has no replicas, so that [`Options::replicas`](crate::Options::replicas) asks for nothing; and it
//! stores nothing but locks, so that [`Lease::commit`](crate::Lease::commit) is an error. The plain functions and the
//! [`Watchdog`](crate::Watchdog) need a real server.

mod server;
mod store;

use std::{fmt, sync::Arc, time::Duration};

use server::Server;

use crate::{error::Result, locks::Locks, token::Token};

/// A server that is none: locks in the memory of this process, with a clock that a test moves. A clone is the same.
#[derive(Clone)]
pub struct StandIn {
    server: Arc<Server>,
}

impl StandIn {
    /// With no lock held.
    #[must_use]
    pub fn new() -> Self {
        Self {
            server: Arc::new(Server::new()),
        }
    }

    /// Locks on this stand-in, as those of a process of their own. Clones of one are of the same process.
    ///
    /// A [reentrant](Locks::reentrant) lock is the thread's, whichever of them it is of: to have two processes in one thread,
    /// give each an [owner](crate::Options::owner).
    ///
    /// # Errors
    /// [`Error::Thread`](crate::Error::Thread): a thread could not be started.
    pub fn locks(&self) -> Result<Locks> {
        Locks::on(Arc::clone(&self.server) as Arc<_>)
    }

    /// Lets so much time pass: for leases, waits, and whatever else looks at the clock. It runs with the machine's otherwise.
    ///
    /// Like a machine that was suspended: a lease that ends in this time is lost, and is not renewed on the way. Let time
    /// pass in steps of less than half a lease to see it renewed. A lock that is not renewed is free when its lease has
    /// passed, to the nanosecond. What is due by then has been done on return, and whoever wants to be
    /// [called](crate::LostSignal::notify) or [told](crate::Events) has been; who waits for a lock returns soon after.
    ///
    /// A hundred years at most, all in all.
    pub fn advance(&self, by: Duration) {
        self.server.advance(by);
    }

    /// Ends a lock, as if its lease had run out on the server before a renewal got through. False: nobody had it.
    ///
    /// The holder knows on return, and whoever it wants to be told, unless the server is [gone](Self::disconnect). The name
    /// is the lock's, or its whole key where its prefix is not `lock:`.
    #[allow(clippy::must_use_candidate, reason = "mostly it is known")]
    pub fn expire(&self, name: &str) -> bool {
        self.server.expire(name)
    }

    /// Gives a lock to somebody else, who holds it for ten seconds, whether it was held or not: until then it is contended.
    ///
    /// The holder knows on return, as by [`expire`](Self::expire). It stays of the kind it was; one that is free becomes a
    /// [mutex](Locks::lock). For other kinds have other [`locks`](Self::locks) take it.
    #[allow(
        clippy::must_use_candidate,
        reason = "whoever has the token has the lock"
    )]
    pub fn steal(&self, name: &str) -> Token {
        self.steal_for(name, Duration::from_secs(10))
    }

    /// The same for so long, in milliseconds, rounded up: for a holder that is soon gone, or one that does not let go.
    #[allow(
        clippy::must_use_candidate,
        reason = "whoever has the token has the lock"
    )]
    pub fn steal_for(&self, name: &str, lease: Duration) -> Token {
        self.server.steal(name, lease)
    }

    /// What is asked next is executed, and its answer does not arrive: an acquire, a release, a `verify` or a mark is an
    /// [`Error::Unknown`](crate::Error::Unknown), unless it has time to ask again. Not what the watchdog asks by itself.
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
        self.server.lose_next_answer();
    }

    /// A replica takes the server's place that has not heard of the last writes: what was acquired, renewed, released or marked
    /// in this time, a minute at most, has not been.
    ///
    /// On return every holder knows whether it still has its lock.
    pub fn fail_over(&self, lost: Duration) {
        self.server.fail_over(lost);
    }

    /// From now on nothing gets through, as without a network: an acquire or a release is an
    /// [`Error::Pool`](crate::Error::Pool), renewals fail, and leases run out. Whoever waits already goes on waiting to the
    /// end, as for a server that restarts. The stand-in itself can still [`expire`](Self::expire) and
    /// [`steal`](Self::steal): the holder does not know.
    ///
    /// Of a server that goes in the middle of a question there is also [`Error::Unknown`](crate::Error::Unknown): see
    /// [`lose_next_answer`](Self::lose_next_answer).
    pub fn disconnect(&self) {
        self.server.connect(false);
    }

    /// The server can be reached again. On return every holder knows whether it still has its lock, and what could not be
    /// given back has been.
    pub fn reconnect(&self) {
        self.server.connect(true);
    }
}

impl Default for StandIn {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn").finish_non_exhaustive()
    }
}
