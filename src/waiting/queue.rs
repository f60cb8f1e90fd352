//! The threads of this process that wait for one lock, first in first out, as a plain value: no lock, no clock, no I/O.
//!
//! Only the first of them, the head, asks the server. Events in; out comes who is to ask next, and when.

use std::{collections::VecDeque, mem};

/// After so many turns in a row this process waits until the server tells it of a release, as the others have to: its own
/// threads know of a release before anybody else, and would have every turn.
const IN_A_ROW: u32 = 4;

/// Others are let go first as often as this at least, in times that the line is broken; every time while they are seen.
const LONGEST_ALONE: u32 = 64;

/// Names one waiter; never used twice.
pub(crate) type Ticket = u64;

/// Waiters and who of them is the head. `W` is whatever the caller rings one with.
#[derive(Debug)]
pub(crate) struct Queue<W> {
    waiting: VecDeque<(Ticket, W)>,
    turns_in_a_row: u32,
    /// One that stood here has the lock.
    held_here: bool,
    /// How often the line was broken since others were last let go first.
    breaks: u32,
    /// After so many they are.
    breaks_until_others: u32,
    /// The next release that the server tells of is for others first.
    defers: bool,
}

/// Why a waiter leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It has the lock, and nobody else can have it beside.
    Exclusive,
    /// It has the lock, and others may join.
    Shared,
    /// It has waited for too long, or met an error.
    WithoutLock,
}

/// What the head does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Asks the server now.
    Now,
    /// Asks when the server tells of a release, or soon in case it does not.
    Soon,
    /// Asks when others have had the time to.
    AfterOthers,
    /// Asks when there is a release.
    AtRelease,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            turns_in_a_row: 0,
            held_here: false,
            breaks: 0,
            breaks_until_others: 1,
            defers: false,
        }
    }
}

impl<W> Queue<W> {
    /// One more, at the end. True: the first, who asks at once.
    pub(crate) fn join(&mut self, ticket: Ticket, who: W) -> bool {
        self.waiting.push_back((ticket, who));
        self.waiting.len() == 1
    }

    /// One fewer. Says who is the head now, if that has changed, and what it does.
    pub(crate) fn leave(&mut self, ticket: Ticket, why: Leaving) -> Option<(&W, Next)> {
        let place = self
            .waiting
            .iter()
            .position(|(other, _)| *other == ticket)?;
        self.waiting.remove(place);
        if why != Leaving::WithoutLock {
            self.turns_in_a_row += 1;
            self.held_here = true;
        }
        if place > 0 {
            return None;
        }
        let next = match why {
            Leaving::Exclusive => Next::AtRelease,
            Leaving::Shared | Leaving::WithoutLock => Next::Now,
        };
        Some((self.head()?, next))
    }

    /// The head has the lock from one of this process, without having asked the server. Says who is the head now.
    pub(crate) fn hand_over(&mut self) -> Option<&W> {
        self.waiting.pop_front();
        self.turns_in_a_row += 1;
        self.held_here = true;
        self.head()
    }

    /// The head was refused: if it is not one of us who has the lock, others have their turns.
    pub(crate) fn refused(&mut self) {
        self.defers = false;
        if !self.held_here {
            self.turns_in_a_row = 0;
            self.breaks_until_others = 1;
        }
    }

    /// A thread of this process has released the lock.
    pub(crate) fn released(&mut self) -> Option<(&W, Next)> {
        self.held_here = false;
        let next = if self.turns_in_a_row < IN_A_ROW {
            Next::Now
        } else {
            self.turns_in_a_row = 0;
            self.breaks += 1;
            if self.breaks >= self.breaks_until_others {
                self.defers = true;
                self.breaks = 0;
                self.breaks_until_others = LONGEST_ALONE.min(self.breaks_until_others * 2);
            }
            Next::Soon
        };
        Some((self.head()?, next))
    }

    /// The server says that something has happened to the lock.
    pub(crate) fn changed(&mut self) -> Option<(&W, Next)> {
        let next = if mem::take(&mut self.defers) {
            Next::AfterOthers
        } else {
            Next::Now
        };
        Some((self.head()?, next))
    }

    pub(crate) fn head(&self) -> Option<&W> {
        self.waiting.front().map(|(_, who)| who)
    }

    #[cfg(feature = "testing")]
    pub(crate) fn all(&self) -> impl Iterator<Item = &W> {
        self.waiting.iter().map(|(_, who)| who)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests;
