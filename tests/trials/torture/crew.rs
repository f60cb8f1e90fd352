//! The workers of a round: started, visible to the fault makers, and replaced after a kill.

use std::{collections::HashMap, env, path::PathBuf, process::Command, sync::PoisonError};

use crate::{
    clock::{Nanos, now},
    faults::{self, Target},
    options::{Only, Topology},
    role::{Part, Role},
    worker::Plan,
};

/// The number of a worker that replaces a killed one is greater by this.
const GENERATION: u32 = 32;

/// Returns true for a worker whose clock may run fast or slow, and for its replacements.
pub(crate) fn has_own_clock(worker: u32) -> bool {
    worker.is_multiple_of(GENERATION)
}

/// A clock that runs at a different rate.
#[derive(Clone, Debug)]
pub(crate) struct OwnClock {
    pub(crate) library: PathBuf,
    /// Millionths by which the clock is faster.
    pub(crate) rate: i64,
}

/// The settings that all workers of a round share.
pub(crate) struct Crew {
    pub(crate) seed: u64,
    pub(crate) trades: bool,
    pub(crate) long_in: u32,
    pub(crate) only: Option<Only>,
    pub(crate) bug: Option<String>,
    pub(crate) topology: Topology,
    pub(crate) url: String,
    /// The URL of the proxy in front of the one server.
    pub(crate) proxy: Option<String>,
    pub(crate) gates: Vec<String>,
    pub(crate) replicas: u32,
    pub(crate) resource: u16,
    pub(crate) folder: PathBuf,
    pub(crate) until: Nanos,
    pub(crate) programs: HashMap<String, String>,
    /// The clock of one of the workers.
    pub(crate) clock: Option<OwnClock>,
}

impl Crew {
    pub(crate) fn start(&self, worker: u32) -> anyhow::Result<Part> {
        let clock = self.clock.as_ref().filter(|_| has_own_clock(worker));
        let by_proxy = self.proxy.as_ref().filter(|_| worker % 2 == 1);
        let plan = Plan {
            worker,
            seed: self.seed ^ u64::from(worker).wrapping_mul(0xD1B5_4A32_D192_ED03),
            topology: self.topology,
            url: by_proxy.unwrap_or(&self.url).clone(),
            server: self.url.clone(),
            gates: self.gates.clone(),
            replicas: self.replicas,
            resource: self.resource,
            folder: self.folder.clone(),
            until: self.until,
            // One worker in four has a pool of a single connection.
            pool: if worker % 4 == 2 { 1 } else { 8 },
            trades: self.trades,
            long_in: self.long_in,
            only: self.only,
            bug: self.bug.clone(),
            programs: self.programs.clone(),
            has_own_clock: clock.is_some(),
        };
        let environment = clock.map(|clock| {
            let library = clock.library.to_string_lossy().into_owned();
            [
                ("LD_PRELOAD", library),
                ("TORTURE_RATE", clock.rate.to_string()),
            ]
        });
        Role::Worker(plan).start_with(environment.as_ref().map_or(&[], |all| all.as_slice()))
    }
}

/// The running workers, and the times at which others ended early.
#[derive(Default)]
pub(crate) struct Workers {
    pub(crate) parts: Vec<(u32, Part)>,
    pub(crate) killed: HashMap<u32, Nanos>,
}

impl Workers {
    pub(crate) fn show(&self, targets: &faults::Targets) {
        let mut targets = targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.clear();
        targets.extend(self.parts.iter().map(|(worker, part)| Target {
            worker: *worker,
            pid: part.pid(),
        }));
    }

    pub(crate) fn replace_the_dead(&mut self, crew: &Crew, over: Nanos) -> anyhow::Result<()> {
        let mut next = Vec::new();
        let mut ended = Vec::new();
        for (worker, mut part) in self.parts.drain(..) {
            if !part.has_ended() {
                next.push((worker, part));
                continue;
            }
            let has_failed = part
                .0
                .try_wait()
                .ok()
                .flatten()
                .is_none_or(|status| !status.success());
            if has_failed {
                self.killed.insert(worker, now());
                ended.push(worker);
            }
        }
        for worker in ended {
            if now() < over {
                let worker = worker + GENERATION;
                next.push((worker, crew.start(worker)?));
            }
        }
        self.parts = next;
        Ok(())
    }
}

/// Finds the other programs that are installed, and lockrun, which cargo builds beside the
/// examples.
pub(crate) fn programs() -> HashMap<String, String> {
    let mut found = HashMap::new();
    for name in ["python3", "redis-cli"] {
        let folders = env::var_os("PATH").unwrap_or_default();
        let path = env::split_paths(&folders)
            .map(|folder| folder.join(name))
            .find(|path| path.is_file());
        if let Some(path) = path {
            found.insert(name.to_owned(), path.to_string_lossy().into_owned());
        }
    }
    // The `python3` in the PATH may be a slow wrapper script: use the interpreter itself.
    if let Some(python) = found.get_mut("python3") {
        let asked = Command::new(&*python)
            .args(["-c", "import sys; print(sys.executable)"])
            .output();
        match asked {
            Ok(said) if said.status.success() => {
                *python = String::from_utf8_lossy(&said.stdout).trim().into();
            }
            _ => drop(found.remove("python3")),
        }
    }
    let beside = env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.join("lockrun")));
    if let Some(path) = beside.filter(|path| path.is_file()) {
        found.insert("lockrun".to_owned(), path.to_string_lossy().into_owned());
    }
    found
}
