//! `LostSignal`, which notifies a holder of the loss of its lease.

use std::{sync::Arc, thread, time::Duration};

use parking_lot::Mutex;

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
    /// The lease, or all leases of a set: the loss of any raises the signal.
    leases: Arc<[Handle]>,
}

/// The pause between two looks at the leases of a set.
const LOOKS_AT_SEVERAL: Duration = Duration::from_millis(10);

impl LostSignal {
    pub(crate) fn new(lease: Handle) -> Self {
        Self::of_any([lease].into_iter())
    }

    /// A signal of the first loss among these leases.
    pub(crate) fn of_any(leases: impl Iterator<Item = Handle>) -> Self {
        Self {
            leases: leases.collect(),
        }
    }

    /// Returns true once the lease is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns the reason of the loss; `None` if the lease is not lost.
    #[must_use]
    pub fn reason(&self) -> Option<LostReason> {
        (self.leases.iter()).find_map(|lease| lease.lease_state().lost())
    }

    /// Waits until the lease is lost, for at most this long. Returns true if it is lost.
    ///
    /// Returns false at once if the renewal is stopped, since the signal can no longer be raised.
    /// The signal of a set is noticed within 10 ms.
    #[must_use]
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let Some(first) = self.leases.first() else {
            return false;
        };
        let deadline = first.lease_state().clock.after(timeout);
        if self.leases.len() == 1 {
            return first.lease_state().wait_until_lost(deadline);
        }
        let is_stopped = |lease: &Handle| lease.lease_state().is_stopped();
        while !self.is_lost() && !deadline.has_passed() && !self.leases.iter().all(is_stopped) {
            thread::sleep(deadline.remaining_up_to(LOOKS_AT_SEVERAL));
        }
        self.is_lost()
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
        if let [lease] = &*self.leases {
            return lease.notify(Box::new(callback));
        }
        // The callback runs once, at the first loss among the leases.
        let callback = Arc::new(Mutex::new(Some(callback)));
        let registered = self.leases.iter().try_for_each(|lease| {
            let callback = Arc::clone(&callback);
            lease.notify(Box::new(move |reason| {
                let callback = callback.lock().take();
                if let Some(callback) = callback {
                    callback(reason);
                }
            }))
        });
        if registered.is_err() {
            // Some leases have registered the callback, which must not run any more. It is dropped
            // with no mutex locked, since its drop runs the user's code.
            let unregistered = callback.lock().take();
            drop(unregistered);
        }
        registered
    }
}
