//! The handle of one lease that is kept alive.

use std::time::Duration;

use crate::{
    error::{Error, Operation},
    renewing::{keeper::Handle, lease_state::RenewalState, signal::LostSignal},
    time::Deadline,
};

/// A lease that a [`Watchdog`](crate::Watchdog) renews. Dropping this stops the renewing; the lease
/// then runs out.
///
/// Its answers are computed from our own clock and the last answer of the server; nothing is sent.
/// The time of a lease is counted from before its renewal is sent, so that it never ends later than
/// on the server.
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

    /// Returns true until the lease ends, by our clock and by what the server has said. Never true
    /// after it has ended on the server, even if the watchdog gets no processor time.
    ///
    /// True as well while the [state](Self::state) is `Unknown` and the end lies ahead. That a lock
    /// was deleted by hand is known only when the next renewal is answered, and the clock of a
    /// machine stands still while that is suspended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// The time left of the lease by our clock; zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.lease_state().remaining()
    }

    /// Held, lost, or in doubt.
    #[must_use]
    pub fn state(&self) -> RenewalState {
        self.lease.lease_state().state()
    }

    /// The reason why the last attempt to renew failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let lease_state = self.lease.lease_state();
        lease_state.failure(Operation::new("renew", lease_state.lock_name()))
    }

    /// A signal that the lease is lost, to poll, to wait on, or to be called by.
    #[must_use]
    pub fn lost(&self) -> LostSignal {
        LostSignal::new(self.lease.clone())
    }

    /// Ends the renewing, so that the lock can be released. Says how the lease stood.
    ///
    /// Waits for a renewal that is being sent at this moment: it ends within one I/O time-out of
    /// the pool, and a second one is waited in case its thread gets no processor time. After that
    /// nothing is sent for this hold any more. The lock itself stays as it is: release it, or let
    /// its lease end.
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
