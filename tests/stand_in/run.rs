//! Two processes perform random operations on locks, and record the results.

use std::{
    cmp::Reverse,
    collections::HashMap,
    time::{Duration, Instant},
};

use leasehold::{Error, FencingToken, Inspection, Lease, Locks};
use proptest::sample::Index;

use crate::{
    steps::{How, Kind, PASSED, SHORT, Step, Which},
    world::{World, told},
};

/// Leases that must not expire are longer than a whole run.
const IN_ALL: Duration = Duration::from_secs(3);

/// The results, step by step; `None` if the run took so long that a lease may have expired by
/// chance.
pub(crate) fn transcript(
    world: &dyn World,
    processes: [Locks; 2],
    steps: &[Step],
) -> Option<Vec<String>> {
    let mut run = Run {
        world,
        processes,
        held: Vec::new(),
        kinds: HashMap::new(),
        last_fence: 0,
        began: Instant::now(),
        short_since: None,
        had_no_time: false,
    };
    steps.iter().map(|step| run.step_in_time(step)).collect()
}

/// Two processes and their leases.
struct Run<'w> {
    world: &'w dyn World,
    processes: [Locks; 2],
    held: Vec<Lease>,
    /// The kind with which each lock was acquired or stolen last.
    kinds: HashMap<&'static str, Kind>,
    last_fence: u64,
    began: Instant,
    /// The start of the first lease that expires in the next `pass`.
    short_since: Option<Instant>,
    /// A wait ended before its second attempt, or a reply came too late.
    had_no_time: bool,
}

impl Run<'_> {
    fn step_in_time(&mut self, step: &Step) -> Option<String> {
        let told = self.step(step);
        let in_time = |short: Instant| short.elapsed() < SHORT * 3 / 4;
        let is_sure = self.short_since.is_none_or(in_time) && self.began.elapsed() < IN_ALL;
        (is_sure && !self.had_no_time).then_some(told)
    }

    fn step(&mut self, step: &Step) -> String {
        match step {
            Step::Acquire(which, wait) => self.acquire(which, *wait),
            Step::Release(index) => match self.take(*index) {
                Some(lease) => told(&lease.release()).to_owned(),
                None => String::new(),
            },
            Step::Drop(index) => {
                drop(self.take(*index));
                String::new()
            }
            Step::Leave(index) => self.leave(*index),
            Step::Verify(index) => self.of_one(*index, |lease| told(&lease.verify()).to_owned()),
            Step::Check(index) => self.of_one(*index, checked),
            Step::Renew(index) => self.of_one(*index, |lease| {
                told(&lease.renew(Duration::from_mins(1))).to_owned()
            }),
            Step::Inspect(name) => {
                let found = self.processes[0].lock(name).inspect().unwrap();
                self.described(&found)
            }
            Step::ForceRelease(name) => {
                let taken = self.processes[1].lock(name).force_release().unwrap();
                self.let_losses_be_known(name);
                self.described(&taken)
            }
            Step::Expire(name) => {
                let had = self.world.expire(name);
                self.let_losses_be_known(name);
                had.to_string()
            }
            Step::Steal(which) => self.steal(which),
            Step::Pass => {
                self.world.pass(PASSED);
                self.short_since = None;
                String::new()
            }
        }
    }

    fn acquire(&mut self, which: &Which, wait: Duration) -> String {
        let (lock, asked) = (which.lock(&self.processes), Instant::now());
        let came = if wait.is_zero() {
            lock.try_acquire()
        } else {
            lock.acquire(wait).map(Some)
        };
        let outcome = told(&came);
        let Ok(Some(lease)) = came else {
            // The reply came when the short lease was over.
            self.had_no_time |= outcome == "unknown";
            self.had_no_time |= outcome == "contended" && self.is_of_another_kind(which);
            return format!("{outcome}, not had");
        };
        self.kinds.insert(which.name, which.kind);
        if which.how.is_short() {
            self.short_since.get_or_insert(asked);
        }
        let fence = lease.fencing_token().map(FencingToken::get);
        let grew = fence.map(|fence| fence.cmp(&self.last_fence));
        self.last_fence = fence.unwrap_or(0).max(self.last_fence);
        self.held.push(lease);
        format!("had, fencing token {grew:?}")
    }

    /// The bare command that acquires a mutex without a fencing token does not see a lock's kind.
    /// The next attempt does, if the wait leaves time for it.
    fn is_of_another_kind(&self, which: &Which) -> bool {
        let usual = Which {
            how: How::Usual,
            ..which.clone()
        };
        let is_bare = which.how == How::Unfenced && matches!(which.kind, Kind::Mutex);
        is_bare
            && matches!(
                usual.lock(&self.processes).try_acquire(),
                Err(Error::WrongKind { .. })
            )
    }

    fn leave(&mut self, index: Index) -> String {
        let Some(lease) = self.take(index) else {
            return String::new();
        };
        let verified = told(&lease.verify());
        let is_over = lease.detach().1.is_zero();
        format!("{verified} {}", is_over || verified == "wrong kind")
    }

    /// Takes the lock with its current kind, if it has one.
    fn steal(&mut self, which: &Which) -> String {
        let found = self.processes[0].lock(which.name).inspect().unwrap();
        let kind = match self.kinds.get(which.name).filter(|_| found.is_held()) {
            Some(Kind::Read) => Kind::Write,
            Some(kind) => *kind,
            None => Kind::Mutex,
        };
        self.kinds.insert(which.name, kind);
        let which = Which {
            kind,
            ..which.clone()
        };
        self.world.steal(&which.lock(&self.processes));
        self.let_losses_be_known(which.name);
        String::new()
    }

    fn take(&mut self, index: Index) -> Option<Lease> {
        if self.held.is_empty() {
            return None;
        }
        let place = index.index(self.held.len());
        Some(self.held.remove(place))
    }

    /// A server reports a loss after a moment: the next step may depend on it.
    fn let_losses_be_known(&self, name: &str) {
        for lease in self.held.iter().filter(|lease| lease.name() == name) {
            assert!(lease.lost().wait_for(Duration::from_secs(20)));
        }
    }

    fn of_one(&self, index: Index, ask: impl FnOnce(&Lease) -> String) -> String {
        if self.held.is_empty() {
            return String::new();
        }
        ask(index.get(&self.held))
    }

    fn described(&self, found: &Inspection) -> String {
        let holders = found.holders().iter().map(|holder| {
            let ours = |lease: &Lease| holder.token().is_some_and(|token| token == lease.token());
            let ours = self.held.iter().position(ours);
            let fence = holder.fencing_token().map(FencingToken::get);
            let is_its =
                ours.map(|ours| self.held[ours].fencing_token().map(FencingToken::get) == fence);
            format!(
                "{ours:?} fence {is_its:?} owner {:?} count {:?} reader {} ends {} since {}",
                holder.owner(),
                holder.count(),
                holder.is_reader(),
                holder.remaining().is_some_and(is_long),
                holder.since().is_some(),
            )
        });
        let mut holders: Vec<_> = holders.collect();
        holders.sort_by_key(|text| Reverse(text.clone()));
        format!(
            "{} {} {} {holders:?}",
            found.is_foreign(),
            found.waiting_writers(),
            found.waiting_here()
        )
    }
}

fn is_long(left: Duration) -> bool {
    left > Duration::from_secs(4)
}

/// The state known without a question.
fn checked(lease: &Lease) -> String {
    format!(
        "{} {} {:?} {:?} long {}",
        told(&lease.check()),
        lease.is_held(),
        lease.lost().reason(),
        lease.state(),
        is_long(lease.remaining())
    )
}
