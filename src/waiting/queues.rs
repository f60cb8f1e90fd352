//! All queues of a `Locks`, by the keys of their locks, and the places of waiting threads in them.
//!
//! One mutex, `by_key`, guards all of them. Each waiting thread sleeps on its own condition
//! variable with that mutex. A thread that changes a queue wakes another only after it has unlocked
//! the mutex, since the woken thread first locks it. While it is locked, no code of a server or a
//! caller runs, and no lease is created or dropped: dropping a lease releases it, and the release
//! locks `by_key`.
//!
//! [`Streaks`]: if a thread acquires a lock again as soon as it has released it, while no other
//! thread of its process waits, it asks before other processes are notified of the release. It is
//! always granted, so it never learns that they wait. So it pauses now and then, for as long as a
//! notification takes. If another process has the lock by then, the thread is refused, joins the
//! queue, and takes turns. If not, the pauses become rare.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{
    queue::{LastAnswer, Leaving, Queue, Step, Ticket},
    turns::{PastHold, SHORT_WAIT, spread},
};
use crate::{
    cancel::Cancel,
    time::{self, Clock, Deadline},
};

/// After this many joins, the queues that can be forgotten are removed.
const SWEEP: Ticket = 64;
/// A thread whose time is over checks for the reply to the head at this interval.
const LOOKS_FOR_AN_ANSWER: Duration = Duration::from_millis(1);

/// A thread that returns later than this after its release has given others a chance, which ends a
/// streak. The pause of a streak is as long.
const STREAK_GAP: Duration = Duration::from_millis(1);
/// The length of a streak at its first pause. It doubles with each pause, up to [`LONGEST_STREAK`].
const FIRST_STREAK: Duration = Duration::from_millis(10);
/// The greatest length of a streak before a pause.
const LONGEST_STREAK: Duration = Duration::from_millis(100);
/// The number of streaks remembered. Two locks with the same place replace each other's streak, and
/// pause less often.
const PLACES: usize = 64;

/// The queues, by the keys of their locks. `T` is the settings with which a thread would hold a
/// lock that is handed to it, `L` such a lock, and `F` a failure.
#[derive(Debug)]
pub(crate) struct Queues<T, L, F = ()> {
    by_key: Mutex<ByKey<T, L, F>>,
    clock: Clock,
}

#[derive(Debug)]
struct ByKey<T, L, F> {
    /// A queue exists while a thread waits in it, or while another process that wants the lock is
    /// remembered.
    queues: HashMap<String, ThreadQueue<T, L, F>>,
    next_ticket: Ticket,
    streaks: Streaks,
}

type ThreadQueue<T, L, F> = Queue<Arc<Sleeper<T>>, L, F>;

/// A thread in a queue.
#[derive(Debug)]
pub(crate) struct Sleeper<T> {
    woken: Condvar,
    takes: Option<T>,
}

impl<T> Sleeper<T> {
    /// Returns the settings with which it would hold a lock that is handed to it, if it accepts
    /// one.
    pub(crate) fn takes(&self) -> Option<&T> {
        self.takes.as_ref()
    }
}

/// A place in a queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a, T, L, F = ()> {
    queues: &'a Queues<T, L, F>,
    key: String,
    ticket: Ticket,
    sleeper: Arc<Sleeper<T>>,
    leaving: Leaving,
    /// The end of the lock with which its thread leaves.
    end: Option<Instant>,
}

impl<T, L, F> Queues<T, L, F> {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            by_key: Mutex::new(ByKey {
                queues: HashMap::new(),
                next_ticket: 0,
                streaks: Streaks::new(),
            }),
            clock,
        }
    }

    /// Joins the queue at its end. With `takes`, the thread accepts a lock that is handed to it.
    /// It shares the lock with others up to this number of holders.
    pub(crate) fn join(
        &self,
        key: &str,
        takes: Option<T>,
        most_holders: u32,
    ) -> Place<'_, T, L, F> {
        let sleeper = Arc::new(Sleeper {
            woken: Condvar::new(),
            takes,
        });
        let now = self.clock.now();
        let mut by_key = self.by_key.lock();
        let ticket = by_key.next_ticket;
        by_key.next_ticket += 1;
        if ticket.is_multiple_of(SWEEP) {
            by_key.queues.retain(|_, queue| !queue.is_forgettable(now));
        }
        let queue = by_key.queues.entry(key.to_owned()).or_default();
        queue.join(ticket, Arc::clone(&sleeper), most_holders, now);
        drop(by_key);
        Place {
            queues: self,
            key: key.to_owned(),
            ticket,
            sleeper,
            leaving: Leaving::WithoutLock,
            end: None,
        }
    }

    /// Returns the number of waiters for the lock.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        self.by_key.lock().queues.get(key).map_or(0, Queue::len)
    }

    /// Returns true if no thread waits for any lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().queues.values().all(Queue::is_over)
    }

    /// Returns the pause before a thread with this much time may ask without joining the queue: the
    /// queue is empty, and it is not the turn of other processes. `None`: it must join the queue.
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

    /// Reports that a thread of this process has released the lock.
    pub(crate) fn released(&self, key: &str, hold: &PastHold) {
        let now = self.clock.now();
        let mut by_key = self.by_key.lock();
        let Some(queue) = by_key.queues.get_mut(key) else {
            return by_key.streaks.released(key, now);
        };
        let woken = queue.released(now, hold).cloned();
        drop(by_key);
        wake(woken);
    }

    /// Reports that the server has notified of a change of the lock.
    pub(crate) fn changed(&self, key: &str) {
        self.with_queue(key, |queue| queue.changed(self.clock.now(), spread()));
    }

    /// Reports that notifications may have been missed: the head of every queue asks, even one that
    /// is asking now.
    pub(crate) fn all_may_have_changed(&self) {
        let now = self.clock.now();
        let mut by_key = self.by_key.lock();
        let heads = by_key.queues.values_mut();
        let heads: Vec<_> = heads
            .filter_map(|queue| queue.may_have_changed(now).cloned())
            .collect();
        drop(by_key);
        wake(heads);
    }

    /// Returns the head of the lock's queue, if it accepts a lock that is handed to it.
    pub(crate) fn next_taker(&self, key: &str) -> Option<Arc<Sleeper<T>>> {
        let by_key = self.by_key.lock();
        let head = by_key.queues.get(key)?.head()?;
        head.takes.is_some().then(|| Arc::clone(head))
    }

    /// Hands a lock that ends at `end` to the head of its queue.
    ///
    /// # Errors
    /// The head has changed meanwhile. The lock is returned.
    pub(crate) fn hand_over(
        &self,
        key: &str,
        to: &Arc<Sleeper<T>>,
        lock: L,
        end: Instant,
    ) -> Result<(), L> {
        let now = self.clock.now();
        let mut by_key = self.by_key.lock();
        let is_first = |queue: &&mut ThreadQueue<T, L, F>| {
            let head = queue.head();
            head.is_some_and(|head| Arc::ptr_eq(head, to))
        };
        let Some(queue) = by_key.queues.get_mut(key).filter(is_first) else {
            drop(by_key);
            return Err(lock);
        };
        let woken = queue.hand_over(lock, now, end);
        let woken = woken.map(|(holder, head)| (holder, head.cloned()));
        drop(by_key);
        if let Some((holder, head)) = woken {
            // The new holder first.
            wake([holder].into_iter().chain(head));
        }
        Ok(())
    }

    /// Wakes all waiters, which check the clock and their `Cancel` again.
    pub(crate) fn wake_all(&self) {
        for queue in self.by_key.lock().queues.values() {
            queue.all().for_each(|sleeper| {
                sleeper.woken.notify_one();
            });
        }
    }

    /// Changes a queue, if it exists, and wakes the thread that the change returns.
    fn with_queue(
        &self,
        key: &str,
        change: impl FnOnce(&mut ThreadQueue<T, L, F>) -> Option<&Arc<Sleeper<T>>>,
    ) {
        let mut by_key = self.by_key.lock();
        let woken = by_key.queues.get_mut(key).and_then(change).cloned();
        drop(by_key);
        wake(woken);
    }
}

fn wake<T>(sleepers: impl IntoIterator<Item = Arc<Sleeper<T>>>) {
    for sleeper in sleepers {
        sleeper.woken.notify_one();
    }
}

impl<T, L, F> Place<'_, T, L, F> {
    /// Returns true if no thread of this process is ahead.
    pub(crate) fn is_head(&self) -> bool {
        let by_key = self.queues.by_key.lock();
        self.is_head_of(by_key.queues.get(&self.key))
    }

    fn is_head_of(&self, queue: Option<&ThreadQueue<T, L, F>>) -> bool {
        let head = queue.and_then(Queue::head);
        head.is_none_or(|head| Arc::ptr_eq(head, &self.sleeper))
    }

    /// Waits until it is time to ask the server. Returns false if the deadline came first, the lock
    /// was [handed over](Self::leave_with_what_was_handed), or the wait was cancelled. The next
    /// head gets a wake-up that was not acted on.
    pub(crate) fn wait(&self, cancel: Option<&Cancel>, deadline: Deadline) -> bool {
        let mut by_key = self.queues.by_key.lock();
        loop {
            if cancel.is_some_and(Cancel::is_cancelled) {
                return false;
            }
            let Some(queue) = by_key.queues.get_mut(&self.key) else {
                return false;
            };
            let asks_at = match queue.step(self.ticket, self.queues.clock.now()) {
                Step::Ask => return true,
                Step::TakeHanded => return false,
                Step::Sleep(_) if deadline.has_passed() => return false,
                Step::Sleep(asks_at) => asks_at,
            };
            let pause = cancel.and_then(Cancel::poll_after);
            let polls_at = pause.map(|pause| self.queues.clock.now() + pause);
            let wakes_at = deadline.or_sooner(asks_at).or_sooner(polls_at);
            wakes_at.wait(&self.sleeper.woken, &mut by_key);
        }
    }

    /// Records that the server refused, by a reply of the moment `answered`. Asks again at
    /// `ask_again`, or earlier if woken.
    pub(crate) fn refused(&self, answered: Instant, ask_again: Option<Instant>) {
        self.queues.with_queue(&self.key, |queue| {
            queue.refused(self.ticket, answered, ask_again);
            None
        });
    }

    /// Records that the attempt failed. Asks again at this moment. The waiters behind get the
    /// failure, if it is known.
    pub(crate) fn failed(&self, failure: Option<F>, ask_again: Instant) {
        self.queues.with_queue(&self.key, |queue| {
            queue.unanswered(self.ticket, ask_again, failure);
            None
        });
    }

    /// Returns why this thread does not have the lock, by the last attempt of any head. If a head
    /// is asking, waits for the reply until the deadline.
    pub(crate) fn last_answer_by(&self, deadline: Deadline) -> LastAnswer<F>
    where
        F: Clone,
    {
        let mut by_key = self.queues.by_key.lock();
        loop {
            let Some(queue) = by_key.queues.get(&self.key) else {
                return LastAnswer::Missing;
            };
            let answer = queue.last_answer(self.ticket);
            let is_settled = !matches!(answer, LastAnswer::Missing);
            if is_settled || self.is_head_of(Some(queue)) || deadline.has_passed() {
                return answer;
            }
            // A reply wakes only the head.
            let soon = time::now() + LOOKS_FOR_AN_ANSWER;
            self.sleeper.woken.wait_until(&mut by_key, soon);
        }
    }

    /// Leaves with a grant. The next thread in the queue asks at `end` at the latest.
    pub(crate) fn leave_granted(mut self, leaving: Leaving, end: Instant) {
        self.leaving = leaving;
        self.end = Some(end);
    }

    /// Leaves without a grant from the server. Returns the lock if it was handed over.
    pub(crate) fn leave_with_what_was_handed(self) -> Option<L> {
        self.remove()
    }

    /// Leaves the queue, so that no lock can be handed over to this thread. Returns one that
    /// already was.
    fn remove(&self) -> Option<L> {
        let now = self.queues.clock.now();
        let mut by_key = self.queues.by_key.lock();
        let queue = by_key.queues.get_mut(&self.key)?;
        let (handed, woken) = queue.leave(self.ticket, self.leaving, now, self.end);
        if queue.is_forgettable(now) {
            by_key.queues.remove(&self.key);
        }
        drop(by_key);
        wake(woken);
        handed
    }
}

impl<T, L, F> Drop for Place<'_, T, L, F> {
    fn drop(&mut self) {
        // A lease may have been handed over during a grant, or before a panic. Dropping it releases
        // the lock.
        drop(self.remove());
    }
}

/// The streaks of the locks that were released most recently.
#[derive(Debug)]
struct Streaks {
    hashes: RandomState,
    places: [Option<Streak>; PLACES],
}

#[derive(Clone, Copy, Debug)]
struct Streak {
    lock: u64,
    released: Instant,
    /// The time at which it started, or last paused.
    began: Instant,
    /// The length at which it pauses next.
    pauses_after: Duration,
}

impl Streaks {
    fn new() -> Self {
        Self {
            hashes: RandomState::new(),
            places: [None; PLACES],
        }
    }

    /// Records that a thread of this process has released the lock.
    fn released(&mut self, key: &str, now: Instant) {
        let (lock, place) = self.place(key);
        match place {
            Some(streak) if streak.lock == lock => streak.released = now,
            place => {
                *place = Some(Streak {
                    lock,
                    released: now,
                    began: now,
                    pauses_after: FIRST_STREAK,
                });
            }
        }
    }

    /// Returns the pause before a thread asks for a lock that has no queue.
    fn pause(&mut self, key: &str, now: Instant) -> Duration {
        let (lock, place) = self.place(key);
        let Some(streak) = place.as_mut().filter(|streak| streak.lock == lock) else {
            return Duration::ZERO;
        };
        if now.saturating_duration_since(streak.released) >= STREAK_GAP {
            *place = None;
            return Duration::ZERO;
        }
        if now.saturating_duration_since(streak.began) < streak.pauses_after {
            return Duration::ZERO;
        }
        streak.began = now + STREAK_GAP;
        // The pause must not end the streak.
        streak.released = now + STREAK_GAP;
        streak.pauses_after = LONGEST_STREAK.min(streak.pauses_after * 2);
        STREAK_GAP
    }

    fn place(&mut self, key: &str) -> (u64, &mut Option<Streak>) {
        let lock = self.hashes.hash_one(key);
        let place = usize::try_from(lock % PLACES as u64).unwrap_or(0);
        (lock, &mut self.places[place])
    }
}

#[cfg(test)]
mod tests;
