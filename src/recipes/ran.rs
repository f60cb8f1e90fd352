//! The outcome of work under a lock.

use crate::error::{Error, Result};

/// The work has been done under the lock: its value, and what letting the lock go has come to. See
/// [`Lock::run`](crate::Lock::run) and [`with_lock`](crate::with_lock).
#[derive(Debug)]
#[must_use = "it says whether the lock was held until the work was done"]
#[non_exhaustive]
pub struct Ran<T> {
    /// The value that the work has returned.
    pub value: T,
    /// `Ok`: the lock was held until the work was done, and is free now.
    ///
    /// - [`Error::Lost`]: the lease ended first, so that somebody else may have had the lock at the
    ///   same time.
    /// - [`Error::WrongKind`]: something else stands at the lock's key, or beside it: the same may
    ///   be true.
    /// - Any other error: as far as is known it was held all the time, but may not be free yet. The
    ///   watchdog's thread goes on trying, as after [`Lease::release`](crate::Lease::release), or
    ///   it ends by itself.
    pub released: Result<()>,
}

impl<T> Ran<T> {
    /// The value, unless somebody else may have had the lock before the work was done. Whether the
    /// lock is free again makes no difference.
    ///
    /// # Errors
    /// [`Error::Lost`] and [`Error::WrongKind`], from [`released`](Self::released). The value is
    /// dropped then: where it is wanted all the same, take [`value`](Self::value).
    pub fn unless_lost(self) -> Result<T> {
        match self.released {
            Err(lost @ (Error::Lost { .. } | Error::WrongKind { .. })) => Err(lost),
            _ => Ok(self.value),
        }
    }
}
