//! Decides when each lease is renewed. A plain value without a mutex, a clock or I/O: the threads
//! record events with their times, and take the commands to send.
//!
//! A lease is renewed after each third of its length. When one is due, its batch also takes the
//! leases in the second half of their third, so that leases with different start times come to
//! share round trips.
//!
//! A batch also takes the releases that got no reply: an [`Orphan`] is a hold that nobody has any
//! more, and its release is repeated until the server replies.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    error::LostReason,
    renewing::entry::{Ask, LeaseEntry, RenewalOutcome, Terms},
    server::RenewalAnswer,
};

/// The most leases that share a round trip.
pub(crate) const BATCH: usize = 100;
/// A closed connection delivers nothing after this time, since the system stops retransmitting.
pub(crate) const LAST_DELIVERY: Duration = Duration::from_secs(100);
/// The shortest pause between two releases of one orphan.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// The pause after the server has refused a release.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// The id of one lease. Never reused.
pub(crate) type Id = u64;

/// Leases and orphans, with the times at which they are due. `T` is the caller's value for a lease,
/// `O` for an orphan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Schedule<T, O> {
    leases: BTreeMap<Id, LeaseEntry<T>>,
    /// Leases that were stopped while a question was in flight.
    leaving: BTreeMap<Id, LeaseEntry<T>>,
    /// The leases without a question in flight, by due time.
    due: BTreeSet<(Instant, Id)>,
    /// The leases that have a callback, by a moment no later than their end. An end only moves
    /// later, so the real end is checked at that moment.
    alarms: BTreeSet<(Instant, Id)>,
    /// The holds to release, by due time.
    orphans: VecDeque<Orphan<O>>,
    paused_until: Option<Instant>,
    next_id: Id,
}

/// A hold that the server may have granted to a caller that is gone. The release is repeated until
/// the server replies, however long that takes: a halted server executes pending commands when it
/// resumes.
///
/// If an acquire got no reply, one reply to a release is not enough: the acquire used another
/// connection, and may be delivered after the release. So the release is repeated each time the age
/// of the acquire has doubled, until that reaches [`LAST_DELIVERY`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Orphan<O> {
    pub(crate) item: O,
    since: Instant,
    /// An acquire of it got no reply.
    may_come_late: bool,
    /// The time of the next release.
    due: Instant,
}

/// A question to be sent now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question<T> {
    pub(crate) id: Id,
    pub(crate) item: T,
    pub(crate) ask: Ask,
}

/// The work of one round trip.
#[derive(Debug)]
pub(crate) struct RenewalBatch<T, O> {
    /// The caller sends each, and records its [reply](Schedule::answered).
    pub(crate) questions: Vec<Question<T>>,
    /// The caller releases each, and records the [reply](Schedule::was_released).
    pub(crate) orphans: Vec<Orphan<O>>,
    /// Leases whose end has passed. The schedule has removed them.
    pub(crate) over: Vec<Over<T>>,
}

/// A lease that has ended, and the reason.
pub(crate) type Over<T> = (T, LostReason);

impl<T, O> Default for Schedule<T, O> {
    fn default() -> Self {
        Self {
            leases: BTreeMap::new(),
            leaving: BTreeMap::new(),
            due: BTreeSet::new(),
            alarms: BTreeSet::new(),
            orphans: VecDeque::new(),
            paused_until: None,
            next_id: 0,
        }
    }
}

impl<T: Clone, O> Schedule<T, O> {
    /// Adds a lease. It is renewed at once if its end is unknown, otherwise when two thirds of it
    /// are left, but after one third at the latest.
    pub(crate) fn keep(&mut self, item: T, terms: Terms, now: Instant) -> Id {
        let id = self.next_id;
        self.next_id += 1;
        let entry = LeaseEntry::new(item, terms, now);
        self.due.extend(entry.due().map(|due| (due, id)));
        self.leases.insert(id, entry);
        id
    }

    /// Returns the time of the next batch.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let lease = self.due.first().map(|(due, _)| *due);
        let orphan = self.orphans.front().map(|orphan| orphan.due);
        let due = lease.into_iter().chain(orphan).min()?;
        Some(self.paused_until.map_or(due, |until| until.max(due)))
    }

    /// Adds a hold to release. `may_come_late`: an acquire of it got no reply.
    pub(crate) fn abandon(&mut self, item: O, may_come_late: bool, now: Instant) {
        self.insert_orphan(Orphan {
            item,
            since: now,
            may_come_late,
            due: now,
        });
    }

    /// Records the reply to the release of an orphan.
    pub(crate) fn was_released(&mut self, orphan: Orphan<O>, answer: RenewalAnswer, now: Instant) {
        let age = now.saturating_duration_since(orphan.since);
        let is_last = !orphan.may_come_late || age >= LAST_DELIVERY;
        let pause = match answer {
            RenewalAnswer::Ours(_) | RenewalAnswer::NotOurs if is_last => return,
            RenewalAnswer::Ours(_) | RenewalAnswer::NotOurs => age.max(SHORTEST_PAUSE),
            RenewalAnswer::Forgotten | RenewalAnswer::Unanswered => Duration::ZERO,
            RenewalAnswer::Refused => REFUSED_PAUSE,
        };
        let due = now + pause;
        self.insert_orphan(Orphan { due, ..orphan });
    }

    fn insert_orphan(&mut self, orphan: Orphan<O>) {
        let due = orphan.due;
        let place = self.orphans.partition_point(|earlier| earlier.due <= due);
        self.orphans.insert(place, orphan);
    }

    /// Schedules a look at a lease whose key may have changed. Returns true if the lease is kept.
    pub(crate) fn look(&mut self, id: Id, now: Instant) -> bool {
        self.change(id, |entry| entry.look(now)).is_some()
    }

    /// Schedules a renewal of all leases soon, since a new master may have missed the last ones.
    pub(crate) fn renew_all(&mut self, now: Instant) {
        let all: Vec<Id> = self.leases.keys().copied().collect();
        for id in all {
            self.change(id, |entry| entry.renew(now));
        }
    }

    /// Records a renewal by the holder itself, until `end`. Returns the end of the lease; `None`:
    /// it is no longer kept.
    pub(crate) fn extend(&mut self, id: Id, end: Instant) -> Option<Instant> {
        self.change(id, |entry| {
            entry.terms.extend(end);
            entry.terms.end
        })?
    }

    /// Hands the lease to the next holder: `item` replaces it, with these terms and the pending
    /// looks and renewals. `None`: the lease is no longer kept, or a renewal is in flight, which
    /// would reach the server during the next hold.
    pub(crate) fn hand_over(&mut self, id: Id, item: T, terms: Terms, now: Instant) -> Option<Id> {
        let entry = self.leases.get(&id)?;
        let renew_at = entry.renew_at;
        let look_at = match entry.in_flight {
            None => entry.look_at,
            // The pending reply is about the previous holder, so look again.
            Some(Ask::Look) => Some(now),
            Some(Ask::Renew(_)) => return None,
        };
        self.stop(id);
        let next = self.keep(item, Terms { look_at, ..terms }, now);
        self.change(next, |entry| entry.renew_by(renew_at));
        Some(next)
    }

    fn change<R>(&mut self, id: Id, change: impl FnOnce(&mut LeaseEntry<T>) -> R) -> Option<R> {
        let entry = self.leases.get_mut(&id)?;
        entry.due().map(|due| self.due.remove(&(due, id)));
        let changed = change(entry);
        let due = entry.due().filter(|_| entry.in_flight.is_none());
        self.due.extend(due.map(|due| (due, id)));
        Some(changed)
    }

    /// Takes the next batch, which is empty if nothing is due.
    pub(crate) fn take(&mut self, now: Instant) -> RenewalBatch<T, O> {
        let is_due = self.due_at().is_some_and(|due| due <= now);
        let most = if is_due { BATCH } else { 0 };
        let orphans = self.orphans.partition_point(|orphan| orphan.due <= now);
        let mut batch = RenewalBatch {
            questions: Vec::new(),
            orphans: self.orphans.drain(..orphans.min(most)).collect(),
            over: Vec::new(),
        };
        let next: Vec<Id> = self.due.iter().take(most).map(|(_, id)| *id).collect();
        for id in next {
            if let Some(over) = self.take_if_over(id, now) {
                batch.over.push(over);
                continue;
            }
            let question = self.change(id, |entry| {
                let (ask, item) = (entry.ask(now)?, entry.item.clone());
                Some(Question { id, item, ask })
            });
            batch.questions.extend(question.flatten());
        }
        batch
    }

    /// Records the reply to a question. Returns its result, if it settles the state of the lease.
    pub(crate) fn answered(
        &mut self,
        id: Id,
        answer: RenewalAnswer,
        now: Instant,
    ) -> Option<RenewalOutcome> {
        if let Some(mut left) = self.leaving.remove(&id) {
            return left.judge(answer, now);
        }
        let outcome = self.change(id, |entry| entry.judge(answer, now))?;
        if let Some(RenewalOutcome::Lost) = outcome {
            self.stop(id);
        }
        outcome
    }

    /// Sends nothing before this moment.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.paused_until = Some(until);
    }

    /// Stops the renewal of a lease. A question about it may still be [in
    /// flight](Self::is_in_flight).
    pub(crate) fn stop(&mut self, id: Id) {
        let Some(entry) = self.leases.remove(&id) else {
            return;
        };
        entry.due().map(|due| self.due.remove(&(due, id)));
        entry.alarm.map(|alarm| self.alarms.remove(&(alarm, id)));
        if entry.in_flight.is_some() {
            self.leaving.insert(id, entry);
        }
    }

    /// Returns the length of the shortest lease.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.leases.values().map(|entry| entry.terms.lease).min()
    }

    /// Returns true if a question about the lease is in flight.
    pub(crate) fn is_in_flight(&self, id: Id) -> bool {
        let entry = self.leases.get(&id).or_else(|| self.leaving.get(&id));
        entry.is_some_and(|entry| entry.in_flight.is_some())
    }

    /// Makes [`ring`](Self::ring) return the lease at its end. Does nothing if the end is unknown.
    pub(crate) fn set_alarm(&mut self, id: Id) {
        let Some(entry) = self.leases.get_mut(&id) else {
            return;
        };
        if let Some(before) = entry.alarm {
            self.alarms.remove(&(before, id));
        }
        entry.alarm = entry.terms.end;
        self.alarms.extend(entry.alarm.map(|end| (end, id)));
    }

    /// Returns the time of the next alarm, at which to call [`ring`](Self::ring).
    pub(crate) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(end, _)| *end)
    }

    /// Removes and returns the leases with an alarm whose end has passed.
    pub(crate) fn ring(&mut self, now: Instant) -> Vec<Over<T>> {
        let mut over = Vec::new();
        while let Some(alarm) = self.alarms.first().copied().filter(|(at, _)| *at <= now) {
            self.alarms.remove(&alarm);
            match self.take_if_over(alarm.1, now) {
                Some(lease) => over.push(lease),
                None => self.set_alarm(alarm.1),
            }
        }
        over
    }

    fn take_if_over(&mut self, id: Id, now: Instant) -> Option<Over<T>> {
        let entry = self.leases.get(&id)?;
        let over = (entry.item.clone(), entry.terms.lost_at(now)?);
        self.stop(id);
        Some(over)
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns the caller's value for a lease, if it is kept.
    pub(crate) fn item(&self, id: Id) -> Option<&T> {
        self.leases.get(&id).map(|entry| &entry.item)
    }

    /// Returns the caller's values for all leases.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.leases.values().map(|entry| &entry.item)
    }
}

#[cfg(test)]
mod tests;
