//! A world for a schedule: time passes only here, and the server answers whatever it likes.

use std::mem;

use proptest::prelude::*;

use super::super::*;

pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) fn terms(lease_ms: u32) -> Terms {
    Terms {
        lease: MS * lease_ms,
        cap: None,
        end: None,
        renews: true,
        look_at: None,
    }
}

/// A lease as the tests know it.
#[derive(Debug)]
pub(super) struct Known {
    id: Id,
    pub(super) terms: Terms,
    alarm: bool,
    pub(super) gone: bool,
    /// When it was renewed, or kept by a known end.
    pub(super) renewed: Option<Instant>,
    /// A failure has come since.
    pub(super) failed: bool,
}

impl Known {
    /// When our clock ends it.
    fn end(&self) -> Option<Instant> {
        self.terms.end.or(self.terms.cap)
    }
}

/// What the server does to a renewal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mood {
    Ours,
    NotOurs,
    Forgotten,
    Refused,
    Unanswered,
    Unreachable,
    /// Renews it, but its holder stops it before the answer comes.
    StoppedMeanwhile,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Keep {
        lease: u32,
        max_hold: Option<u32>,
        known_end: Option<u32>,
        alarm: bool,
    },
    Stop(prop::sample::Index),
    Pass(u32),
}

pub(super) struct World {
    pub(super) schedule: Schedule<usize>,
    pub(super) now: Instant,
    pub(super) leases: Vec<Known>,
    pub(super) moods: Box<dyn FnMut() -> Mood>,
    teach: bool,
    /// When it was tried to renew something.
    pub(super) attempts: Vec<Instant>,
}

impl World {
    pub(super) fn new(moods: impl FnMut() -> Mood + 'static) -> Self {
        Self {
            schedule: Schedule::default(),
            now: Instant::now(),
            leases: Vec::new(),
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
        match *event {
            Event::Keep {
                lease,
                max_hold,
                known_end,
                alarm,
            } => {
                let cap = max_hold.map(|ms| self.now + MS * ms);
                let end = known_end.map(|percent| self.now + MS * lease * percent / 100 + MS);
                let end = end.map(|end| cap.map_or(end, |cap| cap.min(end)));
                let terms = Terms {
                    cap,
                    end,
                    ..terms(lease)
                };
                let id = self.schedule.keep(self.leases.len(), terms, self.now);
                if alarm {
                    self.schedule.set_alarm(id);
                }
                let (gone, renewed, failed) = (false, None, false);
                self.leases.push(Known {
                    id,
                    terms,
                    alarm,
                    gone,
                    renewed,
                    failed,
                });
            }
            Event::Stop(ref which) if !self.leases.is_empty() => {
                let lease = which.get(&self.leases).id;
                assert!(!self.schedule.stop(lease), "nothing is out between batches");
                let index = which.index(self.leases.len());
                self.leases[index].gone = true;
            }
            Event::Stop(_) => {}
            Event::Pass(ms) => self.pass(MS * ms),
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        let target = self.now + time;
        let mut steps = 0..100_000;
        while let Some(next) = self.schedule.due_at().filter(|due| *due <= target) {
            assert!(steps.next().is_some(), "no end in sight");
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
        assert_eq!(
            self.schedule.next_alarm(),
            ends.filter_map(|lease| lease.terms.end).min()
        );
    }

    fn turn(&mut self) {
        let mood = (self.moods)();
        if matches!(mood, Mood::Unreachable) {
            let (over, doubtful) = self.schedule.unreachable(self.now + MS * 10, self.now);
            for (index, reason) in over {
                self.over(index, reason);
            }
            self.attempts
                .extend((!doubtful.is_empty()).then_some(self.now));
            for index in doubtful {
                self.leases[index].failed = true;
                assert!(!self.leases[index].gone);
            }
            return;
        }
        let due = self.schedule.due_at().is_some_and(|due| due <= self.now);
        let batch = self.schedule.take(self.now);
        assert!(batch.turns.len() <= BATCH);
        assert_eq!(due, batch.turns.len() + batch.over.len() > 0);
        for (index, reason) in batch.over {
            self.over(index, reason);
        }
        if !batch.turns.is_empty() {
            self.attempts.push(self.now);
        }
        let teaching = mem::take(&mut self.teach);
        for turn in batch.turns {
            let mood = match (self.moods)() {
                // The batch after one that met a forgotten script brings it along.
                Mood::Forgotten if teaching => Mood::Refused,
                mood => mood,
            };
            self.teach |= matches!(mood, Mood::Forgotten);
            self.answer(&turn, mood);
            if matches!(mood, Mood::Unanswered | Mood::Unreachable) {
                self.schedule.pause(self.now + MS * 10);
            }
        }
    }

    fn answer(&mut self, turn: &Turn<usize>, mood: Mood) {
        let (now, lease) = (self.now, &mut self.leases[turn.what]);
        assert!(!lease.gone, "a renewal of what is stopped or lost");
        assert!(
            lease.end().is_none_or(|end| end > now),
            "a renewal after the end"
        );
        assert!(turn.lease >= MS && turn.lease <= lease.terms.lease);
        assert!(
            lease
                .terms
                .cap
                .is_none_or(|cap| now + turn.lease <= cap.max(now + MS))
        );
        let early = lease
            .renewed
            .is_some_and(|at| now < at + lease.terms.third() / 2);
        assert!(!early || lease.failed, "a renewal that was not wanted yet");
        assert!(self.schedule.is_out(turn.id));

        let answer = match mood {
            Mood::NotOurs => Answer::NotOurs,
            Mood::Forgotten => Answer::Forgotten,
            Mood::Refused => Answer::Refused,
            Mood::Unanswered | Mood::Unreachable => Answer::Unanswered,
            Mood::Ours | Mood::StoppedMeanwhile => Answer::Ours(now),
        };
        if matches!(mood, Mood::StoppedMeanwhile) {
            assert!(self.schedule.stop(turn.id) && self.schedule.is_out(turn.id));
            lease.gone = true;
        }
        let verdict = self.schedule.answered(turn.id, answer, now);
        assert!(!self.schedule.is_out(turn.id));
        let expected = match answer {
            Answer::Ours(sent) => {
                let mut end = lease.terms.end.map_or(sent + lease.terms.lease, |end| {
                    end.max(sent + lease.terms.lease)
                });
                end = lease.terms.cap.map_or(end, |cap| cap.min(end));
                lease.terms.end = Some(end);
                (lease.renewed, lease.failed) = (Some(sent), false);
                Some(Verdict::Held(end))
            }
            Answer::NotOurs => {
                lease.gone = true;
                Some(Verdict::Lost(LostReason::TakenAway))
            }
            Answer::Forgotten => None,
            Answer::Refused | Answer::Unanswered => {
                lease.failed = true;
                Some(Verdict::Doubtful)
            }
        };
        assert_eq!(verdict, expected);
    }

    fn over(&mut self, index: usize, reason: LostReason) {
        let lease = &mut self.leases[index];
        assert!(!lease.gone, "told twice");
        assert!(
            lease.end().is_some_and(|end| end <= self.now),
            "told too soon"
        );
        let expected = if lease.end() == lease.terms.cap {
            LostReason::MaxHold
        } else {
            LostReason::Ended
        };
        assert_eq!(reason, expected);
        lease.gone = true;
    }
}
