//! What each kind of lock does on the server, as plain functions on one connection.

// A kind is a folder: `mod.rs` has its functions and what they promise, the Lua files are its scripts, `calls.rs` makes a typed
// call of each. `wait` is the loop of all functions that wait.
//
// A new kind, such as a semaphore, is a new folder here. If it is to be had as a guard too, as by `Locks::lock`, it also becomes a
// `Kind` in `hold`, which says what to send and what the answers mean; the rooms above know a `Holding` only. The stand-in for
// tests needs a function for each of its scripts, in `testing/store/scripts.rs`.

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
    error::{Operation, Result},
    time::lease_millis,
};

/// One hold on one lock: which recipe, which lock, whose token or owner.
///
/// A value of it is what a watchdog renews. Only the recipes of this crate are recipes: how one is renewed in a batch
/// stays between them and the watchdog.
pub trait Recipe: sealed::Hold {
    /// Renews the lease, never shortening it. `Ok(false)`: the lock is not ours any more.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a lease that is not between 1 ms and 24 h, otherwise as the
    /// recipe's own `renew`.
    fn renew(&self, conn: &mut dyn ConnectionLike, lease: Duration) -> Result<bool> {
        let hold = self.holding();
        let operation = Operation::new("renew", hold.lock_name().text());
        let call = hold.renewal(lease_millis("lease", lease)?);
        call.asks_for(operation, conn)
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
