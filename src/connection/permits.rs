//! Who may have a connection: as many callers as the pool has room for.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::time::Deadline;

/// The permits of a pool. r2d2 does not wake a waiting thread when a connection comes back broken; a permit comes back
/// whatever became of the connection, and its holder finds an idle one, or room to open one.
#[derive(Clone)]
pub(super) struct Permits(Arc<(Mutex<u32>, Condvar)>);

/// The right to one connection, given back when dropped.
pub(super) struct Permit(Permits);

impl Permits {
    pub(super) fn new(count: u32) -> Self {
        Self(Arc::new((Mutex::new(count), Condvar::new())))
    }

    /// Waits for a permit. `None`: none came back before the deadline.
    pub(super) fn take(&self, deadline: Deadline) -> Option<Permit> {
        let (free, returned) = &*self.0;
        let mut free = free.lock();
        while *free == 0 {
            if returned
                .wait_for(&mut free, deadline.remaining())
                .timed_out()
                && *free == 0
            {
                return None;
            }
        }
        *free -= 1;
        Some(Permit(self.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (free, returned) = &*self.0.0;
        *free.lock() += 1;
        returned.notify_one();
    }
}
