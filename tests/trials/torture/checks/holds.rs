//! Turns records into holds.

use std::collections::HashMap;

use super::{Checker, Evidence, Figures, Span, Violation};
use crate::{
    clock::Nanos,
    history::{Asked, Granted, Mode, Record},
    sums::ONCE,
};

/// An attempt to acquire a lock, and its result.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) asked: Asked,
    pub(crate) granted: Option<Granted>,
    /// The last moment at which its holder was sure of it.
    pub(crate) sure_until: Nanos,
    /// The time of a refusal, and whether the result is unknown.
    pub(crate) refused: Option<(Nanos, bool)>,
    /// The time for which its thread was runnable without a free core while it waited.
    pub(crate) kept_ready: Nanos,
    /// The time at which the wait was cancelled, or would have been if it had not ended before.
    pub(crate) called_off: Option<Nanos>,
    pub(crate) ended: Option<(Nanos, Option<Nanos>)>,
    /// The time at which its process was killed, if that was before its end.
    pub(crate) killed: Option<Nanos>,
}

impl Hold {
    fn new(asked: Asked) -> Self {
        Self {
            asked,
            granted: None,
            sure_until: 0,
            refused: None,
            called_off: None,
            kept_ready: 0,
            ended: None,
            killed: None,
        }
    }

    /// Returns the time in which its holder was sure: from the grant to the last check.
    pub(crate) fn sure(&self) -> Option<Span> {
        let granted = self.granted.as_ref()?;
        (self.sure_until >= granted.at).then_some(Span {
            from: granted.at,
            to: self.sure_until,
        })
    }

    /// Returns the longest time in which it may have held the lock on the server.
    pub(crate) fn perhaps(&self) -> Span {
        let lease = self.asked.lease;
        let to = match (self.refused, self.ended) {
            (Some((at, false)), _) => at,
            (Some((at, true)), _) => at + lease,
            (None, Some((_, Some(released)))) => released,
            (None, Some((at, None))) => at.max(self.sure_until) + lease,
            (None, None) => {
                let last = self
                    .granted
                    .as_ref()
                    .map_or(self.asked.at, |granted| granted.at);
                self.killed.unwrap_or(last.max(self.sure_until)) + lease
            }
        };
        Span {
            from: self.asked.at,
            to,
        }
    }

    /// Returns the time of its wait.
    pub(crate) fn waited(&self) -> Option<Span> {
        let to = match (&self.granted, self.refused) {
            (Some(granted), _) => granted.at,
            (None, Some((at, _))) => at,
            (None, None) => return None,
        };
        Some(Span {
            from: self.asked.at,
            to,
        })
    }

    /// Returns true if the two must not overlap. Two of several permits may.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        if let Mode::Permit(permits) = self.asked.mode {
            return permits == 1;
        }
        let both_share = self.asked.mode == Mode::Shared && other.asked.mode == Mode::Shared;
        let same_owner = self.asked.owner.is_some() && self.asked.owner == other.asked.owner;
        !both_share && !same_owner
    }
}

/// All holds, by lock.
pub(crate) struct Holds(pub(crate) HashMap<String, Vec<Hold>>);

impl Holds {
    pub(crate) fn of(evidence: &Evidence<'_>, figures: &mut Figures) -> Self {
        let mut by_id: HashMap<u64, Hold> = HashMap::new();
        for record in evidence.records {
            if let Record::Asked(asked) = record {
                by_id.insert(asked.id, Hold::new(asked.clone()));
            }
        }
        for record in evidence.records {
            match record {
                Record::Granted(granted) => {
                    if let Some(hold) = by_id.get_mut(&granted.id) {
                        hold.granted = Some(granted.clone());
                    }
                }
                Record::Refused { id, at, unknown } => {
                    if let Some(hold) = by_id.get_mut(id) {
                        hold.refused = Some((*at, *unknown));
                    }
                }
                Record::KeptReady { id, by } => {
                    if let Some(hold) = by_id.get_mut(id) {
                        hold.kept_ready = *by;
                    }
                }
                Record::CalledOff { id, at } => {
                    if let Some(hold) = by_id.get_mut(id) {
                        hold.called_off = Some(*at);
                    }
                }
                Record::Held { id, at } => {
                    if let Some(hold) = by_id.get_mut(id) {
                        hold.sure_until = hold.sure_until.max(*at);
                    }
                }
                Record::Ended { id, at, released } => {
                    if let Some(hold) = by_id.get_mut(id) {
                        hold.ended = Some((*at, *released));
                        *figures.pairs.entry(hold.asked.job.clone()).or_default() += 1;
                    }
                }
                Record::Ran { .. } => {
                    *figures.pairs.entry("run-once".to_owned()).or_default() += 1;
                }
                Record::Added { number, .. } if number == ONCE => {
                    *figures.pairs.entry("commit-once".to_owned()).or_default() += 1;
                }
                Record::Failed { what } => {
                    *figures.failures.entry(what.clone()).or_default() += 1;
                }
                _ => {}
            }
        }
        let mut by_lock: HashMap<String, Vec<Hold>> = HashMap::new();
        for (_, mut hold) in by_id {
            if let (Some(_), Some(waited)) = (&hold.granted, hold.waited()) {
                let of_job = figures.waited.entry(hold.asked.job.clone()).or_default();
                of_job.times += 1;
                of_job.in_all += waited.length();
                of_job.longest = of_job.longest.max(waited.length());
            }
            if hold.ended.is_none() && hold.refused.is_none() {
                hold.killed = evidence.killed.get(&hold.asked.worker).copied();
            }
            by_lock
                .entry(hold.asked.lock.clone())
                .or_default()
                .push(hold);
        }
        for holds in by_lock.values_mut() {
            holds.sort_by_key(|hold| hold.asked.at);
        }
        Self(by_lock)
    }
}

/// Returns the violations that workers noticed themselves.
pub(crate) fn broken(evidence: &Evidence<'_>) -> Vec<Violation> {
    let seen = |record: &Record| match record {
        Record::Broken {
            checker,
            lock,
            at,
            what,
        } => {
            let named = Checker::ALL
                .into_iter()
                .find(|known| known.name() == checker);
            // The worker's observation depends on a hold that may have begun a lease or two before.
            let from = at.saturating_sub(crate::clock::millis(2_000));
            let span = Span { from, to: *at };
            let checker = named.unwrap_or(Checker::Alive);
            Some(Violation::new(checker, lock, span, what.clone()))
        }
        Record::Left { worker, files } if *files > 0 => Some(Violation::new(
            Checker::LeftBehind,
            "",
            Span { from: 0, to: 0 },
            format!("worker {worker} has {files} more open files than at its start"),
        )),
        _ => None,
    };
    evidence.records.iter().filter_map(seen).collect()
}
