//! What has to be true of a round's history. Each checker is shown to find what it is for: see [`crate::bug`].

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

/// What "at once" means where nobody promises less.
pub(crate) const SLACK: Nanos = millis(250);

/// Its numbers lie a little before the clock of the server that gives them, and for a while two servers may.
const HANDED_OVER: &str = "h0";

/// Who goes by a clock of its own, and is not told of another master, believes in a lock for so long: a lease.
const NOT_TOLD: Nanos = millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Checker {
    /// Nobody was sure of a lock while another was who excludes it: I3.
    Exclusion,
    /// Numbers grow, each is used once, and who holds the lock is not refused: I1.
    Fencing,
    /// Nobody was sure of a lock after the server's end of it, as the server's own log has it: I4.
    ServerLog,
    /// Nobody waited beside a free lock, and a dead holder's lock was free within its lease: I6, I16.
    Free,
    /// Waits ended at their time: I7.
    Deadline,
    /// What a reentrant lock counts is at least what is held: I13.
    ReEntry,
    /// Commits were done as often as was said; money and items are what they were.
    Sums,
    /// What is to be done once in a period was done once.
    Once,
    /// Nothing is left on the server or in a worker: I9, I11.
    LeftBehind,
    /// No panic, no worker that does not end: I10.
    Alive,
    /// A fork's child is refused everything, and takes nothing from its parent.
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

/// Something that was not as it has to be.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) checker: Checker,
    pub(crate) lock: String,
    /// A fault in this time may be what it comes from.
    pub(crate) span: Span,
    pub(crate) what: String,
    /// Whose.
    pub(crate) workers: Vec<u32>,
    /// When it was over.
    pub(crate) over: Nanos,
    /// What was broken is that the resource refused a holder, since it knew another with a greater number.
    pub(crate) is_refusal: bool,
    /// By a fault for which docs/guarantees.md says so: its kind.
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

    /// Not at a lock that all replicas had; numbers grow all the same; and in time all are told.
    fn may_come_of_a_failover(&self, fault: &Fault) -> bool {
        !faults::is_replicated(&self.lock)
            && (self.checker != Checker::Fencing || self.is_refusal || self.lock == HANDED_OVER)
            && (self.checker == Checker::Sums || self.over <= fault.broke_until + NOT_TOLD + SLACK)
    }

    /// What stands beside permits is for people to read.
    fn is_of_permits_alone(&self, fault: &Fault) -> bool {
        let is_semaphore = faults::SEMAPHORES.contains(&&*self.lock);
        is_semaphore && fault.kind.name.ends_with("-companion")
    }

    /// By an id whose mark, which has an end, was evicted.
    fn is_a_commit_made_again(&self, fault: &Fault) -> bool {
        let is_of_ids = self.checker == Checker::Sums && self.what.starts_with(ONCE);
        is_of_ids && fault.kind.name == "evict"
    }

    /// Where the last number is lost *and* the clock is set back, numbers may be smaller than before.
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
        let (checker, by) = (self.checker.name(), self.by.unwrap_or("nothing announced"));
        write!(f, "{checker} at `{}`: {} ({by})", self.lock, self.what)
    }
}

/// How long a job has waited for its locks, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waited {
    pub(crate) times: u64,
    pub(crate) in_all: Nanos,
    pub(crate) longest: Nanos,
}

/// What was measured beside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) pairs: HashMap<String, u64>,
    pub(crate) failures: HashMap<String, u64>,
    /// Holders that were killed, and how long it took until the lock was another's.
    pub(crate) deaths: Vec<Nanos>,
    /// Those of which nobody can tell, since nobody waited or the server was disturbed.
    pub(crate) deaths_untold: u64,
    /// Later than the lease and [`SLACK`], and what the machine stood still.
    pub(crate) deaths_late: usize,
    /// Holds during which a process was halted past the lease.
    pub(crate) halted_holds: u64,
    pub(crate) writes: u64,
    pub(crate) writes_refused: u64,
    pub(crate) longest_wait: Nanos,
    /// Of acquires that were granted, by job.
    pub(crate) waited: HashMap<String, Waited>,
    /// Of waits of 50 ms and more, beside a lock or a permit that nobody can have had.
    pub(crate) longest_beside_a_free_lock: Nanos,
    /// Waits that were looked at for having slept beside a free lock.
    pub(crate) waits: u64,
}

/// All that the checks know of a round.
pub(crate) struct Evidence<'a> {
    pub(crate) records: &'a [Record],
    pub(crate) faults: &'a [Fault],
    /// When processes of workers were killed, by us or by an accident.
    pub(crate) killed: &'a HashMap<u32, Nanos>,
    pub(crate) stalls: &'a [Span],
    /// There are several servers.
    pub(crate) are_several: bool,
    pub(crate) server_logs: &'a [Vec<u8>],
    /// How far the server's clock is ahead of ours, if it was not set.
    pub(crate) wall_is_ahead: Option<i128>,
}

/// Looks at everything.
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
