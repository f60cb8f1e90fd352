//! Decides when each lease is renewed. A plain value without a lock, a clock or I/O: the threads
//! tell it what has happened and when, and it answers what to send.
//!
//! A lease is renewed at a third of its length. When one is due, the batch that carries it takes
//! others along that are in the second half of their third: leases that began at different moments
//! come to share their round trips.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    time::{Duration, Instant},
};

use crate::{
    error::LostReason,
    renewing::entry::{Ask, Entry, RenewalOutcome, Terms},
    server::Answer,
};

/// How many leases share a round trip.
pub(crate) const BATCH: usize = 100;
/// What a closed connection still had to deliver arrives within this time: after it the system
/// gives up sending.
pub(crate) const LAST_DELIVERY: Duration = Duration::from_secs(100);
/// The shortest time between two releases of one orphan.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// Before a server that has refused a release is sent it again.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// Names one lease; never used twice.
pub(crate) type Id = u64;

/// Leases, orphans, and when they are due. `T` is whatever the caller wants to get back for a
/// lease, `O` for an orphan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Schedule<T, O> {
    leases: BTreeMap<Id, Entry<T>>,
    /// How many there are of each length.
    lengths: BTreeMap<Duration, usize>,
    /// The leases about which no question is on its way, by the moment at which they are due.
    due: BTreeSet<(Instant, Id)>,
    /// The ends of the leases that have a callback.
    alarms: BTreeSet<(Instant, Id)>,
    /// The holds to give back, by the moment at which they are due.
    orphans: VecDeque<Orphan<O>>,
    paused_until: Option<Instant>,
    next_id: Id,
}

/// A hold that the server may have granted to a caller who is gone. It is released again and again
/// until the server answers, however long that takes: a server that was halted executes what it was
/// sent when it goes on.
///
/// If an acquire got no answer, one answer to a release is not enough: the acquire went by another
/// connection, and may be delivered after the release. So the release is repeated each time the
/// acquire is twice as old as at the last one, until it is as old as the latest delivery:
/// [`LAST_DELIVERY`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Orphan<O> {
    pub(crate) item: O,
    /// When an acquire was sent that got no answer, if there was one.
    acquire: Option<Instant>,
    /// When it is released next.
    due: Instant,
}

/// A question to be sent now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question<T> {
    pub(crate) id: Id,
    pub(crate) item: T,
    pub(crate) ask: Ask,
}

/// What is to be done at a moment.
#[derive(Debug)]
pub(crate) struct Batch<T, O> {
    /// To be renewed in one round trip; each has to be [`answered`](Schedule::answered).
    pub(crate) questions: Vec<Question<T>>,
    /// To be given back in the same round trip; each has to be
    /// [`given_back`](Schedule::given_back).
    pub(crate) orphans: Vec<Orphan<O>>,
    /// Leases whose end has passed. The schedule has forgotten them.
    pub(crate) over: Vec<(T, LostReason)>,
}

/// The leases that are due when the server cannot be reached.
#[derive(Debug)]
pub(crate) struct NotReached<T> {
    /// Those whose end has passed. The schedule has forgotten them.
    pub(crate) over: Vec<(T, LostReason)>,
    /// Those of them that were to be renewed.
    pub(crate) not_renewed: Vec<T>,
    /// The others.
    pub(crate) doubtful: Vec<T>,
}

impl<T, O> Default for Schedule<T, O> {
    fn default() -> Self {
        Self {
            leases: BTreeMap::new(),
            lengths: BTreeMap::new(),
            due: BTreeSet::new(),
            alarms: BTreeSet::new(),
            orphans: VecDeque::new(),
            paused_until: None,
            next_id: 0,
        }
    }
}

impl<T: Clone, O> Schedule<T, O> {
    /// Adds a lease. It is renewed at once if its end is not known, otherwise when two thirds of it
    /// are left, and after one third at the latest.
    pub(crate) fn keep(&mut self, item: T, terms: Terms, now: Instant) -> Id {
        let id = self.next_id;
        self.next_id += 1;
        *self.lengths.entry(terms.lease).or_default() += 1;
        let entry = Entry::new(item, terms, now);
        self.due.insert((entry.due, id));
        self.leases.insert(id, entry);
        id
    }

    /// When something has to be sent next.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let lease = self.due.first().map(|(due, _)| *due);
        let orphan = self.orphans.front().map(|orphan| orphan.due);
        let due = match (lease, orphan) {
            (Some(lease), Some(orphan)) => lease.min(orphan),
            (lease, orphan) => lease.or(orphan)?,
        };
        Some(self.paused_until.map_or(due, |until| until.max(due)))
    }

    /// Adds a hold to give back. `repeat`: an acquire of it got no answer.
    pub(crate) fn abandon(&mut self, item: O, repeat: bool, now: Instant) {
        self.insert_orphan(Orphan {
            item,
            acquire: repeat.then_some(now),
            due: now,
        });
    }

    /// Enters the server's answer to the release of an orphan.
    pub(crate) fn given_back(&mut self, orphan: Orphan<O>, answer: Answer, now: Instant) {
        let pause = match (answer, orphan.acquire) {
            (Answer::Ours(_) | Answer::NotOurs, Some(since)) => {
                let age = now.saturating_duration_since(since);
                if age >= LAST_DELIVERY {
                    return;
                }
                age.max(SHORTEST_PAUSE)
            }
            (Answer::Ours(_) | Answer::NotOurs, None) => return,
            (Answer::Forgotten | Answer::Unanswered, _) => Duration::ZERO,
            (Answer::Refused, _) => REFUSED_PAUSE,
        };
        let due = now + pause;
        self.insert_orphan(Orphan { due, ..orphan });
    }

    fn insert_orphan(&mut self, orphan: Orphan<O>) {
        let due = orphan.due;
        let place = self.orphans.partition_point(|earlier| earlier.due <= due);
        self.orphans.insert(place, orphan);
    }

    /// The key of this lease may have changed: the server is asked about it soon.
    pub(crate) fn look(&mut self, id: Id, now: Instant) {
        self.change(id, |entry| entry.look(now));
    }

    /// The server may not know of the last renewals either, as one that has just become the master:
    /// it is asked about each lease soon, and to let it last as long as we know it does.
    pub(crate) fn repeat_all(&mut self, now: Instant) {
        let all: Vec<Id> = self.leases.keys().copied().collect();
        for id in all {
            self.change(id, |entry| entry.repeat(now));
        }
    }

    /// The holder has renewed the lease by itself, until `end`. Returns until when it lasts;
    /// `None`: it is not kept any more.
    pub(crate) fn extend(&mut self, id: Id, end: Instant) -> Option<Instant> {
        let entry = self.leases.get(&id).filter(|entry| !entry.leaving)?;
        let (alarm, before) = (entry.alarm, entry.terms.end);
        self.change(id, |entry| entry.extend(end));
        if alarm {
            if let Some(before) = before {
                self.alarms.remove(&(before, id));
            }
            self.set_alarm(id);
        }
        self.leases.get(&id)?.terms.end
    }

    /// Hands the lease to the next holder: `item` takes its place, by these terms. `None`: the
    /// lease is not kept any more, or a renewal is on its way, which would reach the server in the
    /// next holder's time.
    pub(crate) fn hand_over(&mut self, id: Id, item: T, terms: Terms, now: Instant) -> Option<Id> {
        let entry = self.leases.get(&id).filter(|entry| !entry.leaving)?;
        let look_at = match (entry.in_flight, entry.asked) {
            (false, _) => entry.look_at,
            // The answer that is on its way is about the holder before: the server is asked again.
            (true, Ask::Look) => Some(now),
            (true, Ask::Renew(_) | Ask::Repeat(_)) => return None,
        };
        let repeats = entry.repeats;
        self.stop(id);
        let next = self.keep(item, Terms { look_at, ..terms }, now);
        self.change(next, |entry| entry.repeats = repeats);
        Some(next)
    }

    fn change(&mut self, id: Id, change: impl FnOnce(&mut Entry<T>)) {
        let Some(entry) = self.leases.get_mut(&id).filter(|entry| !entry.leaving) else {
            return;
        };
        change(entry);
        if !entry.in_flight {
            self.due.remove(&(entry.due, id));
            entry.set_due();
            self.due.insert((entry.due, id));
        }
    }

    /// Takes what has to be sent now; nothing while nothing is due.
    pub(crate) fn take(&mut self, now: Instant) -> Batch<T, O> {
        let mut batch = Batch {
            questions: Vec::new(),
            orphans: Vec::new(),
            over: Vec::new(),
        };
        if self.due_at().is_none_or(|due| due > now) {
            return batch;
        }
        let some = self.orphans.partition_point(|orphan| orphan.due <= now);
        let some = some.min(BATCH);
        batch.orphans = self.orphans.drain(..some).collect();
        let next: Vec<Id> = self.due.iter().take(BATCH).map(|(_, id)| *id).collect();
        for id in next {
            let Some(entry) = self.leases.get_mut(&id) else {
                continue;
            };
            if let Some(reason) = entry.terms.lost_at(now) {
                batch.over.push((entry.item.clone(), reason));
                self.stop(id);
            } else if let Some(ask) = entry.ask(now) {
                self.due.remove(&(entry.due, id));
                let item = entry.item.clone();
                batch.questions.push(Question { id, item, ask });
            }
        }
        batch
    }

    /// Enters the answer to a question that was taken. Returns what it means for the lease; `None`:
    /// nothing.
    pub(crate) fn answered(
        &mut self,
        id: Id,
        answer: Answer,
        now: Instant,
    ) -> Option<RenewalOutcome> {
        let entry = self.leases.get_mut(&id)?;
        entry.in_flight = false;
        let end_before = entry.terms.end;
        let outcome = entry.judge(answer, now);
        if entry.leaving || matches!(outcome, Some(RenewalOutcome::Lost(_))) {
            self.stop(id);
            return outcome;
        }
        entry.set_due();
        self.due.insert((entry.due, id));
        if entry.alarm {
            let end_now = entry.terms.end.map(|end| (end, id));
            if let Some(end) = end_before {
                self.alarms.remove(&(end, id));
            }
            self.alarms.extend(end_now);
        }
        outcome
    }

    /// The server cannot be reached, and nothing is to be sent before `until`.
    ///
    /// Says what that means for the leases whose renewal is due.
    pub(crate) fn unreachable(&mut self, until: Instant, now: Instant) -> NotReached<T> {
        self.pause(until);
        let waiting: Vec<Id> = self
            .due
            .iter()
            .take_while(|(due, _)| *due <= now)
            .map(|(_, id)| *id)
            .collect();
        let mut found = NotReached {
            over: Vec::new(),
            not_renewed: Vec::new(),
            doubtful: Vec::new(),
        };
        for id in waiting {
            let Some(entry) = self.leases.get(&id) else {
                continue;
            };
            match entry.terms.lost_at(now) {
                Some(reason) => {
                    if reason == LostReason::Ended && entry.terms.renews {
                        found.not_renewed.push(entry.item.clone());
                    }
                    found.over.push((entry.item.clone(), reason));
                    self.stop(id);
                }
                None => found.doubtful.push(entry.item.clone()),
            }
        }
        found
    }

    /// Nothing is to be sent before that moment.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.paused_until = Some(until);
    }

    /// Stops the renewing of a lease. True: a question about it is on its way, see
    /// [`is_in_flight`](Self::is_in_flight).
    pub(crate) fn stop(&mut self, id: Id) -> bool {
        let Some(entry) = self.leases.get_mut(&id) else {
            return false;
        };
        if let Some(end) = entry.terms.end {
            self.alarms.remove(&(end, id));
        }
        entry.alarm = false;
        let (length, has_left) = (entry.terms.lease, mem::replace(&mut entry.leaving, true));
        let in_flight = entry.in_flight;
        if !in_flight {
            self.due.remove(&(entry.due, id));
            self.leases.remove(&id);
        }
        if !has_left {
            self.forget_length(length);
        }
        in_flight
    }

    fn forget_length(&mut self, length: Duration) {
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }

    /// The shortest of all leases.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.lengths.keys().next().copied()
    }

    /// Whether it is kept, and was not stopped.
    pub(crate) fn is_kept(&self, id: Id) -> bool {
        self.leases.get(&id).is_some_and(|entry| !entry.leaving)
    }

    /// Whether a question about it was taken and is not answered.
    pub(crate) fn is_in_flight(&self, id: Id) -> bool {
        self.leases.get(&id).is_some_and(|entry| entry.in_flight)
    }

    /// From now on its end is one of the [`alarms`](Self::next_alarm).
    pub(crate) fn set_alarm(&mut self, id: Id) {
        if let Some(entry) = self.leases.get_mut(&id).filter(|entry| !entry.leaving) {
            entry.alarm = true;
            self.alarms.extend(entry.terms.end.map(|end| (end, id)));
        }
    }

    pub(crate) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(end, _)| *end)
    }

    /// Takes the leases with an alarm whose end has passed. They are forgotten.
    pub(crate) fn ring(&mut self, now: Instant) -> Vec<(T, LostReason)> {
        let mut over = Vec::new();
        while let Some((end, id)) = self.alarms.first().copied().filter(|(end, _)| *end <= now) {
            self.alarms.remove(&(end, id));
            if let Some(entry) = self.leases.get(&id) {
                let reason = entry.terms.lost_at(now);
                over.extend(reason.map(|reason| (entry.item.clone(), reason)));
            }
            self.stop(id);
        }
        over
    }

    /// Whether something is due, or on its way.
    #[cfg(feature = "testing")]
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        self.due_at().is_some_and(|due| due <= now)
            || self.leases.values().any(|entry| entry.in_flight)
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    pub(crate) fn item(&self, id: Id) -> Option<&T> {
        self.leases.get(&id).map(|entry| &entry.item)
    }

    /// All leases.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.leases.values().map(|entry| &entry.item)
    }
}

#[cfg(test)]
mod tests;
