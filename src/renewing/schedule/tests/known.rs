//! A lease as the tests know it, and what may be asked about it.

use super::{super::*, world::MS};

/// Between two looks at the same lease.
const REST: Duration = Duration::from_millis(10);

/// A lease as the tests know it.
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fact that depends on no other"
)]
pub(super) struct Known {
    pub(super) id: Id,
    pub(super) terms: Terms,
    pub(super) alarm: bool,
    pub(super) gone: bool,
    /// When it was renewed, or kept by a known end.
    pub(super) renewed: Option<Instant>,
    /// A failure has come since.
    pub(super) failed: bool,
    /// When it was asked about.
    pub(super) asked: Option<Instant>,
    /// Since when it is to be looked at.
    pub(super) look: Option<Instant>,
    /// As long as whoever had it before might rest.
    pub(super) rests_until: Option<Instant>,
    /// The next look is to renew what is left.
    pub(super) repeats: bool,
    /// When the server ends it, once that is known.
    pub(super) server_end: Option<Instant>,
}

impl Known {
    /// When our clock ends it.
    pub(super) fn end(&self) -> Option<Instant> {
        self.terms.end.or(self.terms.cap)
    }

    /// Somebody has renewed it until then.
    fn extend(&mut self, end: Instant) {
        let end = self.terms.end.map_or(end, |earlier| earlier.max(end));
        self.terms.end = Some(self.terms.cap.map_or(end, |cap| cap.min(end)));
    }

    /// A renewal now lets it end sooner than it does by what we know.
    pub(super) fn is_renewed_for_less(&self, ask: Ask, now: Instant) -> bool {
        matches!(ask, Ask::Renew(lease) if self.terms.left_at(now).is_some_and(|left| left > lease))
    }

    pub(super) fn is_looked_at(&mut self, now: Instant) {
        self.look = Some(self.look.map_or(now, |look| look.min(now)));
    }

    /// What this question has not told is to be told by the next one.
    pub(super) fn is_asked_again(
        &mut self,
        (look, repeats): (Option<Instant>, bool),
        now: Instant,
    ) {
        if look.is_some() {
            self.is_looked_at(now);
        }
        self.repeats |= repeats;
    }

    pub(super) fn lost_at(&self, now: Instant) -> Option<LostReason> {
        let end = self.end().filter(|end| *end <= now)?;
        Some(if Some(end) == self.terms.cap {
            LostReason::MaxHold
        } else {
            LostReason::Ended
        })
    }

    /// What the server does with a question, as the scripts do.
    pub(super) fn is_asked(&mut self, ask: Ask, now: Instant) {
        let end = now + ask.lease();
        self.server_end = self.server_end.map(|earlier| earlier.max(end));
        if let Ask::Renew(_) = ask {
            self.server_end.get_or_insert(end);
        }
    }

    /// Until when it has to be looked at, if it has.
    pub(super) fn looked_at_by(&self) -> Option<Instant> {
        let rested = self.asked.map(|asked| asked + REST);
        let rests = [rested, self.rests_until].into_iter().flatten();
        Some(rests.fold(self.look?, Instant::max))
    }
}

impl Known {
    /// That this question is asked, and now.
    pub(super) fn assert_wanted(&self, question: &Question<usize>, now: Instant) {
        assert!(!self.gone, "a question about what is stopped or lost");
        assert!(
            self.end().is_none_or(|end| end > now),
            "a question after the end"
        );
        match question.ask {
            Ask::Renew(lease) => {
                assert!(self.terms.renews, "a renewal of what only runs out");
                assert!(lease >= MS && lease <= self.terms.lease);
                let cap = self.terms.cap.map(|cap| cap.max(now + MS));
                assert!(cap.is_none_or(|cap| now + lease <= cap));
                let third = self.terms.third();
                let early = self.renewed.is_some_and(|at| now < at + third / 2);
                assert!(!early || self.failed, "a renewal that was not wanted yet");
            }
            Ask::Repeat(left) => {
                assert!(self.repeats, "a repetition that nobody wanted");
                assert_eq!(self.terms.left_at(now), Some(left));
                let wanted = self.look.is_some_and(|since| since <= now);
                assert!(wanted || self.failed, "a repetition before its time");
            }
            Ask::Look => {
                assert!(
                    !self.repeats || self.failed,
                    "a look in place of a repetition"
                );
                assert!(question.ask.lease() <= MS, "a look that renews");
                let wanted = self.look.is_some_and(|since| since <= now);
                assert!(wanted || self.failed, "a look that nobody wanted");
                let rested = self.asked.is_none_or(|asked| now >= asked + REST);
                assert!(rested || self.failed, "looks without a rest");
            }
        }
    }

    /// What the answer to a question has to mean, and what is known from now on.
    pub(super) fn expected(
        &mut self,
        ask: Ask,
        answer: Answer,
        now: Instant,
    ) -> Option<RenewalOutcome> {
        let end = self.lost_at(now).map(RenewalOutcome::Lost);
        let outcome = match answer {
            _ if end.is_some() => end,
            Answer::Ours(sent) => {
                self.failed = false;
                if let Ask::Renew(_) = ask {
                    self.extend(sent + self.terms.lease);
                    self.renewed = Some(sent);
                }
                let held = self.terms.end.map(RenewalOutcome::Held);
                self.lost_at(now).map(RenewalOutcome::Lost).or(held)
            }
            Answer::NotOurs => Some(RenewalOutcome::Lost(LostReason::TakenAway)),
            Answer::Forgotten => {
                self.failed = true;
                None
            }
            Answer::Refused | Answer::Unanswered => {
                self.failed = true;
                Some(RenewalOutcome::Doubtful)
            }
        };
        self.gone |= matches!(outcome, Some(RenewalOutcome::Lost(_)));
        outcome
    }
}

/// Its holder has had it renewed.
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
