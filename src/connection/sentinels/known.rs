//! What sentinels have said, and what of it is believed.
//!
//! - A newer configuration than the one that is known, by its config-epoch, whoever names it.
//! - No older one: a sentinel that lags behind would lead back to the master that was replaced.
//! - Another address for the same configuration only while the master is in doubt: so two sentinels
//!   that contradict each other do not send us to and fro.
//! - A configuration that no sentinel has named for [`FORGOTTEN`], while more than half of them
//!   have named older ones, is forgotten: sentinels that were set up anew count from 0 again.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// A sentinel that lags behind hears from the others every two seconds.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// What they have said.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) master: Option<Master>,
    /// When this master took the place of another one, if that was heard of.
    pub(super) replaced: Option<Instant>,
    /// When one of them last said where it is.
    pub(super) answered: Option<Instant>,
    /// When they were last asked, answered or not.
    pub(super) asked: Option<Instant>,
    /// Something has happened since that the answer does not explain.
    pub(super) in_doubt: bool,
    /// When one of them last named this configuration.
    named: Option<Instant>,
    /// Who has named an older one since.
    contradicted_by: BTreeSet<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    pub(super) host: String,
    pub(super) port: u16,
    /// Counts the failovers.
    pub(super) config_epoch: u64,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief {
    /// There is another configuration than was known, or the first.
    News,
    /// The master is where it was.
    AsBefore,
    /// It is not believed.
    Not(&'static str),
}

impl Known {
    /// Judges what one of so many sentinels says now.
    pub(super) fn believe(
        &mut self,
        (at, count): (usize, usize),
        said: Master,
        now: Instant,
    ) -> Belief {
        let Some(known) = &self.master else {
            return self.accept(said, now);
        };
        let is_here = (&said.host, said.port) == (&known.host, known.port);
        if said.config_epoch < known.config_epoch {
            self.contradicted_by.insert(at);
            return match (is_here, self.is_forgotten(count, now)) {
                (false, false) => Belief::Not(
                    "the last one knows an older configuration than was heard of before",
                ),
                (false, true) => self.accept(said, now),
                (true, is_forgotten) => {
                    if is_forgotten {
                        self.name(said, now);
                    }
                    self.answered = Some(now);
                    Belief::AsBefore
                }
            };
        }
        if said == *known {
            self.name(said, now);
            return Belief::AsBefore;
        }
        if said.config_epoch == known.config_epoch && !self.in_doubt {
            return Belief::Not("the last one names another master for the same configuration");
        }
        self.accept(said, now)
    }

    fn accept(&mut self, said: Master, now: Instant) -> Belief {
        if self.master.is_some() {
            self.replaced = Some(now);
        }
        self.in_doubt = false;
        self.name(said, now);
        Belief::News
    }

    fn name(&mut self, said: Master, now: Instant) {
        self.master = Some(said);
        (self.answered, self.named) = (Some(now), Some(now));
        self.contradicted_by.clear();
    }

    fn is_forgotten(&self, count: usize, now: Instant) -> bool {
        let is_old = |named| now.saturating_duration_since(named) >= FORGOTTEN;
        self.contradicted_by.len() * 2 > count && self.named.is_some_and(is_old)
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

    /// Master 1 at epoch 7.
    fn known(now: Instant) -> Known {
        let mut known = Known::default();
        assert_eq!(known.believe((0, 3), master(1, 7), now), Belief::News);
        assert_eq!(known.believe((1, 3), master(1, 7), now), Belief::AsBefore);
        known
    }

    /// Each of these says so once a second in these seconds after the beginning.
    fn told(
        known: &mut Known,
        who: &[usize],
        said: &Master,
        seconds: std::ops::Range<u32>,
        start: Instant,
    ) -> Vec<Belief> {
        let told = seconds.flat_map(|second| who.iter().map(move |at| (second, *at)));
        let told =
            told.map(|(second, at)| known.believe((at, 3), said.clone(), start + second * SECOND));
        told.collect()
    }

    fn are_refused(beliefs: &[Belief]) -> bool {
        beliefs.iter().all(|it| matches!(it, Belief::Not(_)))
    }

    #[test]
    fn a_greater_config_epoch_is_believed_whoever_names_it() {
        let start = Instant::now();
        let mut known = known(start);
        assert_eq!(known.believe((2, 3), master(2, 8), start), Belief::News);
        assert_eq!(known.replaced, Some(start));
        assert!(are_refused(&told(
            &mut known,
            &[0],
            &master(1, 7),
            0..60,
            start
        )));
    }

    #[test]
    fn another_address_of_the_same_configuration_is_believed_only_in_doubt() {
        let start = Instant::now();
        let mut known = known(start);
        assert!(are_refused(&told(
            &mut known,
            &[2],
            &master(2, 7),
            0..60,
            start
        )));
        known.in_doubt = true;
        assert_eq!(known.believe((2, 3), master(2, 7), start), Belief::News);
        assert!(are_refused(&told(
            &mut known,
            &[0],
            &master(1, 7),
            0..60,
            start
        )));
    }

    #[test]
    fn an_older_configuration_is_believed_when_most_name_older_ones_for_ten_seconds() {
        let start = Instant::now();
        // One alone never.
        let mut one = known(start);
        assert!(are_refused(&told(
            &mut one,
            &[2],
            &master(2, 1),
            0..60,
            start
        )));
        let mut two = known(start);
        assert!(are_refused(&told(
            &mut two,
            &[0, 2],
            &master(2, 1),
            0..10,
            start
        )));
        let beliefs = told(&mut two, &[0, 2], &master(2, 1), 10..11, start);
        assert_eq!(beliefs, [Belief::News, Belief::AsBefore]);
    }

    #[test]
    fn one_that_names_the_known_configuration_starts_the_ten_seconds_again() {
        let start = Instant::now();
        let mut known = known(start);
        told(&mut known, &[0, 1], &master(2, 1), 0..10, start);
        let now = start + 9 * SECOND;
        assert_eq!(known.believe((2, 3), master(1, 7), now), Belief::AsBefore);
        assert!(are_refused(&told(
            &mut known,
            &[0, 1],
            &master(2, 1),
            10..19,
            start
        )));
        let beliefs = told(&mut known, &[0], &master(2, 1), 19..20, start);
        assert_eq!(beliefs, [Belief::News]);
    }

    #[test]
    fn the_master_where_it_is_known_is_believed_by_any_number_and_takes_it_after_a_while() {
        let start = Instant::now();
        let mut known = known(start);
        let beliefs = told(&mut known, &[0, 1], &master(1, 0), 0..11, start);
        assert!(beliefs.iter().all(|it| *it == Belief::AsBefore));
        assert_eq!(known.replaced, None);
        // The next failover is one.
        let now = start + 12 * SECOND;
        assert_eq!(known.believe((0, 3), master(2, 1), now), Belief::News);
    }
}
