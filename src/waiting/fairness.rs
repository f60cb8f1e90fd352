//! Turns between processes: a plain value.
//!
//! A process may take a lock [`IN_A_ROW`] times before it gives others a chance. If another process was seen lately, it stays away
//! for a moment; otherwise it waits for the server's message of the release, as everybody else has to.

use std::time::{Duration, Instant};

/// Turns that a process takes before others get a chance.
pub(super) const IN_A_ROW: u32 = 4;
/// How long a process stays away after its turns, while others want the lock.
const AWAY: Duration = Duration::from_millis(1);
/// Others that were not seen for this long are forgotten.
const LATELY: Duration = Duration::from_secs(1);
/// A wait shorter than twice this does not queue behind other processes.
pub(super) const LONGEST: Duration = Duration::from_millis(20);

/// The turns of this process at one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fairness {
    turns_in_a_row: u32,
    held: Held,
    /// When another process was last seen to have the lock.
    others_seen: Option<Instant>,
    away_until: Option<Instant>,
}

/// A hold that a thread of this process has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastHold {
    /// When it had asked for the lock, or was handed it.
    pub(crate) since: Instant,
    /// The queue knows that it had the lock.
    pub(crate) stood_in_queue: bool,
}

/// Whether a thread that stood in the queue has the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Held {
    #[default]
    No,
    BesideOthers,
    Alone(Instant),
}

impl Fairness {
    pub(super) fn granted(&mut self, now: Instant, alone: bool) {
        self.turns_in_a_row += 1;
        self.away_until = None;
        self.held = if alone { Held::Alone(now) } else { Held::BesideOthers };
    }

    /// The head was refused: another process has the lock, unless a thread of this one does.
    pub(super) fn refused(&mut self, now: Instant) {
        if !self.is_held_here() {
            self.turns_in_a_row = 0;
            self.others_seen = Some(now);
        }
    }

    /// A thread of this process has released the lock. Returns when the head asks; `None`: another thread has it alone by now.
    pub(super) fn released(&mut self, now: Instant, hold: &PastHold) -> Option<Instant> {
        // The hold, and not another process, was the reason for a refusal during it.
        self.others_seen.take_if(|seen| hold.since <= *seen);
        let was_granted_later = matches!(self.held, Held::Alone(since) if since < hold.since);
        if !self.is_held_here() {
            self.turns_in_a_row += 1;
        }
        if hold.stood_in_queue || was_granted_later {
            self.held = Held::No;
        }
        if self.is_held_alone() {
            return None;
        }
        let most = if self.sees_others(now) { IN_A_ROW } else { 8 * IN_A_ROW };
        if self.turns_in_a_row < most {
            return Some(self.asks_at(now));
        }
        self.turns_in_a_row = 0;
        self.away_until = Some(now + AWAY);
        self.away_until
    }

    pub(super) fn is_held_here(&self) -> bool {
        self.held != Held::No
    }

    pub(super) fn is_held_alone(&self) -> bool {
        matches!(self.held, Held::Alone(_))
    }

    /// When the head asks about what happens now.
    pub(super) fn asks_at(&self, now: Instant) -> Instant {
        self.away_until.map_or(now, |until| until.max(now))
    }

    pub(super) fn sees_others(&self, now: Instant) -> bool {
        let is_lately = |seen: Instant| now.saturating_duration_since(seen) < LATELY;
        self.others_seen.is_some_and(is_lately)
    }
}
