//! Who may have a connection: as many callers as the pool has room for.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

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

    /// Waits for a permit. `None`: none came back for so long.
    pub(super) fn take(&self, longest: Duration) -> Option<Permit> {
        let (free, returned) = &*self.0;
        let mut free = free.lock();
        if *free == 0 {
            returned.wait_while_for(&mut free, |free| *free == 0, longest);
        }
        *free = free.checked_sub(1)?;
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
