//! Decides when the command is told to end, and when it is killed. A plain value: no clock, no
//! process, no output.
//!
//! The command is told as late as the grace and the margin allow: a failover may be over in time.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Ending {
    /// The time between TERM and KILL.
    grace: Duration,
    /// The command's processes must have ended this long before the lease ends.
    margin: Duration,
    /// The last known end of the lease that ends first. It does not change after a lock is lost.
    lease_end: Instant,
    stage: Reached,
}

#[derive(Clone, Copy, Debug)]
enum Reached {
    Runs,
    /// A signal was sent to the command. It is killed at this moment, or before the end of the
    /// lease if that is earlier.
    ToldUntil(Instant),
    Killed,
}

impl Ending {
    pub(crate) fn new(grace: Duration, margin: Duration, now: Instant) -> Self {
        Self {
            grace,
            margin,
            lease_end: now,
            stage: Reached::Runs,
        }
    }

    /// Records the time left of the lease: zero if a lock is lost. True if the command must be told
    /// now.
    pub(crate) fn is_due(&mut self, left: Duration, now: Instant) -> bool {
        if !left.is_zero() {
            self.lease_end = now + left;
        }
        self.is_running() && self.to_spare(left).is_zero()
    }

    /// The time until the command must be told, if this much of the lease is left.
    pub(crate) fn to_spare(&self, left: Duration) -> Duration {
        left.saturating_sub(self.grace + self.margin)
    }

    /// True if the command was not told to end.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.stage, Reached::Runs)
    }

    pub(crate) fn was_told(&mut self, now: Instant) {
        self.stage = Reached::ToldUntil(now + self.grace);
    }

    pub(crate) fn kill_is_due(&self, now: Instant) -> bool {
        matches!(self.stage, Reached::ToldUntil(moment) if now >= self.latest(moment))
    }

    pub(crate) fn was_killed(&mut self) {
        self.stage = Reached::Killed;
    }

    /// The next moment to act even without an event. `None`: now.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.stage {
            Reached::Runs => self.lease_end.checked_sub(self.grace + self.margin),
            Reached::ToldUntil(moment) => Some(self.latest(moment)),
            Reached::Killed => None,
        }
    }

    /// `moment`, or the end of the lease less the margin if that is earlier.
    fn latest(&self, moment: Instant) -> Instant {
        let of_lease = self.lease_end.checked_sub(self.margin);
        of_lease.map_or(moment, |of_lease| moment.min(of_lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);
    const MARGIN: Duration = Duration::from_secs(1);
    const BIT: Duration = Duration::from_nanos(1);

    fn running(now: Instant) -> Ending {
        Ending::new(GRACE, MARGIN, now)
    }

    #[test]
    fn the_command_is_told_as_late_as_grace_and_margin_allow() {
        let now = Instant::now();
        let mut ending = running(now);
        assert!(!ending.is_due(GRACE + MARGIN + BIT, now));
        assert_eq!(ending.next(), Some(now + BIT));
        assert!(ending.is_due(GRACE + MARGIN, now) && ending.is_due(Duration::ZERO, now));
        ending.was_told(now);
        assert!(!ending.is_due(Duration::ZERO, now), "once");
    }

    #[test]
    fn the_command_is_killed_after_the_grace_or_a_margin_before_the_lease_ends() {
        let now = Instant::now();
        for (left, until) in [
            (GRACE + MARGIN, GRACE),
            (2 * MARGIN, MARGIN),
            (MARGIN, Duration::ZERO),
        ] {
            let mut ending = running(now);
            ending.is_due(left, now);
            ending.was_told(now);
            // A loss does not move the end.
            ending.is_due(Duration::ZERO, now);
            assert_eq!(ending.next(), Some(now + until), "{left:?}");
            assert!(ending.kill_is_due(now + until), "{left:?}");
            assert!(
                until.is_zero() || !ending.kill_is_due(now + until.saturating_sub(BIT)),
                "{left:?}"
            );
            ending.was_killed();
            assert!(!ending.kill_is_due(now + until), "once");
        }
    }
}
