//! All queues of a `Locks`, and how a waiting thread is woken.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::queue::{Leaving, Next, Queue, Ticket};
use crate::time::{self, Deadline};

/// A push takes less than this, in most networks.
const SOON: Duration = Duration::from_millis(5);

/// Says when a waiter is to ask the server.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rings_at: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Bell {
    /// At this moment, or earlier if it was to ring earlier.
    fn ring_at(&self, moment: Instant) {
        let mut rings_at = self.rings_at.lock();
        *rings_at = Some(rings_at.map_or(moment, |earlier| earlier.min(moment)));
        drop(rings_at);
        self.changed.notify_one();
    }

    fn ring(&self, next: Next) {
        match next {
            Next::Now => self.ring_at(time::now()),
            Next::Soon => self.ring_at(time::now() + SOON),
            Next::AtRelease => {}
        }
    }

    /// Waits until it rings; false: the deadline came first.
    fn wait(&self, deadline: Deadline) -> bool {
        let mut rings_at = self.rings_at.lock();
        loop {
            if rings_at.is_some_and(|moment| moment <= time::now()) {
                *rings_at = None;
                return true;
            }
            if deadline.has_passed() {
                return false;
            }
            match deadline.or_sooner(*rings_at).moment() {
                Some(moment) => {
                    self.changed.wait_until(&mut rings_at, moment);
                }
                None => self.changed.wait(&mut rings_at),
            }
        }
    }
}

/// The queues, by the keys of their locks. A queue is there while somebody stands in it.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<HashMap<String, Queue<Arc<Bell>>>>);

impl Queues {
    /// Takes the last place.
    pub(super) fn join(&self, key: &str) -> Place<'_> {
        let bell = Arc::new(Bell::default());
        let mut queues = self.0.lock();
        let queue = queues.entry(key.to_owned()).or_default();
        let (ticket, is_head) = queue.join(Arc::clone(&bell));
        drop(queues);
        if is_head {
            bell.ring(Next::Now);
        }
        Place {
            queues: self,
            key: key.to_owned(),
            ticket,
            bell,
            leaving: Leaving::InVain,
            look_again: None,
        }
    }

    /// How many wait for the lock.
    pub(super) fn waiting(&self, key: &str) -> usize {
        self.0.lock().get(key).map_or(0, Queue::len)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// A thread of this process has released the lock.
    pub(super) fn released(&self, key: &str) {
        if let Some((bell, next)) = self.0.lock().get_mut(key).and_then(Queue::released) {
            bell.ring(next);
        }
    }

    /// The server says that something has happened to the lock.
    pub(super) fn changed(&self, key: &str) {
        if let Some(bell) = self.0.lock().get(key).and_then(Queue::head) {
            bell.ring(Next::Now);
        }
    }

    /// Something may have happened to any lock.
    pub(super) fn anything(&self) {
        for bell in self.0.lock().values().filter_map(Queue::head) {
            bell.ring(Next::Now);
        }
    }
}

/// A place in a queue, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    queues: &'a Queues,
    key: String,
    ticket: Ticket,
    bell: Arc<Bell>,
    leaving: Leaving,
    look_again: Option<Instant>,
}

impl Place<'_> {
    /// Waits until it is time to ask the server. False: the deadline came first.
    pub(super) fn wait(&self, deadline: Deadline) -> bool {
        self.bell.wait(deadline)
    }

    /// The server says no: look again at this moment, unless something happens before.
    pub(super) fn refused(&self, look_again: Option<Instant>) {
        if let Some(queue) = self.queues.0.lock().get_mut(&self.key) {
            queue.refused();
        }
        self.look_again_at(look_again);
    }

    /// There was no answer.
    pub(super) fn look_again_at(&self, moment: Option<Instant>) {
        if let Some(moment) = moment {
            self.bell.ring_at(moment);
        }
    }

    /// Leaves, having the lock. It ends at that moment at the latest: whoever is next then looks.
    pub(super) fn leave(mut self, why: Leaving, end: Instant) {
        self.leaving = why;
        self.look_again = Some(end);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.0.lock();
        let Some(queue) = queues.get_mut(&self.key) else {
            return;
        };
        if let Some((bell, next)) = queue.leave(self.ticket, self.leaving) {
            bell.ring(next);
            if let Some(moment) = self.look_again {
                bell.ring_at(moment);
            }
        }
        if queue.is_empty() {
            queues.remove(&self.key);
        }
    }
}
