//! The watchdog's two threads, and what its handles ask of them.

use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    kept::{Callback, Kept, Registered},
    renewal::{LostReason, RenewalState},
    schedule::{Id, Schedule, Turn},
    server::{Failure, Link, Replies},
    terms::{Answer, Ask, Terms, Verdict},
};
use crate::{
    Error, Result,
    script::Call,
    time::{Backoff, Clock, Deadline, whole_millis},
};

/// Renews everything, however many there are.
const RENEWING: &str = "leasehold-watchdog";
/// Calls those who want to be called: started by the first of them.
const CALLING: &str = "leasehold-signals";
/// Between attempts to reach the server.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(250);
/// Before a server that refuses is asked again to take something back.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);

/// How long the server may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connect: Duration,
    pub(super) answer: Duration,
}

/// What the threads and all handles share.
pub(super) struct Keeper {
    state: Mutex<State>,
    /// For the renewing thread: there is something new to do.
    wake: Condvar,
    /// For those who stop a renewal: a batch has come back.
    landed: Condvar,
    /// For the calling thread: there is somebody to call, or another end to wait for.
    call: Condvar,
    /// For whoever drops the watchdog: a thread has ended.
    ended: Condvar,
    limits: Limits,
    /// Somebody is told of what happens to the keys of our leases.
    told: bool,
    clock: Clock,
    /// A child has our memory after a fork, but not our threads.
    process: u32,
}

#[derive(Default)]
struct State {
    schedule: Schedule<Arc<Kept>>,
    calls: VecDeque<(Callback, LostReason)>,
    /// Which leases there are of a key.
    of_key: HashMap<String, Vec<Id>>,
    /// Until when the renewing thread sleeps, if it does: whoever is due later need not wake it.
    asleep_until: Option<Instant>,
    closing: bool,
    renewing: Option<JoinHandle<()>>,
    calling: Option<JoinHandle<()>>,
    /// Threads that run.
    running: usize,
    /// Threads that are telling a user at this moment.
    #[cfg(feature = "testing")]
    telling: usize,
}

impl Keeper {
    /// Starts the renewing thread. It connects when there is something to renew.
    pub(super) fn start(
        link: Box<dyn Link>,
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
            process: process::id(),
        });
        let mut state = keeper.state.lock();
        let renew = |keeper: &Self| keeper.renew_all(link);
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
            .map_err(|source| Error::Thread { source })?;
        state.running += 1;
        Ok(thread)
    }

    pub(super) fn keep(&self, kept: Arc<Kept>, terms: Terms) -> Id {
        let mut state = self.state.lock();
        let key = self.told.then(|| kept.key().to_owned());
        let id = state.schedule.keep(kept, terms, self.clock.now());
        if let Some(key) = key {
            state.of_key.entry(key).or_default().push(id);
        }
        self.wake_if_sooner(&state);
        id
    }

    /// The renewing thread looks for itself when it has slept long enough.
    fn wake_if_sooner(&self, state: &State) {
        let due = state.schedule.due_at();
        if state
            .asleep_until
            .is_none_or(|end| due.is_some_and(|due| due < end))
        {
            self.wake.notify_one();
        }
    }

    /// Somebody else of this process has the lock from now on. `None`: it is not kept any more, or being renewed.
    pub(super) fn succeed(&self, id: Id, kept: Arc<Kept>, terms: Terms) -> Option<Id> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let key = kept.key().to_owned();
        let next = state.schedule.succeed(id, kept, terms, self.clock.now())?;
        state.forget_key(id, &key);
        state.of_key.entry(key).or_default().push(next);
        self.wake_if_sooner(state);
        Some(next)
    }

    /// Somebody has changed this key.
    pub(super) fn changed(&self, key: &str) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(ids) = state.of_key.get(key) {
            let now = self.clock.now();
            for id in ids {
                state.schedule.look(*id, now);
            }
            self.wake_if_sooner(state);
        }
    }

    /// Anything may have happened without our being told.
    pub(super) fn look_at_all(&self) {
        let mut state = self.state.lock();
        state.schedule.look_at_all(self.clock.now());
        self.wake_if_sooner(&state);
    }

    /// May be ours without anybody knowing: to be given back as soon as the server answers.
    pub(super) fn abandon(&self, hold: Arc<Kept>, until: Instant) {
        let mut state = self.state.lock();
        state.schedule.abandon(hold, until, self.clock.now());
        self.wake_if_sooner(&state);
    }

    /// The server has told somebody else that it is lost.
    pub(super) fn lose(&self, id: Id, kept: &Kept, reason: LostReason) {
        let mut state = self.state.lock();
        state.schedule.stop(id);
        self.lose_all(&mut state, [(kept, reason)]);
    }

    /// It was renewed by somebody else than the watchdog.
    pub(super) fn extend(&self, id: Id, kept: &Kept, end: Instant) -> bool {
        let mut state = self.state.lock();
        let end = state.schedule.extend(id, end);
        self.call.notify_one();
        end.is_some_and(|end| kept.renewed(end))
    }

    /// Both threads look at it again.
    #[cfg(feature = "testing")]
    pub(super) fn clock_moved(&self) {
        let state = self.state.lock();
        state.schedule.all().for_each(|kept| kept.clock_moved());
        self.wake.notify_all();
        self.call.notify_all();
    }

    /// There is no reason any more to wait before the next attempt.
    #[cfg(feature = "testing")]
    pub(super) fn reachable(&self) {
        self.state.lock().schedule.pause(self.clock.now());
        self.wake.notify_all();
    }

    /// Waits until nothing is due, nothing on its way, and whoever wants to know of it has been told.
    #[cfg(feature = "testing")]
    pub(super) fn settle(&self, longest: Duration) {
        let deadline = Deadline::after(longest);
        let mut state = self.state.lock();
        // A look may have to wait for so long.
        let by = self.clock.now() + super::terms::REST;
        while state.is_busy(by) && !state.is_mine() && !deadline.has_passed() {
            self.wake.notify_all();
            self.landed.wait_for(&mut state, Duration::from_millis(1));
        }
    }

    /// How many leases are being kept.
    pub(super) fn leases(&self) -> usize {
        self.state.lock().schedule.len()
    }

    /// How many keys are remembered, leases, and calls to make; and whether anything is still due.
    #[cfg(all(test, feature = "testing"))]
    pub(super) fn remembered(&self) -> (usize, usize, usize, bool) {
        let state = self.state.lock();
        let due = state.schedule.due_at().is_some() || state.schedule.next_alarm().is_some();
        let State {
            of_key,
            schedule,
            calls,
            ..
        } = &*state;
        (of_key.len(), schedule.len(), calls.len(), due)
    }

    /// How long the first answer is waited for: connecting anew and one exchange.
    pub(super) fn patience(&self) -> Duration {
        self.limits.connect + self.limits.answer
    }

    /// After this nothing is sent for the lease any more.
    pub(super) fn stop(&self, id: Id, kept: &Kept) -> RenewalState {
        self.stop_by(id, kept, Deadline::after(Duration::MAX))
    }

    /// As [`stop`](Self::stop), waiting no longer than this for what is being sent.
    pub(super) fn stop_by(&self, id: Id, kept: &Kept, deadline: Deadline) -> RenewalState {
        // An exchange ends by itself within one time-out; twice that is for a thread that gets no processor time.
        let longest = Deadline::after(self.limits.answer * 2);
        let deadline = longest.or_sooner(deadline.moment());
        let mut state = self.state.lock();
        state.schedule.stop(id);
        state.forget_key(id, kept.key());
        if let Some(reason) = kept.lost() {
            self.lose_all(&mut state, [(kept, reason)]);
        }
        while state.schedule.is_out(id) {
            let Some(moment) = deadline.moment() else {
                break;
            };
            if self.landed.wait_until(&mut state, moment).timed_out() {
                break;
            }
        }
        drop(state);
        kept.stop()
    }

    /// Whether this is a child's copy of a parent's: it has no thread, and its locks may be locked for ever.
    pub(super) fn is_a_copy(&self) -> bool {
        self.process != process::id()
    }

    pub(super) fn notify(self: &Arc<Self>, id: Id, kept: &Kept, callback: Callback) -> Result<()> {
        let mut state = self.state.lock();
        let closing = state.closing;
        if state.calling.is_none() && !closing {
            state.calling = Some(self.spawn(&mut state, CALLING, Self::call_all)?);
        }
        match kept.register(callback) {
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
                for callback in kept.unwatch() {
                    call(callback, LostReason::Unwatched);
                }
            }
            Registered::CallNow(callback, reason) => state.calls.push_back((callback, reason)),
            Registered::Stored => state.schedule.set_alarm(id),
        }
        self.call.notify_one();
        Ok(())
    }

    /// Ends both threads, waiting for them no longer than one I/O time-out. What is lost by then is told first.
    pub(super) fn close(&self) {
        if self.is_a_copy() {
            return;
        }
        let deadline = Deadline::after(self.limits.answer);
        let mut state = self.state.lock();
        state.closing = true;
        let mut calls = Vec::new();
        for kept in state.schedule.all() {
            let reason = kept.lost().unwrap_or(LostReason::Unwatched);
            let callbacks = kept.unwatch();
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

    /// The renewing thread.
    fn renew_all(&self, mut link: Box<dyn Link>) {
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
                Some(_) if !link.is_open() => {
                    let opened = MutexGuard::unlocked(&mut state, || link.open());
                    if let Err(failure) = opened {
                        self.unreachable(&mut state, &failure, pauses.next_pause(Duration::MAX));
                    }
                }
                Some(_) if self.renew_batch(&mut state, &mut *link) => pauses.start_again(),
                Some(_) => {
                    let until = self.clock.now() + pauses.next_pause(Duration::MAX);
                    state.schedule.pause(until);
                }
            }
        }
    }

    /// False: the connection broke.
    fn renew_batch(&self, state: &mut MutexGuard<'_, State>, link: &mut dyn Link) -> bool {
        let batch = state.schedule.take(self.clock.now());
        self.lose_all(state, batch.over);
        let leases = batch.turns.iter().map(|turn| turn.lease);
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
            let questions = batch.turns.iter().map(question);
            let orphans = batch.orphans.iter();
            let calls: Vec<Call> = questions
                .chain(orphans.map(|orphan| orphan.what.hold().giving_back()))
                .collect();
            link.send(&calls, batch.turns.len(), shortest)
        });
        let given_back = replies.split_off(batch.turns.len());
        let now = self.clock.now();
        let mut news = Vec::new();
        for (turn, (answer, failure)) in batch.turns.iter().zip(replies) {
            let is_news = match answer {
                Answer::Ours(_) => turn.ask != Ask::Look,
                Answer::Refused | Answer::Unanswered => true,
                Answer::NotOurs | Answer::Forgotten => false,
            };
            if is_news {
                news.push((Arc::clone(&turn.what), failure.clone()));
            }
            match state.schedule.answered(turn.id, answer, now) {
                Some(Verdict::Held(end)) if !turn.what.renewed(end) => {
                    // Somebody has seen the clock end it before this answer came.
                    state.schedule.stop(turn.id);
                    self.lose_all(state, [(&*turn.what, LostReason::Ended)]);
                }
                Some(Verdict::Lost(reason)) => self.lose_all(state, [(&*turn.what, reason)]),
                Some(Verdict::Doubtful) => failure.iter().for_each(|why| turn.what.doubt(why)),
                Some(Verdict::Held(_)) | None => {}
            }
        }
        for (orphan, (answer, _)) in batch.orphans.into_iter().zip(given_back) {
            match answer {
                Answer::Ours(_) | Answer::NotOurs => {}
                Answer::Forgotten | Answer::Unanswered => {
                    state.schedule.abandon(orphan.what, orphan.until, now);
                }
                Answer::Refused => {
                    let later = now + REFUSED_PAUSE;
                    state.schedule.abandon(orphan.what, orphan.until, later);
                }
            }
        }
        self.landed.notify_all();
        self.outside(state, || {
            for (kept, failure) in &news {
                kept.tell(failure.as_deref());
            }
            let_go((batch.turns, news));
        });
        !broken
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
        for kept in &doubtful {
            kept.doubt(failure);
        }
        self.outside(state, || {
            for kept in &doubtful {
                kept.tell(Some(failure));
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

    fn lose_all<K: Borrow<Kept>>(
        &self,
        state: &mut State,
        lost: impl IntoIterator<Item = (K, LostReason)>,
    ) {
        for (kept, reason) in lost {
            if let Some((callbacks, reason)) = kept.borrow().lose(reason) {
                let calls = callbacks.into_iter().map(|callback| (callback, reason));
                state.calls.extend(calls);
                self.call.notify_one();
            }
        }
    }

    /// The calling thread.
    fn call_all(&self) {
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

#[cfg(feature = "testing")]
impl State {
    /// Whether something is to be done or told by then.
    fn is_busy(&self, by: Instant) -> bool {
        let alarms = self.schedule.next_alarm();
        self.telling > 0
            || !self.calls.is_empty()
            || alarms.is_some_and(|end| end <= by)
            || self.schedule.is_busy(by)
    }

    /// Whether this is one of the two threads, which would wait for itself.
    fn is_mine(&self) -> bool {
        let threads = [&self.renewing, &self.calling];
        let is_this = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        threads.into_iter().flatten().any(is_this)
    }
}

impl State {
    fn forget_key(&mut self, id: Id, key: &str) {
        if let Some(ids) = self.of_key.get_mut(key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.of_key.remove(key);
            }
        }
    }
}

fn question(turn: &Turn<Arc<Kept>>) -> Call {
    turn.what.hold().renewal(whole_millis(turn.ask.lease()))
}

/// What was asked about may be nobody else's by now, and its hooks own anything: nothing may be locked, and a panic in it is
/// nobody's business here.
fn let_go<T>(asked: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(asked)));
}

/// A panic in it is nobody's business here.
fn call(callback: Callback, reason: LostReason) {
    let _ = catch_unwind(AssertUnwindSafe(|| callback(reason)));
}
