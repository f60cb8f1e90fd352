//! The holds that a world has to release.

use super::{
    super::{BATCH, LAST_DELIVERY, Orphan, Schedule},
    world::{MS, Mood},
};
use crate::server::RenewalAnswer;
use std::time::Instant;

/// All holds that were ever abandoned.
#[derive(Default)]
pub(super) struct Orphans(Vec<Known>);

struct Known {
    /// The time of an acquire that got no reply.
    acquire: Option<Instant>,
    /// The earliest time of the next release.
    due: Instant,
    /// The release has settled: the lock cannot be ours any more.
    done: bool,
}

impl Orphans {
    /// Adds a hold; returns its index.
    pub(super) fn add(&mut self, repeat: bool, now: Instant) -> usize {
        self.0.push(Known {
            acquire: repeat.then_some(now),
            due: now,
            done: false,
        });
        self.0.len() - 1
    }

    /// Returns the number of holds that are not settled.
    pub(super) fn left(&self) -> usize {
        self.0.iter().filter(|orphan| !orphan.done).count()
    }

    /// Returns the number of releases that are due.
    pub(super) fn due(&self, now: Instant) -> usize {
        let due = |orphan: &&Known| !orphan.done && orphan.due <= now;
        self.0.iter().filter(due).count()
    }

    /// Replies to these releases, and asserts that they are exactly the due ones. Returns whether
    /// the server lost a script, which it cannot where the batch carried it.
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
            assert_eq!(asked.len(), due, "not the due ones");
        }
        for orphan in asked {
            let known = &mut self.0[orphan.item];
            assert!(!known.done, "released once too often");
            assert!(known.due <= now);
            let mood = match moods() {
                Mood::Forgotten if teaching => Mood::Refused,
                mood => mood,
            };
            forgotten |= matches!(mood, Mood::Forgotten);
            let answer = match mood {
                Mood::Forgotten => RenewalAnswer::Forgotten,
                Mood::Refused => RenewalAnswer::Refused,
                Mood::Unanswered | Mood::Unreachable => RenewalAnswer::Unanswered,
                Mood::NotOurs => RenewalAnswer::NotOurs,
                _ => RenewalAnswer::Ours(now),
            };
            let age = known.acquire.map(|since| now - since);
            known.done = mood.is_answer() && age.is_none_or(|age| age >= LAST_DELIVERY);
            known.due = match (answer, age) {
                (RenewalAnswer::Refused, _) => now + MS * 500,
                (RenewalAnswer::Ours(_) | RenewalAnswer::NotOurs, Some(age)) => {
                    now + age.max(MS * 10)
                }
                _ => now,
            };
            schedule.was_released(orphan, answer, now);
            if matches!(mood, Mood::Unanswered | Mood::Unreachable) {
                schedule.pause(now + MS * 10);
            }
        }
        forgotten
    }
}
