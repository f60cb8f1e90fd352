//! The threads of this process that wait for one lock, first in first out, as a plain value: no
//! lock, no clock, no I/O.
//!
//! Only the first of them, the head, asks the server. What happens goes in, with its moment; whom
//! to wake comes out.
//!
//! A wake-up is never lost. It belongs to the queue, not to the thread that it woke: if the head
//! leaves before it has acted upon one, the next head gets it. To act upon it means that the server
//! has answered an attempt that was sent afterwards.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::turns::{PastHold, Turns};

/// When the head asks about a message that came while a thread of this process was being granted
/// the lock, or has it alone.
///
/// Nearly always that message tells of the release that made the grant possible, so asking at once
/// would be refused. A hold that is shorter costs no attempt: its release wakes the head before.
const RECHECK_AFTER_GRANT: Duration = Duration::from_millis(50);

/// A head asks again after this at the latest. The server may owe it a message and not send it: it
/// forgets keys where more are tracked than fit into its table, and tells nobody of a `SWAPDB`.
pub(crate) const ASKS_AGAIN: Duration = Duration::from_secs(1);

/// Names one waiter; never used twice, and a later one is greater.
pub(crate) type Ticket = u64;

/// Those who wait for one lock. `W` is whatever the caller wakes one with, `L` a lock that is
/// handed over, `F` a failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue<W, L, F = ()> {
    /// In the order of their tickets.
    waiting: VecDeque<Waiter<W>>,
    /// The locks that were handed to those who were the head, until they leave with them.
    handed: Vec<(Ticket, L)>,
    turns: Turns,
    /// Why the last attempt of a head failed, if it did.
    failure: Option<F>,
    /// While this waiter stood here, and those before it, somebody was known to have the lock.
    told_busy_up_to: Option<Ticket>,
}

/// Why a waiter has not got the lock, by the last attempt that anybody in its queue has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastAnswer<F> {
    /// Somebody else has it.
    Busy,
    /// The attempt failed.
    Failed(F),
    /// No answer has come since the waiter joined.
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter<W> {
    ticket: Ticket,
    who: W,
    /// When it asks the server. Only the head has such a moment.
    asks_at: Option<Instant>,
    /// It was woken, and the server has not answered since.
    is_asking: bool,
}

/// A waiter leaves with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The lock, and nobody else can have it beside.
    Exclusive,
    /// The lock, and others may join.
    Shared,
    /// Nothing that the server has granted: it has waited for too long, met an error, or was handed
    /// the lock.
    WithoutLock,
}

/// A waiter's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It asks the server now.
    Ask,
    /// It leaves with what it was handed.
    TakeHanded,
    /// It sleeps until that moment, or until it is woken.
    Sleep(Option<Instant>),
}

impl<W, L, F> Default for Queue<W, L, F> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            handed: Vec::new(),
            turns: Turns::default(),
            failure: None,
            told_busy_up_to: None,
        }
    }
}

impl<W, L, F> Queue<W, L, F> {
    /// A thread that comes now may ask without standing in the queue: none stands there, and it is
    /// not the turn of other processes.
    pub(crate) fn asks_at_once(&self, now: Instant) -> bool {
        self.waiting.is_empty() && (self.turns.asks_at(now) == now || !self.turns.sees_others(now))
    }

    /// One more, at the end. If it is the head, it asks at once, or after the turns of others.
    pub(crate) fn join(&mut self, ticket: Ticket, who: W, now: Instant) {
        let is_head = self.waiting.is_empty();
        let asks_at = if self.asks_at_once(now) {
            now
        } else {
            self.turns.asks_at(now)
        };
        self.waiting.push_back(Waiter {
            ticket,
            who,
            asks_at: is_head.then_some(asks_at),
            is_asking: false,
        });
        let head_is_not_asking = (self.waiting.front()).is_some_and(|head| !head.is_asking);
        if !is_head && head_is_not_asking && self.told_busy_up_to.is_some() {
            self.told_busy_up_to = Some(ticket);
        }
    }

    /// Why this waiter has not got the lock.
    pub(crate) fn last_answer(&self, ticket: Ticket) -> LastAnswer<F>
    where
        F: Clone,
    {
        match &self.failure {
            Some(failure) => LastAnswer::Failed(failure.clone()),
            None if self.told_busy_up_to >= Some(ticket) => LastAnswer::Busy,
            None => LastAnswer::Missing,
        }
    }

    /// Somebody has the lock, which all who stand here know from now on.
    fn note_busy(&mut self) {
        self.failure = None;
        let last = self.waiting.back().map(|waiter| waiter.ticket);
        self.told_busy_up_to = self.told_busy_up_to.max(last);
    }

    /// The next step of this waiter. If it asks, the wake-up counts as acted upon once the server
    /// has [granted](Self::leave) or [refused](Self::refused).
    pub(crate) fn step(&mut self, ticket: Ticket, now: Instant) -> Step {
        let Some(waiter) = self.waiter(ticket) else {
            return Step::TakeHanded;
        };
        if waiter.asks_at.is_none_or(|moment| now < moment) {
            return Step::Sleep(waiter.asks_at);
        }
        waiter.asks_at = None;
        waiter.is_asking = true;
        Step::Ask
    }

    /// The server has refused this waiter, which asks again at that moment unless something happens
    /// before.
    pub(crate) fn refused(&mut self, ticket: Ticket, now: Instant, ask_again: Option<Instant>) {
        self.turns.refused(now);
        self.note_busy();
        if let Some(waiter) = self.waiter(ticket) {
            waiter.is_asking = false;
            waiter.ask_at(ask_again);
        }
    }

    /// The server has not answered this waiter, which asks again at that moment and not before: a
    /// connection that is gone wakes all heads, also the one that found it gone and has to pause.
    pub(crate) fn unanswered(&mut self, ticket: Ticket, ask_again: Instant, failure: Option<F>) {
        self.failure = failure;
        if let Some(waiter) = self.waiter(ticket) {
            waiter.asks_at = Some(ask_again);
        }
    }

    /// A waiter leaves, with that lock or with what it was handed. A lock that was granted ends at
    /// `end`. Returns what was handed to it, and the new head, if that has to be woken.
    pub(crate) fn leave(
        &mut self,
        ticket: Ticket,
        leaving: Leaving,
        now: Instant,
        end: Option<Instant>,
    ) -> (Option<L>, Option<&W>) {
        if leaving != Leaving::WithoutLock {
            self.turns.granted(now, leaving == Leaving::Exclusive);
            self.note_busy();
        }
        if let Some(place) = self.handed.iter().position(|(to, _)| *to == ticket) {
            return (Some(self.handed.swap_remove(place).1), None);
        }
        let Ok(place) = self.place(ticket) else {
            return (None, None);
        };
        let Some(gone) = self.waiting.remove(place) else {
            return (None, None);
        };
        if self.waiting.is_empty() {
            (self.failure, self.told_busy_up_to) = (None, None);
        }
        if place > 0 {
            return (None, None);
        }
        let ask_at = match leaving {
            Leaving::Exclusive => sooner(end, gone.asks_at.map(|_| now + RECHECK_AFTER_GRANT)),
            Leaving::Shared | Leaving::WithoutLock => Some(now),
        };
        (None, self.wake_head(ask_at))
    }

    /// The head is handed the lock by a thread of this process, without having asked the server;
    /// the lock ends at `end`. Returns whom to wake: who has the lock now, and the new head.
    pub(crate) fn hand_over(
        &mut self,
        lease: L,
        now: Instant,
        end: Instant,
    ) -> Option<(W, Option<&W>)> {
        let next = self.waiting.pop_front()?;
        self.turns.granted(now, true);
        self.note_busy();
        self.handed.push((next.ticket, lease));
        // A wake-up that it has not acted upon is for the next.
        let passed_on = next.is_asking.then(|| now + RECHECK_AFTER_GRANT);
        let ask_at = sooner(next.asks_at, passed_on);
        let ask_at = sooner(Some(end.min(now + ASKS_AGAIN)), ask_at);
        Some((next.who, self.wake_head(ask_at)))
    }

    /// A thread of this process has released the lock. Returns whom to wake.
    pub(crate) fn released(&mut self, now: Instant, hold: &PastHold) -> Option<&W> {
        let ask_at = self.turns.released(now, hold);
        self.wake_head(Some(ask_at.unwrap_or(now + RECHECK_AFTER_GRANT)))
    }

    /// The server says that something has happened to the lock. Returns whom to wake.
    pub(crate) fn changed(&mut self, now: Instant) -> Option<&W> {
        let ask_at = if self.turns.is_held_alone() {
            now + RECHECK_AFTER_GRANT
        } else {
            self.turns.asks_at(now)
        };
        self.wake_head(Some(ask_at))
    }

    /// Something may have happened to the lock without our being told. Returns whom to wake.
    pub(crate) fn may_have_changed(&mut self, now: Instant) -> Option<&W> {
        self.wake_head(Some(now))
    }

    pub(crate) fn head(&self) -> Option<&W> {
        self.waiting.front().map(|waiter| &waiter.who)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &W> {
        self.waiting.iter().map(|waiter| &waiter.who)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Nobody stands here, and other processes need not be thought of.
    pub(crate) fn is_forgettable(&self, now: Instant) -> bool {
        self.is_over() && !self.turns.sees_others(now)
    }

    /// Nobody waits, and nobody has yet to leave with what it was handed.
    pub(crate) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.handed.is_empty()
    }

    /// The head asks at that moment, or earlier if it was to ask earlier.
    fn wake_head(&mut self, ask_at: Option<Instant>) -> Option<&W> {
        let head = self.waiting.front_mut()?;
        head.ask_at(ask_at);
        Some(&head.who)
    }

    fn place(&self, ticket: Ticket) -> Result<usize, usize> {
        self.waiting
            .binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }

    fn waiter(&mut self, ticket: Ticket) -> Option<&mut Waiter<W>> {
        let place = self.place(ticket).ok()?;
        self.waiting.get_mut(place)
    }
}

impl<W> Waiter<W> {
    fn ask_at(&mut self, moment: Option<Instant>) {
        self.asks_at = sooner(self.asks_at, moment);
    }
}

fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
