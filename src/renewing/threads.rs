//! What the two threads do: one renews, one calls.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    entry::{Ask, Verdict},
    keeper::{Keeper, Limits, State},
    schedule::{Id, Question},
    standing::{Callback, Registered, Standing},
};
use crate::{
    connection::Process,
    error::{Error, LostReason, Result},
    event::shielded,
    script::Call,
    server::{Answer, Failure, Renewals, Replies, Reply},
    time::{Backoff, Clock, Deadline, whole_millis},
};

/// Renews everything, however many there are.
const RENEWING: &str = "leasehold-watchdog";
/// Calls those who want to be called: started by the first of them.
const CALLING: &str = "leasehold-signals";
/// Between attempts to reach the server.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(250);

impl Keeper {
    /// Starts the renewing thread. It connects when there is something to renew.
    pub(crate) fn start(
        renewals: Box<dyn Renewals>,
        limits: Limits,
        told: bool,
        clock: Clock,
    ) -> Result<Arc<Self>> {
        let keeper = Arc::new(Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            landed: Condvar::new(),
            call: Condvar::new(),
            ended: Condvar::new(),
            limits,
            told,
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

    /// Ends both threads, waiting for them no longer than one I/O time-out. What is lost by then is told first.
    pub(crate) fn close(&self) {
        if self.is_a_copy() {
            return;
        }
        let deadline = Deadline::after(self.limits.answer);
        let mut state = self.state.lock();
        state.closing = true;
        let mut calls = Vec::new();
        for standing in state.schedule.all() {
            let reason = standing.lost().unwrap_or(LostReason::Unwatched);
            let callbacks = standing.unwatch();
            calls.extend(callbacks.into_iter().map(|callback| (callback, reason)));
        }
        state.calls.extend(calls);
        self.wake.notify_all();
        self.call.notify_all();

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
        standing: &Standing,
        callback: Callback,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let closing = state.closing;
        if state.calling.is_none() && !closing {
            state.calling = Some(self.spawn(&mut state, CALLING, Self::call_all)?);
        }
        match standing.register(callback) {
            // Not under the lock: what it owns may want it.
            Registered::Never(callback) => {
                drop(state);
                drop(callback);
            }
            Registered::CallNow(callback, reason) if closing => {
                drop(state);
                call(callback, reason);
            }
            Registered::Stored if closing => {
                drop(state);
                for callback in standing.unwatch() {
                    call(callback, LostReason::Unwatched);
                }
            }
            Registered::CallNow(callback, reason) => state.calls.push_back((callback, reason)),
            Registered::Stored => state.schedule.set_alarm(id),
        }
        self.call.notify_one();
        Ok(())
    }

    /// The renewing thread.
    pub(crate) fn renew_all(&self, mut renewals: Box<dyn Renewals>) {
        let mut pauses = Backoff::between(FIRST_PAUSE, LAST_PAUSE);
        let mut state = self.state.lock();
        while !state.closing {
            match state.schedule.due_at() {
                None => self.wake.wait(&mut state),
                Some(due) if due > self.clock.now() => {
                    state.asleep_until = Some(due);
                    self.wake.wait_until(&mut state, self.clock.real(due));
                    state.asleep_until = None;
                }
                // To connect takes time in which a lease may be stopped: nothing may be on its way then.
                Some(_) if !renewals.is_open() => {
                    let opened = MutexGuard::unlocked(&mut state, || renewals.open());
                    if let Err(failure) = opened {
                        self.unreachable(&mut state, &failure, pauses.next_pause(Duration::MAX));
                    }
                }
                Some(_) if self.renew_batch(&mut state, &mut *renewals) => pauses.start_again(),
                Some(_) => {
                    let until = self.clock.now() + pauses.next_pause(Duration::MAX);
                    state.schedule.pause(until);
                }
            }
        }
    }

    /// False: the connection broke.
    fn renew_batch(&self, state: &mut MutexGuard<'_, State>, renewals: &mut dyn Renewals) -> bool {
        let batch = state.schedule.take(self.clock.now());
        self.lose_all(state, batch.over);
        let leases = batch.questions.iter().map(|question| question.lease);
        let Some(shortest) = leases
            .min()
            .or(batch.orphans.first().map(|_| Duration::MAX))
        else {
            return true;
        };
        let Replies {
            mut replies,
            broken,
        } = MutexGuard::unlocked(state, || {
            let questions = batch.questions.iter().map(call_of);
            let orphans = batch.orphans.iter();
            let calls: Vec<Call> = questions
                .chain(orphans.map(|orphan| orphan.item.giving_back()))
                .collect();
            renewals.send(&calls, batch.questions.len(), shortest)
        });
        let given_back = replies.split_off(batch.questions.len());
        let news = self.take_answers(state, &batch.questions, replies);
        let now = self.clock.now();
        for (orphan, (answer, _)) in batch.orphans.into_iter().zip(given_back) {
            state.schedule.given_back(orphan, answer, now);
        }
        self.landed.notify_all();
        self.outside(state, || {
            for (standing, failure) in &news {
                standing.tell(failure.as_deref());
            }
            let_go((batch.questions, news));
        });
        !broken
    }

    /// What the server says of leases. Returns of which there is something to tell.
    fn take_answers(
        &self,
        state: &mut State,
        questions: &[Question<Arc<Standing>>],
        replies: Vec<Reply>,
    ) -> Vec<(Arc<Standing>, Option<Arc<Failure>>)> {
        let now = self.clock.now();
        let mut news = Vec::new();
        for (question, (answer, failure)) in questions.iter().zip(replies) {
            let is_news = match answer {
                Answer::Ours(_) => question.ask != Ask::Look,
                Answer::Refused | Answer::Unanswered => true,
                Answer::NotOurs | Answer::Forgotten => false,
            };
            if is_news {
                news.push((Arc::clone(&question.item), failure.clone()));
            }
            let verdict = state.schedule.answered(question.id, answer, now);
            if let (Some(Verdict::Doubtful | Verdict::Lost(_)), Some(why)) = (verdict, &failure) {
                let is_out = answer == Answer::Unanswered && question.ask.is_renewal();
                question.item.renewal_failed(why, is_out);
            }
            match verdict {
                Some(Verdict::Held(end)) if !question.item.renewed(end) => {
                    // Somebody has seen the clock end it before this answer came.
                    state.schedule.stop(question.id);
                    self.lose_all(state, [(&*question.item, LostReason::Ended)]);
                }
                Some(Verdict::Lost(reason)) => self.lose_all(state, [(&*question.item, reason)]),
                Some(Verdict::Held(_) | Verdict::Doubtful) | None => {}
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
        let (over, doubtful) = state.schedule.unreachable(now + pause, now);
        self.lose_all(state, over);
        for standing in &doubtful {
            standing.renewal_failed(failure, false);
        }
        self.outside(state, || {
            for standing in &doubtful {
                standing.tell(Some(failure));
            }
            let_go(doubtful);
        });
    }

    /// Runs what a user has written, with nothing locked.
    #[cfg_attr(
        not(feature = "testing"),
        allow(clippy::unused_self, reason = "only a test waits for it")
    )]
    fn outside(&self, state: &mut MutexGuard<'_, State>, run: impl FnOnce()) {
        #[cfg(feature = "testing")]
        {
            state.telling += 1;
        }
        MutexGuard::unlocked(state, run);
        #[cfg(feature = "testing")]
        {
            state.telling -= 1;
            self.landed.notify_all();
        }
    }

    /// The calling thread.
    pub(crate) fn call_all(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((callback, reason)) = state.calls.pop_front() {
                self.outside(&mut state, || call(callback, reason));
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

fn call_of(question: &Question<Arc<Standing>>) -> Call {
    question
        .item
        .hold()
        .renewal(whole_millis(question.ask.lease()))
}

/// Drops what was asked about. It may be the last who has it, and its hooks own anything: nothing may be locked.
fn let_go<T>(asked: T) {
    shielded(|| drop(asked));
}

pub(crate) fn call(callback: Callback, reason: LostReason) {
    shielded(|| callback(reason));
}
