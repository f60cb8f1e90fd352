//! The state of one lease, shared by its handle, its signals and the watchdog's threads.
//!
//! `facts` is the last mutex of the [order](super): while it is locked no other is locked, and no
//! callback is called or dropped.

use std::{
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};

use super::entry::Terms;
use crate::{
    error::{Error, LostReason, Operation},
    event::{EventSink, Lost, RenewalFailed, Renewed, shielded},
    name::Owner,
    recipes::Hold,
    server::RenewalError,
    time::{Clock, Deadline},
    token::FencingToken,
};

/// The state of a lease, by our clock and the server's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenewalState {
    /// The last renewal succeeded, and the end of the lease lies ahead.
    Held,
    /// The last renewal got no reply, or a refusal that does not tell whether the lock is held. By
    /// our clock the lease has not ended. Renewals are retried until it ends; a success returns to
    /// `Held`.
    Unknown,
    /// The lease is lost. This is final: a lost lease is never held again.
    Lost(LostReason),
}

impl fmt::Display for RenewalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.write_str("held"),
            Self::Unknown => f.write_str("unknown: the last renewal failed"),
            Self::Lost(reason) => write!(f, "lost: {reason}"),
        }
    }
}

/// A callback for the loss of a lease.
pub(crate) type Callback = Box<dyn FnOnce(LostReason) + Send>;
/// A callback, and the reason to pass to it.
pub(crate) type LossCall = (Callback, LostReason);

/// One lease. The first access after its end by our clock marks it lost, for all threads and for
/// good.
pub(crate) struct LeaseState {
    facts: Mutex<Facts>,
    changed: Condvar,
    /// The hooks that receive its events.
    pub(crate) events: Option<Arc<EventSink>>,
    /// The loss was reported to the hooks.
    loss_is_reported: AtomicBool,
    /// The clock that ends the lease.
    pub(crate) clock: Clock,
    pub(crate) hold: Arc<Hold>,
    /// The number of the hold, for the hooks.
    pub(crate) number: u64,
    /// The named holder, if any. After a hand-over it differs from the owner of the hold, which is
    /// the first holder, as the server knows it.
    holder: Option<Owner>,
    pub(crate) fence: Option<FencingToken>,
}

/// The facts that determine the [state](RenewalState) of a lease.
struct Facts {
    /// The reason of the loss. It is final.
    lost: Option<LostReason>,
    /// The holder has stopped the renewal. A lease that was lost before stays lost.
    stopped: bool,
    /// The terms. Their end is `None` until the first reply.
    terms: Terms,
    /// The failure of the last renewal, or what the lock's key holds instead.
    failure: Option<Arc<RenewalError>>,
    /// The server has refused since the last renewal.
    was_refused: bool,
    /// The commands that got no reply.
    outstanding: Outstanding,
    /// The watchdog is gone, so nothing renews the lease.
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
                was_refused: false,
                outstanding: Outstanding::default(),
                unwatched: false,
                callbacks: Vec::new(),
            }),
            changed: Condvar::new(),
            events,
            loss_is_reported: AtomicBool::new(false),
            clock,
            hold: Arc::clone(hold),
            number: next_hold(),
            holder,
            fence,
        }
    }

    pub(crate) fn holder(&self) -> &Owner {
        self.holder.as_ref().unwrap_or_else(|| &self.hold.owner)
    }

    /// Reports a renewal, or its failure, to the hooks. The caller must hold no mutex.
    pub(crate) fn report_renewal(&self, failure: Option<&RenewalError>) {
        let (Some(events), lock) = (&self.events, self.lock_name()) else {
            return;
        };
        let Some(failure) = failure else {
            let renewed = Renewed::new(lock, self.number, self.remaining());
            return events.answered(|events| events.renewed(&renewed));
        };
        let error = failure.error(Operation::new("renew", lock));
        events.failed(&error, |events, row| {
            events.renewal_failed(&RenewalFailed::new(lock, self.number, &error, row));
        });
    }

    /// Reports the loss to the hooks, once. Called by the thread that detects the loss, which must
    /// hold no mutex.
    pub(crate) fn report_lost(&self, reason: LostReason) {
        if let Some(events) = &self.events
            && !self.loss_is_reported.swap(true, Ordering::SeqCst)
        {
            let lost = Lost::new(self.lock_name(), self.number, reason);
            events.tell(|events| events.lost(&lost));
        }
    }

    pub(crate) fn lock_name(&self) -> &str {
        self.hold.lock.text()
    }

    /// Returns the key of the lock.
    pub(crate) fn key(&self) -> &str {
        self.hold.lock.key()
    }

    /// Makes the threads that wait on a `LostSignal` check the clock again.
    #[cfg(feature = "testing")]
    pub(crate) fn clock_moved(&self) {
        drop(self.facts.lock());
        self.changed.notify_all();
    }

    /// Checks the end of the lease against the clock, and returns the facts.
    fn current(&self) -> MutexGuard<'_, Facts> {
        let mut facts = self.facts.lock();
        if facts.is_live() {
            let reason = facts.terms.lost_at(self.clock.now());
            let unwatched = facts.unwatched.then_some(LostReason::Unwatched);
            facts.lost = reason.map(|reason| unwatched.unwrap_or(reason));
        }
        facts
    }

    /// Changes the facts, and wakes the threads that wait for a change.
    fn change<R>(&self, change: impl FnOnce(&mut Facts) -> R) -> R {
        let changed = change(&mut self.current());
        self.changed.notify_all();
        changed
    }

    pub(crate) fn state(&self) -> RenewalState {
        self.current().state()
    }

    /// Returns the time left by our clock.
    pub(crate) fn remaining(&self) -> Duration {
        let facts = self.current();
        let end = facts.terms.end.filter(|_| facts.is_live());
        end.map_or(Duration::ZERO, |end| {
            end.saturating_duration_since(self.clock.now())
        })
    }

    /// Returns the terms. Their end is by our clock, and may have passed.
    pub(crate) fn terms(&self) -> Terms {
        self.facts.lock().terms
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.current().stopped
    }

    pub(crate) fn lost(&self) -> Option<LostReason> {
        self.current().lost
    }

    /// Returns the reason of the loss after a reply that the lock is not ours: the recorded reason,
    /// or else the verdict on that reply now. The renewal may have been stopped before.
    pub(crate) fn lost_by_a_no(&self) -> LostReason {
        let facts = self.current();
        let known = facts.terms.known(facts.was_refused);
        (facts.lost).unwrap_or_else(|| known.lost_by_a_no(self.clock.now()))
    }

    /// Returns the error for the loss of this lease, with the failure before it.
    pub(crate) fn lost_error(&self, operation: Operation<'_>, reason: Option<LostReason>) -> Error {
        let failure = self.failure(Operation::new("renew", self.lock_name()));
        operation.lost_because(reason, failure)
    }

    /// The failure of the last renewal, or of the last attempt to mark a run.
    pub(crate) fn failure(&self, operation: Operation<'_>) -> Option<Error> {
        let failure = self.current().failure.clone()?;
        Some(failure.error(operation))
    }

    /// Records a renewal by the server. Returns false if the lease was stopped or lost, or ended by
    /// our clock before the reply came.
    pub(crate) fn renewed(&self, end: Instant) -> bool {
        self.change(|facts| {
            let is_live = facts.is_live();
            if is_live {
                facts.terms.end = Some(end);
                facts.failure = None;
                facts.was_refused = false;
            }
            is_live
        })
    }

    /// Records a failed attempt, which is no loss. `is_out`: the server may still execute the
    /// renewal.
    pub(crate) fn renewal_failed(&self, failure: &Arc<RenewalError>, is_out: bool) {
        self.change(|facts| {
            facts.failure = Some(Arc::clone(failure));
            facts.was_refused |= failure.is_refusal();
            if is_out {
                facts.outstanding.renewal = true;
            }
        });
    }

    /// The commands that got no reply.
    pub(crate) fn outstanding(&self) -> MappedMutexGuard<'_, Outstanding> {
        MutexGuard::map(self.facts.lock(), |facts| &mut facts.outstanding)
    }

    /// Returns true if the lock can be handed over: it is held, and no command is outstanding.
    pub(crate) fn is_settled(&self) -> bool {
        let facts = self.current();
        facts.state() == RenewalState::Held && facts.outstanding.is_nothing()
    }

    /// Marks the lease lost for this reason, unless it is lost already. Returns the callbacks to
    /// call.
    pub(crate) fn lose(&self, reason: LostReason) -> Vec<LossCall> {
        self.change(|facts| {
            if facts.is_live() {
                facts.lost = Some(reason);
            }
            facts.take_calls(reason)
        })
    }

    /// Records that the watchdog is gone: no renewals and no callbacks at the end. Returns the
    /// callbacks to call instead.
    pub(crate) fn unwatch(&self) -> Vec<LossCall> {
        self.change(|facts| {
            facts.unwatched = true;
            facts.take_calls(LostReason::Unwatched)
        })
    }

    /// Stops the renewal. Returns the state until now.
    ///
    /// A callback that has not been called yet never is. The drop of the callbacks runs the user's
    /// code: the caller must hold no mutex.
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

    /// Registers a callback for the loss. Returns it if the lease is already lost, to be called
    /// now.
    ///
    /// If the renewal was stopped the callback is dropped, which runs the user's code: the caller
    /// must hold no mutex.
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

    /// Waits for the first reply (an end, a loss or a refusal) or the deadline.
    pub(crate) fn wait_for_first_answer(&self, deadline: Deadline) {
        let mut facts = self.current();
        while facts.is_unanswered() && !deadline.wait(&self.changed, &mut facts) {}
    }

    /// Waits until the lease is lost, its renewal is stopped, or the deadline passes. Returns true
    /// if it is lost.
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

    /// Returns true if the lease is neither lost nor stopped.
    fn is_live(&self) -> bool {
        self.lost.is_none() && !self.stopped
    }

    /// Returns true if the first renewal may still get a reply. After a refusal there is no point
    /// in waiting.
    fn is_unanswered(&self) -> bool {
        let is_refused = |failure: &Arc<RenewalError>| failure.is_refusal();
        self.is_live() && self.terms.end.is_none() && !self.failure.as_ref().is_some_and(is_refused)
    }

    /// Takes the callbacks, with the known reason of the loss, or else this one. A stopped lease
    /// has none.
    fn take_calls(&mut self, reason: LostReason) -> Vec<LossCall> {
        let reason = self.lost.unwrap_or(reason);
        let callbacks = mem::take(&mut self.callbacks).into_iter();
        callbacks.map(|callback| (callback, reason)).collect()
    }
}

/// The commands for one lease that got no reply, and that the server may still execute.
///
/// Such a command may be in the socket of a halted server, or in a network that delivers it later.
/// The server executes it on arrival, at a time that we cannot know. So nothing here expires: a
/// command stays outstanding until the server proves that it cannot arrive any more.
///
/// - **A commit** may still write, as long as the key is untouched. A hand-over does not touch the
///   key, so it is forbidden: the release goes to the server.
/// - **A renewal** may still move the end of the lease, as long as the lock is ours. A hand-over is
///   forbidden, since the next holder would not know that end.
/// - **An acquire** may take the lock again after it was released. A hand-over is forbidden, and
///   the release is repeated for a while.
///
/// Release and hand-over check it. A renewal by the watchdog counts here once it got no reply;
/// while the reply may still come, the [schedule](super::schedule) knows of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Outstanding {
    /// An attempt to acquire. It may still take the lock after a release.
    pub(crate) acquire: bool,
    /// A renewal, by the holder or by the watchdog.
    pub(crate) renewal: bool,
    /// The number of commits that are in flight, or got no reply.
    commits: u32,
}

impl Outstanding {
    pub(crate) fn commit_is_out(&mut self) {
        self.commits = self.commits.saturating_add(1);
    }

    pub(crate) fn commit_is_answered(&mut self) {
        self.commits = self.commits.saturating_sub(1);
    }

    /// Returns true if nothing prevents a hand-over.
    pub(super) fn is_nothing(self) -> bool {
        !self.acquire && !self.renewal && self.commits == 0
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

/// Returns a number that no other hold of this process has.
fn next_hold() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

#[cfg(test)]
mod tests;
