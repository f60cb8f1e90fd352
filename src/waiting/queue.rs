//! The threads of this process that wait for one lock, first in, first out, as a plain value: no
//! lock, no clock, no I/O.
//!
//! The first of them, the head, asks the server. Each method takes the time of an event and returns
//! the threads to wake.
//!
//! The reply that grants a shared lock says how many more threads could hold it. As many threads
//! from the head on then ask at once, provided that each wants the lock in the same way: as a
//! reader, or as one of the same number of permits. A thread that is refused keeps its place and
//! sleeps until it is the head, or until a later grant to another thread says again that more
//! threads could hold the lock.
//!
//! A wake-up is never lost. It belongs to the queue, not to the thread that it woke: if the head
//! leaves before it has acted on a wake-up, the next head gets it. A head has acted on a wake-up
//! when the server has replied to an attempt that was sent afterwards.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::turns::{PastHold, Turns};

/// The head's delay after a notification that comes while a thread of this process is being granted
/// the lock, or holds it exclusively.
///
/// The notification is nearly always about the release that made the grant possible, so an attempt
/// at once would be refused. After a shorter hold no attempt is made: its release wakes the head
/// first.
const RECHECK_AFTER_GRANT: Duration = Duration::from_millis(50);

/// A head asks again after this time at the latest, since notifications can be missing: the server
/// stops tracking keys when its table is full, and sends none for a `SWAPDB`.
pub(crate) const ASKS_AGAIN: Duration = Duration::from_secs(1);

/// At most this many threads ask at once, so that the server answers all of them within an I/O
/// time-out: the cost of an attempt grows with the number of readers.
const AT_ONCE: usize = 128;

/// Identifies a waiter. Never reused, and greater for a later waiter.
pub(crate) type Ticket = u64;

/// The waiters for one lock. `W` is a handle that wakes a waiter, `L` a lock that is handed over,
/// `F` a failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue<W, L, F = ()> {
    /// In the order of their tickets.
    waiting: VecDeque<Waiter<W>>,
    /// The locks that were handed to former heads that have not left yet.
    handed: Vec<(Ticket, L)>,
    turns: Turns,
    /// The latest grant that said how many more threads could hold the lock: the moment of the
    /// reply, and that number. Threads may leave in another order than they were granted the lock,
    /// so the number of an earlier grant is ignored.
    told_free: Option<(Instant, usize)>,
    /// The failure of a head's last attempt, if it failed.
    failure: Option<F>,
    /// All waiters up to this ticket know that someone has the lock.
    told_busy_up_to: Option<Ticket>,
}

/// The reason why a waiter does not have the lock, by the last attempt of any head of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastAnswer<F> {
    /// Someone else has it.
    Busy,
    /// The attempt failed.
    Failed(F),
    /// No reply has come since the waiter joined.
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter<W> {
    ticket: Ticket,
    who: W,
    /// It shares the lock with others up to this number of holders.
    most_holders: u32,
    /// The moment at which it asks the server. Behind the head, only a thread that asks with others
    /// has one.
    asks_at: Option<Instant>,
    /// It was woken, and the server has not replied since.
    is_asking: bool,
}

/// The outcome with which a waiter leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The lock, exclusively.
    Exclusive,
    /// The lock, which as many more may share, by a reply of this moment. If none may, the next
    /// waiter must wait for a release.
    Shared { more: u32, answered: Instant },
    /// No grant from the server: its wait has ended, it met an error, or it was handed the lock.
    WithoutLock,
}

/// A waiter's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It asks the server now.
    Ask,
    /// It leaves with the lock that it was handed.
    TakeHanded,
    /// It sleeps until this moment, or until it is woken.
    Sleep(Option<Instant>),
}

impl<W, L, F> Default for Queue<W, L, F> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            handed: Vec::new(),
            turns: Turns::default(),
            told_free: None,
            failure: None,
            told_busy_up_to: None,
        }
    }
}

impl<W, L, F> Queue<W, L, F> {
    /// Returns true if a new thread may ask without joining the queue: the queue is empty, and it
    /// is not the turn of other processes.
    pub(crate) fn asks_at_once(&self, now: Instant) -> bool {
        self.waiting.is_empty() && (self.turns.asks_at(now) == now || !self.turns.sees_others(now))
    }

    /// Adds a waiter at the end. As the head it asks at once, or after the turns of other
    /// processes. It shares the lock with others up to this number of holders.
    pub(crate) fn join(&mut self, ticket: Ticket, who: W, most_holders: u32, now: Instant) {
        let is_head = self.waiting.is_empty();
        let asks_at = if self.asks_at_once(now) {
            now
        } else {
            self.turns.asks_at(now)
        };
        self.waiting.push_back(Waiter {
            ticket,
            who,
            most_holders,
            asks_at: is_head.then_some(asks_at),
            is_asking: false,
        });
        // A thread that joins while a head asks must not get an earlier result.
        let head_is_not_asking = (self.waiting.front()).is_some_and(|head| !head.is_asking);
        if !is_head && head_is_not_asking && self.told_busy_up_to.is_some() {
            self.told_busy_up_to = Some(ticket);
        }
    }

    /// Returns why this waiter does not have the lock.
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

    /// Records that someone has the lock: all current waiters know it from now on.
    fn note_busy(&mut self) {
        self.failure = None;
        let last = self.waiting.back().map(|waiter| waiter.ticket);
        self.told_busy_up_to = self.told_busy_up_to.max(last);
    }

    /// Returns the next step of this waiter. If it asks, the wake-up counts as acted on once the
    /// server has [granted](Self::leave) or [refused](Self::refused).
    pub(crate) fn step(&mut self, ticket: Ticket, now: Instant) -> Step {
        let Some(waiter) = self.waiter(ticket) else {
            return Step::TakeHanded;
        };
        if !waiter.is_due(now) {
            return Step::Sleep(waiter.asks_at);
        }
        waiter.asks_at = None;
        waiter.is_asking = true;
        Step::Ask
    }

    /// Records that the server has refused this waiter, by a reply of the moment `answered`. The
    /// head asks again at `ask_again`, or earlier if it is woken.
    pub(crate) fn refused(
        &mut self,
        ticket: Ticket,
        answered: Instant,
        ask_again: Option<Instant>,
    ) {
        self.turns.refused(answered);
        self.note_busy();
        let Ok(place) = self.place(ticket) else {
            return;
        };
        // A later grant to another thread said that this one could hold the lock too, so the
        // refusal is out of date. The notification may have gone to that other thread, so this one
        // asks again at once.
        let is_outdated = (self.told_free).is_some_and(|(at, more)| at > answered && place < more);
        let ask_again = if is_outdated {
            Some(answered)
        } else {
            ask_again.filter(|_| place == 0)
        };
        if let Some(waiter) = self.waiting.get_mut(place) {
            waiter.is_asking = false;
            waiter.ask_at(ask_again);
        }
    }

    /// Records that the server has not replied to this waiter. It asks again at that moment, even
    /// if it is not the head: its attempt may have acquired the lock, and would keep it from others
    /// until the lease ends. Discards earlier wake-ups: a lost connection wakes all heads,
    /// including the one that noticed the loss and must pause. A later wake-up still counts.
    pub(crate) fn unanswered(&mut self, ticket: Ticket, ask_again: Instant, failure: Option<F>) {
        self.failure = failure;
        if let Some(waiter) = self.waiter(ticket) {
            waiter.asks_at = Some(ask_again);
        }
    }

    /// Removes a waiter that leaves with a grant, with the lock that it was handed, or without a
    /// lock. A granted lock ends at `end`. Returns the lock that was handed to it, and the threads
    /// to wake: the new head, and those that ask with it.
    pub(crate) fn leave(
        &mut self,
        ticket: Ticket,
        leaving: Leaving,
        now: Instant,
        end: Option<Instant>,
    ) -> (Option<L>, Vec<W>)
    where
        W: Clone,
    {
        let place = self.place(ticket).ok();
        let waiter = place.and_then(|place| self.waiting.get(place));
        match (leaving, waiter) {
            (Leaving::Exclusive, _) => self.turns.granted(now),
            (Leaving::Shared { more: 0, .. }, Some(waiter)) => {
                self.turns.granted_shared(Some(waiter.most_holders));
            }
            (Leaving::Shared { .. }, _) => self.turns.granted_shared(None),
            (Leaving::WithoutLock, _) => {}
        }
        if leaving != Leaving::WithoutLock {
            self.note_busy();
        }
        if let Some(place) = self.handed.iter().position(|(to, _)| *to == ticket) {
            return (Some(self.handed.swap_remove(place).1), Vec::new());
        }
        let Some(gone) = place.and_then(|place| self.waiting.remove(place)) else {
            return (None, Vec::new());
        };
        if self.waiting.is_empty() {
            (self.failure, self.told_busy_up_to) = (None, None);
        }
        let mut woken = Vec::new();
        if place == Some(0) {
            // The attempt of the new head may have reached the server before the one that was
            // granted. Then it is refused, and the head asks again.
            let is_out = self.waiting.front().is_some_and(Waiter::is_out);
            let ask_at = match leaving {
                Leaving::Shared { more: 1.., .. } if is_out => gone.asks_at,
                Leaving::Shared { more: 1.., .. } | Leaving::WithoutLock => Some(now),
                _ if self.turns.has_all() => {
                    sooner(end, gone.asks_at.map(|_| now + RECHECK_AFTER_GRANT))
                }
                _ => sooner(end, gone.asks_at),
            };
            woken.extend(self.wake_head(ask_at).cloned());
        }
        if let Leaving::Shared { more, answered } = leaving {
            self.wake_sharers(gone.most_holders, more, answered, now, &mut woken);
        }
        (None, woken)
    }

    /// Makes the first `more` threads ask, after a reply of the moment `answered` said that so many
    /// could share the granted lock. Stops at the first thread that wants the lock in another way,
    /// so that nobody overtakes a thread that the server refuses for that reason.
    fn wake_sharers(
        &mut self,
        most_holders: u32,
        more: u32,
        answered: Instant,
        now: Instant,
        woken: &mut Vec<W>,
    ) where
        W: Clone,
    {
        if self.told_free.is_some_and(|(at, _)| at > answered) {
            return;
        }
        let most = usize::try_from(more).map_or(AT_ONCE, |more| more.min(AT_ONCE));
        self.told_free = Some((answered, most));
        let sharers =
            (self.waiting.iter_mut().take(most)).take_while(|it| it.most_holders == most_holders);
        for sharer in sharers.filter(|it| !it.is_out() && !it.is_due(now)) {
            sharer.ask_at(Some(now));
            woken.push(sharer.who.clone());
        }
    }

    /// Hands the lock, which ends at `end`, from a thread of this process to the head, without
    /// asking the server. Returns the threads to wake: the new holder and the new head.
    pub(crate) fn hand_over(
        &mut self,
        lease: L,
        now: Instant,
        end: Instant,
    ) -> Option<(W, Option<&W>)> {
        let next = self.waiting.pop_front()?;
        self.turns.granted(now);
        self.note_busy();
        self.handed.push((next.ticket, lease));
        // The next head gets a wake-up that this one has not acted on.
        let passed_on = next.is_asking.then(|| now + RECHECK_AFTER_GRANT);
        let ask_at = sooner(next.asks_at, passed_on);
        let ask_at = sooner(Some(end.min(now + ASKS_AGAIN)), ask_at);
        Some((next.who, self.wake_head(ask_at)))
    }

    /// Records that a thread of this process has released the lock. Returns the thread to wake.
    pub(crate) fn released(&mut self, now: Instant, hold: &PastHold) -> Option<&W> {
        let ask_at = self.turns.released(now, hold);
        self.wake_head(Some(ask_at.unwrap_or(now + RECHECK_AFTER_GRANT)))
    }

    /// Records that the server reports a change of the lock. Returns the thread to wake.
    pub(crate) fn changed(&mut self, now: Instant, spread: Duration) -> Option<&W> {
        let ask_at = if self.turns.has_all() {
            now + RECHECK_AFTER_GRANT
        } else {
            self.turns.asks_after_change(now, spread)
        };
        self.wake_head(Some(ask_at))
    }

    /// Records that a notification may have been missed. Returns the thread to wake.
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

    /// Returns true if the queue is empty, and no other process needs to be remembered.
    pub(crate) fn is_forgettable(&self, now: Instant) -> bool {
        self.is_over() && !self.turns.sees_others(now)
    }

    /// Returns true if no thread waits, and every handed lock has been collected.
    pub(crate) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.handed.is_empty()
    }

    /// Makes the head ask at that moment, or earlier if it was due earlier. Returns the thread to
    /// wake.
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
    /// Its attempt is under way, or about to be sent.
    fn is_out(&self) -> bool {
        self.is_asking && self.asks_at.is_none()
    }

    fn is_due(&self, now: Instant) -> bool {
        self.asks_at.is_some_and(|moment| moment <= now)
    }

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
