//! What a world knows of holds that are to be given back.

use super::{
    super::{BATCH, Orphan, Schedule},
    world::{MS, Mood},
};
use std::time::Instant;

/// All that were ever abandoned.
#[derive(Default)]
pub(super) struct Orphans(Vec<Known>);

struct Known {
    until: Instant,
    /// Not to be asked about before.
    since: Instant,
    /// The server has answered, or has ended it by itself.
    done: bool,
}

impl Orphans {
    /// One more; returns its name.
    pub(super) fn add(&mut self, until: Instant, since: Instant) -> usize {
        self.0.push(Known {
            until,
            since,
            done: false,
        });
        self.0.len() - 1
    }

    /// How many are still to be given back.
    pub(super) fn left(&self) -> usize {
        self.0.iter().filter(|orphan| !orphan.done).count()
    }

    /// The server has ended those that are over.
    pub(super) fn end_at(&mut self, now: Instant) {
        for orphan in &mut self.0 {
            orphan.done |= orphan.until <= now;
        }
    }

    /// How many there is something to be done about.
    pub(super) fn due(&self, now: Instant) -> usize {
        let due = |orphan: &&Known| !orphan.done && orphan.since <= now;
        self.0.iter().filter(due).count()
    }

    /// Those that are due, and no others, are asked about; once more if there is no answer. Says whether the server has
    /// forgotten a script, which it has not where that was sent along.
    pub(super) fn answer(
        &mut self,
        asked: Vec<Orphan<usize>>,
        schedule: &mut Schedule<usize>,
        now: Instant,
        teaching: bool,
        moods: &mut dyn FnMut() -> Mood,
    ) -> bool {
        let mut forgotten = false;
        let due = self.due(now);
        for orphan in &mut self.0 {
            orphan.done |= orphan.until <= now && orphan.since <= now;
        }
        if due <= BATCH {
            assert_eq!(asked.len(), self.due(now), "not those that are due");
        }
        for orphan in asked {
            let known = &mut self.0[orphan.item];
            assert!(!known.done, "given back twice, or after the end");
            assert!(known.since <= now && orphan.until == known.until);
            let mood = match moods() {
                Mood::Forgotten if teaching => Mood::Refused,
                mood => mood,
            };
            forgotten |= matches!(mood, Mood::Forgotten);
            known.done = mood.is_answer();
            if !known.done {
                let pause = if matches!(mood, Mood::Refused) {
                    500
                } else {
                    0
                };
                known.since = now + MS * pause;
                schedule.abandon(orphan.item, orphan.until, known.since);
            }
            if matches!(mood, Mood::Unanswered | Mood::Unreachable) {
                schedule.pause(now + MS * 10);
            }
        }
        forgotten
    }
}
