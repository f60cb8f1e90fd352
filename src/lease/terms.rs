//! One lease of the [`Schedule`](super::schedule::Schedule), and what an answer of the server means for it.

use std::time::{Duration, Instant};

use super::renewal::LostReason;

/// A refused renewal is tried again after this at first, after twice as long each further time.
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_millis(500);
/// The least that can be asked of the server.
const SHORTEST_LEASE: Duration = Duration::from_millis(1);

/// What a lease is kept by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) lease: Duration,
    /// When it has to end at the latest, however often it is renewed.
    pub(super) cap: Option<Instant>,
    /// Its end, if that is known.
    pub(super) end: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) what: T,
    pub(super) terms: Terms,
    pub(super) due: Instant,
    refusals: u32,
    /// Being renewed at this moment.
    pub(super) out: bool,
    /// To be forgotten as soon as it is not out any more.
    pub(super) leaving: bool,
    pub(super) alarm: bool,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Renewed; the moment is one before it was sent.
    Ours(Instant),
    NotOurs,
    /// The server has to be sent the whole script: next time.
    Forgotten,
    /// It said no to this one renewal, which leaves open whether the lock is ours.
    Refused,
    Unanswered,
}

/// What an answer means for the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Ours until then, by our clock.
    Held(Instant),
    Doubtful,
    /// Forgotten by the schedule.
    Lost(LostReason),
}

impl Terms {
    pub(super) fn third(&self) -> Duration {
        self.lease / 3
    }

    /// The lease to ask for now, so that it does not outlast the cap.
    pub(super) fn lease_at(&self, now: Instant) -> Duration {
        match self.cap {
            Some(cap) => (cap.saturating_duration_since(now))
                .clamp(SHORTEST_LEASE, self.lease.max(SHORTEST_LEASE)),
            None => self.lease,
        }
    }

    pub(super) fn lost_at(&self, now: Instant) -> Option<LostReason> {
        let ended = self.end.or(self.cap).is_some_and(|end| end <= now);
        ended.then(|| self.reason_at_the_end())
    }

    pub(super) fn reason_at_the_end(&self) -> LostReason {
        LostReason::at_the_end(self.end.or(self.cap), self.cap)
    }
}

impl<T> Entry<T> {
    pub(super) fn new(what: T, terms: Terms, now: Instant) -> Self {
        let due = terms.end.map_or(now, |end| {
            let two_thirds_left = end.checked_sub(terms.third() * 2).unwrap_or(now);
            two_thirds_left.clamp(now, now + terms.third())
        });
        Self {
            what,
            terms,
            due,
            refusals: 0,
            out: false,
            leaving: false,
            alarm: false,
        }
    }

    /// Due, or so far on its way that it is worth sending with others: by its half, where it is not being refused.
    pub(super) fn goes_along(&self, now: Instant) -> bool {
        let is_last = self.terms.end.is_some() && self.terms.end == self.terms.cap;
        let early = if self.refusals > 0 || is_last {
            Duration::ZERO
        } else {
            self.terms.third() / 2
        };
        self.due.saturating_duration_since(now) <= early
    }

    pub(super) fn judge(&mut self, answer: Answer, now: Instant) -> Option<Verdict> {
        if let Some(reason) = self.terms.lost_at(now) {
            return Some(Verdict::Lost(reason));
        }
        match answer {
            Answer::Ours(sent) => {
                let end = self.renewed(sent);
                Some(match self.terms.lost_at(now) {
                    Some(reason) => Verdict::Lost(reason),
                    None => Verdict::Held(end),
                })
            }
            Answer::NotOurs => Some(Verdict::Lost(LostReason::TakenAway)),
            // Still the first in the queue: the batch that teaches the script has to carry it.
            Answer::Forgotten => None,
            Answer::Refused => {
                let pause = FIRST_RETRY.saturating_mul(1 << self.refusals.min(16));
                let longest = LAST_RETRY.min(self.terms.third());
                self.refusals += 1;
                let retry = now + pause.min(longest);
                self.due = self.terms.end.map_or(retry, |end| end.min(retry));
                Some(Verdict::Doubtful)
            }
            // Others first: should it be what breaks the connection, they get through all the same.
            Answer::Unanswered => {
                self.due = now;
                Some(Verdict::Doubtful)
            }
        }
    }

    /// The end of a lease that was renewed by something sent after `sent`.
    fn renewed(&mut self, sent: Instant) -> Instant {
        self.refusals = 0;
        let mut end = sent + self.terms.lease;
        end = self.terms.end.map_or(end, |earlier| earlier.max(end));
        end = self.terms.cap.map_or(end, |cap| cap.min(end));
        self.terms.end = Some(end);
        self.due = if self.terms.cap == Some(end) {
            end
        } else {
            sent + self.terms.third()
        };
        end
    }
}
