//! Fairness between processes, and between the threads of this one, as plain values: no lock, no
//! clock, no I/O.
//!
//! [`Turns`]: after [`IN_A_ROW`] turns in a row, 4, this process stays away from the lock for a
//! millisecond. If it has seen no other process within the last second, it does so only after
//! [`IN_A_ROW_ALONE`], 32, in case others wait that it has not seen yet.
//!
//! ```text
//!               granted                             granted, released: one turn more
//!   +---------+ ------------------> +--------------+ ---+
//!   | waiting |                     | taking turns | <--+
//!   +---------+ <------------------ +--------------+
//!        ^        refused: another   |            ^
//!        |        process has it     | last turn  | granted, or a millisecond is over:
//!        |                           v            | the count restarts
//!        |  refused             +------+          |
//!        +--------------------- | away | ---------+
//!                               +------+
//! ```
//!
//! A change of the lock makes the head of every process ask, and only one is granted. So when many
//! processes wait, each asks a random time later, and skips the turns that others have meanwhile:
//! see [`Turns::asks_after_change`].
//!
//! With a semaphore, a process takes this many turns for each permit. A refusal does not indicate
//! another process while a thread of this one has the lock, or a permit.
//!
//! [`HandOverBudget`]: limits how often a lock is handed over without asking the server.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::{Duration, Instant},
};

/// Turns in a row before other processes get a chance.
pub(super) const IN_A_ROW: u32 = 4;
/// Turns in a row if no other process was seen recently.
pub(super) const IN_A_ROW_ALONE: u32 = 8 * IN_A_ROW;
/// After its turns a process stays away this long.
const AWAY: Duration = Duration::from_millis(1);
/// After a change of the lock, the head asks later by a random time up to this if its process
/// stayed away within the last second, and by a multiple of it if its process is refused often.
const SPREAD: Duration = Duration::from_micros(200);
/// Each refusal beyond this average number before a grant doubles that time.
const FEW_REFUSALS: u32 = 3;
/// The spread doubles at most this often: to 12.8 ms.
const MOST_DOUBLINGS: u32 = 6;
/// Another process that has not been seen for this long is forgotten.
const LATELY: Duration = Duration::from_secs(1);
/// A wait shorter than this does not let other processes go first.
pub(super) const SHORT_WAIT: Duration = Duration::from_millis(40);

/// The turns of this process at one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Turns {
    in_a_row: u32,
    held: HeldHere,
    /// The number of permits, once a thread has had the last one.
    permits: u32,
    /// The last moment at which another process was seen to have the lock.
    others_seen: Option<Instant>,
    /// The refusals by other processes since the last grant.
    refusals: u32,
    /// The refusals before a grant, averaged over the last ones. Processes that wait for the same
    /// lock have similar averages, so none of them steps back for the others.
    usual_refusals: u32,
    away_until: Option<Instant>,
}

/// A hold that a thread of this process has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastHold {
    /// The time at which its thread asked for the lock, or was handed it.
    pub(crate) since: Instant,
    /// The hold came from the queue, which has recorded it.
    pub(crate) stood_in_queue: bool,
}

/// The holds of threads that stood in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum HeldHere {
    #[default]
    No,
    /// This many threads share the lock.
    Shared(u32),
    /// This many threads hold all permits of a semaphore.
    Full(u32),
    Alone(Instant),
}

impl Turns {
    /// Records that a thread from the queue holds the lock alone.
    pub(super) fn granted(&mut self, now: Instant) {
        self.count_grant();
        self.permits = 1;
        self.held = HeldHere::Alone(now);
    }

    /// Records that a thread from the queue shares the lock. With `all`, it has the last of that
    /// many permits.
    pub(super) fn granted_shared(&mut self, all: Option<u32>) {
        self.count_grant();
        let count = 1 + match self.held {
            HeldHere::Shared(count) | HeldHere::Full(count) => count,
            HeldHere::No | HeldHere::Alone(_) => 0,
        };
        self.permits = all.unwrap_or(self.permits);
        self.held = if all.is_some_and(|all| count >= all) {
            HeldHere::Full(count)
        } else {
            HeldHere::Shared(count)
        };
    }

    fn count_grant(&mut self) {
        self.in_a_row += 1;
        if self.refusals > 0 {
            self.usual_refusals = self.usual_refusals.midpoint(self.refusals);
            self.refusals = 0;
        }
    }

    /// Records a refusal of the head: another process has the lock, unless a thread of this one has
    /// it.
    pub(super) fn refused(&mut self, now: Instant) {
        if !self.is_held_here() {
            self.in_a_row = 0;
            self.refusals = self.refusals.saturating_add(1);
            self.others_seen = Some(now);
        }
    }

    /// Records that a thread of this process has released the lock. Returns the time at which the
    /// head asks; `None`: other threads hold all of the lock by now.
    pub(super) fn released(&mut self, now: Instant, hold: &PastHold) -> Option<Instant> {
        // A refusal during the hold was because of the hold, not because of another process.
        self.others_seen.take_if(|seen| hold.since <= *seen);
        // If the queue has recorded an earlier hold, that hold was lost without a release.
        let is_a_later_hold = matches!(self.held, HeldHere::Alone(since) if since < hold.since);
        if !self.is_held_here() {
            // The queue did not record this hold, so its turn is counted now.
            self.in_a_row += 1;
        }
        if hold.stood_in_queue || is_a_later_hold {
            self.held = match self.held {
                HeldHere::Shared(count) | HeldHere::Full(count) if count > 1 => {
                    HeldHere::Shared(count - 1)
                }
                _ => HeldHere::No,
            };
        }
        if self.has_all() {
            return None;
        }
        let most = if self.sees_others(now) {
            IN_A_ROW
        } else {
            IN_A_ROW_ALONE
        };
        // With several permits, several threads take turns at the same time.
        if self.in_a_row < most * self.permits.max(1) {
            return Some(self.asks_at(now));
        }
        self.in_a_row = 0;
        self.away_until = Some(now + AWAY);
        self.away_until
    }

    /// For the model checker: the counts grow without limit, so the states would too. They only
    /// decide how long after a change the head asks, and the model explores any order of events
    /// anyway.
    #[cfg(all(test, feature = "models"))]
    pub(super) fn forget_refusals(&mut self) {
        self.refusals = 0;
    }

    fn is_held_here(&self) -> bool {
        self.held != HeldHere::No
    }

    /// Returns true while threads from the queue hold the lock alone, or all permits, as far as the
    /// queue knows.
    pub(super) fn has_all(&self) -> bool {
        matches!(self.held, HeldHere::Alone(_) | HeldHere::Full(_))
    }

    /// Returns the moment at which the head asks after an event that happens now.
    pub(super) fn asks_at(&self, now: Instant) -> Instant {
        self.away_until.map_or(now, |until| until.max(now))
    }

    /// Returns the time at which the head asks after a change. The server notifies all processes of
    /// it, one after another: so a process that was away within the last second asks a little
    /// later, at random. Otherwise the first would win each time, and the last would starve.
    ///
    /// Each refusal beyond a few doubles this time, because it comes from another process that
    /// waits: with twenty, each asks for about every second turn. But half of the times, at random,
    /// the head asks without that delay: a single other process, which stays away for a millisecond
    /// only, would otherwise have taken the lock again by then, nearly each time.
    pub(super) fn asks_after_change(&self, now: Instant, spread: Duration) -> Instant {
        let doublings = (self.usual_refusals.saturating_sub(FEW_REFUSALS)).min(MOST_DOUBLINGS);
        let was_away = (self.away_until).filter(|until| now < *until + LATELY);
        let is_soon = spread < SPREAD / 2;
        let delay = if is_soon {
            spread
        } else {
            spread * 2_u32.pow(doublings)
        };
        match was_away {
            None if doublings == 0 => now,
            until => (now + delay).max(until.unwrap_or(now)),
        }
    }

    /// Returns true if another process was seen to have the lock within the last second.
    pub(super) fn sees_others(&self, now: Instant) -> bool {
        let is_lately = |seen: Instant| now.saturating_duration_since(seen) < LATELY;
        self.others_seen.is_some_and(is_lately)
    }
}

/// Returns a random time up to [`SPREAD`].
pub(super) fn spread() -> Duration {
    let random = RandomState::new().build_hasher().finish().to_be_bytes()[0];
    SPREAD / 255 * u32::from(random)
}

/// The number of times that a granted lock may still be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandOverBudget {
    left: u32,
    /// No hand-over from this moment on; `None`: no limit.
    until: Option<Instant>,
}

impl HandOverBudget {
    /// Allows `turns` hand-overs, all before `until`.
    pub(crate) fn new(turns: u32, until: Option<Instant>) -> Self {
        Self { left: turns, until }
    }

    /// Returns the budget after one more hand-over; `None` if it is not allowed. The lock ends at
    /// `end`, and the next holder expects a lease of this length. At least half of it must be left,
    /// and no more than all of it: a longer rest would keep others out if the next holder dies.
    pub(crate) fn spend(self, now: Instant, end: Instant, lease: Duration) -> Option<Self> {
        let remaining = end.saturating_duration_since(now);
        let fits = (lease / 2..=lease).contains(&remaining);
        let left = self.left.checked_sub(1)?;
        let in_time = self.until.is_none_or(|until| now < until);
        (in_time && fits).then_some(Self { left, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    /// The only other process always takes four turns, and stays away for a millisecond.
    #[test]
    fn a_process_that_was_refused_often_soon_shares_the_turns_with_a_single_other_process() {
        let now = crate::time::now();
        let mut turns = Turns {
            usual_refusals: 100,
            ..Turns::default()
        };
        let mut turns_of_the_other = 0;
        for _ in 0..100 {
            let mut is_free = false;
            while !is_free {
                turns_of_the_other += IN_A_ROW;
                (0..IN_A_ROW).for_each(|_| turns.refused(now));
                is_free = turns.asks_after_change(now, spread()) <= now + AWAY;
            }
            turns.granted(now);
            let hold = PastHold {
                since: now,
                stood_in_queue: true,
            };
            turns.released(now, &hold);
        }
        assert!(turns_of_the_other < 400 * IN_A_ROW, "{turns_of_the_other}");
    }

    #[test]
    fn the_budget_allows_its_number_of_turns() {
        let now = crate::time::now();
        let mut turns = Some(HandOverBudget::new(3, Some(now + LEASE)));
        let mut taken = 0;
        while let Some(next) = turns.and_then(|turns| turns.spend(now, now + LEASE, LEASE)) {
            turns = Some(next);
            taken += 1;
        }
        assert_eq!(taken, 3);
    }

    #[test]
    fn a_budget_without_a_deadline_is_unlimited_in_time() {
        let now = crate::time::now();
        assert!(
            HandOverBudget::new(1, None)
                .spend(now, now + LEASE, LEASE)
                .is_some()
        );
    }

    #[test]
    fn no_turn_is_allowed_after_the_deadline_or_with_another_lease() {
        let now = crate::time::now();
        let turns = HandOverBudget::new(3, Some(now + Duration::from_millis(5)));
        let end = now + LEASE;
        assert!(
            turns
                .spend(now + Duration::from_millis(4), end, LEASE)
                .is_some()
        );
        assert!(
            turns
                .spend(now + Duration::from_millis(5), end, LEASE)
                .is_none()
        );
        assert!(turns.spend(now, now + LEASE / 2, LEASE).is_some());
        assert!(turns.spend(now, now + LEASE / 3, LEASE).is_none());
        assert!(turns.spend(now, now + LEASE * 2, LEASE).is_none());
    }
}
