//! When which lease is renewed, as a plain value: no lock, no clock, no I/O. Events in, actions out.
//!
//! A lease is renewed at a third of its length. When one is due, the batch that carries it takes others along that are
//! in the second half of their third: leases that began at different moments come to share their round trips.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    error::LostReason,
    renewing::entry::{Ask, Entry, RenewalOutcome, Terms},
    server::Answer,
};

/// How many leases share a round trip.
pub(crate) const BATCH: usize = 100;
/// A closed connection delivers what it still had within this time: then the system gives up sending it again.
pub(crate) const LAST_DELIVERY: Duration = Duration::from_secs(100);
/// Before what was given back is given back again, and before a server that refuses is asked again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// Names one lease; never used twice.
pub(crate) type Id = u64;

/// Leases, orphans, and when they are due. `T` is whatever the caller wants to get back for a lease, `O` for an orphan.
#[derive(Debug)]
pub(crate) struct Schedule<T, O> {
    leases: BTreeMap<Id, Entry<T>>,
    /// All that are not out, the first to be renewed first.
    due: BTreeSet<(Instant, Id)>,
    /// Those whose end somebody wants to be called at.
    alarms: BTreeSet<(Instant, Id)>,
    /// To be given back, since nobody knows whether we have them; the first to be asked about first.
    orphans: VecDeque<Orphan<O>>,
    paused_until: Option<Instant>,
    next_id: Id,
}

/// A hold that may be ours without anybody having it. It is given back until the server answers: while a server is halted our
/// clock says nothing about what it will execute when it goes on.
///
/// After an acquire without an answer one answer is not enough, since the acquire may be delivered later than what gives it
/// back, which was sent on another connection. So it is given back again whenever it is twice as old, until it is as old as
/// what is delivered last: [`LAST_DELIVERY`].
#[derive(Debug)]
pub(crate) struct Orphan<O> {
    pub(crate) item: O,
    /// Since when the acquire may be delivered late, if one was sent without an answer.
    acquire: Option<Instant>,
    /// When it is given back next.
    due: Instant,
}

/// A question to be sent now.
#[derive(Debug)]
pub(crate) struct Question<T> {
    pub(crate) id: Id,
    pub(crate) item: T,
    pub(crate) ask: Ask,
    /// The lease to ask for, or the one that is looked at.
    pub(crate) lease: Duration,
}

/// What is to be done at a moment.
#[derive(Debug)]
pub(crate) struct Batch<T, O> {
    /// To be renewed in one round trip; each has to be [`answered`](Schedule::answered).
    pub(crate) questions: Vec<Question<T>>,
    /// To be given back in the same round trip; each has to be [`given_back`](Schedule::given_back).
    pub(crate) orphans: Vec<Orphan<O>>,
    /// These have come to their end and are forgotten.
    pub(crate) over: Vec<(T, LostReason)>,
}

impl<T, O> Default for Schedule<T, O> {
    fn default() -> Self {
        Self {
            leases: BTreeMap::new(),
            due: BTreeSet::new(),
            alarms: BTreeSet::new(),
            orphans: VecDeque::new(),
            paused_until: None,
            next_id: 0,
        }
    }
}

impl<T: Clone, O> Schedule<T, O> {
    /// One more lease: renewed at once if its end is not known, otherwise after a third of it, or when two are left.
    pub(crate) fn keep(&mut self, item: T, terms: Terms, now: Instant) -> Id {
        let id = self.next_id;
        self.next_id += 1;
        let entry = Entry::new(item, terms, now);
        self.due.insert((entry.due, id));
        self.leases.insert(id, entry);
        id
    }

    /// When something has to be done next.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let lease = self.due.first().map(|(due, _)| *due);
        let orphan = self.orphans.front().map(|orphan| orphan.due);
        let due = match (lease, orphan) {
            (Some(lease), Some(orphan)) => lease.min(orphan),
            (lease, orphan) => lease.or(orphan)?,
        };
        Some(self.paused_until.map_or(due, |until| until.max(due)))
    }

    /// To be given back as soon as the server answers; `repeat` says that an acquire of it got no answer.
    pub(crate) fn abandon(&mut self, item: O, repeat: bool, now: Instant) {
        self.insert_orphan(Orphan {
            item,
            acquire: repeat.then_some(now),
            due: now,
        });
    }

    /// What has come of giving it back.
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

    /// Something may have happened to a lease.
    pub(crate) fn look(&mut self, id: Id, now: Instant) {
        self.change(id, |entry| entry.look(now));
    }

    /// Something may have happened to any lease.
    pub(crate) fn look_at_all(&mut self, now: Instant) {
        let all: Vec<Id> = self.leases.keys().copied().collect();
        for id in all {
            self.look(id, now);
        }
    }

    /// The lease has been renewed by somebody else than us, until then. Returns until when it lasts.
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

    /// Somebody else has the lock of this lease now, and from now on it is kept for them. `None`: it is not kept any more, or a
    /// renewal is on its way, which would reach the server in somebody else's time.
    pub(crate) fn succeed(&mut self, id: Id, item: T, terms: Terms, now: Instant) -> Option<Id> {
        let entry = self.leases.get(&id).filter(|entry| !entry.leaving)?;
        let look_at = match (entry.in_flight, entry.asked) {
            (false, _) => entry.look_at,
            // What comes back says nothing to the next.
            (true, Ask::Look) => Some(now),
            (true, Ask::Renew(_)) => return None,
        };
        self.stop(id);
        Some(self.keep(item, Terms { look_at, ..terms }, now))
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

    /// What has to be done now: nothing while none is due.
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
                let lease = match ask {
                    Ask::Renew(lease) => lease,
                    Ask::Look => entry.terms.lease,
                };
                batch.questions.push(Question {
                    id,
                    item,
                    ask,
                    lease,
                });
            }
        }
        batch
    }

    /// What a renewal that was taken has come to. `None`: nothing has changed.
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

    /// The server cannot be reached and is not to be tried before that moment.
    ///
    /// Says which leases have come to their end meanwhile, and are forgotten, and which others wait for their renewal.
    pub(crate) fn unreachable(
        &mut self,
        until: Instant,
        now: Instant,
    ) -> (Vec<(T, LostReason)>, Vec<T>) {
        self.pause(until);
        let waiting: Vec<Id> = self
            .due
            .iter()
            .take_while(|(due, _)| *due <= now)
            .map(|(_, id)| *id)
            .collect();
        let (mut over, mut doubtful) = (Vec::new(), Vec::new());
        for id in waiting {
            let Some(entry) = self.leases.get(&id) else {
                continue;
            };
            match entry.terms.lost_at(now) {
                Some(reason) => {
                    over.push((entry.item.clone(), reason));
                    self.stop(id);
                }
                None => doubtful.push(entry.item.clone()),
            }
        }
        (over, doubtful)
    }

    /// Nothing is to be sent before that moment.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.paused_until = Some(until);
    }

    /// Never to be renewed again. True: a renewal is in flight at this moment, see [`is_in_flight`](Self::is_in_flight).
    pub(crate) fn stop(&mut self, id: Id) -> bool {
        let Some(entry) = self.leases.get_mut(&id) else {
            return false;
        };
        if let Some(end) = entry.terms.end {
            self.alarms.remove(&(end, id));
        }
        entry.alarm = false;
        entry.leaving = true;
        let in_flight = entry.in_flight;
        if !in_flight {
            self.due.remove(&(entry.due, id));
            self.leases.remove(&id);
        }
        in_flight
    }

    /// Whether a renewal of it has been taken and not answered.
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

    /// Those with an alarm that have come to their end. They are forgotten.
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

    /// All leases.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.leases.values().map(|entry| &entry.item)
    }
}

#[cfg(test)]
mod tests;
