//! What the handle of a renewal, its signals and the watchdog's threads share of one lease.
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

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{entry::Terms, outstanding::Outstanding};
use crate::{
    error::LostReason,
    event::{EventSink, Lost, RenewalFailed, Renewed, shielded},
    server::Failure,
};
use crate::{
    error::{Error, Operation},
    name::Owner,
    recipes::hold::Hold,
    time::{Clock, Deadline},
    token::FencingToken,
};

/// How a lease stands, as far as we know.
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

/// What is called when a lease is lost.
pub(crate) type Callback = Box<dyn FnOnce(LostReason) + Send>;

/// One lease. The first who asks about it after its end by our clock makes it lost, for everybody
/// and for good.
pub(crate) struct LeaseState {
    facts: Mutex<Facts>,
    changed: Condvar,
    /// Who is told of its renewals, its loss and its end.
    events: Option<Arc<EventSink>>,
    /// They have been told of its loss.
    loss_is_told: AtomicBool,
    clock: Clock,
    hold: Arc<Hold>,
    /// Who has it now, where another thread has handed it over: the server knows of that one only.
    holder: Option<Owner>,
    fence: Option<FencingToken>,
}

/// All that decides about the [state](RenewalState) of a lease.
struct Facts {
    /// Why it is lost: for good.
    lost: Option<LostReason>,
    /// Its holder has given it up. A lease that was lost before stays lost.
    stopped: bool,
    /// With its end, which is `None` until the first answer.
    terms: Terms,
    /// Why the last attempt failed.
    failure: Option<Arc<Failure>>,
    /// What was sent for it and not answered.
    outstanding: Outstanding,
    /// Nobody renews it any more.
    unwatched: bool,
    callbacks: Vec<Callback>,
}

impl LeaseState {
    pub(crate) fn new(
        hold: &Arc<Hold>,
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
            holder: None,
            fence,
        }
    }

    /// The same, handed over to this one.
    pub(crate) fn held_by(self, holder: Option<Owner>) -> Self {
        Self { holder, ..self }
    }

    /// Who has the lock.
    pub(crate) fn holder(&self) -> &Owner {
        self.holder.as_ref().unwrap_or_else(|| self.hold.owner())
    }

    /// The same, acquired after an attempt that got no answer.
    pub(crate) fn after_an_unanswered_acquire(self) -> Self {
        self.facts.lock().outstanding.acquire_is_out();
        self
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn fence(&self) -> Option<FencingToken> {
        self.fence
    }

    pub(crate) fn events(&self) -> Option<&Arc<EventSink>> {
        self.events.as_ref()
    }

    /// Tells of a renewal, or why there was none. Nothing may be locked.
    pub(crate) fn report_renewal(&self, failure: Option<&Failure>) {
        let (Some(events), lock) = (&self.events, self.lock_name()) else {
            return;
        };
        match failure {
            None => {
                events.answered(|events| events.renewed(&Renewed::new(lock, self.remaining())));
            }
            Some(failure) => events.failed(|events, in_a_row| {
                let error = failure.error(Operation::new("renew", lock));
                events.renewal_failed(&RenewalFailed::new(lock, &error, in_a_row));
            }),
        }
    }

    /// Tells the hooks of its loss, unless that has been done: the one place that does, whoever has
    /// found the loss. Nothing may be locked.
    pub(crate) fn tell_loss(&self, reason: LostReason) {
        if let Some(events) = &self.events
            && !self.loss_is_told.swap(true, Ordering::SeqCst)
        {
            events.tell(|events| events.lost(&Lost::new(self.lock_name(), reason)));
        }
    }

    /// The name of the lock.
    pub(crate) fn lock_name(&self) -> &str {
        self.hold.lock_name().text()
    }

    /// The clock by which it ends.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The key of the lock.
    pub(crate) fn key(&self) -> &str {
        self.hold.lock_name().key()
    }

    /// The threads that wait on a `LostSignal` look at the clock again.
    #[cfg(feature = "testing")]
    pub(crate) fn clock_moved(&self) {
        drop(self.facts.lock());
        self.changed.notify_all();
    }

    /// Its facts, as of now: the clock may just have ended it.
    fn current(&self) -> MutexGuard<'_, Facts> {
        let mut facts = self.facts.lock();
        if facts.is_live() {
            let reason = facts.terms.lost_at(self.clock.now());
            let unwatched = facts.unwatched.then_some(LostReason::Unwatched);
            facts.lost = reason.map(|reason| unwatched.unwrap_or(reason));
        }
        facts
    }

    pub(crate) fn state(&self) -> RenewalState {
        self.current().state()
    }

    /// What is left of it by our clock.
    pub(crate) fn remaining(&self) -> Duration {
        let facts = self.current();
        let end = facts.terms.end.filter(|_| facts.is_live());
        end.map_or(Duration::ZERO, |end| {
            end.saturating_duration_since(self.clock.now())
        })
    }

    /// When it ends by our clock, whether that has passed or not.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.facts.lock().terms.end
    }

    /// A lease that does not outlast the longest hold.
    pub(crate) fn capped(&self, lease: Duration) -> Duration {
        let cap = self.facts.lock().terms.cap;
        let left = cap.map(|cap| cap.saturating_duration_since(self.clock.now()));
        left.map_or(lease, |left| lease.min(left.max(Duration::from_millis(1))))
    }

    pub(crate) fn lost(&self) -> Option<LostReason> {
        self.current().lost
    }

    /// Whether there has been an answer from which to count.
    pub(crate) fn has_an_end(&self) -> bool {
        self.current().terms.end.is_some()
    }

    /// Why the last attempt failed.
    pub(crate) fn failure(&self, operation: Operation<'_>) -> Option<Error> {
        let failure = self.current().failure.clone()?;
        Some(failure.error(operation))
    }

    /// The server has renewed it. False: it is not ours to renew any more, or our clock had ended
    /// it before the answer came.
    pub(crate) fn renewed(&self, end: Instant) -> bool {
        let mut facts = self.current();
        if !facts.is_live() {
            return false;
        }
        facts.terms.end = Some(end);
        facts.failure = None;
        drop(facts);
        self.changed.notify_all();
        true
    }

    /// An attempt has failed, which proves nothing. `is_out`: a renewal that the server may still
    /// execute.
    pub(crate) fn renewal_failed(&self, failure: &Arc<Failure>, is_out: bool) {
        let mut facts = self.facts.lock();
        facts.failure = Some(Arc::clone(failure));
        if is_out {
            facts.outstanding.renewal_is_out();
        }
        drop(facts);
        self.changed.notify_all();
    }

    /// A renewal was sent that the server may still execute.
    pub(crate) fn renewal_is_out(&self) {
        self.facts.lock().outstanding.renewal_is_out();
    }

    /// A commit is about to be sent. Unless it is [answered](Self::commit_is_answered), it stays
    /// out.
    pub(crate) fn commit_is_out(&self) {
        self.facts.lock().outstanding.commit_is_out();
    }

    pub(crate) fn commit_is_answered(&self) {
        self.facts.lock().outstanding.commit_is_answered();
    }

    /// Whether the lock can go to the next holder as it is: it is held, and nothing that was sent
    /// for it can happen later.
    pub(crate) fn is_settled(&self) -> bool {
        let facts = self.current();
        facts.state() == RenewalState::Held && facts.outstanding.is_nothing()
    }

    /// Whether an acquire without an answer may make the lock ours again after its release.
    pub(crate) fn may_be_acquired_late(&self) -> bool {
        self.facts.lock().outstanding.may_acquire()
    }

    /// It is lost, for this reason unless there was one before. Returns whom to call.
    pub(crate) fn lose(&self, reason: LostReason) -> Option<(Vec<Callback>, LostReason)> {
        let mut facts = self.facts.lock();
        if facts.is_live() {
            facts.lost = Some(reason);
        }
        let lost = facts.lost;
        // Of a lease that was stopped there are none.
        let callbacks = mem::take(&mut facts.callbacks);
        drop(facts);
        self.changed.notify_all();
        lost.map(|reason| (callbacks, reason))
    }

    /// Nobody renews it any more, and nobody will be there to call at its end. Returns whom to call
    /// instead.
    pub(crate) fn unwatch(&self) -> Vec<Callback> {
        let mut facts = self.facts.lock();
        facts.unwatched = true;
        mem::take(&mut facts.callbacks)
    }

    /// The end of its renewal. Returns how it stood.
    ///
    /// A callback that has not been called by now never is. Callbacks are dropped here, and may own
    /// anything: nothing may be locked.
    pub(crate) fn stop(&self) -> RenewalState {
        let mut facts = self.current();
        let state = facts.state();
        facts.stopped = true;
        let callbacks = mem::take(&mut facts.callbacks);
        drop(facts);
        self.changed.notify_all();
        for callback in callbacks {
            shielded(|| drop(callback));
        }
        state
    }

    /// To be called at a loss. Returns what is to be called now, since the lease is lost already.
    ///
    /// Drops what will never be called, since the renewal was stopped: nothing may be locked.
    pub(crate) fn register(&self, callback: Callback) -> Option<(Callback, LostReason)> {
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
        while facts.is_live()
            && facts.terms.end.is_none()
            && !facts
                .failure
                .as_ref()
                .is_some_and(|failure| failure.is_refusal())
        {
            if self.wait(&mut facts, deadline) {
                return;
            }
        }
    }

    /// Waits until it is lost or not renewed any more, or the deadline has passed. True: it is
    /// lost.
    pub(crate) fn wait_until_lost(&self, deadline: Deadline) -> bool {
        loop {
            let mut facts = self.current();
            if facts.lost.is_some() || facts.stopped || deadline.has_passed() {
                return facts.lost.is_some();
            }
            let end = facts.terms.lost_by();
            self.wait(&mut facts, deadline.or_sooner(end));
        }
    }

    /// True: the deadline has passed.
    fn wait(&self, facts: &mut MutexGuard<'_, Facts>, deadline: Deadline) -> bool {
        if let Some(moment) = deadline.moment() {
            return self.changed.wait_until(facts, moment).timed_out();
        }
        self.changed.wait(facts);
        false
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
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseState")
            .field("hold", &self.hold)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
