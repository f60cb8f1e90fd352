//! Which calls wait for the next write of a [`Combiner`](super::Combiner), and whether a caller leads: a plain value, without a
//! lock, a clock or I/O.
//!
//! At most one caller leads. A caller that joins while none leads becomes the leader; the others wait. The leader takes calls out of
//! the outbox, its own among them, and when it is [done](Outbox::done) it is told which caller to wake. That caller leads next, unless
//! one that came in between was faster: then that one takes the call of the other along. So the rule is: while calls wait and none
//! leads, one of the callers that wait has been woken.

use std::{mem, time::Instant};

/// Calls that wait for the next write, first in, first out.
#[derive(Debug)]
pub(super) struct Outbox<C> {
    waiting: Vec<Waiting<C>>,
    is_led: bool,
}

#[derive(Debug)]
struct Waiting<C> {
    call: C,
    /// When the caller stops waiting for the answer, if that is sooner than the I/O time-out.
    until: Option<Instant>,
}

/// What became of a caller that does not want to wait any longer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Withdrawn<C> {
    /// Its call has been taken, and is being sent.
    Not,
    /// Its call is not sent. Somebody else may have to be woken.
    Gone { wake: Option<C> },
}

impl<C> Default for Outbox<C> {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            is_led: false,
        }
    }
}

impl<C: Clone + PartialEq> Outbox<C> {
    /// One more call. True: its caller leads.
    pub(super) fn join(&mut self, call: C, until: Option<Instant>) -> bool {
        self.waiting.push(Waiting { call, until });
        self.lead()
    }

    /// A caller that waits wants to lead. False: another leads.
    pub(super) fn lead(&mut self) -> bool {
        !mem::replace(&mut self.is_led, true)
    }

    /// Takes the leader's own call, and others behind it, so many in all. The leader waits for the answers as long as for
    /// its own, so those whose callers would wait for longer are left to another.
    pub(super) fn take(&mut self, own: &C, most: usize, batch: &mut Vec<C>) {
        let Some(place) = self.place_of(own) else {
            return;
        };
        let own = self.waiting.remove(place);
        let waits_as_long = |until: Option<Instant>| match (until, own.until) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(until), Some(own)) => until <= own,
        };
        batch.push(own.call);
        let mut room = most.saturating_sub(1);
        let along = self.waiting.extract_if(.., |waiting| {
            let goes_along = room > 0 && waits_as_long(waiting.until);
            room -= usize::from(goes_along);
            goes_along
        });
        batch.extend(along.map(|waiting| waiting.call));
    }

    /// The leader leads no longer. Whom to wake, so that there is another.
    pub(super) fn done(&mut self) -> Option<C> {
        self.is_led = false;
        self.next()
    }

    /// The caller of this call does not wait any longer.
    pub(super) fn withdraw(&mut self, call: &C) -> Withdrawn<C> {
        let Some(place) = self.place_of(call) else {
            return Withdrawn::Not;
        };
        self.waiting.remove(place);
        // It may be the one that was woken.
        let wake = if self.is_led { None } else { self.next() };
        Withdrawn::Gone { wake }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    #[cfg(test)]
    pub(super) fn is_led(&self) -> bool {
        self.is_led
    }

    /// Nobody waits, and nobody leads.
    #[cfg(test)]
    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty() && !self.is_led
    }

    /// The first who waits as long as an answer may take, so that it can take all others along, or else who waits longest.
    fn next(&self) -> Option<C> {
        let usual = self.waiting.iter().find(|waiting| waiting.until.is_none());
        let next = usual.or_else(|| self.waiting.iter().max_by_key(|waiting| waiting.until));
        next.map(|waiting| waiting.call.clone())
    }

    fn place_of(&self, call: &C) -> Option<usize> {
        self.waiting
            .iter()
            .position(|waiting| waiting.call == *call)
    }
}
