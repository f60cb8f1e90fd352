//! A place in a queue: what a waiting thread has of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Condvar;

use super::{
    queue::{LastAnswer, Leaving, Step, Ticket},
    queues::{Queues, Sleeper},
};
use crate::{
    cancel::Cancel,
    time::{self, Deadline},
};

/// How often a thread whose time is over looks for the answer to the head.
const LOOKS_FOR_AN_ANSWER: Duration = Duration::from_millis(1);

/// A place in a queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a, T, L, F = ()> {
    queues: &'a Queues<T, L, F>,
    key: String,
    ticket: Ticket,
    sleeper: Arc<Sleeper<T>>,
    leaving: Leaving,
    /// Of the lock that it leaves with.
    end: Option<Instant>,
}

impl<T, L, F> Queues<T, L, F> {
    /// Takes the last place. With options, it takes a lock that is handed to it.
    pub(crate) fn join(&self, key: &str, takes: Option<T>) -> Place<'_, T, L, F> {
        let sleeper = Arc::new(Sleeper {
            woken: Condvar::new(),
            takes,
        });
        let mut by_key = self.by_key.lock();
        let ticket = by_key.next_ticket;
        by_key.next_ticket += 1;
        let queue = by_key.queues.entry(key.to_owned()).or_default();
        queue.join(ticket, Arc::clone(&sleeper), self.clock.now());
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
}

impl<T, L, F> Place<'_, T, L, F> {
    /// Waits until it is time to ask the server. False: the deadline came first, or the lock has
    /// been [handed over](Self::quit).
    #[cfg(test)]
    pub(crate) fn wait(&self, deadline: Deadline) -> bool {
        self.wait_unless(None, deadline)
    }

    /// Waits until it is time to ask the server. False: the deadline came first, the lock has been
    /// [handed over](Self::quit), or the wait was called off. A wake-up that has not been acted
    /// upon is for the next.
    pub(crate) fn wait_unless(&self, cancel: Option<&Cancel>, deadline: Deadline) -> bool {
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
            let pause = cancel.and_then(Cancel::look_again);
            let looks_at = pause.map(|pause| self.queues.clock.now() + pause);
            let woken = &self.sleeper.woken;
            match deadline.or_sooner(asks_at).or_sooner(looks_at).moment() {
                Some(moment) => drop(woken.wait_until(&mut by_key, moment)),
                None => woken.wait(&mut by_key),
            }
        }
    }

    /// The server says no: ask again at this moment, unless something happens before.
    pub(crate) fn refused(&self, look_again: Option<Instant>) {
        self.queues.with_queue(&self.key, |queue| {
            queue.refused(self.ticket, self.queues.clock.now(), look_again);
            None
        });
    }

    /// The attempt failed, which those behind are told where it is known why: ask again at this
    /// moment.
    pub(crate) fn failed(&self, failure: Option<F>, look_again: Instant) {
        self.queues.with_queue(&self.key, |queue| {
            queue.unanswered(self.ticket, look_again, failure);
            None
        });
    }

    /// Why it has not got the lock, by the last attempt of whoever was the head. The answer to a
    /// head that is asking is waited for until the deadline.
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
            let is_head = (queue.head()).is_none_or(|head| Arc::ptr_eq(head, &self.sleeper));
            if !matches!(answer, LastAnswer::Missing) || is_head || deadline.has_passed() {
                return answer;
            }
            // An answer wakes the head alone.
            let soon = time::now() + LOOKS_FOR_AN_ANSWER;
            self.sleeper.woken.wait_until(&mut by_key, soon);
        }
    }

    /// Leaves, having the lock. The next thread of the queue asks at that moment at the latest.
    pub(crate) fn leave(mut self, leaving: Leaving, end: Instant) {
        self.leaving = leaving;
        self.end = Some(end);
    }

    /// Leaves without a grant of the server's. Returns the lock, if that has been handed over.
    pub(crate) fn quit(self) -> Option<L> {
        self.take_out()
    }

    /// Leaves the queue, so that no lock can be handed over any more. Returns the one that was.
    fn take_out(&self) -> Option<L> {
        let now = self.queues.clock.now();
        let mut by_key = self.queues.by_key.lock();
        let queue = by_key.queues.get_mut(&self.key)?;
        let (handed, woken) = queue.leave(self.ticket, self.leaving, now, self.end);
        let woken = woken.cloned();
        if queue.is_over() {
            by_key.forget(&self.key, now);
        }
        drop(by_key);
        if let Some(head) = woken {
            head.woken.notify_one();
        }
        handed
    }
}

impl<T, L, F> Drop for Place<'_, T, L, F> {
    fn drop(&mut self) {
        // A lease is left if the server has said yes meanwhile, so that it is not ours to hand on,
        // or if a panic has come between. It is released as it is dropped.
        drop(self.take_out());
    }
}
