//! What the two threads do: one renews, one calls.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    entry::{Ask, RenewalOutcome},
    keeper::{Keeper, State},
    lease_state::{Callback, LeaseState},
    schedule::{Id, NotReached, Question},
};
use crate::{
    connection::{Limits, Process},
    error::{Error, LostReason, Result},
    event::shielded,
    script::Call,
    server::{Answer, Failure, RenewalReply, Renewals},
    time::{Backoff, Clock, Deadline},
};

/// Renews everything, however many there are.
const RENEWING: &str = "leasehold-watchdog";
/// Runs the callbacks. It is started when the first one is registered.
const CALLING: &str = "leasehold-signals";
/// Between attempts to reach the server.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(250);

impl Keeper {
    /// Starts the renewing thread. It connects when there is something to renew.
    pub(crate) fn start(
        renewals: Box<dyn Renewals>,
        limits: Limits,
        is_tracked: bool,
        clock: Clock,
    ) -> Result<Arc<Self>> {
        let keeper = Arc::new(Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            landed: Condvar::new(),
            call: Condvar::new(),
            ended: Condvar::new(),
            limits,
            is_tracked,
            clock,
            process: Process::current(),
        });
        let mut state = keeper.state.lock();
        let renew = |keeper: &Self| keeper.renew_all(renewals);
        state.renewing = Some(keeper.spawn(&mut state, RENEWING, renew)?);
        drop(state);
        Ok(keeper)
    }

    fn spawn(
        self: &Arc<Self>,
        state: &mut State,
        name: &str,
        run: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<JoinHandle<()>> {
        let keeper = Arc::clone(self);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                run(&keeper);
                keeper.state.lock().running -= 1;
                keeper.ended.notify_all();
            })
            .map_err(Error::thread)?;
        state.running += 1;
        Ok(thread)
    }

    /// Has both threads end. What is lost by then is told first.
    pub(crate) fn close(&self) {
        if self.is_forked_child() {
            return;
        }
        let mut state = self.state.lock();
        state.closing = true;
        let mut calls = Vec::new();
        for lease_state in state.schedule.all() {
            let reason = lease_state.lost().unwrap_or(LostReason::Unwatched);
            let callbacks = lease_state.unwatch();
            calls.extend(callbacks.into_iter().map(|callback| (callback, reason)));
        }
        state.calls.extend(calls);
        self.wake.notify_all();
        self.call.notify_all();
    }

    /// Waits until both threads have ended, no longer than until the deadline.
    pub(crate) fn wait_until_closed(&self, deadline: Deadline) {
        if self.is_forked_child() {
            return;
        }
        let mut state = self.state.lock();
        let threads = [state.renewing.take(), state.calling.take()];
        let mine = |thread: &&JoinHandle<()>| thread.thread().id() == thread::current().id();
        // A callback may drop the watchdog: its own thread cannot wait for itself.
        let own = threads.iter().flatten().filter(mine).count();
        while state.running > own {
            let Some(moment) = deadline.moment() else {
                break;
            };
            if self.ended.wait_until(&mut state, moment).timed_out() {
                return;
            }
        }
        drop(state);
        for thread in threads.into_iter().flatten() {
            if !mine(&&thread) {
                let _ = thread.join();
            }
        }
    }

    pub(super) fn notify(
        self: &Arc<Self>,
        id: Id,
        lease_state: &LeaseState,
        callback: Callback,
    ) -> Result<()> {
        self.refuse_forked_child()?;
        let mut state = self.state.lock();
        if state.calling.is_none() && !state.closing {
            state.calling = Some(self.spawn(&mut state, CALLING, Self::call_all)?);
        }
        // What a callback owns may lock the state when it is dropped.
        let lost_already = MutexGuard::unlocked(&mut state, || lease_state.register(callback));
        if !state.closing {
            state.calls.extend(lost_already);
            state.schedule.set_alarm(id);
            self.call.notify_one();
            return Ok(());
        }
        drop(state);
        // The watchdog is closing: no thread will call these later.
        let unwatched = lease_state.unwatch().into_iter();
        let unwatched = unwatched.map(|callback| (callback, LostReason::Unwatched));
        for (callback, reason) in lost_already.into_iter().chain(unwatched) {
            call(callback, reason);
        }
        Ok(())
    }

    /// The renewing thread: takes what is due, sends it in one round trip, and enters the answers.
    ///
    /// `state` is locked, except while it sleeps, looks at the connection or opens it, sends, or
    /// tells.
    pub(crate) fn renew_all(&self, mut renewals: Box<dyn Renewals>) {
        let mut pauses = Backoff::between(FIRST_PAUSE, LAST_PAUSE);
        let mut had_one = false;
        let mut state = self.state.lock();
        while !state.closing {
            let Some(due) = state.schedule.due_at() else {
                self.wake.wait(&mut state);
                continue;
            };
            if due > self.clock.now() {
                state.asleep_until = Some(due);
                self.wake.wait_until(&mut state, self.clock.real(due));
                state.asleep_until = None;
                continue;
            }
            // Looked at unlocked: another thread may have it, which checks it or opens it. Opening
            // takes time in which a lease may be stopped, and nothing may be on its way then.
            let opened = MutexGuard::unlocked(&mut state, || {
                (!renewals.is_open()).then(|| renewals.open())
            });
            if let Some(opened) = opened {
                match opened {
                    Err(failure) => {
                        self.unreachable(&mut state, &failure, pauses.next_pause(Duration::MAX));
                    }
                    // Where the server tells of changes, the connection reports itself.
                    Ok(()) if had_one && !self.is_tracked => {
                        state.schedule.repeat_all(self.clock.now());
                    }
                    Ok(()) => had_one = true,
                }
                continue;
            }
            if state.closing {
                return;
            }
            let batch = state.schedule.take(self.clock.now());
            self.lose_all(&mut state, batch.over);
            if batch.questions.is_empty() && batch.orphans.is_empty() {
                continue;
            }
            // Not of this batch alone: until it is answered nothing else is renewed.
            let shortest = state.schedule.shortest();
            let replies = MutexGuard::unlocked(&mut state, || {
                let orphans = batch.orphans.iter().map(|orphan| orphan.item.clone());
                renewals.send(
                    &batch.questions.iter().map(call_of).collect::<Vec<_>>(),
                    &orphans.collect::<Vec<_>>(),
                    shortest.unwrap_or(Duration::MAX),
                )
            });
            let now = self.clock.now();
            let news = self.take_answers(&mut state, &batch.questions, replies.renewals, now);
            for (orphan, answer) in batch.orphans.into_iter().zip(replies.orphans) {
                state.schedule.given_back(orphan, answer, now);
            }
            self.landed.notify_all();
            Self::outside(&mut state, || {
                for (lease_state, failure) in &news {
                    lease_state.report_renewal(failure.as_deref());
                }
                // The last who has a lease may be here, and its hooks own anything.
                shielded(|| drop((batch.questions, news)));
            });
            if replies.broken {
                let until = self.clock.now() + pauses.next_pause(Duration::MAX);
                state.schedule.pause(until);
            } else {
                pauses.start_again();
            }
        }
    }

    /// Enters what the server says of each lease. Returns what there is to tell, and of which
    /// lease.
    ///
    /// | answer | while the end lies ahead | the schedule asks again |
    /// |---|---|---|
    /// | `Ours` | held, by a renewal until later; a renewal is told | after a third |
    /// | `NotOurs` | lost: taken away | never |
    /// | `Forgotten` | as before | at once, with the whole script |
    /// | `Refused` | in doubt; told | soon, then more seldom |
    /// | `Unanswered` | in doubt; told; a renewal may still be executed | as soon as the connection is open |
    ///
    /// At its end the lease is lost, whatever the answer is; a failure is told all the same.
    fn take_answers(
        &self,
        state: &mut State,
        questions: &[Question<Arc<LeaseState>>],
        replies: Vec<RenewalReply>,
        now: Instant,
    ) -> Vec<(Arc<LeaseState>, Option<Arc<Failure>>)> {
        let mut news = Vec::new();
        for (Question { id, item, ask, .. }, (answer, failure)) in questions.iter().zip(replies) {
            let outcome = state.schedule.answered(*id, answer, now);
            if let Some(failure) = failure {
                let is_out = answer == Answer::Unanswered && ask.is_renewal();
                item.renewal_failed(&failure, is_out);
                news.push((Arc::clone(item), Some(failure)));
            }
            match outcome {
                Some(RenewalOutcome::Held(end)) if item.renewed(end) => {
                    if matches!(ask, Ask::Renew(_)) {
                        news.push((Arc::clone(item), None));
                    }
                }
                // A call such as `is_held` has found it over by the clock before this answer came.
                Some(RenewalOutcome::Held(_)) => {
                    state.schedule.stop(*id);
                    self.lose_all(state, [(&**item, LostReason::Ended)]);
                }
                Some(RenewalOutcome::Lost(reason)) => self.lose_all(state, [(&**item, reason)]),
                Some(RenewalOutcome::Doubtful) | None => {}
            }
        }
        news
    }

    fn unreachable(
        &self,
        state: &mut MutexGuard<'_, State>,
        failure: &Arc<Failure>,
        pause: Duration,
    ) {
        let now = self.clock.now();
        let NotReached {
            over,
            not_renewed,
            doubtful,
        } = state.schedule.unreachable(now + pause, now);
        let failed = [doubtful, not_renewed].concat();
        for lease_state in &failed {
            lease_state.renewal_failed(failure, false);
        }
        self.lose_all(state, over);
        Self::outside(state, || {
            for lease_state in &failed {
                lease_state.report_renewal(Some(failure));
            }
            shielded(|| drop(failed));
        });
    }

    /// Runs what a user has written, with nothing locked.
    fn outside(state: &mut MutexGuard<'_, State>, run: impl FnOnce()) {
        state.telling += 1;
        MutexGuard::unlocked(state, run);
        state.telling -= 1;
    }

    /// The callback thread.
    pub(crate) fn call_all(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((callback, reason)) = state.calls.pop_front() {
                Self::outside(&mut state, || call(callback, reason));
                continue;
            }
            if state.closing {
                return;
            }
            let over = state.schedule.ring(self.clock.now());
            if !over.is_empty() {
                self.lose_all(&mut state, over);
                continue;
            }
            match state.schedule.next_alarm() {
                Some(end) => {
                    self.call.wait_until(&mut state, self.clock.real(end));
                }
                None => self.call.wait(&mut state),
            }
        }
    }
}

fn call_of(question: &Question<Arc<LeaseState>>) -> Call {
    question.ask.of(question.item.hold())
}

pub(crate) fn call(callback: Callback, reason: LostReason) {
    shielded(|| callback(reason));
}
