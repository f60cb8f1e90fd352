//! What the stand-in for a server asks of the threads, whose clock it moves.

use std::{
    thread,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::keeper::{Keeper, State};
use crate::{renewing::entry::REST, time::Deadline};

impl Keeper {
    /// Both threads look at it again.
    pub(crate) fn clock_moved(&self) {
        let state = self.state.lock();
        state
            .schedule
            .all()
            .for_each(|lease_state| lease_state.clock_moved());
        self.wake.notify_all();
        self.call.notify_all();
    }

    /// There is no reason any more to wait before the next attempt.
    pub(crate) fn reachable(&self) {
        self.state.lock().schedule.pause(self.clock.now());
        self.wake.notify_all();
    }

    /// Waits until nothing is due, no question is on its way, and every callback has been called.
    pub(crate) fn settle(&self, longest: Duration) {
        let deadline = Deadline::after(longest);
        let mut state = self.state.lock();
        // A look may have to wait for so long.
        let by = self.clock.now() + REST;
        while state.is_busy(by) && !state.is_mine() && !deadline.has_passed() {
            self.wake.notify_all();
            self.landed.wait_for(&mut state, Duration::from_millis(1));
        }
    }

    /// How many keys are remembered, leases, and calls to make; and whether anything is still due.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> (usize, usize, usize, bool) {
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
}

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
