//! The keeper with a server that a test plays, by a clock that the test moves.

use super::*;

impl Keeper {
    /// How many keys are remembered, leases, and calls to make; and whether anything is still due.
    pub(crate) fn remembered(&self) -> (usize, usize, usize, bool) {
        let state = self.state.lock();
        let due = state.schedule.due_at().is_some() || state.schedule.next_alarm().is_some();
        let KeeperState {
            of_key,
            schedule,
            calls,
            ..
        } = &*state;
        (of_key.len(), schedule.len(), calls.len(), due)
    }
}
