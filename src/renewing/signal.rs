//! `LostSignal`, which notifies a holder of the loss of its lease.

use std::time::Duration;

use super::keeper::Handle;
use crate::error::{LostReason, Result};

/// A signal of the loss of a lease, to poll, to wait on, or to register a callback. A clone is the
/// same signal.
///
/// It is raised when the server reports that the lock is not ours, or at the end of the lease by
/// our own clock, whichever comes first. It is never reset, and never raised after the renewal was
/// stopped.
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

    /// Returns the reason of the loss; `None` if the lease is not lost.
    #[must_use]
    pub fn reason(&self) -> Option<LostReason> {
        self.lease.lease_state().lost()
    }

    /// Waits until the lease is lost, for at most this long. Returns true if it is lost.
    ///
    /// Returns false at once if the renewal is stopped, since the signal can no longer be raised.
    #[must_use]
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let deadline = self.lease.lease_state().clock.after(timeout);
        self.lease.lease_state().wait_until_lost(deadline)
    }

    /// Registers a callback for the loss of the lease.
    ///
    /// It is called at once if the lease is already lost, and never if the renewal is stopped
    /// first.
    ///
    /// Callbacks run on a second thread of the watchdog, which starts with the first one: a slow
    /// callback delays other callbacks, but no renewal. A panic in one affects nothing else. If the
    /// watchdog is dropped while the lease is held, the callback is called then, with
    /// [`LostReason::Unwatched`], since no thread remains to call it later.
    ///
    /// # Errors
    /// After an error the callback is not called.
    /// - [`Error::Thread`](crate::Error::Thread): the thread could not be started.
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child, which has no such thread.
    pub fn notify(&self, callback: impl FnOnce(LostReason) + Send + 'static) -> Result<()> {
        self.lease.notify(Box::new(callback))
    }
}
