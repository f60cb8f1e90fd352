//! The right to borrow a connection: there are as many permits as the pool may have connections.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

/// The permits of a pool. r2d2 does not wake a waiting thread when a connection comes back broken. A permit comes back in any
/// case, and whoever takes it finds an idle connection, or room to open one.
#[derive(Clone)]
pub(super) struct Permits(Arc<(Mutex<Counts>, Condvar)>);

struct Counts {
    free: u32,
    /// How many of those that are out were taken by `Pool::get`.
    callers: u32,
}

/// What a permit is taken for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Borrower {
    /// `Pool::get`: the connection is lent for as long as the caller likes.
    Caller,
    /// One call of the library's own.
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

    /// Waits for a permit, at most `longest`. The error says how many are out with callers.
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
