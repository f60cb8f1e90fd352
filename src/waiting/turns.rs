//! Turns between processes: a plain value.
//!
//! A process may take a lock [`IN_A_ROW`] times before others get a chance. If it has seen another
//! process within the last second, it stays away for a millisecond then. If not, it does so only
//! after [`IN_A_ROW_ALONE`] turns: others may wait whom it has never met.
//!
//! ```text
//!               granted                             granted, released: one turn more
//!   +---------+ ------------------> +--------------+ ---+
//!   | waiting |                     | taking turns | <--+
//!   +---------+ <------------------ +--------------+
//!        ^        refused: another   |            ^
//!        |        process has it     | last turn  | granted, or a millisecond is over:
//!        |                           v            | the count begins anew
//!        |  refused             +------+          |
//!        +--------------------- | away | ---------+
//!                               +------+
//! ```
//!
//! A refusal says nothing about other processes while a thread of this one has the lock.

use std::time::{Duration, Instant};

/// Turns that a process takes before others get a chance.
pub(super) const IN_A_ROW: u32 = 4;
/// Turns that it takes if it has seen nobody else lately.
pub(super) const IN_A_ROW_ALONE: u32 = 8 * IN_A_ROW;
/// How long a process stays away after its turns.
const AWAY: Duration = Duration::from_millis(1);
/// Others that were not seen for this long are forgotten.
const LATELY: Duration = Duration::from_secs(1);
/// A wait that is shorter than this does not stand behind other processes.
pub(super) const SHORT_WAIT: Duration = Duration::from_millis(40);

/// The turns of this process at one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Turns {
    in_a_row: u32,
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

impl Turns {
    /// A thread that stood in the queue has the lock, alone or beside others.
    pub(super) fn granted(&mut self, now: Instant, alone: bool) {
        self.in_a_row += 1;
        self.away_until = None;
        self.held = if alone {
            Held::Alone(now)
        } else {
            Held::BesideOthers
        };
    }

    /// The head was refused: another process has the lock, unless a thread of this one does.
    pub(super) fn refused(&mut self, now: Instant) {
        if !self.is_held_here() {
            self.in_a_row = 0;
            self.others_seen = Some(now);
        }
    }

    /// A thread of this process has released the lock. Returns when the head asks; `None`: another
    /// thread has the lock alone by now.
    pub(super) fn released(&mut self, now: Instant, hold: &PastHold) -> Option<Instant> {
        // The hold, and not another process, was the reason for a refusal during it.
        self.others_seen.take_if(|seen| hold.since <= *seen);
        let was_granted_later = matches!(self.held, Held::Alone(since) if since < hold.since);
        if !self.is_held_here() {
            // The turn was not counted when it began.
            self.in_a_row += 1;
        }
        if hold.stood_in_queue || was_granted_later {
            self.held = Held::No;
        }
        if self.is_held_alone() {
            return None;
        }
        let most = if self.sees_others(now) {
            IN_A_ROW
        } else {
            IN_A_ROW_ALONE
        };
        if self.in_a_row < most {
            return Some(self.asks_at(now));
        }
        self.in_a_row = 0;
        self.away_until = Some(now + AWAY);
        self.away_until
    }

    fn is_held_here(&self) -> bool {
        self.held != Held::No
    }

    /// Whether a thread that stood in the queue has the lock alone, unless it has lost it.
    pub(super) fn is_held_alone(&self) -> bool {
        matches!(self.held, Held::Alone(_))
    }

    /// When the head asks about what happens now.
    pub(super) fn asks_at(&self, now: Instant) -> Instant {
        self.away_until.map_or(now, |until| until.max(now))
    }

    /// Whether another process was seen to have the lock within the last second.
    pub(super) fn sees_others(&self, now: Instant) -> bool {
        let is_lately = |seen: Instant| now.saturating_duration_since(seen) < LATELY;
        self.others_seen.is_some_and(is_lately)
    }
}
