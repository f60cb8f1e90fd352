//! The checks of a round's history. [`crate::bug`] shows that each of them finds its bug.

mod deaths;
mod exclusion;
mod fencing;
mod free;
mod holds;
mod once;
mod server_log;
mod spans;

use std::{collections::HashMap, fmt};

use crate::{
    clock::{Nanos, millis},
    crew::has_own_clock,
    faults::{self, Fault},
    history::Record,
    sums::ONCE,
};
pub(crate) use holds::{Hold, Holds};
pub(crate) use spans::Span;

/// The delay that counts as "at once", unless a smaller one is promised.
pub(crate) const SLACK: Nanos = millis(250);

/// Its numbers are slightly behind the clock of the server that gives them, and for a while two
/// servers may.
const HANDED_OVER: &str = "h0";

/// A holder that uses its own clock and is not told of a new master believes in its lock for one
/// lease.
const NOT_TOLD: Nanos = millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Checker {
    /// Two holders that exclude each other never held a lock at once: I3.
    Exclusion,
    /// Numbers grow, each is used once, and the holder is not refused: I1.
    Fencing,
    /// No holder was sure of a lock after its end in the server's own log: I4.
    ServerLog,
    /// No waiter waited while the lock was free, and a dead holder's lock was free within its
    /// lease: I6, I16.
    Free,
    /// Waits ended on time: I7.
    Deadline,
    /// The count of a reentrant lock is at least the number of levels held: I13.
    ReEntry,
    /// Commits were made as often as reported; no money or items were created or lost.
    Sums,
    /// Once-only work was done once in a period.
    Once,
    /// Nothing is left on the server or in a worker: I9, I11.
    LeftBehind,
    /// No panic, and every worker ended: I10.
    Alive,
    /// A forked child is refused everything, and takes nothing from its parent.
    Fork,
}

impl Checker {
    pub(crate) const ALL: [Self; 11] = [
        Self::Exclusion,
        Self::Fencing,
        Self::ServerLog,
        Self::Free,
        Self::Deadline,
        Self::ReEntry,
        Self::Sums,
        Self::Once,
        Self::LeftBehind,
        Self::Alive,
        Self::Fork,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::Fencing => "fencing",
            Self::ServerLog => "server-log",
            Self::Free => "free",
            Self::Deadline => "deadline",
            Self::ReEntry => "re-entry",
            Self::Sums => "sums",
            Self::Once => "once",
            Self::LeftBehind => "left-behind",
            Self::Alive => "alive",
            Self::Fork => "fork",
        }
    }
}

/// A violated check.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) checker: Checker,
    pub(crate) lock: String,
    /// A fault in this time may be the cause.
    pub(crate) span: Span,
    pub(crate) what: String,
    /// The workers involved.
    pub(crate) workers: Vec<u32>,
    /// The time at which it was over.
    pub(crate) over: Nanos,
    /// The resource refused a holder because it had seen a greater number.
    pub(crate) is_refusal: bool,
    /// The kind of a fault for which docs/guarantees.md announces it.
    pub(crate) announced: bool,
    pub(crate) by: Option<&'static str>,
}

impl Violation {
    pub(crate) fn new(checker: Checker, lock: &str, span: Span, what: String) -> Self {
        Self {
            checker,
            lock: lock.to_owned(),
            span,
            what,
            workers: Vec::new(),
            over: span.to,
            is_refusal: false,
            announced: false,
            by: None,
        }
    }

    pub(crate) fn refusal(lock: &str, span: Span, what: String) -> Self {
        Self {
            is_refusal: true,
            ..Self::new(Checker::Fencing, lock, span, what)
        }
    }

    pub(crate) fn of_workers(self, workers: &[u32]) -> Self {
        Self {
            workers: workers.to_vec(),
            ..self
        }
    }

    /// Looks for a fault that explains it.
    pub(crate) fn judge(&mut self, faults: &[Fault]) {
        let explains = |fault: &&Fault| {
            (fault.kind.announces.contains(&self.checker) || self.is_a_commit_made_again(fault))
                && !self.is_of_permits_alone(fault)
                && fault.hits(&self.lock)
                && self.span.meets(Span {
                    from: fault.from,
                    to: fault.broke_until,
                })
                && (fault.kind.rate().is_none() || self.workers.iter().any(|at| has_own_clock(*at)))
                && (!fault.kind.fails_over() || self.may_come_of_a_failover(fault))
        };
        let cause = faults
            .iter()
            .find(explains)
            .or_else(|| self.lost_number(faults));
        self.announced = cause.is_some();
        self.by = cause.map(|fault| fault.kind.name);
    }

    /// Returns false for a lock that all replicas confirmed, for numbers, which still grow, and
    /// once all clients know the new master.
    fn may_come_of_a_failover(&self, fault: &Fault) -> bool {
        !faults::is_replicated(&self.lock)
            && (self.checker != Checker::Fencing || self.is_refusal || self.lock == HANDED_OVER)
            && (self.checker == Checker::Sums || self.over <= fault.broke_until + NOT_TOLD + SLACK)
    }

    /// The companion keys of permits are only informative.
    fn is_of_permits_alone(&self, fault: &Fault) -> bool {
        let is_semaphore = faults::SEMAPHORES.contains(&&*self.lock);
        is_semaphore && fault.kind.name.ends_with("-companion")
    }

    /// The mark of the commit's id, which expires, was evicted.
    fn is_a_commit_made_again(&self, fault: &Fault) -> bool {
        let is_of_ids = self.checker == Checker::Sums && self.what.starts_with(ONCE);
        is_of_ids && fault.kind.name == "evict"
    }

    /// If the last number is lost *and* the clock is set back, numbers may be smaller than before.
    fn lost_number<'f>(&self, faults: &'f [Fault]) -> Option<&'f Fault> {
        let mut before = faults.iter().filter(|fault| fault.from <= self.span.to);
        let is_lost = before.clone().any(|fault| fault.kind.loses_companions());
        (self.checker == Checker::Fencing && is_lost)
            .then(|| before.find(|fault| fault.kind.name == "clock-back"))
            .flatten()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (checker, by) = (self.checker.name(), self.by.unwrap_or("no announced fault"));
        write!(f, "{checker} at `{}`: {} ({by})", self.lock, self.what)
    }
}

/// The number of waits of a job, and their times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waited {
    pub(crate) times: u64,
    pub(crate) in_all: Nanos,
    pub(crate) longest: Nanos,
}

/// The measurements of a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) pairs: HashMap<String, u64>,
    pub(crate) failures: HashMap<String, u64>,
    /// The times from the kill of a holder until another had the lock.
    pub(crate) deaths: Vec<Nanos>,
    /// Deaths that cannot be timed, since no one was waiting or the server was disturbed.
    pub(crate) deaths_untold: u64,
    /// Later than the lease, [`SLACK`], and the time for which the machine stood still.
    pub(crate) deaths_late: usize,
    /// Holds during which a process was halted past the lease.
    pub(crate) halted_holds: u64,
    pub(crate) writes: u64,
    pub(crate) writes_refused: u64,
    pub(crate) longest_wait: Nanos,
    /// For granted acquires, by job.
    pub(crate) waited: HashMap<String, Waited>,
    /// The longest part of a wait of at least 50 ms in which the lock or permit cannot have been
    /// held.
    pub(crate) longest_beside_a_free_lock: Nanos,
    /// The number of waits checked for a free lock.
    pub(crate) waits: u64,
}

/// All that the checks know of a round.
pub(crate) struct Evidence<'a> {
    pub(crate) records: &'a [Record],
    pub(crate) faults: &'a [Fault],
    /// The times at which worker processes were killed, by a fault or by accident.
    pub(crate) killed: &'a HashMap<u32, Nanos>,
    pub(crate) stalls: &'a [Span],
    /// True with several servers.
    pub(crate) are_several: bool,
    pub(crate) server_logs: &'a [Vec<u8>],
    /// The lead of the server's clock over ours, if it was not set.
    pub(crate) wall_is_ahead: Option<i128>,
}

/// Runs all checks.
pub(crate) fn check(evidence: &Evidence<'_>) -> (Vec<Violation>, Figures) {
    let mut figures = Figures::default();
    let holds = Holds::of(evidence, &mut figures);
    let mut found = holds::broken(evidence);
    found.extend(fencing::check(&holds, evidence, &mut figures));
    let ends = server_log::Ends::of(evidence);
    found.extend(exclusion::check(&holds, &ends, evidence));
    found.extend(server_log::check(&holds, &ends, evidence));
    found.extend(once::check(evidence.records));
    found.extend(free::check(&holds, &ends, evidence, &mut figures));
    for violation in &mut found {
        violation.judge(evidence.faults);
    }
    (found, figures)
}
