//! Who may have a connection: as many callers as the pool has room for.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

/// The permits of a pool. r2d2 does not wake a waiting thread when a connection comes back broken; a permit comes back
/// whatever became of the connection, and its holder finds an idle one, or room to open one.
#[derive(Clone)]
pub(super) struct Permits(Arc<(Mutex<Counts>, Condvar)>);

struct Counts {
    free: u32,
    /// How many those have who call `Pool::get`.
    callers: u32,
}

/// Who borrows a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Borrower {
    /// By `Pool::get`, for as long as the caller likes.
    Caller,
    /// For one call of ours.
    Ourselves,
}

/// The right to one connection, given back when dropped.
pub(super) struct Permit {
    permits: Permits,
    borrower: Borrower,
}

impl Permits {
    pub(super) fn new(count: u32) -> Self {
        let counts = Counts {
            free: count,
            callers: 0,
        };
        Self(Arc::new((Mutex::new(counts), Condvar::new())))
    }

    /// Waits for a permit. An error: none came back for so long, and so many are with callers.
    pub(super) fn take(&self, borrower: Borrower, longest: Duration) -> Result<Permit, u32> {
        let (counts, returned) = &*self.0;
        let mut counts = counts.lock();
        if counts.free == 0 {
            returned.wait_while_for(&mut counts, |counts| counts.free == 0, longest);
        }
        counts.free = counts.free.checked_sub(1).ok_or(counts.callers)?;
        counts.callers += u32::from(borrower == Borrower::Caller);
        Ok(Permit {
            permits: self.clone(),
            borrower,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (counts, returned) = &*self.permits.0;
        let mut counts = counts.lock();
        counts.free += 1;
        counts.callers -= u32::from(self.borrower == Borrower::Caller);
        returned.notify_one();
    }
}
