//! The set that the wait for one lock is a part of.
//!
//! [`LockSet`](super::LockSet) makes a [`SetWait`] each time it asks for the rest of its locks, and
//! [`acquire`](super::acquire) uses it: the loss of a lock that the set holds ends the wait as a
//! cancel does, and `Contended` reports the length of the set's whole wait.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::release::GIVES_BACK_WITHIN;
use crate::{
    cancel::Cancel,
    error::{Operation, Result},
    renewing::keeper::Handle,
    time::{self, Deadline},
};

/// The set that a wait is a part of. A lock that is acquired alone is a set of one.
#[derive(Debug)]
pub(super) struct SetWait<'a> {
    /// The locks of the set that are held. The loss of one ends the wait. Checked only while a wait
    /// is refused by the server or delayed by another thread, so that a set of N free locks costs N
    /// checks, not N × N.
    held: Option<&'a Arc<Mutex<Vec<Handle>>>>,
    /// The time at which the wait for the set began.
    pub(super) since: Instant,
    /// The time at which this value was made, on the machine's clock.
    began: Instant,
    /// The limit of the set's wait has passed, so this lock is not asked for.
    pub(super) is_over: bool,
    /// The wait ended without a reply from the server.
    pub(super) is_silent: Cell<bool>,
}

impl<'a> SetWait<'a> {
    pub(super) fn new(held: Option<&'a Arc<Mutex<Vec<Handle>>>>, since: Instant) -> Self {
        Self {
            held,
            since,
            began: time::now(),
            is_over: false,
            is_silent: Cell::new(false),
        }
    }

    /// Returns the deadline for releasing what a failed wait leaves. The call returns at most one
    /// I/O time-out after its limit. The wait may have used a part of that, or all of it if the
    /// server was silent.
    pub(super) fn releases_by(&self, limit: Deadline, answer: Duration) -> Deadline {
        let from = |limit: Instant| {
            if self.is_over {
                limit
            } else {
                limit.max(self.began)
            }
        };
        let late = limit.moment().map(|limit| from(limit).elapsed());
        let left = answer.saturating_sub(late.unwrap_or_default());
        let left = if self.is_silent.get() {
            Duration::ZERO
        } else {
            left
        };
        Deadline::after(left.max(GIVES_BACK_WITHIN))
    }

    /// Notes that the set holds this lock.
    pub(super) fn now_holds(&self, lease: Handle) {
        if let Some(held) = self.held {
            held.lock().push(lease);
        }
    }

    /// Returns the cancel of the wait: the caller's, or the loss of a lock that the set holds.
    pub(super) fn cancel(&self, cancel: Option<&Cancel>) -> Option<Cancel> {
        // The wait for the first lock of a set needs no poll.
        let held = self.held.filter(|held| !held.lock().is_empty());
        let Some(held) = held.map(Arc::clone) else {
            return cancel.cloned();
        };
        let is_lost = |lease: &Handle| lease.lease_state().lost().is_some();
        let cancel = cancel.cloned().unwrap_or_default();
        Some(cancel.or_when(move || held.lock().iter().any(is_lost)))
    }

    /// Returns an error if a lock that the set holds was lost.
    pub(super) fn check(&self, name: &'static str) -> Result<()> {
        let held = self.held.map(|held| held.lock());
        for lease in held.iter().flat_map(|held| held.iter()) {
            let lease = lease.lease_state();
            if let Some(reason) = lease.lost() {
                let operation = Operation::new(name, lease.lock_name());
                return Err(lease.lost_error(operation, Some(reason)));
            }
        }
        Ok(())
    }
}
