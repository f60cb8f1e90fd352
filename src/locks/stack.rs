//! The stack of one server: what all clones of a `Locks`, its locks and leases share.
//!
//! `L` is what a waiting thread can be handed: a lease, which has its stack.

use std::{
    ptr,
    sync::{Arc, Weak},
};

use parking_lot::RwLock;

use super::options::Settings;
use crate::{
    error::{Error, Result},
    pool::Process,
    renewing::keeper::Keeper,
    server::{Observer, Server},
    time::Clock,
    waiting::{PastHold, Queues},
};

/// A server, the keeper of the leases, and the queues of those who wait.
pub(crate) struct Stack<L> {
    pub(crate) server: Arc<dyn Server>,
    pub(crate) clock: Clock,
    pub(crate) keeper: Arc<Keeper>,
    /// Those who wait, with how each would hold a lock that is handed to it.
    pub(crate) queues: Queues<Settings, L, Error>,
    /// A child has a copy of all this after a fork.
    pub(crate) process: Process,
    siblings: Siblings<L>,
}

/// The stacks of all shards of a cluster; of one server, its own. A lock is followed from one shard
/// to another, so each is told which keys any of them hears of.
pub(crate) type Siblings<L> = Arc<RwLock<Vec<Weak<Stack<L>>>>>;

impl<L: Send + 'static> Stack<L> {
    /// For locks on this server, real or not.
    pub(crate) fn start(server: Arc<dyn Server>, siblings: &Siblings<L>) -> Result<Arc<Self>> {
        let clock = server.clock();
        let stack = Arc::new(Self {
            clock,
            keeper: Keeper::start(server.renewals(), server.limits(), clock)?,
            queues: Queues::new(clock),
            process: Process::current(),
            server,
            siblings: Arc::clone(siblings),
        });
        let observer: Weak<Self> = Arc::downgrade(&stack);
        stack.server.report_to(observer)?;
        siblings.write().push(Arc::downgrade(&stack));
        Ok(stack)
    }
}

impl<L> Stack<L> {
    /// A thread of ours has let a lock go.
    pub(crate) fn released(&self, key: &str, hold: &PastHold) {
        self.queues.released(key, hold);
    }

    /// Tells the other shards' queues and keepers that this key has changed: a lease on it may be
    /// kept by the shard that had the key before.
    pub(crate) fn tell_siblings(&self, key: &str) {
        // A sibling may be dropped here, by its last reference: nothing may be locked then.
        let siblings = self.siblings.read().clone();
        for sibling in siblings.iter().filter_map(Weak::upgrade) {
            if !ptr::eq(self, Arc::as_ptr(&sibling)) {
                sibling.queues.changed(key);
                sibling.keeper.changed(key);
            }
        }
    }
}

impl<L: Send> Observer for Stack<L> {
    fn changed(&self, key: &str) {
        self.queues.changed(key);
        self.keeper.changed(key);
        self.tell_siblings(key);
    }

    fn all_may_have_changed(&self) {
        self.ask_again();
        self.keeper.look_at_all();
    }

    fn ask_again(&self) {
        self.queues.wake_all_heads();
    }

    fn renew_again(&self) {
        self.keeper.renew_all();
    }

    fn relies(&self) -> bool {
        !self.queues.is_empty() || self.keeper.leases() > 0
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
                self.ask_again();
                self.renew_again();
                self.keeper.reachable();
            }
            Disturbance::Settle(longest) => self.keeper.settle(longest),
        }
    }
}

impl<L> Drop for Stack<L> {
    /// Its threads end by themselves: a lease may be what is dropped last, in no more than its own
    /// time.
    fn drop(&mut self) {
        if self.keeper.process.is_forked_child() {
            return;
        }
        self.server.close();
        self.keeper.close();
    }
}
