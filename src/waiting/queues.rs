//! All queues of a `Locks`, and how a waiting thread is woken.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::queue::{Leaving, Next, Queue, Ticket};
use crate::time::{Clock, Deadline};

/// A push takes less than this, in most networks.
const SOON: Duration = Duration::from_millis(5);
/// Another process that hears of a release asks within this time, in most networks.
const OTHERS: Duration = Duration::from_millis(1);

/// Says when a waiter is to ask the server, or that it need not.
#[derive(Debug)]
pub(crate) struct Bell<T, L> {
    news: Mutex<News<L>>,
    changed: Condvar,
    clock: Clock,
    /// How it would hold a lock that is handed to it, if it takes one.
    takes: Option<T>,
}

#[derive(Debug)]
struct News<L> {
    rings_at: Option<Instant>,
    handed: Option<L>,
}

impl<T, L> Bell<T, L> {
    /// At this moment, or earlier if it was to ring earlier.
    fn ring_at(&self, moment: Instant) {
        let mut news = self.news.lock();
        let sooner = news.rings_at.map_or(moment, |earlier| earlier.min(moment));
        news.rings_at = Some(sooner);
        drop(news);
        self.changed.notify_one();
    }

    #[cfg(feature = "testing")]
    fn look_at_the_clock(&self) {
        drop(self.news.lock());
        self.changed.notify_one();
    }

    fn ring(&self, next: Next) {
        match next {
            Next::Now => self.ring_at(self.clock.now()),
            Next::Soon => self.ring_at(self.clock.now() + SOON),
            Next::AfterOthers => self.ring_at(self.clock.now() + OTHERS),
            Next::AtRelease => {}
        }
    }

    /// Waits until it rings, or the lock is handed over; false: the deadline came first, or the lock.
    fn wait(&self, deadline: Deadline) -> bool {
        let mut news = self.news.lock();
        loop {
            if news.handed.is_some() {
                return false;
            }
            if news
                .rings_at
                .is_some_and(|moment| moment <= self.clock.now())
            {
                news.rings_at = None;
                return true;
            }
            if deadline.has_passed() {
                return false;
            }
            match deadline.or_sooner(news.rings_at).moment() {
                Some(moment) => {
                    self.changed.wait_until(&mut news, moment);
                }
                None => self.changed.wait(&mut news),
            }
        }
    }
}

/// The queues, by the keys of their locks.
#[derive(Debug)]
pub(crate) struct Queues<T, L> {
    by_key: Mutex<ByKey<T, L>>,
    clock: Clock,
}

/// What has happened to the lock of a queue.
type Happened<T, L> = fn(&mut Queue<Arc<Bell<T, L>>>) -> Option<(&Arc<Bell<T, L>>, Next)>;

#[derive(Debug)]
struct ByKey<T, L> {
    /// A queue is there while somebody stands in it.
    queues: HashMap<String, Queue<Arc<Bell<T, L>>>>,
    /// A queue that is there again gives out other tickets: whoever a lock was handed to has yet to leave the one before.
    next_ticket: Ticket,
}

impl<T, L> Queues<T, L> {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            by_key: Mutex::new(ByKey {
                queues: HashMap::new(),
                next_ticket: 0,
            }),
            clock,
        }
    }

    /// Takes the last place. With options, it takes a lock that is handed to it.
    pub(crate) fn join(&self, key: &str, takes: Option<T>) -> Place<'_, T, L> {
        let bell = Arc::new(Bell {
            news: Mutex::new(News {
                rings_at: None,
                handed: None,
            }),
            changed: Condvar::new(),
            clock: self.clock,
            takes,
        });
        let mut by_key = self.by_key.lock();
        let ticket = by_key.next_ticket;
        by_key.next_ticket += 1;
        let queue = by_key.queues.entry(key.to_owned()).or_default();
        let is_head = queue.join(ticket, Arc::clone(&bell));
        drop(by_key);
        if is_head {
            bell.ring(Next::Now);
        }
        Place {
            queues: self,
            key: key.to_owned(),
            ticket,
            bell,
            leaving: Leaving::WithoutLock,
            look_again: None,
        }
    }

    /// How many wait for the lock.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        self.by_key.lock().queues.get(key).map_or(0, Queue::len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().queues.is_empty()
    }

    /// A thread of this process has released the lock.
    pub(crate) fn released(&self, key: &str) {
        self.ring(key, Queue::released);
    }

    /// Rings for the head, with nothing locked: whoever is woken wants the queues. One that has left meanwhile has the lock,
    /// whose release is rung for, or has rung for the next.
    fn ring(&self, key: &str, what: Happened<T, L>) {
        let mut by_key = self.by_key.lock();
        let rung = by_key.queues.get_mut(key).and_then(what);
        let rung = rung.map(|(bell, next)| (Arc::clone(bell), next));
        drop(by_key);
        if let Some((bell, next)) = rung {
            bell.ring(next);
        }
    }

    /// Hands a lock to the first of those who wait for it, if that one takes it and there is a lease for it. The next is
    /// woken at its end, like everybody who waits.
    pub(crate) fn hand_over(
        &self,
        key: &str,
        next: impl FnOnce(&T) -> Option<(L, Instant)>,
    ) -> bool {
        let mut by_key = self.by_key.lock();
        let Some(queue) = by_key.queues.get_mut(key) else {
            return false;
        };
        let Some(bell) = queue.head().cloned() else {
            return false;
        };
        let Some((lease, end)) = bell.takes.as_ref().and_then(next) else {
            return false;
        };
        let next = queue.hand_over().cloned();
        bell.news.lock().handed = Some(lease);
        // Whoever is woken wants the queues, and first of all it is the one whose turn it is.
        drop(by_key);
        bell.changed.notify_one();
        if let Some(next) = next {
            next.ring_at(end);
        }
        true
    }

    /// The server says that something has happened to the lock.
    pub(crate) fn changed(&self, key: &str) {
        self.ring(key, Queue::changed);
    }

    /// All who wait look at it again.
    #[cfg(feature = "testing")]
    pub(crate) fn clock_moved(&self) {
        for queue in self.by_key.lock().queues.values() {
            queue.all().for_each(|bell| bell.look_at_the_clock());
        }
    }

    /// Something may have happened to any lock.
    pub(crate) fn wake_all_heads(&self) {
        for bell in self.by_key.lock().queues.values().filter_map(Queue::head) {
            bell.ring(Next::Now);
        }
    }
}

/// A place in a queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a, T, L> {
    queues: &'a Queues<T, L>,
    key: String,
    ticket: Ticket,
    bell: Arc<Bell<T, L>>,
    leaving: Leaving,
    look_again: Option<Instant>,
}

impl<T, L> Place<'_, T, L> {
    /// Waits until it is time to ask the server. False: the deadline came first, or the lock has been
    /// [handed over](Self::quit).
    pub(crate) fn wait(&self, deadline: Deadline) -> bool {
        self.bell.wait(deadline)
    }

    /// The server says no: look again at this moment, unless something happens before.
    pub(crate) fn refused(&self, look_again: Option<Instant>) {
        if let Some(queue) = self.queues.by_key.lock().queues.get_mut(&self.key) {
            queue.refused();
        }
        self.look_again_at(look_again);
    }

    /// There was no answer.
    pub(crate) fn look_again_at(&self, moment: Option<Instant>) {
        if let Some(moment) = moment {
            self.bell.ring_at(moment);
        }
    }

    /// Leaves, having the lock. It ends at that moment at the latest: whoever is next then looks.
    pub(crate) fn leave(mut self, why: Leaving, end: Instant) {
        self.leaving = why;
        self.look_again = Some(end);
    }

    /// Leaves without a yes of the server's; but with the lock, if it has been handed over.
    pub(crate) fn quit(self) -> Option<L> {
        self.go();
        self.bell.news.lock().handed.take()
    }

    /// From then on nothing is handed over.
    fn go(&self) {
        let mut by_key = self.queues.by_key.lock();
        let Some(queue) = by_key.queues.get_mut(&self.key) else {
            return;
        };
        let rung = queue.leave(self.ticket, self.leaving);
        let rung = rung.map(|(bell, next)| (Arc::clone(bell), next));
        if queue.is_empty() {
            by_key.queues.remove(&self.key);
        }
        drop(by_key);
        if let Some((bell, next)) = rung {
            bell.ring(next);
            if let Some(moment) = self.look_again {
                bell.ring_at(moment);
            }
        }
    }
}

impl<T, L> Drop for Place<'_, T, L> {
    fn drop(&mut self) {
        self.go();
        // The server has said yes meanwhile, so that it is not ours to hand on; or a panic has come between.
        let handed = self.bell.news.lock().handed.take();
        drop(handed);
    }
}
