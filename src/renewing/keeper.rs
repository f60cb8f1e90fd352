//! What the handles ask of the watchdog's two threads.
//!
//! Each function locks `state` for a moment, and a lease's `facts` within it; only
//! [`stop_by`](Keeper::stop_by) waits, for a batch that is on its way. The order of all locks is in
//! the header of the [room](super).

use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    entry::Terms,
    lease_state::{Callback, LeaseState, RenewalState},
    schedule::{Id, Schedule},
};
use crate::{
    connection::{Limits, Process},
    error::{LostReason, Result},
    recipes::hold::Hold,
    script::Call,
    time::{Clock, Deadline},
};

/// What the threads and all handles share.
pub(crate) struct Keeper {
    pub(super) state: Mutex<State>,
    /// For the renewing thread: there is something new to do.
    pub(super) wake: Condvar,
    /// For those who stop a renewal: a batch has come back.
    pub(super) landed: Condvar,
    /// For the callback thread: there is a callback to call, or another end to wait for.
    pub(super) call: Condvar,
    /// For the thread that drops the watchdog: one of its two threads has ended.
    pub(super) ended: Condvar,
    pub(super) limits: Limits,
    /// The server tells the listener when a key of our leases is changed.
    pub(super) is_tracked: bool,
    pub(super) clock: Clock,
    /// A child has our memory after a fork, but not our threads.
    pub(super) process: Process,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) schedule: Schedule<Arc<LeaseState>, Call>,
    pub(super) calls: VecDeque<(Callback, LostReason)>,
    /// Which leases there are of a key, in the order in which they came to be kept.
    pub(super) of_key: HashMap<String, Vec<Id>>,
    /// Until when the renewing thread sleeps, if it does: a lease that is due later need not wake
    /// it.
    pub(super) asleep_until: Option<Instant>,
    pub(super) closing: bool,
    pub(super) renewing: Option<JoinHandle<()>>,
    pub(super) calling: Option<JoinHandle<()>>,
    /// Threads that run.
    pub(super) running: usize,
    /// Threads that run what a user has written at this moment. A test waits until there is none.
    pub(super) telling: usize,
}

impl Keeper {
    /// Has one more lease kept, by these terms.
    pub(super) fn keep(&self, lease_state: &Arc<LeaseState>, terms: Terms) -> Id {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let id = state.schedule.keep(Arc::clone(lease_state), terms, now);
        if self.is_tracked {
            state.remember_key(id, lease_state.key());
        }
        self.wake_if_sooner(&state);
        id
    }

    /// Wakes the renewing thread if something is due before it would wake by itself.
    pub(super) fn wake_if_sooner(&self, state: &State) {
        let due = state.schedule.due_at();
        if state
            .asleep_until
            .is_none_or(|end| due.is_some_and(|due| due < end))
        {
            self.wake.notify_one();
        }
    }

    /// The lease goes on as `next`, by these terms. `None`: it is not kept any more, or is being
    /// renewed.
    pub(super) fn hand_over(&self, before: Id, next: &Arc<LeaseState>, terms: Terms) -> Option<Id> {
        let (mut state, now) = (self.state.lock(), self.clock.now());
        let id = (state.schedule).hand_over(before, Arc::clone(next), terms, now)?;
        state.forget_key(before, next.key());
        state.remember_key(id, next.key());
        self.wake_if_sooner(&state);
        Some(id)
    }

    /// Who has the lock of this key, if it is held in this process.
    pub(crate) fn holder_of(&self, key: &str) -> Option<String> {
        let state = self.state.lock();
        // A lease that was lost is of the key until its holder lets it go.
        let mut ids = state.of_key.get(key)?.iter().copied();
        let kept = ids.find(|id| state.schedule.is_kept(*id))?;
        let lease_state = state.schedule.item(kept)?;
        Some(lease_state.holder().as_str().to_owned())
    }

    /// This key was changed: has the [oldest](State::look_at_oldest) lease of it looked at.
    pub(crate) fn changed(&self, key: &str) {
        let mut state = self.state.lock();
        state.look_at_oldest(key, self.clock.now());
        self.wake_if_sooner(&state);
    }

    /// Any key may have been changed without our being told: has the oldest lease of each looked
    /// at.
    pub(crate) fn look_at_all(&self) {
        let (mut state, now) = (self.state.lock(), self.clock.now());
        let keys: Vec<_> = state.of_key.keys().cloned().collect();
        for key in keys {
            state.look_at_oldest(&key, now);
        }
        self.wake_if_sooner(&state);
    }

    /// The server may not know of the last renewals either: has all leases looked at, and renewed
    /// for what is left of them.
    pub(crate) fn repeat_all(&self) {
        let mut state = self.state.lock();
        state.schedule.repeat_all(self.clock.now());
        self.wake_if_sooner(&state);
    }

    /// Has a hold given back that the server may have granted to a caller who is gone: until the
    /// server answers, and longer if an acquire of it got no answer.
    pub(crate) fn abandon(&self, hold: &Hold, may_be_acquired_late: bool) {
        let giving_back = hold.giving_back();
        let mut state = self.state.lock();
        let now = self.clock.now();
        state
            .schedule
            .abandon(giving_back, may_be_acquired_late, now);
        self.wake_if_sooner(&state);
    }

    pub(super) fn lose(&self, id: Id, lease_state: &LeaseState, reason: LostReason) {
        let mut state = self.state.lock();
        state.schedule.stop(id);
        self.lose_all(&mut state, [(lease_state, reason)]);
    }

    pub(super) fn extend(&self, id: Id, lease_state: &LeaseState, end: Instant) -> bool {
        let mut state = self.state.lock();
        if let Some(reason) = lease_state.lost() {
            // Our clock may have ended it just now. A lost lease is never held again: the server's
            // yes may be to the owner's next hold.
            state.schedule.stop(id);
            self.lose_all(&mut state, [(lease_state, reason)]);
            return false;
        }
        let end = state.schedule.extend(id, end);
        self.call.notify_one();
        end.is_some_and(|end| lease_state.renewed(end))
    }

    /// How many leases are being kept.
    pub(crate) fn leases(&self) -> usize {
        self.state.lock().schedule.len()
    }

    pub(crate) fn io_timeout(&self) -> Duration {
        self.limits.answer
    }

    /// How long the first answer is waited for: connecting anew and one exchange.
    pub(crate) fn patience(&self) -> Duration {
        self.limits.connect + self.limits.answer
    }

    pub(super) fn stop_by(
        &self,
        id: Id,
        lease_state: &LeaseState,
        deadline: Deadline,
    ) -> RenewalState {
        let mut state = self.state.lock();
        state.schedule.stop(id);
        if state.forget_key(id, lease_state.key()) {
            // A look at it may have been due, for all leases of the key.
            state.look_at_oldest(lease_state.key(), self.clock.now());
            self.wake_if_sooner(&state);
        }
        if let Some(reason) = lease_state.lost() {
            self.lose_all(&mut state, [(lease_state, reason)]);
        }
        if state.schedule.is_in_flight(id) {
            self.wait_until_landed(&mut state, id, deadline);
        }
        drop(state);
        lease_state.stop()
    }

    fn wait_until_landed(&self, state: &mut MutexGuard<'_, State>, id: Id, deadline: Deadline) {
        // An exchange ends by itself within one time-out; twice that is for a thread that gets no
        // processor time.
        let longest = Deadline::after(self.limits.answer * 2);
        let deadline = longest.or_sooner(deadline.moment());
        while state.schedule.is_in_flight(id) {
            let Some(moment) = deadline.moment() else {
                return;
            };
            if self.landed.wait_until(state, moment).timed_out() {
                return;
            }
        }
    }

    /// Whether this is a child's copy of a parent's: it has no thread, and its locks may be locked
    /// for ever.
    pub(crate) fn is_forked_child(&self) -> bool {
        self.process.is_forked_child()
    }

    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked): this is one.
    pub(crate) fn refuse_forked_child(&self) -> Result<()> {
        self.process.refuse_forked_child()
    }

    pub(super) fn lose_all<K: Borrow<LeaseState>>(
        &self,
        state: &mut State,
        lost: impl IntoIterator<Item = (K, LostReason)>,
    ) {
        for (lease_state, reason) in lost {
            let (key, now) = (lease_state.borrow().key(), self.clock.now());
            if reason == LostReason::TakenAway {
                state.look_at_each(key, now);
            } else {
                // A look at it may have been due, for all leases of the key.
                state.look_at_oldest(key, now);
            }
            if let Some((callbacks, reason)) = lease_state.borrow().lose(reason) {
                let calls = callbacks.into_iter().map(|callback| (callback, reason));
                state.calls.extend(calls);
                self.call.notify_one();
            }
        }
    }
}

impl State {
    fn remember_key(&mut self, id: Id, key: &str) {
        self.of_key.entry(key.to_owned()).or_default().push(id);
    }

    /// True: it was the oldest of several leases of the key.
    fn forget_key(&mut self, id: Id, key: &str) -> bool {
        let Some(ids) = self.of_key.get_mut(key) else {
            return false;
        };
        let was_oldest = ids.first() == Some(&id);
        ids.retain(|other| *other != id);
        let was_last = ids.is_empty();
        if was_last {
            self.of_key.remove(key);
        }
        was_oldest && !was_last
    }

    /// Has the oldest lease of the key looked at, which stands for all of them: a change of the key
    /// costs one question, however many readers or levels there are.
    ///
    /// Each lease is looked at once by itself, soon after it came to be kept. If the key is deleted
    /// or taken over later than that, the oldest lease is lost as well, since the server had
    /// granted it before. When its loss is found, [each](Self::look_at_each) of the others is
    /// looked at. A holder that somebody removes from the key by hand, beside others, is told by
    /// its next renewal.
    fn look_at_oldest(&mut self, key: &str, now: Instant) {
        let ids = self.of_key.get(key).into_iter().flatten();
        if let Some(id) = ids.copied().find(|id| self.schedule.is_kept(*id)) {
            self.schedule.look(id, now);
        }
    }

    /// Has all leases of the key looked at: one of them was taken away.
    fn look_at_each(&mut self, key: &str, now: Instant) {
        for id in self.of_key.get(key).into_iter().flatten() {
            self.schedule.look(*id, now);
        }
    }
}
