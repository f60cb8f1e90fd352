//! The faults that were made, with their targets, and the loops that make them.

use std::{
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use super::Kind;
use crate::clock::{Nanos, now};

/// `None`: there was no target.
pub(crate) type Made = anyhow::Result<Option<Hit>>;

pub(crate) type Log = Mutex<Vec<Fault>>;

/// The target of a fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hit {
    lock: Option<&'static str>,
    /// The workers that were kept from working.
    pub(super) workers: Vec<u32>,
    /// The locks on the server, if others were on another server.
    shard: Option<Vec<&'static str>>,
    /// The last moment of the announced effect, if it was before the end.
    broke_until: Option<Nanos>,
}

impl Hit {
    pub(super) fn all() -> Self {
        Self::default()
    }

    pub(super) fn lock(lock: &'static str) -> Self {
        Self {
            lock: Some(lock),
            ..Self::default()
        }
    }

    pub(super) fn workers(workers: Vec<u32>) -> Self {
        Self {
            workers,
            ..Self::default()
        }
    }

    pub(super) fn shard(locks: Vec<&'static str>) -> Self {
        Self {
            shard: Some(locks),
            ..Self::default()
        }
    }

    pub(super) fn broke_until(self, at: Nanos) -> Self {
        Self {
            broke_until: Some(at),
            ..self
        }
    }
}

/// A fault that was made.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: &'static Kind,
    /// True if the fault was made completely.
    pub(crate) counts: bool,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    pub(crate) broke_until: Nanos,
    pub(crate) lock: Option<&'static str>,
    shard: Option<Vec<&'static str>>,
    pub(crate) worker: Option<u32>,
}

impl Fault {
    /// Returns true if the fault hit this lock. Sums and the like have none.
    pub(crate) fn hits(&self, lock: &str) -> bool {
        let hits_shard = |locks: &Vec<&str>| lock.is_empty() || locks.contains(&lock);
        self.lock.is_none_or(|hit| hit == lock) && self.shard.as_ref().is_none_or(hits_shard)
    }
}

impl Fault {
    /// Creates a fault that lasts for the whole round.
    pub(crate) fn of_a_round(kind: &'static Kind, from: Nanos) -> Self {
        let to = now();
        Self {
            kind,
            counts: true,
            from,
            to,
            broke_until: to,
            lock: None,
            shard: None,
            worker: None,
        }
    }
}

/// Makes faults.
pub(crate) trait Maker {
    fn random(&mut self) -> &mut fastrand::Rng;

    fn make(&mut self, kind: &'static Kind) -> Made;

    /// The longest pause between two faults, in milliseconds.
    fn longest_rest(&self) -> u64 {
        150
    }

    fn after_each(&mut self, _log: &Log) {}

    fn rest(&mut self, most: u64) {
        thread::sleep(Duration::from_millis(self.random().u64(most / 5..=most)));
    }
}

/// Makes faults of these kinds, one after the other.
pub(crate) fn in_turn(
    maker: &mut impl Maker,
    kinds: &[&'static Kind],
    go_on: &dyn Fn() -> bool,
    log: &Log,
) {
    let mut order = Vec::new();
    while !kinds.is_empty() && go_on() {
        let kind = next(&mut order, kinds, maker.random());
        let from = now();
        let made = maker.make(kind);
        note(kind, from, made, log);
        maker.after_each(log);
        maker.rest(maker.longest_rest());
    }
    maker.after_each(log);
}

/// Picks each kind once, in random order, before repeating any.
fn next(
    order: &mut Vec<&'static Kind>,
    kinds: &[&'static Kind],
    random: &mut fastrand::Rng,
) -> &'static Kind {
    if order.is_empty() {
        order.extend_from_slice(kinds);
        random.shuffle(order);
    }
    order.pop().unwrap_or(kinds[0])
}

/// A fault that failed does not count but may have happened in part: it still announces and
/// disturbs.
pub(super) fn note(kind: &'static Kind, from: Nanos, made: Made, log: &Log) {
    let (hit, counts) = match made {
        Ok(None) => return,
        Ok(Some(hit)) => (hit, true),
        Err(_) => (Hit::default(), false),
    };
    let to = now();
    let fault = |worker| Fault {
        kind,
        counts,
        from,
        to,
        broke_until: hit.broke_until.unwrap_or(to),
        lock: hit.lock,
        shard: hit.shard.clone(),
        worker,
    };
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    if hit.workers.is_empty() {
        log.push(fault(None));
    }
    log.extend(hit.workers.iter().map(|worker| fault(Some(*worker))));
}
