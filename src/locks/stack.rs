//! The stack of one server, which the clones of a `Locks`, its locks and leases share.
//!
//! `L` is the value that a hand-over passes to a waiting thread: a lease, which owns its stack.

use std::{
    ptr,
    sync::{Arc, Weak},
};

use parking_lot::RwLock;

use crate::{
    error::{Error, Result},
    options::settings::Settings,
    pool::Process,
    renewing::keeper::Keeper,
    server::{Observer, Server},
    time::Clock,
    waiting::Queues,
};

/// A server, the keeper of its leases, and the queues of waiting threads.
pub(crate) struct Stack<L> {
    pub(crate) server: Arc<dyn Server>,
    pub(crate) clock: Clock,
    pub(crate) keeper: Arc<Keeper>,
    /// The waiting threads, each with its settings for a lock that is handed over.
    pub(crate) queues: Queues<Settings, L, Error>,
    /// The process that created the stack. A forked child has only a copy.
    pub(crate) process: Process,
    siblings: Siblings<L>,
}

/// The stacks of all shards of a cluster, or the one of a single server. A lock can move between
/// shards, so each stack passes the keys that changed to its siblings.
pub(crate) type Siblings<L> = Arc<RwLock<Vec<Weak<Stack<L>>>>>;

impl<L: Send + 'static> Stack<L> {
    /// Starts the stack of this server or stand-in.
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
    /// Returns true if both belong to one `Locks`, on one server or on shards of one cluster.
    pub(crate) fn is_sibling_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.siblings, &other.siblings)
    }

    /// Notifies the queues and keepers of the other shards that this key has changed: the shard
    /// that previously had the key may still keep its lease.
    fn notify_siblings(&self, key: &str) {
        // The clone may be the last reference to a sibling: no mutex may be locked when it drops.
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
        self.notify_siblings(key);
    }

    fn all_may_have_changed(&self) {
        self.ask_again();
        self.keeper.look_at_all();
    }

    fn ask_again(&self) {
        self.queues.all_may_have_changed();
    }

    fn renew_again(&self) {
        self.keeper.renew_all();
    }

    fn needs_notifications(&self) -> bool {
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
    /// Does not join the threads: the last owner may be a lease, whose drop must not exceed its
    /// `drop_timeout`.
    fn drop(&mut self) {
        if self.keeper.process.is_forked_child() {
            return;
        }
        self.server.close();
        self.keeper.close();
    }
}
