//! A worker: a process whose threads use all features and record what they see.

mod foreign;
mod hand;
mod leases;
mod lockrun;
mod market;
mod once;
mod permits;
mod plain;
mod reach;
mod sets;
mod transfers;

use std::{
    collections::HashMap,
    fs,
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use leasehold::redis::{Connection, cmd};
use serde::{Deserialize, Serialize};

use crate::{
    clock::{Nanos, millis, nanos, now},
    history::{Record, Writer},
    options::{Only, Topology},
    stage::operator,
};
use hand::Hand;
pub(crate) use hand::LONG_LEASE;
pub(crate) use lockrun::UnderLockrun;
pub(crate) use market::Money;
use reach::Reach;
pub(crate) use transfers::{accounts_are_wrong, endow_accounts};

/// The pool's time-out for a server.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_millis(500);

/// A ping takes no longer unless the machine is busy.
const LATE: Nanos = millis(30);

/// The file to which a worker writes at its end, which belongs to no lock.
const OURS: u64 = 1;

/// The number of connections for pings. They come and go with the servers, and belong to no lock.
static SIGNS: AtomicU64 = AtomicU64::new(0);

/// One turn of a job. Its failures are counted.
type Turn = fn(&mut Hand) -> anyhow::Result<()>;

/// The jobs by name, with the number of threads in each worker.
const JOBS: &[(&str, usize, Turn)] = &[
    ("mutex", 2, leases::mutex),
    ("commit", 1, leases::commit),
    ("commit-once", 1, once::commit_once),
    ("run-once", 1, once::run_once),
    ("hand-over", 3, leases::hand_over),
    ("reentrant", 2, leases::reentrant),
    ("read", 2, leases::read),
    ("write", 1, leases::write),
    ("plain", 1, plain::simple),
    ("watchdog", 1, plain::watchdog),
    ("market", 2, market::trade),
    ("replicated", 1, leases::replicated),
    ("transaction", 1, transfers::transfer),
    ("called-off", 1, leases::called_off),
    ("locks-anew", 1, leases::anew),
    ("permit", 2, permits::permit),
];

/// For rounds with only semaphores.
const PERMIT_JOBS: &[(&str, usize, Turn)] = &[("permit", PERMIT_THREADS, permits::permit)];
const PERMIT_THREADS: usize = 8;
/// For rounds with only sets, and single locks with the same names.
const SET_JOBS: &[(&str, usize, Turn)] = &[
    ("set", 16, sets::set),
    ("single", 4, sets::single),
    ("any-order", 1, sets::any_order),
];
const SET_THREADS: usize = 21;
const EVERYDAY_THREADS: usize = 20;

/// Returns the number of threads of a worker that has started all of its jobs.
pub(crate) fn threads_of_a_worker(only: Option<Only>) -> usize {
    match only {
        None => EVERYDAY_THREADS,
        Some(Only::Permits(_)) => PERMIT_THREADS,
        Some(Only::Sets) => SET_THREADS,
    }
}

/// Returns true if this worker has a job, which depends on the servers and on its clock.
fn has_job(plan: &Plan, job: &str) -> bool {
    let topology = plan.topology;
    match job {
        // These have no `Options::clock_skew`.
        "plain" | "watchdog" | "set-nx" | "notes-scripts" | "python" | "shell" | "lockrun"
        | "reentrant" | "run-once"
            if plan.has_own_clock =>
        {
            false
        }
        // These do not follow a new master, and the market has keys in many slots.
        "market" | "set-nx" | "notes-scripts" | "python" | "shell" => topology == Topology::One,
        "replicated" => topology != Topology::One,
        _ => true,
    }
}

/// The jobs that one worker in four runs, once: they start programs, or share locks with other
/// programs.
const RARE_JOBS: &[(&str, u32, Turn)] = &[
    ("set-nx", 0, foreign::set_nx),
    ("notes-scripts", 0, foreign::notes_scripts),
    ("python", 1, foreign::python),
    ("shell", 2, foreign::shell),
    ("lockrun", 3, lockrun::run),
    ("lockrun", 2, lockrun::run),
    ("fork", 1, leases::fork_while_held),
];

/// The settings of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) worker: u32,
    pub(crate) seed: u64,
    pub(crate) topology: Topology,
    /// The URL of the server or of the proxy in front of it, of the sentinels, or of nodes.
    pub(crate) url: String,
    /// The URL of the one server itself.
    pub(crate) server: String,
    /// The URL of each of several servers, as clients reach it.
    pub(crate) gates: Vec<String>,
    /// The number of replicas of a master.
    pub(crate) replicas: u32,
    pub(crate) resource: u16,
    pub(crate) folder: PathBuf,
    pub(crate) until: Nanos,
    /// The number of connections in the pool.
    pub(crate) pool: u32,
    pub(crate) trades: bool,
    /// One hold in this many is a long one.
    pub(crate) long_in: u32,
    pub(crate) bug: Option<String>,
    /// The only kind of locks.
    pub(crate) only: Option<Only>,
    /// The installed programs, by name.
    pub(crate) programs: HashMap<String, String>,
    /// Its clock runs fast or slow: by it, its leases end slightly sooner than on the server.
    pub(crate) has_own_clock: bool,
}

impl Plan {
    pub(crate) fn has_bug(&self, name: &str) -> bool {
        self.bug.as_deref() == Some(name)
    }

    fn history(&self, thread: usize) -> PathBuf {
        self.folder
            .join(format!("{}-{thread}.history", self.worker))
    }
}

/// Works until its time is over or its parent is gone.
pub(crate) fn work(plan: &Plan) -> anyhow::Result<()> {
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        process::exit(1);
    });
    heart(plan)?;
    let files_before = open_files();
    let reach = patiently(|| Reach::of(plan))?;
    let locks = patiently(|| reach.locks())?;
    let mut writer = patiently(|| Writer::create(&plan.history(999)))?;
    if plan.pool == 1 {
        writer.write(&Record::Made {
            kind: "pool-of-one".to_owned(),
            at: now(),
        });
    }
    let (everyday, rare) = match plan.only {
        None => (JOBS, RARE_JOBS),
        Some(Only::Permits(_)) => (PERMIT_JOBS, &[][..]),
        Some(Only::Sets) => (SET_JOBS, &[][..]),
    };
    let everyday = everyday
        .iter()
        .flat_map(|(name, threads, turn)| (0..*threads).map(move |_| (*name, *turn)));
    let rare = rare
        .iter()
        .filter(|(_, worker, _)| plan.worker % 4 == *worker)
        .map(|(name, _, turn)| (*name, *turn));
    thread::scope(|scope| {
        let jobs = everyday.chain(rare);
        let of_topology = jobs.filter(|(job, _)| has_job(plan, job));
        for (number, (job, turn)) in of_topology.enumerate() {
            let (locks, reach) = (&locks, &reach);
            scope.spawn(move || {
                // A worker that cannot write has no way to report it: the round notices the missing
                // records.
                let Ok(writer) = Writer::create(&plan.history(number)) else {
                    return;
                };
                let mut hand = Hand::new(plan, job, number, locks.clone(), reach.clone(), writer);
                work_in_turns(&mut hand, turn);
            });
        }
    });
    drop((locks, reach));
    let mut files = open_files();
    for _ in 0..100 {
        if files <= files_before + OURS {
            break;
        }
        thread::sleep(Duration::from_millis(20));
        files = open_files();
    }
    writer.write(&Record::Left {
        worker: plan.worker,
        files: files.saturating_sub(files_before + OURS),
    });
    Ok(())
}

/// Retries for a worker that starts while it may open no files.
fn patiently<T, E>(mut begin: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    for _ in 0..40 {
        if let Ok(begun) = begin() {
            return Ok(begun);
        }
        thread::sleep(Duration::from_millis(50));
    }
    begin()
}

/// Records when this process or a server is delayed by other work of the machine. Runs until the
/// process ends.
fn heart(plan: &Plan) -> anyhow::Result<()> {
    if plan.topology == Topology::One {
        return beat(plan, &plan.server, 998, Duration::from_millis(5));
    }
    // Several servers are pinged less often, since their answers go through gates.
    let mut servers = plan.gates.iter().zip(900..);
    servers.try_for_each(|(url, number)| beat(plan, url, number, Duration::from_millis(20)))
}

fn beat(plan: &Plan, url: &str, file: usize, pause: Duration) -> anyhow::Result<()> {
    let mut writer = patiently(|| Writer::create(&plan.history(file)))?;
    let (worker, url) = (plan.worker, url.to_owned());
    let late = LATE + nanos(pause).saturating_sub(millis(5));
    let mut sign = SignOfLife::to(&url);
    thread::spawn(move || -> ! {
        loop {
            let from = now();
            thread::sleep(pause);
            let answered = sign.as_mut().is_some_and(SignOfLife::is_answered);
            let to = now();
            if to - from > late {
                writer.write(&Record::Stalled { worker, from, to });
            }
            if !answered {
                drop(sign.take());
                sign = SignOfLife::to(&url);
            }
        }
    });
    Ok(())
}

/// A connection to ping a server, counted in [`SIGNS`].
struct SignOfLife(Connection);

impl SignOfLife {
    fn to(url: &str) -> Option<Self> {
        let connection = operator(url).ok()?;
        SIGNS.fetch_add(1, Ordering::Relaxed);
        Some(Self(connection))
    }

    fn is_answered(&mut self) -> bool {
        cmd("PING").exec(&mut self.0).is_ok()
    }
}

impl Drop for SignOfLife {
    fn drop(&mut self) {
        SIGNS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn work_in_turns(hand: &mut Hand, turn: Turn) {
    while now() < hand.plan.until {
        match catch_unwind(AssertUnwindSafe(|| turn(hand))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => hand.failed(&error),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let words = panic.downcast_ref::<&str>().map(ToString::to_string);
                let what = text.or(words).unwrap_or_default();
                hand.broken("alive", hand.job, &format!("a panic: {what}"));
            }
        }
        hand.gives_its_connection_back();
        hand.pause(10);
    }
    hand.finish();
}

/// Counts the open files of this process, except the connections for pings.
fn open_files() -> u64 {
    let signs = SIGNS.load(Ordering::Relaxed);
    let files = fs::read_dir("/proc/self/fd").map(Iterator::count);
    let files = u64::try_from(files.unwrap_or(0)).unwrap_or(0);
    files.saturating_sub(signs)
}
