//! The result of work under a lock.

use crate::error::{Error, Result};

/// The value of work that ran under a lock, and the result of the release.
///
/// Returned by [`Lock::run`](crate::Lock::run) and [`with_lock`](crate::with_lock).
#[derive(Debug)]
#[must_use = "it tells whether the lock was held until the work was done"]
#[non_exhaustive]
pub struct Ran<T> {
    /// The value that the work returned.
    pub value: T,
    /// `Ok`: the lock was held until the work ended, and is free now.
    ///
    /// - [`Error::Lost`]: the lease ended first, so another holder may have had the lock at the
    ///   same time.
    /// - [`Error::WrongKind`]: the lock's key or its companion holds something else, so another
    ///   holder may have had the lock in this case too.
    /// - Any other error: as far as is known, the lock was held to the end, but it may not be free
    ///   yet. The watchdog's thread retries, as after [`Lease::release`](crate::Lease::release), or
    ///   the lease expires.
    pub released: Result<()>,
}

impl<T> Ran<T> {
    /// Returns the value, unless another holder may have had the lock before the work ended. A
    /// release that failed for another reason is ignored.
    ///
    /// # Errors
    /// [`Error::Lost`] and [`Error::WrongKind`], from [`released`](Self::released). The value is
    /// then dropped: to keep it, use [`value`](Self::value).
    pub fn unless_lost(self) -> Result<T> {
        match self.released {
            Err(lost @ (Error::Lost { .. } | Error::WrongKind { .. })) => Err(lost),
            _ => Ok(self.value),
        }
    }
}
