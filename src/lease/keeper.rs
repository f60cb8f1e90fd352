//! The watchdog's two threads, and what its handles ask of them.

#[cfg(feature = "testing")]
mod testing;
mod threads;

use std::{
    collections::{HashMap, VecDeque},
    process,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    kept::{Callback, Kept, Registered},
    renewal::{LostReason, RenewalState},
    schedule::{Id, Schedule},
    server::Link,
    terms::Terms,
};
use crate::{
    Error, Result,
    time::{Clock, Deadline},
};
use threads::call;

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

    /// How many leases are being kept.
    pub(super) fn leases(&self) -> usize {
        self.state.lock().schedule.len()
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
        let mut state = self.state.lock();
        state.schedule.stop(id);
        state.forget_key(id, kept.key());
        if let Some(reason) = kept.lost() {
            self.lose_all(&mut state, [(kept, reason)]);
        }
        if state.schedule.is_out(id) {
            self.wait_until_landed(&mut state, id, deadline);
        }
        drop(state);
        kept.stop()
    }

    fn wait_until_landed(&self, state: &mut MutexGuard<'_, State>, id: Id, deadline: Deadline) {
        // An exchange ends by itself within one time-out; twice that is for a thread that gets no processor time.
        let longest = Deadline::after(self.limits.answer * 2);
        let deadline = longest.or_sooner(deadline.moment());
        while state.schedule.is_out(id) {
            let Some(moment) = deadline.moment() else {
                return;
            };
            if self.landed.wait_until(state, moment).timed_out() {
                return;
            }
        }
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
}

impl State {
    fn forget_key(&mut self, id: Id, key: &str) {
        if let Some((key, mut ids)) = self.of_key.remove_entry(key) {
            ids.retain(|other| *other != id);
            if !ids.is_empty() {
                self.of_key.insert(key, ids);
            }
        }
    }
}
