//! The kinds of faults, what guarantees.md announces for each, and those who make them.

mod clients;
mod cluster;
mod keys;
mod made;
mod network;
mod processes;
mod sentinels;
mod server;
mod several;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use leasehold::redis::Connection;
use nix::unistd::Pid;

use crate::{
    checks::Checker,
    clock::{Nanos, millis, now},
    common::{Cluster, Proxy, Sentinels, Server},
    options::{Only, Topology},
    stage,
};
pub(crate) use made::{Fault, Log, Maker, in_turn};
use made::{Hit, Made, note};
pub(crate) use several::AtSeveral;

/// The locks that faults are made to.
const LOCKS: &[&str] = &["m0", "m1", "h0", "r0", "w0", "d0", "p0", SEMAPHORES[0]];
/// The lock that all replicas have to have before it is granted.
pub(crate) const REPLICATED: &str = "s0";
/// The semaphores, and the one of which all replicas have to have each permit.
pub(crate) const SEMAPHORES: &[&str] = &["n0", REPLICATED_PERMITS];
pub(crate) const REPLICATED_PERMITS: &str = "n1";

pub(crate) fn is_replicated(lock: &str) -> bool {
    [REPLICATED, REPLICATED_PERMITS].contains(&lock)
}

/// The locks of which sets are taken.
pub(crate) const OF_SETS: &[&str] = &[
    "a00", "a01", "a02", "a03", "a04", "a05", "a06", "a07", "a08", "a09", "a10", "a11", "a12",
    "a13", "a14", "a15",
];

/// Those that faults of one lock are made to.
pub(crate) fn locks_hit(only: Option<Only>) -> &'static [&'static str] {
    match only {
        None => LOCKS,
        Some(Only::Permits(_)) => &SEMAPHORES[..1],
        Some(Only::Sets) => OF_SETS,
    }
}

/// A kind of fault.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// What it may break, as docs/guarantees.md says.
    pub(crate) announces: &'static [Checker],
    /// For so long after it nothing is promised about how long a wait takes, in milliseconds.
    pub(crate) disturbs: u64,
    /// It is another master that grants what was granted, so that numbers grow all the same, and what all replicas have is kept.
    fails_over: bool,
    make: Make,
}

#[derive(Clone, Copy, Debug)]
enum Make {
    /// What is done to the server and what it holds.
    AtServer(fn(&mut AtServer<'_>) -> Made),
    /// What is done to a group that sentinels watch.
    AtSentinels(fn(&mut AtSeveral<'_, Sentinels>) -> Made),
    AtCluster(fn(&mut AtSeveral<'_, Cluster>) -> Made),
    /// What is done to processes and connections.
    AtClients(fn(&mut AtClients<'_>) -> Made),
    /// What lies in wait in the proxy for a command.
    AtProxy(Arm),
    /// What workers do themselves.
    ByWorkers,
    /// The clock of one worker is faster by so many millionths for the whole round.
    ByClock(i64),
}

/// Lays it there, and answers what tells that the command came.
type Arm = fn(&mut AtClients<'_>) -> Arc<AtomicBool>;

/// A worker process as those who make faults see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) worker: u32,
    pub(crate) pid: Pid,
}

pub(crate) type Targets = Mutex<Vec<Target>>;

/// Everything that a fault of the server's side needs.
pub(crate) struct AtServer<'a> {
    pub(crate) server: &'a mut Server,
    pub(crate) url: &'a str,
    pub(crate) folder: &'a Path,
    pub(crate) has_clock: bool,
    pub(crate) clock_ahead: i64,
    /// Those of which one is hit.
    pub(crate) locks: &'static [&'static str],
    pub(crate) random: fastrand::Rng,
}

/// Everything that a fault of the clients' side needs.
pub(crate) struct AtClients<'a> {
    pub(crate) proxy: Option<&'a Proxy>,
    /// Of each server.
    pub(crate) urls: Vec<String>,
    pub(crate) targets: &'a Targets,
    /// How many threads with jobs a worker has at least.
    pub(crate) jobs: usize,
    /// Those whose holders are hit.
    pub(crate) locks: &'static [&'static str],
    pub(crate) random: fastrand::Rng,
    /// What waits in the proxy for a command that has not come yet.
    pub(crate) armed: Vec<Armed>,
    /// When workers have no time left.
    pub(crate) proxied_until: Nanos,
}

/// A fault that happens when a command comes.
pub(crate) struct Armed {
    kind: &'static Kind,
    from: Nanos,
    came: Arc<AtomicBool>,
}

/// All kinds that there are.
pub(crate) fn all_kinds() -> impl Iterator<Item = &'static Kind> {
    let tables = [
        processes::KINDS,
        clients::KINDS,
        network::KINDS,
        keys::KINDS,
        server::KINDS,
        sentinels::KINDS,
        cluster::KINDS,
    ];
    tables.into_iter().flatten()
}

/// Those that can be made where these servers are.
pub(crate) fn kinds(topology: Topology) -> impl Iterator<Item = &'static Kind> {
    all_kinds().filter(move |kind| kind.is_for(topology))
}

/// A kind of fault at the server.
const fn at_server(
    name: &'static str,
    announces: &'static [Checker],
    disturbs: u64,
    make: fn(&mut AtServer<'_>) -> Made,
) -> Kind {
    Kind {
        name,
        announces,
        disturbs,
        fails_over: false,
        make: Make::AtServer(make),
    }
}

impl Kind {
    pub(crate) fn is_at_server(&self) -> bool {
        !matches!(
            self.make,
            Make::AtClients(_) | Make::AtProxy(_) | Make::ByWorkers | Make::ByClock(_)
        )
    }

    fn is_for(&self, topology: Topology) -> bool {
        match self.make {
            Make::AtServer(_) | Make::AtProxy(_) | Make::ByClock(_) => topology == Topology::One,
            Make::AtSentinels(_) => topology == Topology::Sentinel,
            Make::AtCluster(_) => topology == Topology::Cluster,
            Make::AtClients(_) | Make::ByWorkers => true,
        }
    }

    /// By how many millionths the clock of a worker is faster.
    pub(crate) fn rate(&self) -> Option<i64> {
        match self.make {
            Make::ByClock(rate) => Some(rate),
            _ => None,
        }
    }

    pub(crate) fn fails_over(&self) -> bool {
        self.fails_over
    }

    /// Whether data is lost that no lease protects.
    pub(crate) fn loses_data(&self) -> bool {
        self.announces.contains(&Checker::Sums)
    }

    /// Whether the keys beside locks are lost, or some.
    pub(crate) fn loses_companions(&self) -> bool {
        self.loses_data() || self.name == "evict" || self.name.ends_with("-companion")
    }

    pub(crate) fn sets_clock(&self) -> bool {
        self.name.starts_with("clock-")
    }
}

impl AtServer<'_> {
    fn operator(&self) -> anyhow::Result<Connection> {
        stage::operator(self.url)
    }

    fn lock(&mut self) -> &'static str {
        self.locks[self.random.usize(..self.locks.len())]
    }
}

impl Maker for AtServer<'_> {
    fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    fn make(&mut self, kind: &'static Kind) -> Made {
        match kind.make {
            Make::AtServer(make) => make(self),
            _ => Ok(None),
        }
    }
}

impl AtClients<'_> {
    /// Makes faults of these kinds, and waits for what is armed then.
    pub(crate) fn work(&mut self, kinds: &[&'static Kind], go_on: &dyn Fn() -> bool, log: &Log) {
        in_turn(self, kinds, go_on, log);
        // What is still armed may happen while the workers end. An interrupted run does not wait for that.
        let was_interrupted = now() + millis(2_500) < self.proxied_until;
        while !was_interrupted && self.proxied_until > now() && !self.armed.is_empty() {
            self.rest(self.longest_rest());
            self.note_what_came(log);
        }
    }

    /// Waits a little for the command at which it happens.
    fn arm(&mut self, kind: &'static Kind, from: Nanos, arm: Arm) {
        let came = arm(self);
        let patience = now() + millis(400);
        while now() < patience && !came.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
        self.armed.push(Armed { kind, from, came });
    }

    fn note_what_came(&mut self, log: &Log) {
        for fault in self
            .armed
            .extract_if(.., |fault| fault.came.load(Ordering::SeqCst))
        {
            note(fault.kind, fault.from, Ok(Some(Hit::all())), log);
        }
    }

    /// To one of the servers.
    fn operator(&mut self) -> anyhow::Result<Connection> {
        if let [url] = &*self.urls {
            return stage::operator(url);
        }
        let url = self.random.choice(&self.urls).context("no server")?;
        stage::operator(url)
    }

    /// To all of them that answer.
    fn operators(&self) -> anyhow::Result<Vec<Connection>> {
        if let [url] = &*self.urls {
            return Ok(vec![stage::operator(url)?]);
        }
        let answer = self.urls.iter().filter_map(|url| stage::operator(url).ok());
        Ok(answer.collect())
    }

    fn targets(&self) -> Vec<Target> {
        let targets = self.targets.lock();
        targets.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Maker for AtClients<'_> {
    fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    fn make(&mut self, kind: &'static Kind) -> Made {
        match kind.make {
            Make::AtClients(make) => make(self),
            Make::AtProxy(arm) => {
                self.arm(kind, now(), arm);
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn longest_rest(&self) -> u64 {
        120
    }

    fn after_each(&mut self, log: &Log) {
        self.note_what_came(log);
    }
}

/// Undoes until it is undone: what stays would be no fault but another server.
fn surely(mut undo: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    for _ in 0..50 {
        if undo().is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(40));
    }
    undo()
}
