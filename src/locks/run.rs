//! Work that is done while a lock is held.

use std::time::Duration;

use super::{lease::Lease, lock::Lock};
use crate::{error::Result, recipes::ran::Ran};

impl Lock {
    /// Runs something while the lock is held, and releases it on return and on panic.
    ///
    /// Waits as [`acquire`](Self::acquire) does. What runs is not stopped when the lease is lost:
    /// it may ask the lease.
    ///
    /// `Err` means that it has **not** run, and may be run later. When it has run the answer is
    /// [`Ran`], with its value, whatever happened to the lock meanwhile or afterwards.
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
        let released = lease.release();
        Ok(Ran { value, released })
    }
}
