//! All queues of a `Locks`, by the keys of their locks, and how a waiting thread sleeps and is
//! woken.
//!
//! There is one mutex, `by_key`. A waiting thread sleeps with a condition variable of its own on
//! that mutex, and a thread that changes a queue wakes another after it has unlocked it, since the
//! woken thread locks it first of all. While it is locked nothing of a server's is called. Only
//! [`hand_over`](Queues::hand_over) runs code of its caller under it, to make the next guard, which
//! locks the keeper's `state`: `by_key` comes before that. A lease is never dropped under it, for a
//! dropped lease is released, and its release locks `by_key`.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{
    queue::{Queue, Ticket},
    streaks::Streaks,
    turns::{PastHold, SHORT_WAIT},
};
use crate::time::Clock;

/// The queues, by the keys of their locks.
#[derive(Debug)]
pub(crate) struct Queues<T, L, F = ()> {
    pub(super) by_key: Mutex<ByKey<T, L, F>>,
    pub(super) clock: Clock,
}

#[derive(Debug)]
pub(super) struct ByKey<T, L, F> {
    /// A queue is there while somebody stands in it, and while other processes that want the lock
    /// are remembered.
    pub(super) queues: HashMap<String, ThreadQueue<T, L, F>>,
    pub(super) next_ticket: Ticket,
    streaks: Streaks,
    /// With more queues than this, those that are over are looked at whether they can be forgotten.
    many: usize,
}

/// So many queues that are over need not be looked for.
const FEW: usize = 64;

impl<T, L, F> ByKey<T, L, F> {
    /// Somebody has left this queue.
    pub(super) fn forget(&mut self, key: &str, now: Instant) {
        if self
            .queues
            .get(key)
            .is_some_and(|queue| queue.is_forgettable(now))
        {
            self.queues.remove(key);
        }
        if self.queues.len() > self.many {
            self.queues.retain(|_, queue| !queue.is_forgettable(now));
            self.many = FEW.max(self.queues.len() * 2);
        }
    }
}

pub(super) type ThreadQueue<T, L, F> = Queue<Arc<Sleeper<T>>, L, F>;

/// A thread in a queue.
#[derive(Debug)]
pub(super) struct Sleeper<T> {
    pub(super) woken: Condvar,
    /// How it would hold a lock that is handed to it, if it takes one.
    pub(super) takes: Option<T>,
}

impl<T, L, F> Queues<T, L, F> {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            by_key: Mutex::new(ByKey {
                queues: HashMap::new(),
                next_ticket: 0,
                streaks: Streaks::new(),
                many: FEW,
            }),
            clock,
        }
    }

    /// How many wait for the lock.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        self.by_key.lock().queues.get(key).map_or(0, Queue::len)
    }

    /// Nobody waits for any lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().queues.values().all(Queue::is_over)
    }

    /// When one that wants the lock now, and has so much time, asks without standing in the queue:
    /// nobody stands there, and it is not the turn of other processes. `None`: it is to stand in
    /// the queue.
    pub(crate) fn asks_after(&self, key: &str, timeout: Duration) -> Option<Duration> {
        let now = self.clock.now();
        let has_time = timeout >= SHORT_WAIT;
        let mut by_key = self.by_key.lock();
        match by_key.queues.get(key) {
            Some(queue) if !has_time && queue.len() == 0 => Some(Duration::ZERO),
            Some(queue) => queue.asks_at_once(now).then_some(Duration::ZERO),
            None if has_time => Some(by_key.streaks.pause(key, now)),
            None => Some(Duration::ZERO),
        }
    }

    /// A thread of this process has released the lock.
    pub(crate) fn released(&self, key: &str, hold: &PastHold) {
        let now = self.clock.now();
        let mut by_key = self.by_key.lock();
        let queue = by_key.queues.get_mut(key);
        let woken = queue.map(|queue| queue.released(now, hold).cloned());
        if woken.is_none() {
            by_key.streaks.released(key, now);
        }
        drop(by_key);
        if let Some(sleeper) = woken.flatten() {
            sleeper.woken.notify_one();
        }
    }

    /// The server says that something has happened to the lock.
    pub(crate) fn changed(&self, key: &str) {
        self.with_queue(key, |queue| queue.changed(self.clock.now()));
    }

    /// Something may have happened to any lock: the head of every queue asks, also one that is
    /// asking at this moment.
    pub(crate) fn wake_all_heads(&self) {
        let now = self.clock.now();
        let mut by_key = self.by_key.lock();
        let heads = by_key.queues.values_mut();
        let heads: Vec<_> = heads
            .filter_map(|queue| queue.may_have_changed(now).cloned())
            .collect();
        drop(by_key);
        for head in heads {
            head.woken.notify_one();
        }
    }

    /// Hands a lock to the first of those who wait for it, if that one takes it and `lease` makes
    /// one that ends at a moment.
    pub(crate) fn hand_over(
        &self,
        key: &str,
        lease: impl FnOnce(&T) -> Option<(L, Instant)>,
    ) -> bool {
        let mut by_key = self.by_key.lock();
        let Some(queue) = by_key.queues.get_mut(key) else {
            return false;
        };
        let takes = queue.head().and_then(|head| head.takes.as_ref());
        let Some((lease, end)) = takes.and_then(lease) else {
            return false;
        };
        let woken = queue.hand_over(lease, self.clock.now(), end);
        let woken = woken.map(|(holder, head)| (holder, head.cloned()));
        drop(by_key);
        if let Some((holder, head)) = woken {
            // First the one whose turn it is.
            holder.woken.notify_one();
            if let Some(head) = head {
                head.woken.notify_one();
            }
        }
        true
    }

    /// All who wait look again at the clock, and whether they have been called off.
    pub(crate) fn wake_all(&self) {
        for queue in self.by_key.lock().queues.values() {
            queue.all().for_each(|sleeper| {
                sleeper.woken.notify_one();
            });
        }
    }

    /// Changes a queue, if there is one, and wakes whom that returns.
    pub(super) fn with_queue(
        &self,
        key: &str,
        change: impl FnOnce(&mut ThreadQueue<T, L, F>) -> Option<&Arc<Sleeper<T>>>,
    ) {
        let mut by_key = self.by_key.lock();
        let woken = by_key.queues.get_mut(key).and_then(change).cloned();
        drop(by_key);
        if let Some(sleeper) = woken {
            sleeper.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
