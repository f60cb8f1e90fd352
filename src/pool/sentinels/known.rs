//! Decides which answers of sentinels to believe.
//!
//! - A newer configuration than the known one, by its config-epoch: always.
//! - An older one: never. A sentinel that lags behind would lead back to the old master.
//! - Another address for the known configuration: only while the master is in doubt, so that two
//!   sentinels that contradict each other do not send us back and forth.
//! - The known configuration is forgotten if no sentinel has named it for [`FORGOTTEN`], while more
//!   than half of them have named older ones: newly installed sentinels count from 0 again.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::{
    pool::connector::{Address, MasterPlace},
    time,
};

/// Sentinels exchange their configuration every two seconds, so one that only lags behind catches
/// up in this time.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// After a failover no lock is requested from the new master for this long. Meanwhile other
/// processes learn of it, and find out which of their leases it lacks.
pub(super) const QUIET_AFTER_FAILOVER: Duration = Duration::from_millis(500);

/// The believed master, and the answers behind it.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) master: Option<NamedMaster>,
    /// Grows when another server becomes the master.
    pub(super) epoch: u64,
    /// The moment at which this master replaced another one, if known.
    pub(super) replaced: Option<Instant>,
    /// The moment at which a sentinel last named this master's address.
    pub(super) answered: Option<Instant>,
    /// The moment at which a sentinel was last asked, with or without an answer.
    pub(super) asked: Option<Instant>,
    /// Something has happened since the answer that it does not explain.
    pub(super) in_doubt: bool,
    /// The moment at which a sentinel last named this configuration.
    named: Option<Instant>,
    /// The sentinels that have named an older one since.
    contradicted_by: BTreeSet<usize>,
}

/// The master that a sentinel names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedMaster {
    pub(super) address: Address,
    /// Counts the failovers.
    pub(super) config_epoch: u64,
}

impl Known {
    pub(super) fn place(&self) -> Option<MasterPlace> {
        let master = self.master.as_ref()?;
        Some(MasterPlace {
            address: master.address.clone(),
            epoch: self.epoch,
        })
    }

    /// Enters the age of the first known master: after a very recent failover, other processes may
    /// not know of it yet.
    pub(super) fn note_age(&mut self, for_how_long: Duration) {
        if let Some(at) = time::now()
            .checked_sub(for_how_long)
            .filter(|_| for_how_long < QUIET_AFTER_FAILOVER)
        {
            self.replaced = self.replaced.max(Some(at));
        }
    }

    /// Enters the answer of one of `count` sentinels. `true`: this is another configuration than
    /// was known, or the first.
    ///
    /// # Errors
    /// The reason why the answer is not believed.
    pub(super) fn believe(
        &mut self,
        (which, count): (usize, usize),
        said: NamedMaster,
        now: Instant,
    ) -> Result<bool, &'static str> {
        let Some(known) = &self.master else {
            self.in_doubt = false;
            self.believe_in(said, now);
            return Ok(true);
        };
        let is_here = said.address == known.address;
        let is_older = said.config_epoch < known.config_epoch;
        let is_newer = said.config_epoch > known.config_epoch;
        if is_older {
            self.contradicted_by.insert(which);
            let is_old = |named| now.saturating_duration_since(named) >= FORGOTTEN;
            let is_forgotten =
                self.contradicted_by.len() * 2 > count && self.named.is_some_and(is_old);
            if is_here {
                self.answered = Some(now);
            }
            if !is_forgotten {
                let why = "the last one knows only an older configuration";
                return if is_here { Ok(false) } else { Err(why) };
            }
        } else if !is_newer && !is_here && !self.in_doubt {
            return Err("the last one names another master for the same configuration");
        }
        let is_news = !is_here || is_newer;
        if is_news {
            self.replaced = Some(now);
            self.epoch += 1;
            self.in_doubt = false;
        }
        self.believe_in(said, now);
        Ok(is_news)
    }

    fn believe_in(&mut self, said: NamedMaster, now: Instant) {
        self.master = Some(said);
        (self.answered, self.named) = (Some(now), Some(now));
        self.contradicted_by.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn master(port: u16, config_epoch: u64) -> NamedMaster {
        NamedMaster {
            address: Address::new("a", port),
            config_epoch,
        }
    }

    /// Master 1 at epoch 7.
    fn known(now: Instant) -> Known {
        let mut known = Known::default();
        assert_eq!(known.believe((0, 3), master(1, 7), now), Ok(true));
        assert_eq!(known.believe((1, 3), master(1, 7), now), Ok(false));
        known
    }

    /// Has each of these sentinels give this answer once a second, in these seconds after the
    /// start.
    fn told(
        known: &mut Known,
        who: &[usize],
        said: &NamedMaster,
        seconds: std::ops::Range<u32>,
        start: Instant,
    ) -> Vec<Result<bool, &'static str>> {
        let told = seconds.flat_map(|second| who.iter().map(move |at| (second, *at)));
        let told =
            told.map(|(second, at)| known.believe((at, 3), said.clone(), start + second * SECOND));
        told.collect()
    }

    fn are_refused(beliefs: &[Result<bool, &'static str>]) -> bool {
        beliefs.iter().all(Result::is_err)
    }

    #[test]
    fn a_greater_config_epoch_is_believed_from_any_sentinel() {
        let start = Instant::now();
        let mut known = known(start);
        assert_eq!(known.believe((2, 3), master(2, 8), start), Ok(true));
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
    fn another_address_with_the_same_epoch_is_believed_only_in_doubt() {
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
        assert_eq!(known.believe((2, 3), master(2, 7), start), Ok(true));
        assert!(are_refused(&told(
            &mut known,
            &[0],
            &master(1, 7),
            0..60,
            start
        )));
    }

    #[test]
    fn an_older_epoch_is_believed_if_most_name_older_ones_for_ten_seconds() {
        let start = Instant::now();
        // One sentinel alone is never enough.
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
        assert_eq!(beliefs, [Ok(true), Ok(false)]);
    }

    #[test]
    fn a_sentinel_that_names_the_known_epoch_restarts_the_ten_seconds() {
        let start = Instant::now();
        let mut known = known(start);
        told(&mut known, &[0, 1], &master(2, 1), 0..10, start);
        let now = start + 9 * SECOND;
        assert_eq!(known.believe((2, 3), master(1, 7), now), Ok(false));
        assert!(are_refused(&told(
            &mut known,
            &[0, 1],
            &master(2, 1),
            10..19,
            start
        )));
        let beliefs = told(&mut known, &[0], &master(2, 1), 19..20, start);
        assert_eq!(beliefs, [Ok(true)]);
    }

    #[test]
    fn a_known_masters_older_epoch_is_accepted_after_a_while() {
        let start = Instant::now();
        let mut known = known(start);
        let beliefs = told(&mut known, &[0, 1], &master(1, 0), 0..11, start);
        assert!(beliefs.iter().all(|it| *it == Ok(false)));
        assert_eq!(known.replaced, None);
        // The next failover still counts.
        let now = start + 12 * SECOND;
        assert_eq!(known.believe((0, 3), master(2, 1), now), Ok(true));
    }
}
