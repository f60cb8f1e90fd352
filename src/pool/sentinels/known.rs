//! Decides which of the sentinels' answers to believe.
//!
//! [`elected`] compares the last answers of all: the greatest config-epoch counts, and among equal
//! ones the address that more than half of all sentinels name. What follows for the known master:
//!
//! - A newer configuration replaces it at once.
//! - Another address for the same configuration replaces it if more than half of the sentinels name
//!   it: a group that is set up anew counts its epochs from 0 again.
//! - Any other configuration replaces it once nobody has named the known one for [`COUNTS`]: then
//!   the epochs were set back, and a process that starts now believes the other one too.
//! - Until then, and while no address has a majority, the sentinels are in dispute: no lock is
//!   requested from anyone, and what is held stays where it is.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    fmt, mem,
    time::{Duration, Instant},
};

use crate::{
    pool::connector::{Address, MasterPlace},
    time,
};

/// An answer counts for this long, unless the same sentinel gives another. Sentinels exchange their
/// configuration every two seconds, so one that only lags behind catches up in this time.
const COUNTS: Duration = Duration::from_secs(10);

/// After a failover no lock is requested from the new master for this long. Meanwhile other
/// processes learn of it, and find out which of their leases it lacks.
pub(super) const QUIET_AFTER_FAILOVER: Duration = Duration::from_millis(500);

/// The believed master, and the answers behind it.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) master: Option<NamedMaster>,
    /// Grows when another server becomes the master, and when a dispute begins: no connection from
    /// before may be used for new locks.
    pub(super) epoch: u64,
    /// The moment at which this master replaced another one or a dispute ended, if known.
    pub(super) replaced: Option<Instant>,
    /// The moment at which a sentinel last answered.
    pub(super) answered: Option<Instant>,
    /// The moment at which a sentinel was last asked, with or without an answer.
    pub(super) asked: Option<Instant>,
    /// Something has happened since the last answer that the answer does not explain.
    pub(super) in_doubt: bool,
    /// The answers do not tell which server is the master.
    pub(super) in_dispute: bool,
    /// The last answer of each sentinel, with its moment.
    answers: BTreeMap<usize, (NamedMaster, Instant)>,
    /// The moment at which a sentinel last named this configuration.
    named: Option<Instant>,
}

/// The master that a sentinel names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedMaster {
    pub(super) address: Address,
    /// Counts the failovers.
    pub(super) config_epoch: u64,
}

impl fmt::Display for NamedMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (config-epoch {})", self.address, self.config_epoch)
    }
}

/// Returns the configuration with the greatest epoch, if all that name this epoch agree on its
/// address, or more than half of all `count` sentinels do. A silent sentinel may name any of the
/// addresses.
fn elected<'a>(answers: &[&'a NamedMaster], count: usize) -> Option<&'a NamedMaster> {
    let greatest = answers.iter().map(|it| it.config_epoch).max()?;
    let newest = || (answers.iter().copied()).filter(|it| it.config_epoch == greatest);
    let votes = |one| newest().filter(|it| *it == one).count();
    newest().find(|one| votes(*one) == newest().count() || 2 * votes(*one) > count)
}

impl Known {
    pub(super) fn place(&self) -> Option<MasterPlace> {
        let master = self.master.as_ref()?;
        Some(MasterPlace {
            address: master.address.clone(),
            epoch: self.epoch,
        })
    }

    /// Returns the answers that count, with the sentinel's index.
    pub(super) fn answers(&self) -> impl Iterator<Item = (usize, &NamedMaster)> {
        (self.answers.iter()).map(|(which, (said, _))| (*which, said))
    }

    /// Returns true if no answer contradicts the known master: then one is enough.
    pub(super) fn is_undisputed(&self) -> bool {
        self.answers()
            .all(|(_, said)| Some(said) == self.master.as_ref())
    }

    /// Records the age of the first known master: after a very recent failover, other processes may
    /// not know of it yet.
    pub(super) fn note_age(&mut self, for_how_long: Duration) {
        if let Some(at) = time::now()
            .checked_sub(for_how_long)
            .filter(|_| for_how_long < QUIET_AFTER_FAILOVER)
        {
            self.replaced = self.replaced.max(Some(at));
        }
    }

    /// Records the answer of a sentinel. [`settle`](Self::settle) draws the conclusion.
    pub(super) fn note(&mut self, which: usize, said: NamedMaster, now: Instant) {
        if self.master.as_ref() == Some(&said) {
            self.named = Some(now);
        }
        self.answered = Some(now);
        self.answers.insert(which, (said, now));
    }

    /// Decides by the answers of `count` sentinels. Returns true if another configuration replaces
    /// a known one.
    pub(super) fn settle(&mut self, count: usize, now: Instant) -> bool {
        let is_old = |at| now.saturating_duration_since(at) >= COUNTS;
        self.answers.retain(|_, (_, at)| !is_old(*at));
        let is_forgotten = self.named.is_none_or(is_old);
        let Some(master) = self.agreed(count, is_forgotten) else {
            if !mem::replace(&mut self.in_dispute, true) {
                self.epoch += 1;
            }
            return false;
        };
        let is_other = |known: &NamedMaster| {
            known.address != master.address || known.config_epoch < master.config_epoch
        };
        let is_news = self.master.as_ref().is_some_and(is_other);
        if is_news {
            self.epoch += 1;
            self.in_doubt = false;
        }
        if mem::take(&mut self.in_dispute) || is_news {
            self.replaced = Some(now);
        }
        if self.master.as_ref() != Some(&master) {
            (self.master, self.named) = (Some(master), Some(now));
        }
        is_news
    }

    /// Returns the configuration to believe: the elected one, or the known one if that is no
    /// contradiction.
    fn agreed(&self, count: usize, is_forgotten: bool) -> Option<NamedMaster> {
        let answers: Vec<_> = self.answers().map(|(_, said)| said).collect();
        let elected = elected(&answers, count)?;
        let Some(known) = &self.master else {
            return Some(elected.clone());
        };
        let votes = answers.iter().filter(|said| **said == elected).count();
        // Once the known one is forgotten, a new process would believe the elected one, however few
        // have answered.
        let replaces = match elected.config_epoch.cmp(&known.config_epoch) {
            Ordering::Greater => true,
            Ordering::Equal => 2 * votes > count || is_forgotten,
            Ordering::Less => is_forgotten,
        };
        let is_here = elected.address == known.address;
        let believed = if replaces { elected } else { known };
        (replaces || is_here).then(|| believed.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The port and the config-epoch of a master.
    type Said = (u16, u64);

    fn master((port, config_epoch): Said) -> NamedMaster {
        NamedMaster {
            address: Address::new("a", port),
            config_epoch,
        }
    }

    /// All orders of these numbers.
    fn orders(of: &[usize]) -> Vec<Vec<usize>> {
        if of.is_empty() {
            return vec![Vec::new()];
        }
        let first = |at: usize| {
            let rest: Vec<_> = (of.iter().copied()).filter(|it| *it != of[at]).collect();
            let orders = orders(&rest).into_iter();
            orders.map(move |rest| [vec![of[at]], rest].concat())
        };
        (0..of.len()).flat_map(first).collect()
    }

    /// The state after all of these sentinels have named this master.
    fn known(said: Said, count: usize, now: Instant) -> Known {
        let mut known = Known::default();
        for which in 0..count {
            known.note(which, master(said), now);
        }
        assert!(!known.settle(count, now));
        known
    }

    /// `None`: the sentinels are in dispute.
    fn believed(known: &Known) -> Option<NamedMaster> {
        known.master.clone().filter(|_| !known.in_dispute)
    }

    /// When asked first, and by those who knew any of them before.
    #[test]
    fn the_same_master_is_believed_in_any_order_at_first_and_later() {
        let now = Instant::now();
        for (said, expected) in [
            (&[(1, 0)][..], Some((1, 0))),
            (&[(1, 0), (1, 0)], Some((1, 0))),
            (&[(1, 0), (2, 0)], None),
            (&[(1, 0), (2, 1)], Some((2, 1))),
            (&[(1, 0), (1, 0), (2, 0)], Some((1, 0))),
            (&[(1, 0), (2, 0), (3, 0)], None),
            (&[(1, 0), (1, 0), (2, 1)], Some((2, 1))),
            (&[(1, 1), (2, 1), (2, 0)], None),
            (&[(1, 0), (1, 0), (2, 0), (2, 0)], None),
            (&[(1, 0), (1, 0), (1, 0), (2, 0)], Some((1, 0))),
            (&[(1, 0), (1, 0), (1, 0), (2, 0), (2, 0)], Some((1, 0))),
        ] {
            let expected = expected.map(master);
            for order in orders(&(0..said.len()).collect::<Vec<_>>()) {
                let mut first = Known::default();
                for which in &order {
                    first.note(*which, master(said[*which]), now);
                }
                first.settle(said.len(), now);
                assert_eq!(believed(&first), expected, "{said:?} {order:?}");
                for port in 1..=3 {
                    let mut later = known((port, 0), said.len(), now);
                    for which in &order {
                        later.note(*which, master(said[*which]), now);
                        later.settle(said.len(), now);
                    }
                    let order = format!("{said:?} {order:?} after {port}");
                    assert_eq!(believed(&later), expected, "{order}");
                    let is_other = later.master != Some(master((port, 0)));
                    assert!(!is_other || later.replaced == Some(now), "{order}");
                }
            }
        }
    }

    /// A silent sentinel may name either: a new process and an old one need the same majority.
    #[test]
    fn of_those_that_contradict_each_other_one_needs_most_of_all_sentinels() {
        let now = Instant::now();
        for (count, expected) in [(3, Some((2, 0))), (4, None), (5, None)] {
            for mut one in [Known::default(), known((1, 0), 1, now)] {
                for (which, port) in [(0, 1), (1, 2), (2, 2)] {
                    one.note(which, master((port, 0)), now);
                }
                one.settle(count, now);
                assert_eq!(believed(&one), expected.map(master), "{count}");
            }
        }
    }

    /// Until nobody has named the known master for ten seconds.
    #[test]
    fn half_of_the_sentinels_do_not_replace_a_master_of_the_same_configuration() {
        let now = Instant::now();
        for (answered, count, replaces) in
            [(1, 1, true), (1, 2, false), (2, 3, true), (2, 4, false)]
        {
            let mut known = known((1, 0), answered, now);
            for which in 0..answered {
                known.note(which, master((2, 0)), now);
            }
            assert_eq!(known.settle(count, now), replaces, "{answered} of {count}");
        }
    }

    /// From each of these seconds on, the three give these answers every second. `None`: silence.
    #[test]
    fn an_older_configuration_needs_ten_seconds_without_the_known_one() {
        type Answers = [Option<Said>; 3];
        let start = Instant::now();
        let (known_one, other) = (Some((1, 7)), Some((2, 7)));
        let (same, back, next) = (Some((1, 1)), Some((2, 1)), Some((3, 2)));
        for (answers, changed) in [
            (&[(0, [back, back, back])][..], Some(10)),
            (&[(0, [back, None, back])], Some(10)),
            (&[(0, [None, None, back])], Some(10)),
            (&[(0, [None, None, other])], Some(10)),
            (
                &[(0, [None, None, other]), (5, [known_one, None, None])],
                None,
            ),
            (&[(0, [None, other, other])], Some(0)),
            (&[(0, [back; 3]), (5, [None, known_one, None])], None),
            (
                &[
                    (0, [back; 3]),
                    (5, [None, None, known_one]),
                    (6, [back, back, None]),
                ],
                Some(15),
            ),
            (&[(0, [same; 3])], None),
            (&[(0, [same; 3]), (5, [same, same, next])], Some(10)),
            (&[(0, [same; 3]), (20, [same, same, next])], Some(20)),
        ] {
            let answers: &[(u32, Answers)] = answers;
            let mut known = known((1, 7), 3, start);
            let mut first_news = None;
            for second in 0..30 {
                let now = start + second * Duration::from_secs(1);
                let given = answers.iter().rfind(|(from, _)| *from <= second).unwrap().1;
                for (which, said) in given.into_iter().enumerate() {
                    let Some(said) = said else { continue };
                    known.note(which, master(said), now);
                    if known.settle(3, now) {
                        first_news.get_or_insert(second);
                    }
                }
            }
            assert_eq!(first_news, changed, "{answers:?}");
        }
    }

    #[test]
    fn a_dispute_closes_connections_once_and_its_end_is_like_a_failover() {
        let now = Instant::now();
        let mut known = known((1, 0), 2, now);
        for (said, in_dispute, epoch) in [
            ((2, 0), true, 1),
            ((2, 0), true, 1),
            ((1, 0), false, 1),
            ((2, 1), false, 2),
        ] {
            known.replaced = None;
            known.note(1, master(said), now);
            known.settle(2, now);
            assert_eq!(
                (known.in_dispute, known.epoch),
                (in_dispute, epoch),
                "{said:?}"
            );
            assert_eq!(known.replaced, (!in_dispute).then_some(now), "{said:?}");
        }
    }
}
