//! The kinds of faults, the violations that guarantees.md announces for each, and the threads that
//! make them.

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

/// The locks that faults hit.
const LOCKS: &[&str] = &["m0", "m1", "h0", "r0", "w0", "d0", "p0", SEMAPHORES[0]];
/// The lock that all replicas must confirm before it is granted.
pub(crate) const REPLICATED: &str = "s0";
/// The semaphores. All replicas must confirm each permit of the second one.
pub(crate) const SEMAPHORES: &[&str] = &["n0", REPLICATED_PERMITS];
pub(crate) const REPLICATED_PERMITS: &str = "n1";

pub(crate) fn is_replicated(lock: &str) -> bool {
    [REPLICATED, REPLICATED_PERMITS].contains(&lock)
}

/// The locks that sets use.
pub(crate) const OF_SETS: &[&str] = &[
    "a00", "a01", "a02", "a03", "a04", "a05", "a06", "a07", "a08", "a09", "a10", "a11", "a12",
    "a13", "a14", "a15",
];

/// Returns the locks that faults on a single lock hit.
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
    /// The checks that it may violate, as docs/guarantees.md says.
    pub(crate) announces: &'static [Checker],
    /// For this long afterwards no wait has a time limit, in milliseconds.
    pub(crate) disturbs: u64,
    /// Another master takes over, so that numbers still grow, and writes that all replicas have are
    /// kept.
    fails_over: bool,
    make: Make,
}

#[derive(Clone, Copy, Debug)]
enum Make {
    /// Hits the server or its data.
    AtServer(fn(&mut AtServer<'_>) -> Made),
    /// Hits a group with sentinels.
    AtSentinels(fn(&mut AtSeveral<'_, Sentinels>) -> Made),
    AtCluster(fn(&mut AtSeveral<'_, Cluster>) -> Made),
    /// Hits processes or connections.
    AtClients(fn(&mut AtClients<'_>) -> Made),
    /// Waits in the proxy for a command.
    AtProxy(Arm),
    /// Caused by the workers themselves.
    ByWorkers,
    /// Makes the clock of one worker faster by this many millionths for the whole round.
    ByClock(i64),
}

/// Arms the proxy, and returns a flag that is set when the command came.
type Arm = fn(&mut AtClients<'_>) -> Arc<AtomicBool>;

/// A worker process, as fault makers see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) worker: u32,
    pub(crate) pid: Pid,
}

pub(crate) type Targets = Mutex<Vec<Target>>;

/// The context of a fault on the side of the servers.
pub(crate) struct AtServer<'a> {
    pub(crate) server: &'a mut Server,
    pub(crate) url: &'a str,
    pub(crate) folder: &'a Path,
    pub(crate) has_clock: bool,
    pub(crate) clock_ahead: i64,
    /// The locks of which one is hit.
    pub(crate) locks: &'static [&'static str],
    pub(crate) random: fastrand::Rng,
}

/// The context of a fault on the side of the clients.
pub(crate) struct AtClients<'a> {
    pub(crate) proxy: Option<&'a Proxy>,
    /// The URL of each server.
    pub(crate) urls: Vec<String>,
    pub(crate) targets: &'a Targets,
    /// The least number of job threads in a worker.
    pub(crate) jobs: usize,
    /// The locks whose holders are hit.
    pub(crate) locks: &'static [&'static str],
    pub(crate) random: fastrand::Rng,
    /// The faults that wait in the proxy for a command.
    pub(crate) armed: Vec<Armed>,
    /// The time at which workers stop.
    pub(crate) proxied_until: Nanos,
}

/// A fault that happens when a command comes.
pub(crate) struct Armed {
    kind: &'static Kind,
    from: Nanos,
    came: Arc<AtomicBool>,
}

/// Returns all kinds.
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

/// Returns the kinds that this topology allows.
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

    /// The millionths by which the clock of a worker is faster.
    pub(crate) fn rate(&self) -> Option<i64> {
        match self.make {
            Make::ByClock(rate) => Some(rate),
            _ => None,
        }
    }

    pub(crate) fn fails_over(&self) -> bool {
        self.fails_over
    }

    /// Returns true if data is lost that no lease protects.
    pub(crate) fn loses_data(&self) -> bool {
        self.announces.contains(&Checker::Sums)
    }

    /// Returns true if companion keys may be lost.
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
    /// Makes faults of these kinds, and then waits for those still armed.
    pub(crate) fn work(&mut self, kinds: &[&'static Kind], go_on: &dyn Fn() -> bool, log: &Log) {
        in_turn(self, kinds, go_on, log);
        // A fault still armed may happen while the workers end. An interrupted run does not wait
        // for it.
        let was_interrupted = now() + millis(2_500) < self.proxied_until;
        while !was_interrupted && self.proxied_until > now() && !self.armed.is_empty() {
            self.rest(self.longest_rest());
            self.note_what_came(log);
        }
    }

    /// Waits briefly for the command that triggers the fault.
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

    /// Opens an operator's connection to one of the servers.
    fn operator(&mut self) -> anyhow::Result<Connection> {
        if let [url] = &*self.urls {
            return stage::operator(url);
        }
        let url = self.random.choice(&self.urls).context("no server")?;
        stage::operator(url)
    }

    /// Opens one to each server that answers.
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

/// Retries until the fault is undone: a lasting one would be a different server, not a fault.
fn surely(mut undo: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    for _ in 0..50 {
        if undo().is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(40));
    }
    undo()
}
