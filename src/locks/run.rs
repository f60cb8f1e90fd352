//! Work that is done while a lock is held.

use std::time::Duration;

use super::{lease::Lease, lock::Lock};
use crate::error::{Error, Result};

/// The work has been done under the lock: its value, and what letting the lock go has come to. See [`Lock::run`].
#[derive(Debug)]
#[must_use = "it says whether the lock was held until the work was done"]
#[non_exhaustive]
pub struct Ran<T> {
    /// What the work has returned.
    pub value: T,
    /// Whether the lock was held until the work was done, and is free now.
    ///
    /// - [`Error::Lost`]: the lease ended first, so that somebody else may have had the lock at the same time.
    /// - [`Error::WrongKind`]: something else stands at the lock's key, or beside it: the same may be true.
    /// - Any other error: as far as is known it was held all the time, but may not be free yet. The watchdog's thread goes on
    ///   trying, as after [`Lease::release`].
    pub released: Result<()>,
}

impl<T> Ran<T> {
    /// The value, unless somebody else may have had the lock before the work was done. Whether the lock is free again makes
    /// no difference.
    ///
    /// # Errors
    /// [`Error::Lost`] and [`Error::WrongKind`], from [`released`](Self::released). The value is dropped then: where it is
    /// wanted all the same, take [`value`](Self::value).
    pub fn unless_lost(self) -> Result<T> {
        match self.released {
            Err(lost @ (Error::Lost { .. } | Error::WrongKind { .. })) => Err(lost),
            _ => Ok(self.value),
        }
    }
}

impl Lock {
    /// Runs something while the lock is held, and releases it on return and on panic.
    ///
    /// Waits as [`acquire`](Self::acquire) does. What runs is not stopped when the lease is lost: it may ask the lease.
    ///
    /// `Err` means that it has **not** run, and may be run later. When it has run the answer is [`Ran`], with its value,
    /// whatever happened to the lock meanwhile or afterwards.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # fn count_pages() -> u64 { 0 }
    /// # fn report(pages: u64) {}
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let ran = locks
    ///     .lock("report:daily")
    ///     .run(Duration::from_secs(5), |_lease| count_pages())?;
    /// report(ran.value); // it has run, once
    /// if let Err(error) = ran.released {
    ///     eprintln!("after the report: {error}"); // lost meanwhile, or perhaps not free yet
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn run<T>(&self, timeout: Duration, run: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let lease = self.acquire(timeout)?;
        let value = run(&lease);
        // Of a lease that was lost before, a release that fails for another reason would not say so.
        let held = lease.check();
        let released = lease.release();
        Ok(Ran {
            value,
            released: held.and(released),
        })
    }
}
