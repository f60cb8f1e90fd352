//! How far a lock may be handed on without asking the server, as a plain value: no lock, no clock,
//! no I/O.

use std::time::{Duration, Instant};

/// What is left for those the lock is handed to, since the server granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandOverBudget {
    left: u32,
    /// Not after that moment, if there is one.
    until: Option<Instant>,
}

impl HandOverBudget {
    /// As many, and not after that moment.
    pub(crate) fn new(turns: u32, until: Option<Instant>) -> Self {
        Self { left: turns, until }
    }

    /// What is left after one more turn; `None` if there is none. The lock ends at `end`, and the
    /// next holder expects a lease of that length: at least half of it has to be left, and at most
    /// all of it, since for so long it keeps others out if it dies.
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

    #[test]
    fn there_are_as_many_turns_as_are_allowed() {
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
    fn a_time_without_an_end_is_no_bound() {
        let now = crate::time::now();
        assert!(
            HandOverBudget::new(1, None)
                .spend(now, now + LEASE, LEASE)
                .is_some()
        );
    }

    #[test]
    fn there_is_none_after_the_time_or_with_another_lease() {
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
