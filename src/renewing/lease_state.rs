//! The state of one lease, which its handle, its signals and the watchdog's threads share.
//!
//! `facts` is the last lock of the [order](super): while it is locked no other is taken, and no
//! callback is called or dropped.

use std::{
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};

use super::{entry::Terms, outstanding::Outstanding};
use crate::{
    error::{Error, LostReason, Operation},
    event::{EventSink, Lost, RenewalFailed, Renewed, shielded},
    name::Owner,
    recipes::hold::Hold,
    server::Failure,
    time::{Clock, Deadline},
    token::FencingToken,
};

/// The state of a lease, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenewalState {
    /// The last renewal was answered: the lock is ours, and its end lies ahead.
    Held,
    /// The last attempt got no answer, or a refusal that says nothing about the lock. The lease
    /// still stands by our clock, and it is tried again until it ends. Back to `Held` if that
    /// succeeds.
    Unknown,
    /// The lock is not ours any more. For good: what has been lost once is never held again.
    Lost(LostReason),
}

/// Called when a lease is lost.
pub(crate) type Callback = Box<dyn FnOnce(LostReason) + Send>;
/// A callback to call, and the reason to give it.
pub(crate) type LossCall = (Callback, LostReason);

/// One lease. The first who asks about it after its end by our clock makes it lost, for everybody
/// and for good.
pub(crate) struct LeaseState {
    facts: Mutex<Facts>,
    changed: Condvar,
    /// The hooks that are told of its renewals, its loss and its end.
    pub(crate) events: Option<Arc<EventSink>>,
    /// The hooks have been told of its loss.
    loss_is_told: AtomicBool,
    /// The clock by which it ends.
    pub(crate) clock: Clock,
    pub(crate) hold: Arc<Hold>,
    /// The holder, if it is named: another thread that has handed the lock over is the owner of the
    /// hold, of which the server knows.
    holder: Option<Owner>,
    pub(crate) fence: Option<FencingToken>,
}

/// The facts that decide about the [state](RenewalState) of a lease.
struct Facts {
    /// The reason of its loss, which is for good.
    lost: Option<LostReason>,
    /// Its holder has given it up. A lease that was lost before stays lost.
    stopped: bool,
    /// With its end, which is `None` until the first answer.
    terms: Terms,
    /// The reason why the last attempt failed.
    failure: Option<Arc<Failure>>,
    /// The commands that were sent for it and not answered.
    outstanding: Outstanding,
    /// Nobody renews it any more.
    unwatched: bool,
    callbacks: Vec<Callback>,
}

impl LeaseState {
    pub(crate) fn new(
        hold: &Arc<Hold>,
        holder: Option<Owner>,
        fence: Option<FencingToken>,
        terms: &Terms,
        events: Option<Arc<EventSink>>,
        clock: Clock,
    ) -> Self {
        Self {
            facts: Mutex::new(Facts {
                lost: None,
                stopped: false,
                terms: *terms,
                failure: None,
                outstanding: Outstanding::default(),
                unwatched: false,
                callbacks: Vec::new(),
            }),
            changed: Condvar::new(),
            events,
            loss_is_told: AtomicBool::new(false),
            clock,
            hold: Arc::clone(hold),
            holder,
            fence,
        }
    }

    pub(crate) fn holder(&self) -> &Owner {
        self.holder.as_ref().unwrap_or_else(|| self.hold.owner())
    }

    /// Tells the hooks of a renewal, or why there was none. Nothing may be locked.
    pub(crate) fn report_renewal(&self, failure: Option<&Failure>) {
        let (Some(events), lock) = (&self.events, self.lock_name()) else {
            return;
        };
        let Some(failure) = failure else {
            return events.answered(|it| it.renewed(&Renewed::new(lock, self.remaining())));
        };
        let error = failure.error(Operation::new("renew", lock));
        events.failed(|it, row| it.renewal_failed(&RenewalFailed::new(lock, &error, row)));
    }

    /// Tells the hooks of its loss, unless they have been told. Whoever has found the loss calls
    /// this. Nothing may be locked.
    pub(crate) fn tell_loss(&self, reason: LostReason) {
        if let Some(events) = &self.events
            && !self.loss_is_told.swap(true, Ordering::SeqCst)
        {
            events.tell(|events| events.lost(&Lost::new(self.lock_name(), reason)));
        }
    }

    pub(crate) fn lock_name(&self) -> &str {
        self.hold.lock_name().text()
    }

    /// The key of the lock.
    pub(crate) fn key(&self) -> &str {
        self.hold.lock_name().key()
    }

    /// Has the threads that wait on a `LostSignal` look at the clock again.
    #[cfg(feature = "testing")]
    pub(crate) fn clock_moved(&self) {
        drop(self.facts.lock());
        self.changed.notify_all();
    }

    /// The facts as of now: the clock may just have ended the lease.
    fn current(&self) -> MutexGuard<'_, Facts> {
        let mut facts = self.facts.lock();
        if facts.is_live() {
            let reason = facts.terms.lost_at(self.clock.now());
            let unwatched = facts.unwatched.then_some(LostReason::Unwatched);
            facts.lost = reason.map(|reason| unwatched.unwrap_or(reason));
        }
        facts
    }

    /// Changes the facts, and wakes those who wait for a change.
    fn change<R>(&self, change: impl FnOnce(&mut Facts) -> R) -> R {
        let changed = change(&mut self.current());
        self.changed.notify_all();
        changed
    }

    pub(crate) fn state(&self) -> RenewalState {
        self.current().state()
    }

    /// The time left by our clock.
    pub(crate) fn remaining(&self) -> Duration {
        let facts = self.current();
        let end = facts.terms.end.filter(|_| facts.is_live());
        end.map_or(Duration::ZERO, |end| {
            end.saturating_duration_since(self.clock.now())
        })
    }

    /// The terms, with the end by our clock, which may have passed.
    pub(crate) fn terms(&self) -> Terms {
        self.facts.lock().terms
    }

    pub(crate) fn lost(&self) -> Option<LostReason> {
        self.current().lost
    }

    /// The reason why the last attempt failed.
    pub(crate) fn failure(&self, operation: Operation<'_>) -> Option<Error> {
        let failure = self.current().failure.clone()?;
        Some(failure.error(operation))
    }

    /// The server has renewed it. False: it is not ours to renew any more, or our clock had ended
    /// it before the answer came.
    pub(crate) fn renewed(&self, end: Instant) -> bool {
        self.change(|facts| {
            let is_live = facts.is_live();
            if is_live {
                facts.terms.end = Some(end);
                facts.failure = None;
            }
            is_live
        })
    }

    /// An attempt has failed, which proves nothing. `is_out`: a renewal that the server may still
    /// execute.
    pub(crate) fn renewal_failed(&self, failure: &Arc<Failure>, is_out: bool) {
        self.change(|facts| {
            facts.failure = Some(Arc::clone(failure));
            if is_out {
                facts.outstanding.renewal_is_out();
            }
        });
    }

    /// The commands that were sent for it and not answered.
    pub(crate) fn outstanding(&self) -> MappedMutexGuard<'_, Outstanding> {
        MutexGuard::map(self.facts.lock(), |facts| &mut facts.outstanding)
    }

    /// The lock can go to the next holder as it is: it is held, and nothing that was sent for it
    /// can happen later.
    pub(crate) fn is_settled(&self) -> bool {
        let facts = self.current();
        facts.state() == RenewalState::Held && facts.outstanding.is_nothing()
    }

    /// Notes its loss, for this reason unless there was one before. Returns the calls to make.
    pub(crate) fn lose(&self, reason: LostReason) -> Vec<LossCall> {
        self.change(|facts| {
            if facts.is_live() {
                facts.lost = Some(reason);
            }
            facts.take_calls(reason)
        })
    }

    /// Notes that nobody renews it any more, or will be there to call at its end. Returns the calls
    /// to make instead.
    pub(crate) fn unwatch(&self) -> Vec<LossCall> {
        self.change(|facts| {
            facts.unwatched = true;
            facts.take_calls(LostReason::Unwatched)
        })
    }

    /// Ends its renewal. Returns its state until now.
    ///
    /// A callback that has not been called by now never is. Callbacks are dropped here, and may own
    /// anything: nothing may be locked.
    pub(crate) fn stop(&self) -> RenewalState {
        let (state, callbacks) = self.change(|facts| {
            let state = facts.state();
            facts.stopped = true;
            (state, mem::take(&mut facts.callbacks))
        });
        for callback in callbacks {
            shielded(|| drop(callback));
        }
        state
    }

    /// Has the callback called at the loss. Returns the call to make now, if the lease is lost.
    ///
    /// Drops what will never be called, since the renewal was stopped: nothing may be locked.
    pub(crate) fn register(&self, callback: Callback) -> Option<LossCall> {
        let mut facts = self.current();
        if let Some(reason) = facts.lost {
            return Some((callback, reason));
        }
        if !facts.stopped {
            facts.callbacks.push(callback);
        }
        None
    }

    /// Waits for the first answer: an end, a loss or a refusal. Not past the deadline.
    pub(crate) fn wait_for_first_answer(&self, deadline: Deadline) {
        let mut facts = self.current();
        while facts.is_unanswered() && !deadline.wait(&self.changed, &mut facts) {}
    }

    /// Waits until it is lost or not renewed any more, or the deadline has passed. Returns true if
    /// it is lost.
    pub(crate) fn wait_until_lost(&self, deadline: Deadline) -> bool {
        loop {
            let mut facts = self.current();
            if facts.lost.is_some() || facts.stopped || deadline.has_passed() {
                return facts.lost.is_some();
            }
            let end = facts.terms.lost_by();
            deadline.or_sooner(end).wait(&self.changed, &mut facts);
        }
    }
}

impl Facts {
    fn state(&self) -> RenewalState {
        let is_sure = self.terms.end.is_some() && self.failure.is_none() && !self.unwatched;
        match self.lost {
            Some(reason) => RenewalState::Lost(reason),
            None if is_sure && !self.stopped => RenewalState::Held,
            None => RenewalState::Unknown,
        }
    }

    /// Neither lost nor given up.
    fn is_live(&self) -> bool {
        self.lost.is_none() && !self.stopped
    }

    /// The first renewal may still be answered. After a refusal another attempt makes little sense.
    fn is_unanswered(&self) -> bool {
        let is_refused = |failure: &Arc<Failure>| failure.is_refusal();
        self.is_live() && self.terms.end.is_none() && !self.failure.as_ref().is_some_and(is_refused)
    }

    /// The callbacks, with the known reason of the loss, or else this one. A lease that was stopped
    /// has none.
    fn take_calls(&mut self, reason: LostReason) -> Vec<LossCall> {
        let reason = self.lost.unwrap_or(reason);
        let callbacks = mem::take(&mut self.callbacks).into_iter();
        callbacks.map(|callback| (callback, reason)).collect()
    }
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseState")
            .field("hold", &self.hold)
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
