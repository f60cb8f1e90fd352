//! What each kind of lock does on the server, as plain functions on one connection.

// A kind is a folder: `mod.rs` has its functions and what they promise, the Lua files are its
// scripts, `calls.rs` makes a typed call of each. `wait` is the loop of all functions that wait.
//
// A new kind, such as a semaphore, is a new folder here. If it is to be had as a guard too, as by
// `Locks::lock`, it also becomes a `Kind` in `hold`, which says what to send and what the answers
// mean; the rooms above know a `Holding`. Where kinds wait or are released in different ways,
// `locks` asks it for its kind: in `acquire`, `acquire/head`, `attempts`, `lock` and `once`. The
// stand-in for tests needs a function for each of its scripts, in `testing/store/scripts.rs`.

mod article;
pub(crate) mod commit;
pub(crate) mod hold;
pub(crate) mod inspect;
pub mod mutex;
pub(crate) mod once;
pub(crate) mod ran;
pub mod read_write;
pub mod reentrant;
pub mod simple;
pub(crate) mod transaction;
mod wait;

use std::time::Duration;

use redis::ConnectionLike;

use crate::{
    error::{Error, Operation, Result},
    script::Replicas,
    time::lease_millis,
};

/// One hold on one lock: which recipe, which lock, whose token or owner.
///
/// A value of it is what a watchdog renews. Only the recipes of this crate are recipes: how one is
/// renewed in a batch stays between them and the watchdog.
pub trait Recipe: sealed::Hold {
    /// Renews the lease, never shortening it. `Ok(false)`: the lock is not ours any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a lease that is not between 1 ms and 24 h, otherwise as the
    /// recipe's own `renew`.
    fn renew(&self, conn: &mut dyn ConnectionLike, lease: Duration) -> Result<bool> {
        let hold = self.holding();
        let operation = Operation::new("renew", hold.lock_name().text());
        let call = hold.renewal(lease_millis("lease", lease)?);
        call.asks_for(operation, conn)
    }

    /// Waits until so many replicas have the lock that was just acquired **on this connection**.
    /// With fewer it is given back.
    ///
    /// `Ok(())`: the master and so many replicas had the lock in memory, at one moment, as with
    /// [`Options::replicas`](crate::Options::replicas), where it is said what that is worth. Of
    /// what was acquired on another connection it says nothing. For an acquire only: a renewal by
    /// [`renew`](Self::renew) or a [`Watchdog`](crate::Watchdog) waits for no replica, so that a
    /// master's end can still take the later end with it, and the lock then lasts for the lease
    /// that was confirmed.
    ///
    /// One round trip, which takes what the replicas' answer takes, and `wait` at the most; one
    /// more to give the lock back. `wait` counts against the lease, and has to be shorter than the
    /// time-out for reading that the connection has.
    ///
    /// # Errors
    /// - [`Error::TooFewReplicas`]: fewer have it. The lock was given back.
    /// - [`Error::Redis`]: the server refused to wait. The lock was given back, unless it has
    ///   refused that as well.
    /// - [`Error::Unknown`]: no answer came, so the lock may be held by
    ///   [`Error::token`] until the lease ends. Release it, on another connection.
    /// - [`Error::Invalid`]: `replicas` is not between 1 and 100, or `wait` not between 1 ms and 24
    ///   h. Nothing was sent, and the lock is held.
    ///
    /// # Example
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Token, recipes::{Recipe, mutex::{self, End, Hold}}};
    ///
    /// # let pool = leasehold::Pool::connect("redis+sentinel://s1,s2,s3/mymaster")?;
    /// let mut conn = pool.get()?;
    /// let (token, end) = (Token::random(), End::After(Duration::from_secs(10)));
    /// if let Some(grant) = mutex::try_acquire(&mut *conn, "report", &token, end)? {
    ///     Hold::new("report", &token)?.confirm_by_replicas(&mut *conn, 1, Duration::from_millis(100))?;
    ///     println!("granted, with fencing token {}", grant.fencing_token());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    fn confirm_by_replicas(
        &self,
        conn: &mut dyn ConnectionLike,
        replicas: u32,
        wait: Duration,
    ) -> Result<()> {
        let hold = self.holding();
        let operation = Operation::new("confirm_by_replicas", hold.lock_name().text());
        let wanted = Replicas::wanted(replicas, wait)?;
        let unanswered = |error| operation.unanswered(Some(hold.token()), error);
        let confirmed = wanted.confirm(conn).map_err(unanswered);
        if let Err(Error::TooFewReplicas { .. } | Error::Redis { .. }) = confirmed {
            hold.giving_back().counts(conn).map_err(unanswered)?;
        }
        confirmed
    }

    /// Gives the lock back. `Ok(false)`: it was not ours any more.
    ///
    /// # Errors
    /// As the recipe's own `release`.
    fn release(&self, conn: &mut dyn ConnectionLike) -> Result<bool> {
        let hold = self.holding();
        let operation = Operation::new("release", hold.lock_name().text());
        hold.giving_back()
            .counts(conn)
            .map(|held| held > 0)
            .map_err(|error| operation.unanswered(None, error))
    }
}

pub(crate) mod sealed {
    use super::hold::Holding;

    /// A value that names one hold.
    pub trait Hold: std::fmt::Debug + Send + Sync + 'static {
        /// The hold.
        fn holding(&self) -> &Holding;
    }
}
