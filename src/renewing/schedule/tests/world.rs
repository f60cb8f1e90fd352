//! A world for a schedule, which controls the time and the server's replies.

use std::mem;

use proptest::prelude::*;

use super::{
    super::*,
    known::{Known, REST, extend, look},
    orphans::Orphans,
};

pub(super) const MS: Duration = Duration::from_millis(1);
/// The most leases in one world.
const MOST: usize = 200;

pub(super) fn terms(lease_ms: u32) -> Terms {
    Terms {
        lease: MS * lease_ms,
        cap: None,
        end: None,
        renews: true,
        look_at: None,
        skew: Duration::ZERO,
    }
}

/// The reaction of the server to a renewal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mood {
    Ours,
    NotOurs,
    Forgotten,
    Refused,
    Unanswered,
    Unreachable,
    /// Renews the lease, but its holder stops it before the reply.
    StoppedMeanwhile,
    /// The lock is ours, but the key changes before the reply.
    ChangedMeanwhile,
    /// The lock is ours, and its holder tries a hand-over before the reply.
    HandedOverMeanwhile,
    /// Renews the lease, but its holder renews it for this many milliseconds before the reply.
    ExtendedMeanwhile(u32),
    /// The lock is ours, and the reply takes this many milliseconds.
    Late(u32),
}

impl Mood {
    /// Returns true if the release of an orphan gets a reply.
    pub(super) fn is_answer(self) -> bool {
        !matches!(
            self,
            Self::Forgotten | Self::Refused | Self::Unanswered | Self::Unreachable
        )
    }
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Keep {
        lease: u32,
        max_hold: Option<u32>,
        known_end: Option<u32>,
        renews: bool,
        look: Option<u32>,
        alarm: bool,
    },
    Stop(prop::sample::Index),
    HandOver {
        which: prop::sample::Index,
        lease: u32,
        max_hold: Option<u32>,
        renews: bool,
        alarm: bool,
    },
    Look(prop::sample::Index),
    LookAtAll,
    RenewAll,
    Extend(prop::sample::Index, u32),
    Abandon(bool),
    Pass(u32),
}

pub(super) struct World {
    pub(super) schedule: Schedule<usize, usize>,
    pub(super) now: Instant,
    pub(super) leases: Vec<Known>,
    pub(super) orphans: Orphans,
    pub(super) moods: Box<dyn FnMut() -> Mood>,
    teach: bool,
    /// The times of all attempts to renew.
    pub(super) attempts: Vec<Instant>,
}

impl World {
    pub(super) fn new(moods: impl FnMut() -> Mood + 'static) -> Self {
        Self {
            schedule: Schedule::default(),
            now: Instant::now(),
            leases: Vec::new(),
            orphans: Orphans::default(),
            moods: Box::new(moods),
            teach: false,
            attempts: Vec::new(),
        }
    }

    pub(super) fn moody(moods: Vec<Mood>) -> Self {
        let mut moods = moods.into_iter().cycle();
        Self::new(move || moods.next().unwrap())
    }

    pub(super) fn happen(&mut self, event: &Event) {
        let count = self.leases.len();
        match *event {
            Event::Keep { .. } => self.keep(event),
            Event::Pass(ms) => self.pass(MS * ms),
            Event::Abandon(repeat) => {
                let orphan = self.orphans.add(repeat, self.now);
                self.schedule.abandon(orphan, repeat, self.now);
            }
            Event::LookAtAll => {
                for lease in &mut self.leases {
                    look(&mut self.schedule, lease, self.now);
                }
            }
            Event::RenewAll => {
                self.schedule.renew_all(self.now);
                for lease in &mut self.leases {
                    lease.is_to_be_renewed(self.now);
                }
            }
            _ if count == 0 => {}
            Event::Stop(ref which) => {
                let lease = &mut self.leases[which.index(count)];
                self.schedule.stop(lease.id);
                assert!(
                    !self.schedule.is_in_flight(lease.id),
                    "no batch is in flight"
                );
                lease.gone = true;
            }
            Event::HandOver { ref which, .. } => self.hand_over(which.index(count), event),
            Event::Look(ref which) => {
                look(
                    &mut self.schedule,
                    &mut self.leases[which.index(count)],
                    self.now,
                );
            }
            Event::Extend(ref which, ms) => {
                let lease = &mut self.leases[which.index(count)];
                extend(&mut self.schedule, lease, self.now, MS * ms);
            }
        }
    }

    fn keep(&mut self, event: &Event) {
        let Event::Keep {
            lease,
            max_hold,
            known_end,
            renews,
            look,
            alarm,
        } = *event
        else {
            return;
        };
        let cap = max_hold.map(|ms| self.now + MS * ms);
        let end = known_end.map(|percent| self.now + MS * lease * percent / 100 + MS);
        let end = end.map(|end| cap.map_or(end, |cap| cap.min(end)));
        let look_at = look.map(|ms| self.now + MS * ms);
        let terms = Terms {
            cap,
            end,
            renews: renews || end.is_none(),
            look_at,
            ..terms(lease)
        };
        let id = self.schedule.keep(self.leases.len(), terms, self.now);
        let known = self.known(id, terms, alarm);
        self.leases.push(Known {
            look: look_at,
            rests_until: look_at.max(known.rests_until),
            server_end: end,
            ..known
        });
    }

    /// Creates a lease without any replies yet.
    fn known(&mut self, id: Id, terms: Terms, alarm: bool) -> Known {
        if alarm {
            self.schedule.set_alarm(id);
        }
        Known {
            id,
            terms,
            alarm: alarm && terms.end.is_some(),
            gone: false,
            renewed: None,
            failed: false,
            asked: None,
            look: None,
            rests_until: terms.end.map(|_| self.now + REST),
            renew: None,
            is_inherited: false,
            server_end: None,
        }
    }

    /// Hands the lock to another holder of this process, unchanged.
    fn hand_over(&mut self, index: usize, event: &Event) {
        let Event::HandOver {
            lease,
            max_hold,
            renews,
            alarm,
            ..
        } = *event
        else {
            return;
        };
        let before = &self.leases[index];
        // A lease that has ended, or whose end is unknown, is not handed over.
        let Some(end) = before.terms.end.filter(|end| *end > self.now) else {
            return;
        };
        let cap = max_hold.map(|ms| self.now + MS * ms);
        let terms = Terms {
            cap,
            end: Some(cap.map_or(end, |cap| cap.min(end))),
            renews,
            ..terms(lease)
        };
        self.hand_over_by(index, terms, alarm, self.now);
    }

    fn hand_over_by(&mut self, index: usize, terms: Terms, alarm: bool, now: Instant) {
        let count = self.leases.len();
        let before = &mut self.leases[index];
        let is_in_flight = self.schedule.is_in_flight(before.id);
        let next = self.schedule.hand_over(before.id, count, terms, now);
        assert_eq!(next.is_none(), before.gone, "it is stopped or lost");
        let Some(id) = next else {
            return;
        };
        before.gone = true;
        let since = if is_in_flight { Some(now) } else { before.look };
        let look = since.map(|since| (since, before.looked_at_by().unwrap_or(since)));
        let rests_until = [look.map(|(_, until)| until), before.renewed_by()];
        let (renew, failed) = (before.renew, before.failed);
        let (server_end, before) = (before.server_end, before.id);
        assert!(self.leases.iter().all(|lease| lease.id < id), "not its own");
        assert_eq!(self.schedule.extend(before, now + MS * 900), None);
        assert_eq!(self.schedule.hand_over(before, count, terms, now), None);
        let known = self.known(id, terms, alarm);
        self.leases.push(Known {
            look: since,
            rests_until: rests_until
                .into_iter()
                .flatten()
                .chain(known.rests_until)
                .max(),
            renew,
            // The pause after a refusal continues with the refused renewal.
            failed,
            is_inherited: true,
            server_end,
            ..known
        });
    }

    pub(super) fn pass(&mut self, time: Duration) {
        let target = self.now + time;
        let mut steps = 0..100_000;
        while let Some(next) = self.schedule.due_at().filter(|due| *due <= target) {
            assert!(steps.next().is_some(), "endless questions");
            self.now = self.now.max(next);
            self.ring();
            self.turn();
        }
        self.now = target;
        self.ring();
    }

    fn ring(&mut self) {
        for (index, reason) in self.schedule.ring(self.now) {
            assert!(self.leases[index].alarm);
            self.over(index, reason);
        }
        let ends = self
            .leases
            .iter()
            .filter(|lease| lease.alarm && !lease.gone);
        let (alarm, end) = (
            self.schedule.next_alarm(),
            ends.filter_map(Known::end).min(),
        );
        assert_eq!(alarm.is_some(), end.is_some());
        assert!(alarm <= end && alarm.is_none_or(|alarm| alarm > self.now));
    }

    fn turn(&mut self) {
        let mood = (self.moods)();
        let is_reached = !matches!(mood, Mood::Unreachable);
        let mood_of = |moods: &mut dyn FnMut() -> Mood| {
            if is_reached {
                moods()
            } else {
                Mood::Unanswered
            }
        };
        let due = self.schedule.due_at().is_some_and(|due| due <= self.now);
        let batch = self.schedule.take(self.now);
        let sent = self.now;
        assert!(batch.questions.len() <= BATCH);
        let orphans = if due { self.orphans.due(self.now) } else { 0 };
        assert_eq!(due, batch.questions.len() + batch.over.len() + orphans > 0);
        let teaching = due && mem::take(&mut self.teach);
        if due {
            let (orphans, schedule) = (batch.orphans, &mut self.schedule);
            let moods = &mut self.moods;
            let mut moods = || mood_of(moods);
            self.teach |= (self.orphans).answer(orphans, schedule, sent, teaching, &mut moods);
        }
        for (index, reason) in batch.over {
            self.over(index, reason);
        }
        let kept = self.leases.iter().filter(|lease| !lease.gone);
        let lengths = kept.map(|lease| lease.terms.lease);
        assert_eq!(self.schedule.shortest(), lengths.min());
        if !batch.questions.is_empty() {
            self.attempts.push(self.now);
        }
        for question in batch.questions {
            let mood = match mood_of(&mut self.moods) {
                // The batch after a forgotten script carries it, so it cannot be forgotten again.
                Mood::Forgotten if teaching => Mood::Refused,
                mood => mood,
            };
            self.teach |= matches!(mood, Mood::Forgotten);
            self.answer(&question, sent, mood);
            if matches!(mood, Mood::Unanswered | Mood::Unreachable) {
                self.schedule.pause(self.now + MS * 10);
            }
        }
        if !is_reached {
            self.schedule.pause(self.now + MS * 10);
            assert_eq!(self.schedule.orphans.len(), self.orphans.left());
        }
    }

    fn answer(&mut self, question: &Question<usize>, sent: Instant, mood: Mood) {
        let count = self.leases.len();
        let lease = &mut self.leases[question.item];
        assert_eq!(question.id, lease.id, "a question about an earlier turn");
        assert!(self.schedule.is_in_flight(question.id));
        lease.assert_wanted(question, sent);
        lease.asked = Some(sent);
        let fulfilled = lease.fulfilled(question.ask);

        let answer = match mood {
            Mood::NotOurs => RenewalAnswer::NotOurs,
            Mood::Forgotten => RenewalAnswer::Forgotten,
            Mood::Refused => RenewalAnswer::Refused,
            Mood::Unanswered | Mood::Unreachable => RenewalAnswer::Unanswered,
            _ => RenewalAnswer::Ours(sent),
        };
        if let RenewalAnswer::Ours(_) = answer {
            lease.is_asked(question.ask, sent);
        }
        match mood {
            Mood::StoppedMeanwhile => {
                self.schedule.stop(question.id);
                assert!(self.schedule.is_in_flight(question.id));
                lease.gone = true;
                self.schedule.look(question.id, sent);
                assert_eq!(self.schedule.extend(question.id, sent + MS * 900), None);
            }
            Mood::ChangedMeanwhile => {
                look(&mut self.schedule, lease, sent);
            }
            Mood::HandedOverMeanwhile => match question.ask {
                Ask::Renew(_) => {
                    let next = self.schedule.hand_over(question.id, 0, lease.terms, sent);
                    assert_eq!(next, None, "the previous holder would renew it");
                    assert!(
                        self.schedule.is_in_flight(question.id),
                        "it is still its own"
                    );
                }
                // Limits the number of turns.
                Ask::Look if count < MOST => {
                    let terms = lease.terms;
                    self.hand_over_by(question.item, terms, false, sent);
                }
                Ask::Look => {}
            },
            Mood::ExtendedMeanwhile(ms) => extend(&mut self.schedule, lease, sent, MS * ms),
            Mood::Late(ms) => self.now += MS * ms,
            _ => {}
        }
        let outcome = self.schedule.answered(question.id, answer, self.now);
        assert!(!self.schedule.is_in_flight(question.id));
        let lease = &mut self.leases[question.item];
        assert_eq!(outcome, lease.expected(question.ask, answer, self.now));
        if !matches!(answer, RenewalAnswer::Ours(_) | RenewalAnswer::NotOurs) {
            lease.is_asked_again(fulfilled, self.now);
        }
        if let Some(RenewalOutcome::Held(end)) = outcome {
            assert!(Some(end) <= lease.server_end, "held past the server's end");
        }
    }

    fn over(&mut self, index: usize, reason: LostReason) {
        let lease = &mut self.leases[index];
        assert!(!lease.gone, "reported twice");
        assert!(
            lease.end().is_some_and(|end| end <= self.now),
            "reported too soon"
        );
        assert_eq!(Some(reason), lease.lost_at(self.now));
        lease.gone = true;
    }
}
