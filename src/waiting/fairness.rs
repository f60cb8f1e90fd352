//! When the head of a queue asks the server after a release, so that other processes have their turns: a plain value.

use std::{
    mem,
    time::{Duration, Instant},
};

/// After so many turns in a row this process waits until the server tells it of a release, as the others have to: its own
/// threads know of a release before anybody else, and would have every turn.
pub(super) const IN_A_ROW: u32 = 4;

/// Others are let go first as often as this at least, in times that this process waits for the server's message; every time
/// while they are seen.
const LONGEST_ALONE: u32 = 64;

/// A push takes less than this, in most networks.
const PUSH: Duration = Duration::from_millis(5);
/// Another process that hears of a release asks within this time, in most networks.
const OTHERS: Duration = Duration::from_millis(1);

/// Of one lock: the turns of this process, and what was seen of others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fairness {
    turns_in_a_row: u32,
    /// One that stood in the queue has the lock.
    held_here: bool,
    /// How often this process has waited for the server's message since others were last let go first.
    waits: u32,
    /// After so many they are.
    waits_until_others: u32,
    /// The next release that the server tells of is for others first.
    defers: bool,
}

impl Default for Fairness {
    fn default() -> Self {
        Self {
            turns_in_a_row: 0,
            held_here: false,
            waits: 0,
            waits_until_others: 1,
            defers: false,
        }
    }
}

impl Fairness {
    /// One of this process has the lock.
    pub(super) fn granted(&mut self) {
        self.turns_in_a_row += 1;
        self.held_here = true;
    }

    /// The head was refused: if it is not one of us who has the lock, others have their turns.
    pub(super) fn refused(&mut self) {
        self.defers = false;
        if !self.held_here {
            self.turns_in_a_row = 0;
            self.waits_until_others = 1;
        }
    }

    /// A thread of this process has released the lock. Says when the head asks.
    pub(super) fn released(&mut self, now: Instant) -> Instant {
        self.held_here = false;
        if self.turns_in_a_row < IN_A_ROW {
            return now;
        }
        self.turns_in_a_row = 0;
        self.waits += 1;
        if self.waits >= self.waits_until_others {
            self.defers = true;
            self.waits = 0;
            self.waits_until_others = LONGEST_ALONE.min(self.waits_until_others * 2);
        }
        // The server's message comes before, or does not come.
        now + PUSH
    }

    /// The server says that something has happened to the lock. Says when the head asks.
    pub(super) fn changed(&mut self, now: Instant) -> Instant {
        if mem::take(&mut self.defers) {
            now + OTHERS
        } else {
            now
        }
    }
}
