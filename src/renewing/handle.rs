//! What a `Lease`, a `Renewal` and a `LostSignal` each have of one lease.

use std::{sync::Arc, time::Instant};

use super::{
    entry::Terms,
    keeper::Keeper,
    lease_state::{Callback, LeaseState, RenewalState},
    schedule::Id,
};
use crate::{
    error::{LostReason, Result},
    time::Deadline,
};

/// A lease, and the keeper that keeps it. A clone is the same lease; dropping it changes nothing.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(super) keeper: Arc<Keeper>,
    pub(super) lease_state: Arc<LeaseState>,
    pub(super) id: Id,
}

impl Handle {
    /// Has one more lease kept, by these terms.
    pub(crate) fn keep(keeper: &Arc<Keeper>, lease_state: LeaseState, terms: Terms) -> Self {
        let lease_state = Arc::new(lease_state);
        let id = keeper.keep(&lease_state, terms);
        Self {
            keeper: Arc::clone(keeper),
            lease_state,
            id,
        }
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    pub(crate) fn lease_state(&self) -> &Arc<LeaseState> {
        &self.lease_state
    }

    /// Hands the lock to another thread of this process, which holds it as `next` from now on.
    /// `None`: this lease is not kept any more, or is being renewed.
    pub(crate) fn hand_over(&self, next: LeaseState, terms: Terms) -> Option<Self> {
        let lease_state = Arc::new(next);
        let id = self.keeper.hand_over(self.id, &lease_state, terms)?;
        Some(Self {
            keeper: Arc::clone(&self.keeper),
            lease_state,
            id,
        })
    }

    /// Notes that the holder has renewed it by itself, until `end`. False: it is lost.
    pub(crate) fn extend(&self, end: Instant) -> bool {
        self.keeper.extend(self.id, &self.lease_state, end)
    }

    /// Notes that the lock is not ours, as the server has told the holder.
    pub(crate) fn lose(&self, reason: LostReason) {
        self.keeper.lose(self.id, &self.lease_state, reason);
    }

    /// Stops the renewing and returns how the lease stood. Waits for the answer to a question that
    /// is on its way, but not past the deadline. If it came in time, nothing is sent for the lease
    /// any more.
    pub(crate) fn stop_by(&self, deadline: Deadline) -> RenewalState {
        self.keeper.stop_by(self.id, &self.lease_state, deadline)
    }

    /// Calls this when the lease is lost.
    pub(crate) fn notify(&self, callback: Callback) -> Result<()> {
        self.keeper.notify(self.id, &self.lease_state, callback)
    }
}
