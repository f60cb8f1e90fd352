//! One lease of the [`Schedule`](super::schedule::Schedule): when it is due, and what an answer of
//! the server means for it.

use std::time::{Duration, Instant};

use crate::{
    error::LostReason, recipes::hold::Hold, script::Call, server::Answer, time::whole_millis,
};

/// The pause after the first refusal of a renewal. It doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_millis(500);
/// The least time between two looks at the same lease.
pub(crate) const REST: Duration = Duration::from_millis(10);
/// The least that can be asked of the server.
const SHORTEST_LEASE: Duration = Duration::from_millis(1);

/// How a lease is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// When it has to end at the latest, however often it is renewed.
    pub(crate) cap: Option<Instant>,
    /// Its end, if that is known.
    pub(crate) end: Option<Instant>,
    /// Whether it is renewed. Otherwise it runs out.
    pub(crate) renews: bool,
    /// When the server is asked about it for the first time. From then on the server tells when its
    /// key is changed.
    pub(crate) look_at: Option<Instant>,
    /// How much sooner than on the server it ends by our clock.
    pub(crate) skew: Duration,
}

/// What the server is asked about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    /// Whether it is ours, and to let it last so long.
    Renew(Duration),
    /// The same for as long as it lasts anyway by what we know: the server may not know of the last
    /// renewal.
    Repeat(Duration),
    /// Whether it is ours: the shortest renewal, which changes nothing.
    Look,
}

impl Ask {
    /// Whether it may move the end on the server.
    pub(crate) fn is_renewal(self) -> bool {
        self != Self::Look
    }

    /// For how long the lock is ours then, counted from the question.
    #[cfg(test)]
    pub(crate) fn lease(self) -> Duration {
        match self {
            Self::Renew(lease) | Self::Repeat(lease) => lease,
            Self::Look => SHORTEST_LEASE,
        }
    }

    /// The call that asks it about this hold.
    pub(crate) fn of(self, hold: &Hold) -> Call {
        match self {
            Self::Renew(lease) => hold.renewal(whole_millis(lease)),
            Self::Repeat(left) => hold.repetition(whole_millis(left)),
            Self::Look => hold.look(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fact that depends on no other"
)]
pub(crate) struct Entry<T> {
    pub(crate) item: T,
    pub(crate) terms: Terms,
    /// When there is something to ask: the earlier of `renew_at` and `look_at`.
    pub(crate) due: Instant,
    renew_at: Instant,
    pub(crate) look_at: Option<Instant>,
    looked_at: Option<Instant>,
    /// The next look is to let it last as long as we know it does.
    pub(crate) repeats: bool,
    /// What was asked last.
    pub(crate) asked: Ask,
    /// The last question also stood for a look, or for a repetition.
    was_look: bool,
    was_repetition: bool,
    refusals: u32,
    /// A question about it is on its way.
    pub(crate) in_flight: bool,
    /// It was stopped, and is forgotten as soon as the answer comes.
    pub(crate) leaving: bool,
    pub(crate) alarm: bool,
}

/// What an answer means for the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalOutcome {
    /// Ours until then, by our clock.
    Held(Instant),
    Doubtful,
    /// Forgotten by the schedule.
    Lost(LostReason),
}

impl Terms {
    pub(crate) fn third(&self) -> Duration {
        self.lease / 3
    }

    /// The lease to ask for now, so that it does not outlast the cap.
    pub(crate) fn lease_at(&self, now: Instant) -> Duration {
        match self.cap {
            Some(cap) => (cap.saturating_duration_since(now))
                .clamp(SHORTEST_LEASE, self.lease.max(SHORTEST_LEASE)),
            None => self.lease,
        }
    }

    /// For how long it has to last on the server, so that it does not end there before it does by
    /// our clock.
    pub(crate) fn left_at(&self, now: Instant) -> Option<Duration> {
        let left = (self.end? + self.skew).saturating_duration_since(now);
        let cap = self.cap.map(|cap| cap.saturating_duration_since(now));
        Some(cap.map_or(left, |cap| left.min(cap)).max(SHORTEST_LEASE))
    }

    /// When it is lost by our clock.
    pub(crate) fn lost_by(&self) -> Option<Instant> {
        self.end.or(self.cap)
    }

    /// Why it is lost, if our clock has reached its end: this is the one place that says so.
    pub(crate) fn lost_at(&self, now: Instant) -> Option<LostReason> {
        let end = self.lost_by().filter(|end| *end <= now)?;
        Some(match self.cap {
            Some(cap) if end >= cap => LostReason::MaxHold,
            _ => LostReason::Ended,
        })
    }
}

impl<T> Entry<T> {
    pub(crate) fn new(item: T, terms: Terms, now: Instant) -> Self {
        let renew_at = match terms.end {
            Some(end) if !terms.renews => end,
            Some(end) => {
                let two_thirds_left = end.checked_sub(terms.third() * 2).unwrap_or(now);
                two_thirds_left.clamp(now, now + terms.third())
            }
            None => now,
        };
        Self {
            item,
            terms,
            due: terms.look_at.map_or(renew_at, |look| look.min(renew_at)),
            renew_at,
            look_at: terms.look_at,
            looked_at: None,
            repeats: false,
            asked: Ask::Look,
            was_look: false,
            was_repetition: false,
            refusals: 0,
            in_flight: false,
            leaving: false,
            alarm: false,
        }
    }

    /// What to ask now, if it is due, or if it is in the second half of its third and can go along
    /// with others. A lease that is being refused does not go along.
    pub(crate) fn ask(&mut self, now: Instant) -> Option<Ask> {
        let early = if self.refusals > 0 || self.is_last() {
            Duration::ZERO
        } else {
            self.terms.third() / 2
        };
        let lease = self.terms.lease_at(now);
        let is_due = self.renew_at.saturating_duration_since(now) <= early;
        let wants_look = self.look_at.is_some_and(|look| look <= now);
        let left = self.terms.left_at(now).filter(|_| self.repeats);
        // Its holder has renewed it for longer than we do.
        let is_longer = left.is_some_and(|left| left > lease);
        let ask = match left {
            Some(left) if wants_look && (is_longer || !is_due) => Ask::Repeat(left),
            _ if is_due => Ask::Renew(lease),
            // The end is not known, and a look would not find it out.
            _ if wants_look => self.terms.end.map_or(Ask::Renew(lease), |_| Ask::Look),
            _ => return None,
        };
        self.in_flight = true;
        self.asked = ask;
        let is_all = !is_longer || wants_look;
        self.was_look = is_all && self.look_at.is_some();
        self.was_repetition = is_all && self.repeats;
        if is_all {
            self.look_at = None;
            self.repeats = false;
        }
        self.looked_at = Some(now);
        Some(ask)
    }

    /// Its key may have changed: the server is asked about it soon, but not so often that others
    /// could keep us busy.
    pub(crate) fn look(&mut self, now: Instant) {
        let rested = self.looked_at.map_or(now, |last| last + REST);
        self.look_at = Some(now.max(rested));
    }

    /// The server may not know of its last renewal, and is asked soon to let it last as long as we
    /// know it does.
    pub(crate) fn repeat(&mut self, now: Instant) {
        self.repeats = true;
        self.look(now);
    }

    pub(crate) fn set_due(&mut self) {
        self.due = self
            .look_at
            .map_or(self.renew_at, |look| look.min(self.renew_at));
    }

    /// Its holder has renewed it by itself: it ends no earlier than this.
    pub(crate) fn extend(&mut self, end: Instant) {
        let end = self.terms.end.map_or(end, |earlier| earlier.max(end));
        self.terms.end = Some(self.terms.cap.map_or(end, |cap| cap.min(end)));
        if !self.terms.renews || self.is_last() {
            self.renew_at = self.terms.end.unwrap_or(end);
        }
    }

    fn is_last(&self) -> bool {
        self.terms.end.is_some() && (!self.terms.renews || self.terms.end == self.terms.cap)
    }

    /// What the answer means for the lease, and when it is asked about again. A refusal, or no
    /// answer, is no loss: it puts the lease in doubt, until our clock reaches its end. `None`:
    /// nothing has changed.
    pub(crate) fn judge(&mut self, answer: Answer, now: Instant) -> Option<RenewalOutcome> {
        if let Some(reason) = self.terms.lost_at(now) {
            return Some(RenewalOutcome::Lost(reason));
        }
        match answer {
            Answer::Ours(sent) => {
                let end = self.renewed(sent);
                Some(match self.terms.lost_at(now) {
                    Some(reason) => RenewalOutcome::Lost(reason),
                    None => RenewalOutcome::Held(end),
                })
            }
            Answer::NotOurs => Some(RenewalOutcome::Lost(LostReason::TakenAway)),
            // Due at once, so that it is in the next batch, which carries the script.
            Answer::Forgotten => {
                self.again_at(now);
                None
            }
            Answer::Refused => {
                let pause = FIRST_RETRY.saturating_mul(1 << self.refusals.min(16));
                let longest = LAST_RETRY.min(self.terms.third());
                self.refusals += 1;
                let retry = now + pause.min(longest);
                self.again_at(self.terms.end.map_or(retry, |end| end.min(retry)));
                Some(RenewalOutcome::Doubtful)
            }
            // Behind the others that are due: if this one is what breaks the connection, they get
            // through all the same.
            Answer::Unanswered => {
                self.again_at(now);
                Some(RenewalOutcome::Doubtful)
            }
        }
    }

    /// Asks the same once more. A look that the renewal stood for is set again by itself: a
    /// hand-over keeps the look and drops the renewal.
    fn again_at(&mut self, moment: Instant) {
        if let Ask::Renew(_) = self.asked {
            self.renew_at = moment;
        }
        if self.was_look {
            // One that was asked for meanwhile does not wait for as long.
            self.look_at = Some(self.look_at.map_or(moment, |sooner| sooner.min(moment)));
        }
        self.repeats |= self.was_repetition;
    }

    /// The end of the lease, after a yes to what was sent at `sent` or later.
    fn renewed(&mut self, sent: Instant) -> Instant {
        self.refusals = 0;
        if let (Ask::Look | Ask::Repeat(_), Some(end)) = (self.asked, self.terms.end) {
            return end;
        }
        self.extend(sent + self.terms.lease.saturating_sub(self.terms.skew));
        let end = self.terms.end.unwrap_or(sent);
        if !self.is_last() {
            self.renew_at = sent + self.terms.third();
        }
        end
    }
}
