//! `LostSignal`, which tells a holder that its lease is lost.

use std::time::Duration;

use super::keeper::Handle;
use crate::error::{LostReason, Result};

/// Says that a lease is lost: to poll, to wait on, or to be called by. A clone is the same signal.
///
/// It is raised when the server says that the lock is not ours, and by our own clock at the end of
/// the lease, whichever comes first. It is never taken back, and never raised once the renewal has
/// been stopped.
///
/// # Examples
/// ```no_run
/// # use std::sync::atomic::{AtomicBool, Ordering};
/// # use std::sync::Arc;
/// # fn watch(renewal: &leasehold::Renewal, running: Arc<AtomicBool>) -> leasehold::Result<()> {
/// renewal.lost().notify(move |reason| {
///     eprintln!("stopping: {reason}");
///     running.store(false, Ordering::SeqCst);
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LostSignal {
    lease: Handle,
}

impl LostSignal {
    pub(crate) fn new(lease: Handle) -> Self {
        Self { lease }
    }

    /// Returns true once the lease is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.reason().is_some()
    }

    /// Why the lease is lost, if it is.
    #[must_use]
    pub fn reason(&self) -> Option<LostReason> {
        self.lease.lease_state().lost()
    }

    /// Waits until the lease is lost, at most so long; true if it is.
    ///
    /// False as well, at once, when the renewal is stopped: then it will never be raised.
    #[must_use]
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let deadline = self.lease.lease_state().clock.after(timeout);
        self.lease.lease_state().wait_until_lost(deadline)
    }

    /// Has something called when the lease is lost; at once if it is lost already; never if the
    /// renewal is stopped before.
    ///
    /// It runs on a second thread of the watchdog, which is started for the first callback: one
    /// that takes long delays other callbacks, but no renewal. A panic in it has no effect on
    /// anything else. If the watchdog is dropped while the lease still stands it is called then,
    /// with [`LostReason::Unwatched`], since nobody will be there later.
    ///
    /// # Errors
    /// It will not be called then.
    /// - [`Error::Thread`](crate::Error::Thread): that thread could not be started.
    /// - [`Error::Forked`](crate::Error::Forked) in the child of a fork, which has no such thread.
    pub fn notify(&self, callback: impl FnOnce(LostReason) + Send + 'static) -> Result<()> {
        self.lease.notify(Box::new(callback))
    }
}
