//! Functions for the stand-in for a server, whose clock a test moves.

use std::{
    thread,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    entry::REST,
    keeper::{Keeper, KeeperState},
};
use crate::time::Deadline;

impl Keeper {
    /// Makes both threads, and those that wait for a loss, check the clock again.
    pub(crate) fn clock_moved(&self) {
        let state = self.state.lock();
        state.schedule.all().for_each(|lease| lease.clock_moved());
        self.wake.notify_all();
        self.call.notify_all();
    }

    /// Ends the pause before the next attempt.
    pub(crate) fn reachable(&self) {
        self.state.lock().schedule.pause(self.clock.now());
        self.wake.notify_all();
    }

    /// Waits until nothing is due, no question or release is in flight, and all callbacks have run.
    pub(crate) fn settle(&self, longest: Duration) {
        let deadline = Deadline::after(longest);
        let mut state = self.state.lock();
        // A scheduled look may be due only after `REST`.
        let by = self.clock.now() + REST;
        while state.is_busy(by) && !state.is_keeper_thread() && !deadline.has_passed() {
            self.wake.notify_all();
            self.landed.wait_for(&mut state, Duration::from_millis(1));
        }
    }
}

impl KeeperState {
    /// Returns true if anything is due by then, in flight, or running a user's code.
    fn is_busy(&self, by: Instant) -> bool {
        let due = [self.schedule.next_alarm(), self.schedule.due_at()];
        self.busy_threads > 0
            || !self.calls.is_empty()
            || due.into_iter().flatten().any(|moment| moment <= by)
    }

    /// Returns true on one of the two threads, which must not wait for itself.
    fn is_keeper_thread(&self) -> bool {
        let threads = [&self.renewing, &self.calling];
        let is_this = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        threads.into_iter().flatten().any(is_this)
    }
}
