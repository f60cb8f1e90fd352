//! The kinds of faults, what guarantees.md announces for each, and those who make them.

mod clients;
mod keys;
mod network;
mod processes;
mod server;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold::redis::Connection;
use nix::unistd::Pid;

use crate::{
    checks::Checker,
    clock::{Nanos, millis, now},
    common::{Proxy, Server},
    stage,
};

/// The locks that faults are made to.
const LOCKS: &[&str] = &["m0", "m1", "h0", "r0", "w0", "d0", "p0"];

/// A kind of fault.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// What it may break, as docs/guarantees.md says.
    pub(crate) announces: &'static [Checker],
    /// For so long after it nothing is promised about how long a wait takes, in milliseconds.
    pub(crate) disturbs: u64,
    make: Make,
}

#[derive(Clone, Copy, Debug)]
enum Make {
    /// What is done to the server and what it holds.
    AtServer(fn(&mut AtServer<'_>) -> Made),
    /// What is done to processes, connections, and what lies between.
    AtClients(fn(&mut AtClients<'_>) -> Made),
    /// What lies in wait in the proxy for a command.
    AtProxy(Arm),
    /// What workers do themselves.
    ByWorkers,
}

/// Lays it there, and answers what tells that the command came.
type Arm = fn(&mut AtClients<'_>) -> Arc<AtomicBool>;

/// `None`: there was nothing to do it to.
type Made = anyhow::Result<Option<Hit>>;

/// What was hit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hit {
    lock: Option<&'static str>,
    /// A worker, and for how long it was kept from working.
    workers: Vec<u32>,
}

/// A fault that was made.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: &'static Kind,
    /// It was made whole.
    pub(crate) counts: bool,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    pub(crate) lock: Option<&'static str>,
    pub(crate) worker: Option<u32>,
}

/// A worker process as those who make faults see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) worker: u32,
    pub(crate) pid: Pid,
}

pub(crate) type Targets = Mutex<Vec<Target>>;
pub(crate) type Log = Mutex<Vec<Fault>>;

/// Everything that a fault of the server's side needs.
pub(crate) struct AtServer<'a> {
    pub(crate) server: &'a mut Server,
    pub(crate) url: &'a str,
    pub(crate) folder: &'a Path,
    pub(crate) has_clock: bool,
    pub(crate) clock_ahead: i64,
    pub(crate) random: fastrand::Rng,
}

/// Everything that a fault of the clients' side needs.
pub(crate) struct AtClients<'a> {
    pub(crate) proxy: &'a Proxy,
    pub(crate) url: &'a str,
    pub(crate) targets: &'a Targets,
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
pub(crate) fn kinds() -> impl Iterator<Item = &'static Kind> {
    let tables = [
        processes::KINDS,
        clients::KINDS,
        network::KINDS,
        keys::KINDS,
        server::KINDS,
    ];
    tables.into_iter().flatten()
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
        make: Make::AtServer(make),
    }
}

impl Kind {
    pub(crate) fn is_at_server(&self) -> bool {
        matches!(self.make, Make::AtServer(_))
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
    /// Makes faults of these kinds, one after the other.
    pub(crate) fn work(&mut self, kinds: &[&'static Kind], go_on: &dyn Fn() -> bool, log: &Log) {
        let mut order = Vec::new();
        while !kinds.is_empty() && go_on() {
            let kind = next(&mut order, kinds, &mut self.random);
            let from = now();
            let made = match kind.make {
                Make::AtServer(make) => make(self),
                _ => Ok(None),
            };
            note(kind, from, made, log);
            self.rest(150);
        }
    }

    fn operator(&self) -> anyhow::Result<Connection> {
        stage::operator(self.url)
    }

    fn rest(&mut self, most: u64) {
        thread::sleep(Duration::from_millis(self.random.u64(most / 5..=most)));
    }

    fn lock(&mut self) -> &'static str {
        LOCKS[self.random.usize(..LOCKS.len())]
    }
}

impl AtClients<'_> {
    /// Makes faults of these kinds, one after the other.
    pub(crate) fn work(&mut self, kinds: &[&'static Kind], go_on: &dyn Fn() -> bool, log: &Log) {
        let mut order = Vec::new();
        while !kinds.is_empty() && go_on() {
            let kind = next(&mut order, kinds, &mut self.random);
            let from = now();
            let made = match kind.make {
                Make::AtClients(make) => make(self),
                Make::AtProxy(arm) => {
                    self.arm(kind, from, arm);
                    Ok(None)
                }
                _ => Ok(None),
            };
            note(kind, from, made, log);
            self.note_what_came(log);
            self.rest(120);
        }
        // What is still armed may happen while the workers end. An interrupted run does not wait for that.
        let was_interrupted = now() + millis(2_500) < self.proxied_until;
        while !was_interrupted && self.proxied_until > now() && !self.armed.is_empty() {
            self.rest(120);
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

    fn operator(&self) -> anyhow::Result<Connection> {
        stage::operator(self.url)
    }

    fn rest(&mut self, most: u64) {
        thread::sleep(Duration::from_millis(self.random.u64(most / 5..=most)));
    }

    fn targets(&self) -> Vec<Target> {
        let targets = self.targets.lock();
        targets.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Each kind once, in an order of its own, before any comes again.
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

/// A fault that failed counts as none, and may have happened by half: what it announces and disturbs it does all the same.
fn note(kind: &'static Kind, from: Nanos, made: Made, log: &Log) {
    let (hit, counts) = match made {
        Ok(None) => return,
        Ok(Some(hit)) => (hit, true),
        Err(_) => (Hit::default(), false),
    };
    let fault = |worker| Fault {
        kind,
        counts,
        from,
        to: now(),
        lock: hit.lock,
        worker,
    };
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    if hit.workers.is_empty() {
        log.push(fault(None));
    }
    log.extend(hit.workers.iter().map(|worker| fault(Some(*worker))));
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

impl Hit {
    fn all() -> Self {
        Self::default()
    }

    fn lock(lock: &'static str) -> Self {
        Self {
            lock: Some(lock),
            workers: Vec::new(),
        }
    }
}
