//! What sentinels have said, and what of it is believed.
//!
//! - Nothing of an older configuration than the newest that was heard of, by its config-epoch: a sentinel that lags behind would
//!   lead back to the master that was replaced. That the master is where it is known to be is news to nobody, and so taken from any
//!   sentinel.
//! - Another address for the same configuration only while the one that is known is in doubt: so two sentinels that contradict
//!   each other do not send us to and fro.
//! - Sentinels that were set up anew count from 0 again. So what more than half of them have said for [`AGREED`], and none of them
//!   contradicted, is the newest there is, whatever its number; another address than the one that is known only while that one
//!   is in doubt.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// So long most sentinels have to have said the same. One that lags behind hears from the others every two seconds.
const AGREED: Duration = Duration::from_secs(10);
/// What was not said again within this time is not said any more.
const SAID: Duration = Duration::from_secs(5);

/// What they have said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    pub(crate) master: Option<Master>,
    /// When one of them has said so last.
    pub(crate) answered: Option<Instant>,
    /// When they were asked last, whatever came of it.
    pub(crate) asked: Option<Instant>,
    /// Something has happened since that the answer does not explain.
    pub(crate) in_doubt: bool,
    /// Who names an older configuration than is known.
    older: BTreeMap<usize, Older>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Master {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Counts the failovers.
    pub(crate) config_epoch: u64,
}

/// What one sentinel says of an older configuration, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Older {
    master: Master,
    since: Instant,
    last: Instant,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belief {
    /// There is another configuration than was known, or the first.
    News,
    /// It is as it was.
    AsBefore,
    /// The master is where it was, and the others have to be asked how its configuration is numbered.
    ByAnotherNumber,
    /// It is not believed.
    Not(&'static str),
}

impl Master {
    fn is_at_the_place_of(&self, other: &Self) -> bool {
        self.host == other.host && self.port == other.port
    }
}

impl Known {
    /// What one of so many sentinels has said just now.
    pub(crate) fn believe(
        &mut self,
        (at, count): (usize, usize),
        said: Master,
        now: Instant,
    ) -> Belief {
        let Some(before) = self.master.clone() else {
            return self.accept(said, now);
        };
        if said.config_epoch < before.config_epoch {
            return self.believe_of_an_older((at, count), &before, said, now);
        }
        if said == before {
            self.older.clear();
            self.answered = Some(now);
            return Belief::AsBefore;
        }
        if said.config_epoch == before.config_epoch && !self.in_doubt {
            return Belief::Not("the last one names another master for the same configuration");
        }
        self.accept(said, now)
    }

    fn accept(&mut self, said: Master, now: Instant) -> Belief {
        self.master = Some(said);
        self.older.clear();
        self.answered = Some(now);
        Belief::News
    }

    fn believe_of_an_older(
        &mut self,
        (at, count): (usize, usize),
        before: &Master,
        said: Master,
        now: Instant,
    ) -> Belief {
        let is_here = said.is_at_the_place_of(before);
        let entry = self.older.entry(at).or_insert_with(|| Older {
            master: said.clone(),
            since: now,
            last: now,
        });
        if entry.master != said || now.saturating_duration_since(entry.last) > SAID {
            entry.since = now;
        }
        entry.master = said.clone();
        entry.last = now;
        let is_agreed = self.is_agreed(&said, count, now);
        if is_here {
            self.answered = Some(now);
            if is_agreed {
                self.master = Some(said);
                self.older.clear();
                return Belief::AsBefore;
            }
            return Belief::ByAnotherNumber;
        }
        if is_agreed && self.in_doubt {
            return self.accept(said, now);
        }
        Belief::Not("the last one knows an older configuration than was heard of before")
    }

    /// Whether more than half of them have said this for long enough.
    fn is_agreed(&self, said: &Master, count: usize, now: Instant) -> bool {
        let age = |moment| now.saturating_duration_since(moment);
        let agree = |older: &&Older| {
            older.master == *said && age(older.last) <= SAID && age(older.since) >= AGREED
        };
        self.older.values().filter(agree).count() * 2 > count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn master(port: u16, config_epoch: u64) -> Master {
        Master {
            host: String::from("a"),
            port,
            config_epoch,
        }
    }

    /// Master 1 at epoch 7, as told by all three.
    fn known(now: Instant) -> Known {
        let mut known = Known::default();
        assert_eq!(known.believe((0, 3), master(1, 7), now), Belief::News);
        assert_eq!(known.believe((1, 3), master(1, 7), now), Belief::AsBefore);
        known
    }

    /// Each of these says so once a second, from so many seconds after the beginning on, until others than `Not` come.
    fn told(
        known: &mut Known,
        who: &[usize],
        said: &Master,
        seconds: std::ops::Range<u32>,
        start: Instant,
    ) -> Vec<(u32, Belief)> {
        let told = seconds.flat_map(|second| who.iter().map(move |at| (second, *at)));
        let told = told.map(|(second, at)| {
            let now = start + second * SECOND;
            (second, known.believe((at, 3), said.clone(), now))
        });
        told.collect()
    }

    #[test]
    fn an_older_configuration_elsewhere_is_believed_when_most_agree_for_long_and_the_master_fails()
    {
        let start = Instant::now();
        let is_refused = |(_, belief): &(u32, Belief)| matches!(belief, Belief::Not(_));
        // While the known master works never.
        let mut healthy = known(start);
        let beliefs = told(&mut healthy, &[0, 1, 2], &master(2, 1), 0..60, start);
        assert!(beliefs.iter().all(is_refused));
        // One alone never.
        let mut one = known(start);
        one.in_doubt = true;
        let beliefs = told(&mut one, &[2], &master(2, 1), 0..60, start);
        assert!(beliefs.iter().all(is_refused));
        // Two of three after ten seconds.
        let mut two = known(start);
        two.in_doubt = true;
        let beliefs = told(&mut two, &[0, 2], &master(2, 1), 0..10, start);
        assert!(beliefs.iter().all(is_refused));
        let beliefs = told(&mut two, &[0, 2], &master(2, 1), 10..11, start);
        assert_eq!(beliefs[0], (10, Belief::News));
        assert_eq!(two.master, Some(master(2, 1)));
    }

    #[test]
    fn whoever_knows_the_newest_or_is_silent_for_a_while_starts_it_again() {
        let start = Instant::now();
        let mut known = known(start);
        known.in_doubt = true;
        told(&mut known, &[0, 1], &master(2, 1), 0..10, start);
        let now = start + 10 * SECOND;
        assert_eq!(known.believe((2, 3), master(1, 7), now), Belief::AsBefore);
        let beliefs = told(&mut known, &[0, 1], &master(2, 1), 10..20, start);
        assert!(beliefs.iter().all(|it| matches!(it.1, Belief::Not(_))));
        let later = told(&mut known, &[0, 1], &master(2, 1), 30..40, start);
        assert!(later.iter().all(|it| matches!(it.1, Belief::Not(_))));
        // Nor does one that changes its mind count with what it has said before.
        let other = told(&mut known, &[0, 1], &master(3, 2), 40..50, start);
        assert!(other.iter().all(|it| matches!(it.1, Belief::Not(_))));
        let other = told(&mut known, &[0, 1], &master(3, 2), 50..51, start);
        assert_eq!(other[0].1, Belief::News);
    }

    #[test]
    fn the_master_that_is_known_is_known_by_any_number_and_by_the_new_one_after_a_while() {
        let start = Instant::now();
        let mut known = known(start);
        let beliefs = told(&mut known, &[0, 1], &master(1, 0), 0..10, start);
        let is_here = |it: &(u32, Belief)| it.1 == Belief::ByAnotherNumber;
        assert!(beliefs.iter().all(is_here));
        assert_eq!(known.master, Some(master(1, 7)));
        let beliefs = told(&mut known, &[0, 1], &master(1, 0), 10..11, start);
        assert_eq!(beliefs[1].1, Belief::AsBefore);
        // The next failover is one.
        let now = start + 12 * SECOND;
        assert_eq!(known.believe((0, 3), master(2, 1), now), Belief::News);
    }
}
