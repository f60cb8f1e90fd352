//! The connections that a pool has opened, and the threads that open them, which are r2d2's.

use std::{mem, ops::Deref};

use super::{manager::Manager, process::Process};

/// r2d2's pool, to which all copies of a [`Pool`](super::Pool) lead.
///
/// In the child of a fork it is not dropped: to end its threads a mutex is locked, which one of
/// them may have locked at the fork.
pub(super) struct Connections {
    pool: r2d2::Pool<Manager>,
    process: Process,
}

impl Connections {
    pub(super) fn new(pool: r2d2::Pool<Manager>, process: Process) -> Self {
        Self { pool, process }
    }
}

impl Deref for Connections {
    type Target = r2d2::Pool<Manager>;

    fn deref(&self) -> &Self::Target {
        &self.pool
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        if self.process.is_forked_child() {
            mem::forget(self.pool.clone());
        }
    }
}
