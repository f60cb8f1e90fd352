//! `Keeper`, which keeps any number of leases, and `Handle`, one of its leases.
//!
//! Each function locks `state` briefly, and a lease's `facts` within it. Only [`Handle::stop_by`]
//! waits, for a batch that is in flight. The order of all mutexes is in the header of the
//! [module](super).

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt, mem,
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::RedisError;

use super::{
    lease_state::{Callback, LeaseState, LossCall, RenewalState},
    schedule::{Id, RenewalBatch, Schedule},
};
use crate::{
    error::{LostReason, Result},
    event::shielded,
    pool::{Limits, Process},
    recipes::{Hold, LockKind},
    server::RenewalError,
    time::{Clock, Deadline},
    wire::Call,
};

/// Keeps any number of leases, with a renewing thread and a callback thread.
pub(crate) struct Keeper {
    pub(super) state: Mutex<KeeperState>,
    /// Wakes the renewing thread for new work.
    pub(super) wake: Condvar,
    /// Wakes threads that stop a renewal, when a batch has returned.
    pub(super) landed: Condvar,
    /// Wakes the callback thread for a callback, or an earlier end to wait for.
    pub(super) call: Condvar,
    pub(crate) limits: Limits,
    pub(super) clock: Clock,
    /// The process that has the threads. A forked child has only a copy of the memory, in which a
    /// mutex may stay locked forever.
    pub(crate) process: Process,
}

#[derive(Default)]
pub(super) struct KeeperState {
    pub(super) schedule: Schedule<Arc<LeaseState>, Call>,
    pub(super) calls: VecDeque<LossCall>,
    pub(super) of_key: HashMap<String, KeyLeases>,
    /// The time until which the renewing thread sleeps. A lease that is due later does not wake it.
    pub(super) asleep_until: Option<Instant>,
    pub(super) closing: bool,
    pub(super) renewing: Option<JoinHandle<()>>,
    pub(super) calling: Option<JoinHandle<()>>,
    /// The number of threads that are sending a batch or running a user's code. Tests wait until it
    /// is zero.
    pub(super) busy_threads: usize,
}

/// The leases of one key. A lost lease may stay until its holder releases it.
#[derive(Default)]
pub(super) struct KeyLeases {
    /// Oldest first, since ids only grow.
    all: BTreeSet<Id>,
    /// The leases for which no look is scheduled. The loss of another lease schedules a look at
    /// each of them and empties this set. So N losses cause N looks in all, and one more for each
    /// question that is sent meanwhile, not N × N.
    idle: BTreeSet<Id>,
}

impl Keeper {
    /// Changes the schedule, and wakes the renewing thread if something is due before its sleep
    /// ends.
    fn change<R>(&self, change: impl FnOnce(&mut KeeperState, Instant) -> R) -> R {
        let mut state = self.state.lock();
        let changed = change(&mut state, self.clock.now());
        let (asleep_until, due) = (state.asleep_until, state.schedule.due_at());
        if asleep_until.is_none_or(|end| due.is_some_and(|due| due < end)) {
            self.wake.notify_one();
        }
        changed
    }

    /// Returns a holder of this key that keeps out a hold of this kind, if this keeper has its
    /// lease.
    pub(crate) fn holder_against(&self, key: &str, kind: LockKind) -> Option<String> {
        let state = self.state.lock();
        let ids = state.of_key.get(key)?.all.iter();
        let mut leases = ids.filter_map(|id| state.schedule.item(*id));
        let excludes = |lease: &&Arc<LeaseState>| !kind.shares_with(lease.hold.kind);
        let lease = leases.find(excludes)?;
        Some(lease.holder().as_str().to_owned())
    }

    /// Handles a change of this key: schedules a look at its oldest lease, which stands for all of
    /// them. So a change of the key costs one question for any number of readers or levels.
    ///
    /// Each lease gets one look of its own, soon after it is added. If the key is deleted or taken
    /// over after that, the oldest lease is lost too, since the server granted it earlier. The loss
    /// of one lease schedules a look at each of the others. If one of several holders is removed
    /// from the key by hand, that holder's next renewal detects it.
    pub(crate) fn changed(&self, key: &str) {
        self.change(|state, now| {
            let leases = state.of_key.get_mut(key);
            leases.map(|leases| leases.look_at_oldest(&mut state.schedule, now))
        });
    }

    /// Handles a possible change of any key: schedules a look at the oldest lease of each.
    pub(crate) fn look_at_all(&self) {
        self.change(|state, now| {
            let all = state.of_key.values_mut();
            all.for_each(|leases| leases.look_at_oldest(&mut state.schedule, now));
        });
    }

    /// Schedules a renewal of all leases, since the server may have missed the last ones.
    pub(crate) fn renew_all(&self) {
        self.change(|state, now| state.schedule.renew_all(now));
    }

    /// Queues a release for a hold that nobody has any more. It is repeated until the server
    /// replies, and if an acquire of it got no reply, until that is at least 100 s old. The
    /// repeats end with the keeper.
    pub(crate) fn abandon(&self, hold: &Hold, may_come_late: bool) {
        let release = hold.releasing();
        self.change(|state, now| state.schedule.abandon(release, may_come_late, now));
    }

    /// Returns the number of leases that are kept.
    pub(crate) fn leases(&self) -> usize {
        self.state.lock().schedule.len()
    }

    /// Marks a lease lost that the schedule has removed, and queues its callbacks.
    pub(super) fn lose(&self, state: &mut KeeperState, lease: &LeaseState, reason: LostReason) {
        // A change of the key schedules a look at one lease only, so the other leases of the key
        // may be lost too.
        state.look_at_idle(lease.key(), self.clock.now());
        state.calls.extend(lease.lose(reason));
        self.call.notify_one();
    }

    /// Records the new end of a lease. Returns false if the lease is no longer held: a call such as
    /// `is_held` may just have found that it ended by the clock. A lost lease is never held again,
    /// since the server's reply may belong to the owner's next hold.
    pub(super) fn renewed(
        &self,
        state: &mut KeeperState,
        (id, lease): (Id, &LeaseState),
        end: Instant,
    ) -> bool {
        let is_held = lease.renewed(end);
        if let Some(reason) = lease.lost().filter(|_| !is_held) {
            state.schedule.stop(id);
            self.lose(state, lease, reason);
        }
        // A lease without an end gets no look. From now on it can get one.
        state.now_idle(id, lease.key());
        is_held
    }
}

impl KeeperState {
    fn remember_key(&mut self, id: Id, key: &str) {
        let leases = self.of_key.entry(key.to_owned()).or_default();
        leases.all.insert(id);
        leases.idle.insert(id);
    }

    fn forget_key(&mut self, id: Id, key: &str, now: Instant) {
        let Some(leases) = self.of_key.get_mut(key) else {
            return;
        };
        let was_oldest = leases.all.first() == Some(&id);
        leases.all.remove(&id);
        leases.idle.remove(&id);
        if was_oldest {
            // A look at the stopped lease may have stood for all leases of the key, so another one
            // gets it.
            leases.look_at_oldest(&mut self.schedule, now);
        }
        if leases.all.is_empty() {
            self.of_key.remove(key);
        }
    }

    /// Takes the next batch. A loss from now on is later than its questions.
    pub(super) fn take(&mut self, now: Instant) -> RenewalBatch<Arc<LeaseState>, Call> {
        let batch = self.schedule.take(now);
        for question in &batch.questions {
            self.now_idle(question.id, question.item.key());
        }
        batch
    }

    fn now_idle(&mut self, id: Id, key: &str) {
        let leases = self.of_key.get_mut(key);
        if let Some(leases) = leases.filter(|leases| leases.all.contains(&id)) {
            leases.idle.insert(id);
        }
    }

    /// Schedules a look at each lease of the key that has none pending. Returns their number.
    fn look_at_idle(&mut self, key: &str, now: Instant) -> usize {
        let leases = self.of_key.get_mut(key);
        let idle = leases.map_or_else(BTreeSet::new, |leases| mem::take(&mut leases.idle));
        for id in &idle {
            self.schedule.look(*id, now);
        }
        idle.len()
    }
}

impl KeyLeases {
    /// Schedules a look at the oldest lease that is kept. Removes the lost ones before it, so that
    /// each is passed over once.
    fn look_at_oldest(&mut self, schedule: &mut Schedule<Arc<LeaseState>, Call>, now: Instant) {
        while let Some(oldest) = self.all.first()
            && !schedule.look(*oldest, now)
        {
            self.all.pop_first();
        }
    }
}

/// A lease and its keeper. A clone is the same lease; dropping a handle changes nothing.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(super) keeper: Arc<Keeper>,
    lease: Arc<LeaseState>,
    id: Id,
}

impl Handle {
    /// Adds a lease to the keeper, with its terms.
    pub(crate) fn keep(keeper: &Arc<Keeper>, lease: LeaseState) -> Self {
        let (terms, lease) = (lease.terms(), Arc::new(lease));
        let id = keeper.change(|state, now| {
            let id = state.schedule.keep(Arc::clone(&lease), terms, now);
            state.remember_key(id, lease.key());
            id
        });
        let keeper = Arc::clone(keeper);
        Self { keeper, lease, id }
    }

    pub(crate) fn is_forked_child(&self) -> bool {
        self.keeper.process.is_forked_child()
    }

    pub(crate) fn lease_state(&self) -> &Arc<LeaseState> {
        &self.lease
    }

    /// Hands the lock to another thread of this process, which holds it as `next` from now on.
    /// `None`: this lease is no longer kept, or is being renewed.
    pub(crate) fn hand_over(&self, next: LeaseState) -> Option<Self> {
        let (terms, lease, before) = (next.terms(), Arc::new(next), self.id);
        let id = self.keeper.change(|state, now| {
            let id = (state.schedule).hand_over(before, Arc::clone(&lease), terms, now)?;
            state.forget_key(before, lease.key(), now);
            state.remember_key(id, lease.key());
            Some(id)
        })?;
        let keeper = Arc::clone(&self.keeper);
        Some(Self { keeper, lease, id })
    }

    /// Records a renewal by the holder itself, until `end`. Returns false if the lease is lost.
    pub(crate) fn extend(&self, end: Instant) -> bool {
        let mut state = self.keeper.state.lock();
        let end = state.schedule.extend(self.id, end);
        let lease = (self.id, &*self.lease);
        end.is_some_and(|end| self.keeper.renewed(&mut state, lease, end))
    }

    /// Marks the lease lost, by a reply to the holder that the lock is not ours. `found`: what its
    /// key holds instead.
    pub(crate) fn lose(&self, found: Option<RedisError>) {
        self.keeper.change(|state, _| {
            state.schedule.stop(self.id);
            let reason = self.lease.lost_by_a_no();
            if let Some(found) = found {
                (self.lease).renewal_failed(&RenewalError::sent(found), false);
            }
            self.keeper.lose(state, &self.lease, reason);
        });
    }

    /// Stops the renewal and returns the last state of the lease. Waits for the reply to a question
    /// in flight, but not past the deadline. After a reply in time nothing is sent for the lease
    /// any more.
    pub(crate) fn stop_by(&self, deadline: Deadline) -> RenewalState {
        self.keeper.change(|state, now| {
            state.schedule.stop(self.id);
            state.forget_key(self.id, self.lease.key(), now);
            if let Some(reason) = self.lease.lost() {
                self.keeper.lose(state, &self.lease, reason);
            }
        });
        // An exchange ends within one time-out. The second one allows for a thread without
        // processor time.
        let longest = Deadline::after(self.keeper.limits.answer * 2);
        let deadline = longest.or_sooner(deadline.moment());
        let mut state = self.keeper.state.lock();
        while state.schedule.is_in_flight(self.id)
            && !deadline.wait(&self.keeper.landed, &mut state)
        {}
        drop(state);
        self.lease.stop()
    }

    /// Registers a callback for the loss of the lease. Starts the callback thread if needed.
    pub(crate) fn notify(&self, callback: Callback) -> Result<()> {
        let keeper = &self.keeper;
        keeper.process.refuse_forked_child()?;
        let mut state = keeper.state.lock();
        keeper.start_calling(&mut state)?;
        // A value that the callback owns may lock the state when it is dropped.
        let lost_already = MutexGuard::unlocked(&mut state, || self.lease.register(callback));
        if !state.closing {
            state.calls.extend(lost_already);
            state.schedule.set_alarm(self.id);
            keeper.call.notify_one();
            return Ok(());
        }
        drop(state);
        // The callback thread is gone, so call them here.
        let calls = lost_already.into_iter().chain(self.lease.unwatch());
        calls.for_each(call);
        Ok(())
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt(f)
    }
}

pub(super) fn call((callback, reason): LossCall) {
    shielded(|| callback(reason));
}

#[cfg(test)]
mod tests;
