//! One lease of the [`Schedule`](super::schedule::Schedule): when to ask the server about it, and
//! what follows from the reply. The reason of a loss is not decided here, but by the verdict of
//! `recipes`, which the state of the lease asks.
//!
//! An entry needs a renewal at `renew_at` and a look at `look_at`. A question covers the needs that
//! were due when it was sent; a positive reply clears them. A need that arises while a question is
//! in flight is dated after the question, so the reply does not clear it.

use std::time::{Duration, Instant};

use crate::{
    error::LostReason,
    recipes::{Hold, KnownHold},
    server::RenewalAnswer,
    time::whole_millis,
    wire::Call,
};

/// The pause after the first refusal of a renewal. It doubles with each further refusal.
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_millis(500);
/// The shortest time between two questions that changes of a key cause, so that others cannot keep
/// us busy.
pub(crate) const REST: Duration = Duration::from_millis(10);
/// The shortest lease that Redis accepts.
const SHORTEST_LEASE: Duration = Duration::from_millis(1);

/// The terms of a lease that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// The latest end, however often the lease is renewed.
    pub(crate) cap: Option<Instant>,
    /// The end by our clock; `None` until the first reply.
    pub(crate) end: Option<Instant>,
    /// False for a lease that is not renewed.
    pub(crate) renews: bool,
    /// The time of the first look. From then on the server reports changes of the key.
    pub(crate) look_at: Option<Instant>,
    /// The lease ends earlier by our clock than on the server by this much.
    pub(crate) skew: Duration,
}

/// A question to the server about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    /// Is the lock ours? If so, extend it to at least this length.
    Renew(Duration),
    /// Is the lock ours? Sent as a renewal of the shortest length, which changes nothing.
    Look,
}

impl Ask {
    pub(crate) fn is_renewal(self) -> bool {
        self != Self::Look
    }

    pub(crate) fn of(self, hold: &Hold) -> Call {
        match self {
            Self::Renew(lease) => hold.renewal(whole_millis(lease)),
            Self::Look => hold.look(),
        }
    }
}

/// A lease in the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseEntry<T> {
    pub(crate) item: T,
    pub(crate) terms: Terms,
    /// The time of the next renewal; `None` if no renewal can move the end.
    pub(crate) renew_at: Option<Instant>,
    pub(crate) look_at: Option<Instant>,
    /// The time of the last question, or of the grant: the server has just said that the lock is
    /// ours.
    asked_at: Option<Instant>,
    /// The question in flight, if any.
    pub(crate) in_flight: Option<Ask>,
    refusals: u32,
    /// Its key in the alarms of the schedule.
    pub(crate) alarm: Option<Instant>,
}

/// The result of a reply that settles the state of a lease. A refusal or a missing reply is no
/// loss: the state is unknown until our clock reaches the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalOutcome {
    /// The lock is ours until then, by our clock.
    Held(Instant),
    /// The lock is lost. The schedule removes the lease, whose state knows the reason.
    Lost,
}

impl Terms {
    pub(crate) fn third(&self) -> Duration {
        self.lease / 3
    }

    /// Shortens a lease so that it does not exceed the cap.
    pub(crate) fn capped(&self, lease: Duration, now: Instant) -> Duration {
        let left = self.cap.map(|cap| cap.saturating_duration_since(now));
        left.map_or(lease, |left| lease.min(left.max(SHORTEST_LEASE)))
    }

    /// Returns the lease to ask for. It is never shorter than the time left by our clock: a new
    /// master may have missed the last renewal, by the watchdog or by the holder.
    pub(crate) fn wanted(&self, now: Instant) -> Duration {
        let end = self.end.map(|end| end + self.skew);
        let left = end.map_or(Duration::ZERO, |end| end.saturating_duration_since(now));
        let least = if self.renews {
            self.lease
        } else {
            SHORTEST_LEASE
        };
        self.capped(left.max(least), now)
    }

    /// Returns the moment at which our clock ends the lease.
    pub(crate) fn lost_by(&self) -> Option<Instant> {
        self.end.or(self.cap)
    }

    /// Returns the reason of the loss, if our clock has reached the end.
    pub(crate) fn lost_at(&self, now: Instant) -> Option<LostReason> {
        self.known(false).lost_at(now)
    }

    /// Returns what is known without asking. `was_refused`: by the server, since the last renewal.
    pub(crate) fn known(&self, was_refused: bool) -> KnownHold {
        let end = self.lost_by();
        let is_at_the_cap = self.cap.is_some_and(|cap| end >= Some(cap));
        KnownHold {
            end,
            at_the_end: if is_at_the_cap {
                LostReason::MaxHold
            } else {
                LostReason::Ended
            },
            skew: self.skew,
            was_refused,
        }
    }

    /// Returns true if no renewal can move the end.
    fn is_final(&self) -> bool {
        self.end.is_some() && (!self.renews || self.end == self.cap)
    }

    /// Moves the end to this moment at the earliest, but not past the cap.
    pub(crate) fn extend(&mut self, end: Instant) {
        let end = self.end.map_or(end, |earlier| earlier.max(end));
        self.end = Some(self.cap.map_or(end, |cap| cap.min(end)));
    }
}

impl<T> LeaseEntry<T> {
    pub(crate) fn new(item: T, terms: Terms, now: Instant) -> Self {
        let two_thirds = terms.third() * 2;
        let two_thirds_left = terms.end.and_then(|end| end.checked_sub(two_thirds));
        let renew_at = two_thirds_left.unwrap_or(now);
        let renew_at = renew_at.clamp(now, now + terms.third());
        Self {
            item,
            terms,
            renew_at: (!terms.is_final()).then_some(renew_at),
            look_at: terms.look_at,
            asked_at: terms.end.map(|_| now),
            in_flight: None,
            refusals: 0,
            alarm: None,
        }
    }

    /// Returns the time of the next question, or of the end.
    pub(crate) fn due(&self) -> Option<Instant> {
        let moments = [self.renew_at, self.look_at, self.terms.lost_by()];
        moments.into_iter().flatten().min()
    }

    /// Returns the question to ask now: one that is due, or a renewal in the second half of its
    /// third, which joins a batch early. A lease whose renewals are refused does not join early.
    pub(crate) fn ask(&mut self, now: Instant) -> Option<Ask> {
        let goes_along = self.refusals == 0 && !self.terms.is_final();
        let by = now + self.terms.third() / 2 * u32::from(goes_along);
        let ask = if self.renew_at.is_some_and(|renewal| renewal <= by) {
            // The renewal also covers a look that is not due yet.
            self.renew_at = self.renew_at.map(|renewal| renewal.min(now));
            self.look_at = self.look_at.map(|look| look.min(now));
            Ask::Renew(self.terms.wanted(now))
        } else if self.look_at.is_some_and(|look| look <= now) {
            Ask::Look
        } else {
            return None;
        };
        self.asked_at = Some(now);
        self.in_flight = Some(ask);
        self.in_flight
    }

    /// Schedules a look soon, since the key may have changed. A lease without an end is being
    /// renewed anyway.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.terms.end.is_some() {
            self.look_at = Some(self.soon(now));
        }
    }

    /// Takes over the renewal that the previous holder needed.
    pub(crate) fn renew_by(&mut self, moment: Option<Instant>) {
        self.renew_at = self.renew_at.into_iter().chain(moment).min();
    }

    /// Schedules a renewal soon, since the server may have missed the last one.
    pub(crate) fn renew(&mut self, now: Instant) {
        let (soon, question) = (self.soon(now), self.in_flight);
        let is_fulfilled = question.is_some_and(Ask::is_renewal);
        let sooner = self.renew_at.filter(|_| !is_fulfilled);
        self.renew_at = Some(sooner.map_or(soon, |renewal| renewal.min(soon)));
    }

    fn soon(&self, now: Instant) -> Instant {
        self.asked_at
            .map_or(now, |asked_at| now.max(asked_at + REST))
    }

    /// Records the reply to the question in flight, and sets the time of the next one.
    pub(crate) fn judge(&mut self, answer: RenewalAnswer, now: Instant) -> Option<RenewalOutcome> {
        let ask = self.in_flight.take()?;
        match answer {
            RenewalAnswer::NotOurs => Some(RenewalOutcome::Lost),
            _ if self.terms.lost_at(now).is_some() => Some(RenewalOutcome::Lost),
            RenewalAnswer::Ours(sent) => {
                self.confirmed(ask, sent);
                let lost = self.terms.lost_at(now).map(|_| RenewalOutcome::Lost);
                lost.or_else(|| self.terms.end.map(RenewalOutcome::Held))
            }
            RenewalAnswer::Refused => {
                let pause = FIRST_RETRY.saturating_mul(1 << self.refusals.min(16));
                let longest = LAST_RETRY.min(self.terms.third());
                self.refusals += 1;
                self.ask_again_at(now + pause.min(longest));
                None
            }
            // Due at once: the next batch carries the script that the server no longer has. It
            // sorts after the others that are due, so if this question broke the connection, they
            // still get through.
            RenewalAnswer::Forgotten | RenewalAnswer::Unanswered => {
                self.ask_again_at(now);
                None
            }
        }
    }

    /// Records a positive reply to a question that was sent at `sent` or later.
    fn confirmed(&mut self, ask: Ask, sent: Instant) {
        self.refusals = 0;
        let is_open = |wish: &Instant| Some(*wish) > self.asked_at;
        let (renewal, look) = (self.renew_at.filter(is_open), self.look_at.filter(is_open));
        self.look_at = look;
        let Ask::Renew(lease) = ask else {
            return;
        };
        if self.terms.renews {
            let end = sent + lease.saturating_sub(self.terms.skew);
            self.terms.extend(end);
        }
        let next = (!self.terms.is_final()).then(|| sent + self.terms.third());
        self.renew_at = renewal.into_iter().chain(next).min();
    }

    /// Reschedules the needs that the question covered.
    fn ask_again_at(&mut self, moment: Instant) {
        for wish in [&mut self.renew_at, &mut self.look_at] {
            if wish.is_some() && *wish <= self.asked_at {
                *wish = Some(moment);
            }
        }
    }
}
