//! What all clones of a `Locks`, its locks and leases share. `L` is what a waiting thread can be handed.

use std::sync::Arc;

use super::settings::Settings;
use crate::{
    connection::Process,
    renewing::keeper::Keeper,
    server::{Observer, Server},
    time::Clock,
    waiting::Queues,
};

/// A server, the keeper of the leases, and the queues of those who wait.
pub(crate) struct Shared<L> {
    pub(crate) server: Arc<dyn Server>,
    pub(crate) clock: Clock,
    pub(crate) keeper: Arc<Keeper>,
    /// Those who wait, with how each would hold a lock that is handed to it.
    pub(crate) queues: Queues<Settings, L>,
    /// A child has a copy of all this after a fork.
    pub(crate) process: Process,
}

impl<L> Shared<L> {
    /// A thread of ours has let a lock go.
    pub(crate) fn released(&self, key: &str) {
        self.queues.released(key);
    }
}

impl<L: Send> Observer for Shared<L> {
    fn changed(&self, key: &str) {
        self.queues.changed(key);
        self.keeper.changed(key);
    }

    fn ask_again(&self) {
        self.queues.wake_all_heads();
    }

    fn look_again(&self) {
        self.keeper.look_at_all();
    }

    fn waits(&self) -> bool {
        !self.queues.is_empty()
    }

    fn holds(&self) -> bool {
        self.keeper.leases() > 0
    }

    #[cfg(feature = "testing")]
    fn disturbed(&self, disturbance: crate::server::Disturbance) {
        use crate::server::Disturbance;

        match disturbance {
            Disturbance::ClockMoved => {
                self.queues.wake_all();
                self.keeper.clock_moved();
            }
            Disturbance::Reachable => {
                self.anything();
                self.keeper.reachable();
            }
            Disturbance::Settle(longest) => self.keeper.settle(longest),
        }
    }
}

impl<L> Drop for Shared<L> {
    fn drop(&mut self) {
        if self.keeper.is_a_copy() {
            return;
        }
        self.server.close();
        self.keeper.close();
    }
}
