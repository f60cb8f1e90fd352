//! What a world knows of holds that are to be given back.

use super::{
    super::{BATCH, LAST_DELIVERY, Orphan, Schedule},
    world::{MS, Mood},
};
use crate::server::Answer;
use std::time::Instant;

/// All that were ever abandoned.
#[derive(Default)]
pub(super) struct Orphans(Vec<Known>);

struct Known {
    /// When an acquire of it got no answer.
    acquire: Option<Instant>,
    /// Not to be asked about before.
    due: Instant,
    /// It cannot be ours any more.
    done: bool,
}

impl Orphans {
    /// One more; returns its name.
    pub(super) fn add(&mut self, repeat: bool, now: Instant) -> usize {
        self.0.push(Known {
            acquire: repeat.then_some(now),
            due: now,
            done: false,
        });
        self.0.len() - 1
    }

    /// How many are still to be given back.
    pub(super) fn left(&self) -> usize {
        self.0.iter().filter(|orphan| !orphan.done).count()
    }

    /// How many there is something to be done about.
    pub(super) fn due(&self, now: Instant) -> usize {
        let due = |orphan: &&Known| !orphan.done && orphan.due <= now;
        self.0.iter().filter(due).count()
    }

    /// Those that are due, and no others, are asked about; once more if there is no answer. Says
    /// whether the server has forgotten a script, which it has not where that was sent along.
    pub(super) fn answer(
        &mut self,
        asked: Vec<Orphan<usize>>,
        schedule: &mut Schedule<usize, usize>,
        now: Instant,
        teaching: bool,
        moods: &mut dyn FnMut() -> Mood,
    ) -> bool {
        let mut forgotten = false;
        let due = self.due(now);
        if due <= BATCH {
            assert_eq!(asked.len(), due, "not those that are due");
        }
        for orphan in asked {
            let known = &mut self.0[orphan.item];
            assert!(!known.done, "given back once too often");
            assert!(known.due <= now);
            let mood = match moods() {
                Mood::Forgotten if teaching => Mood::Refused,
                mood => mood,
            };
            forgotten |= matches!(mood, Mood::Forgotten);
            let answer = match mood {
                Mood::Forgotten => Answer::Forgotten,
                Mood::Refused => Answer::Refused,
                Mood::Unanswered | Mood::Unreachable => Answer::Unanswered,
                Mood::NotOurs => Answer::NotOurs,
                _ => Answer::Ours(now),
            };
            let age = known.acquire.map(|since| now - since);
            known.done = mood.is_answer() && age.is_none_or(|age| age >= LAST_DELIVERY);
            known.due = match (answer, age) {
                (Answer::Refused, _) => now + MS * 500,
                (Answer::Ours(_) | Answer::NotOurs, Some(age)) => now + age.max(MS * 10),
                _ => now,
            };
            schedule.given_back(orphan, answer, now);
            if matches!(mood, Mood::Unanswered | Mood::Unreachable) {
                schedule.pause(now + MS * 10);
            }
        }
        forgotten
    }
}
