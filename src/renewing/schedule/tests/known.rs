//! A lease as the tests expect it, and the questions allowed about it.

use super::{super::*, world::MS};

/// The shortest time between two looks at one lease.
pub(super) const REST: Duration = Duration::from_millis(10);

/// A lease as the tests expect it.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Known {
    pub(super) id: Id,
    pub(super) terms: Terms,
    pub(super) alarm: bool,
    pub(super) gone: bool,
    /// The last renewal, or the start of a lease with a known end.
    pub(super) renewed: Option<Instant>,
    /// A question has failed since.
    pub(super) failed: bool,
    /// The last question.
    pub(super) asked: Option<Instant>,
    /// The time since which a look is due.
    pub(super) look: Option<Instant>,
    /// The end of the rest that the previous holder was allowed.
    pub(super) rests_until: Option<Instant>,
    /// The time since which a renewal is due because the server may have missed the last one.
    pub(super) renew: Option<Instant>,
    /// The lease was handed over, with the renewals that the previous holder needed.
    pub(super) is_inherited: bool,
    /// The end on the server, once it is known.
    pub(super) server_end: Option<Instant>,
}

impl Known {
    /// Returns the end by our clock.
    pub(super) fn end(&self) -> Option<Instant> {
        self.terms.end.or(self.terms.cap)
    }

    /// Records a renewal until this moment.
    fn extend(&mut self, end: Instant) {
        let end = self.terms.end.map_or(end, |earlier| earlier.max(end));
        self.terms.end = Some(self.terms.cap.map_or(end, |cap| cap.min(end)));
    }

    /// Returns the time left on the server, below which no renewal may ask.
    fn left(&self, now: Instant) -> Duration {
        let left = self.terms.end.map(|end| end + self.terms.skew - now);
        let cap = self
            .terms
            .cap
            .map(|cap| cap.saturating_duration_since(now).max(MS));
        let left = left.unwrap_or_default();
        cap.map_or(left, |cap| cap.min(left))
    }

    pub(super) fn is_looked_at(&mut self, now: Instant) {
        self.look = Some(self.look.map_or(now, |look| look.min(now)));
    }

    pub(super) fn is_to_be_renewed(&mut self, now: Instant) {
        self.renew = Some(self.renew.map_or(now, |renew| renew.min(now)));
    }

    /// Takes the needs that a question covers.
    pub(super) fn fulfilled(&mut self, ask: Ask) -> (bool, bool) {
        let renew = ask.is_renewal() && self.renew.take().is_some();
        (self.look.take().is_some(), renew)
    }

    /// Restores the needs of a question that failed.
    pub(super) fn is_asked_again(&mut self, (look, renew): (bool, bool), now: Instant) {
        if look {
            self.is_looked_at(now);
        }
        if renew {
            self.is_to_be_renewed(now);
        }
    }

    pub(super) fn lost_at(&self, now: Instant) -> Option<LostReason> {
        let end = self.end().filter(|end| *end <= now)?;
        Some(if Some(end) == self.terms.cap {
            LostReason::MaxHold
        } else {
            LostReason::Ended
        })
    }

    /// Applies a question on the server, as the scripts do.
    pub(super) fn is_asked(&mut self, ask: Ask, now: Instant) {
        if let Ask::Renew(lease) = ask {
            let end = now + lease;
            self.server_end = self.server_end.max(Some(end));
        }
    }

    /// Returns the latest time of a look that is due.
    pub(super) fn looked_at_by(&self) -> Option<Instant> {
        Some(self.rested(self.look?))
    }

    /// Returns the latest time of an extra renewal that is due.
    pub(super) fn renewed_by(&self) -> Option<Instant> {
        Some(self.rested(self.renew?))
    }

    fn rested(&self, since: Instant) -> Instant {
        let rested = self.asked.map(|asked| asked + REST);
        let rests = [rested, self.rests_until].into_iter().flatten();
        rests.fold(since, Instant::max)
    }
}

impl Known {
    /// Asserts that this question is allowed now.
    pub(super) fn assert_wanted(&self, question: &Question<usize>, now: Instant) {
        assert!(!self.gone, "a question about a stopped or lost lease");
        assert!(
            self.end().is_none_or(|end| end > now),
            "a question after the end"
        );
        let is_wanted = |since: Option<Instant>| since.is_some_and(|since| since <= now);
        match question.ask {
            Ask::Renew(lease) => {
                let (left, third) = (self.left(now), self.terms.third());
                assert!(lease >= MS && lease >= left, "it ends sooner on the server");
                let cap = self.terms.cap.map(|cap| cap.max(now + MS));
                assert!(cap.is_none_or(|cap| now + lease <= cap));
                if self.terms.renews {
                    assert!(lease <= self.terms.lease.max(left));
                    let early = self.renewed.is_some_and(|at| now < at + third / 2);
                    let may_be_early = self.failed || is_wanted(self.renew);
                    assert!(!early || may_be_early, "a renewal before it was due");
                } else {
                    assert_eq!(lease, left.max(MS), "a renewal of a lease without renewal");
                    assert!(self.is_inherited || self.failed || is_wanted(self.renew));
                }
            }
            Ask::Look => {
                let is_wanted_more = is_wanted(self.renewed_by());
                assert!(
                    !is_wanted_more || self.failed,
                    "a look instead of a renewal"
                );
                assert!(
                    is_wanted(self.look) || self.failed,
                    "a look that was not due"
                );
                let rested = self.asked.is_none_or(|asked| now >= asked + REST);
                assert!(rested || self.failed, "looks without a pause");
            }
        }
    }

    /// Returns the expected outcome of a reply, and updates the lease.
    pub(super) fn expected(
        &mut self,
        ask: Ask,
        answer: RenewalAnswer,
        now: Instant,
    ) -> Option<RenewalOutcome> {
        let end = self.lost_at(now).map(|_| RenewalOutcome::Lost);
        let outcome = match answer {
            _ if end.is_some() => end,
            RenewalAnswer::Ours(sent) => {
                self.failed = false;
                if let Ask::Renew(lease) = ask
                    && self.terms.renews
                {
                    self.extend(sent + lease);
                    self.renewed = Some(sent);
                }
                let held = self.terms.end.map(RenewalOutcome::Held);
                self.lost_at(now).map(|_| RenewalOutcome::Lost).or(held)
            }
            RenewalAnswer::NotOurs => Some(RenewalOutcome::Lost),
            RenewalAnswer::Forgotten | RenewalAnswer::Refused | RenewalAnswer::Unanswered => {
                self.failed = true;
                None
            }
        };
        self.gone |= matches!(outcome, Some(RenewalOutcome::Lost));
        outcome
    }
}

/// Schedules a look. A lease without an end is being renewed anyway.
pub(super) fn look(schedule: &mut Schedule<usize, usize>, lease: &mut Known, now: Instant) {
    schedule.look(lease.id, now);
    if lease.terms.end.is_some() {
        lease.is_looked_at(now);
    }
}

/// Records a renewal by the holder.
pub(super) fn extend(
    schedule: &mut Schedule<usize, usize>,
    lease: &mut Known,
    now: Instant,
    by: Duration,
) {
    let by = lease
        .terms
        .cap
        .map_or(by, |cap| by.min(cap.saturating_duration_since(now).max(MS)));
    let extended = schedule.extend(lease.id, now + by);
    if lease.gone {
        assert_eq!(extended, None, "it is stopped or lost");
        return;
    }
    lease.extend(now + by);
    lease.server_end = lease.server_end.max(Some(now + by));
    assert_eq!(extended, lease.terms.end);
}
