//! `Renewal`, the handle of one lease that a watchdog keeps.

use std::time::Duration;

use crate::{
    error::{Error, Operation},
    renewing::{keeper::Handle, lease_state::RenewalState, signal::LostSignal},
    time::Deadline,
};

/// A lease that a [`Watchdog`](crate::Watchdog) renews. Dropping it stops the renewal, and the
/// lease expires.
///
/// Its methods use our own clock and the last reply of the server; they send nothing. A lease
/// counts from before its renewal is sent, so it never ends later than on the server.
///
/// # Examples
/// ```no_run
/// # fn work_on(page: u32) {}
/// # fn report(renewal: leasehold::Renewal) {
/// for page in 0..1_000 {
///     if !renewal.is_held() {
///         return; // somebody else may have the lock by now
///     }
///     work_on(page);
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it ends the renewing at once"]
pub struct Renewal {
    lease: Handle,
}

impl Renewal {
    pub(crate) fn new(lease: Handle) -> Self {
        Self { lease }
    }

    /// Returns true until the lease ends, by our clock and the server's replies. Never true after
    /// it has ended on the server, even if the watchdog gets no processor time.
    ///
    /// Also true while the [state](Self::state) is `Unknown` and the end lies ahead. It does not
    /// detect a lock that was deleted by hand until the reply to the next renewal, nor the time
    /// during which the machine was suspended, since its clock stands still then.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// The time left of the lease by our clock; zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.lease_state().remaining()
    }

    /// Returns whether the lease is held, lost or unknown.
    #[must_use]
    pub fn state(&self) -> RenewalState {
        self.lease.lease_state().state()
    }

    /// The error of the last renewal, if it failed.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let lease_state = self.lease.lease_state();
        lease_state.failure(Operation::new("renew", lease_state.lock_name()))
    }

    /// Returns a signal of the loss of the lease, to poll, to wait on, or to register a callback.
    #[must_use]
    pub fn lost(&self) -> LostSignal {
        LostSignal::new(self.lease.clone())
    }

    /// Stops the renewal, so that the lock can be released, and returns the last state.
    ///
    /// Waits for a renewal that is on its way, at most two I/O time-outs of the pool: it ends
    /// within one, and the second allows for a thread without processor time. After that nothing is
    /// sent for this hold. The lock itself does not change: release it, or let its lease end.
    ///
    /// Dropping does the same.
    #[allow(
        clippy::must_use_candidate,
        reason = "most callers release next, and that says the same"
    )]
    pub fn stop(self) -> RenewalState {
        self.end()
    }

    fn end(&self) -> RenewalState {
        if self.lease.is_forked_child() {
            return RenewalState::Unknown;
        }
        self.lease.stop_by(Deadline::after(Duration::MAX))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.end();
    }
}
