//! The handle of one lease that is kept alive.

use std::{fmt, time::Duration};

use crate::{
    error::{Error, Operation},
    renewing::{handle::Handle, signal::LostSignal, standing::RenewalState},
    time::Deadline,
};

/// A lease that a [`Watchdog`](crate::Watchdog) keeps alive. Dropping it ends the renewing, not the lease.
///
/// What it says is computed from our own clock and from what the server has answered; asking it sends nothing. Its clock
/// starts before a renewal is sent, so that it ends no later than the server's.
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
#[must_use = "dropping it ends the renewing at once"]
pub struct Renewal {
    lease: Handle,
}

impl Renewal {
    pub(crate) fn new(lease: Handle) -> Self {
        Self { lease }
    }

    /// Whether the lease stands, by our clock and by what the server has said. Never true after it has ended on the
    /// server, even if the watchdog gets no processor time.
    ///
    /// True as well while the [state](Self::state) is `Unknown` and the end lies ahead. It cannot know of a lock that was
    /// deleted by hand before the next renewal says so, and a machine that was suspended keeps its clock standing.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// What is left of the lease by our clock; nothing once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.standing().remaining()
    }

    /// Held, lost, or in doubt.
    #[must_use]
    pub fn state(&self) -> RenewalState {
        self.lease.standing().state()
    }

    /// Why the last attempt to renew failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let standing = self.lease.standing();
        standing.failure(Operation::new("renew", standing.lock_name()))
    }

    /// A signal that the lease is lost, to poll, to wait on, or to be called by.
    #[must_use]
    pub fn lost(&self) -> LostSignal {
        LostSignal::new(self.lease.clone())
    }

    /// Ends the renewing, so that the lock can be released. Says how the lease stood.
    ///
    /// Waits for a renewal that is being sent at this moment, which takes one I/O time-out of the pool at most, and is given
    /// a second one in case its thread gets no processor time. When it has ended nothing is sent for this hold any more. The lock itself stays as it is: release it, or let it end.
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
        if self.lease.keeper().is_a_copy() {
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

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal")
            .field("hold", self.lease.standing().hold())
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
