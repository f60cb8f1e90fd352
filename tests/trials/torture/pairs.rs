//! Makes as many pairs of acquire and release as possible, and checks each with a cell in memory
//! that one holder at a time may enter.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Lease, Lock, Locks, Options as How,
    redis::{self, Connection},
};
use serde::Serialize;

use crate::{HEAP, common::Server, options::Options};

/// The time for which only locks of one sort are taken.
const SLICE: Duration = Duration::from_secs(10);
const SAMPLE: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize)]
pub(crate) struct PairsReport {
    program: &'static str,
    seed: u64,
    seconds: f64,
    threads: u64,
    /// The most pairs in a second.
    pace: Option<u64>,
    pairs: BTreeMap<&'static str, u64>,
    pairs_in_all: u64,
    pairs_without_hand_over: u64,
    longest_wait_ms: f64,
    /// Calls without an answer or a connection: the machine was too busy.
    failures: u64,
    not_announced: Vec<String>,
    /// The value of each watched quantity at the end of the second half, and its growth per hour.
    grows: BTreeMap<&'static str, Growth>,
}

#[derive(Debug, Serialize)]
struct Growth {
    at_the_end: f64,
    an_hour: f64,
    samples: usize,
}

/// A time, and the watched quantities at that time.
type Sample = (f64, [f64; WATCHED.len()]);

/// One lock, and its holders according to memory.
struct Cell {
    kind: &'static str,
    lock: Lock,
    /// The most holders at once: 1 except for a semaphore.
    permits: u64,
    inside: AtomicU64,
    greatest: AtomicU64,
    /// The last holder.
    last: AtomicU64,
}

struct Shared {
    cells: Vec<Cell>,
    stop: AtomicBool,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    longest: AtomicU64,
    failures: AtomicU64,
    broken: Mutex<Vec<String>>,
    /// The current index into [`SORTS`].
    sort: AtomicUsize,
    pace: Option<Pace>,
}

/// The number of pairs left in this second. They are made as fast as possible, so that threads meet
/// at the locks, and then all rest.
#[derive(Default)]
struct Pace {
    left: Mutex<u64>,
    more: Condvar,
}

impl Pace {
    fn allow(&self, pairs: u64) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = pairs;
        self.more.notify_all();
    }

    /// Waits up to a second for the right to make one more pair. False: none yet.
    fn take(&self) -> bool {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .more
            .wait_timeout_while(left, Duration::from_secs(1), |left| *left == 0);
        let mut left = waited.unwrap_or_else(PoisonError::into_inner).0;
        let is_one = *left > 0;
        *left = left.saturating_sub(1);
        is_one
    }
}

/// The sorts of locks that are taken in turn, as ranges of cells: a few contended locks, twice
/// because they make the fewest pairs; many mostly free locks, so that commands of several threads
/// share a write; locks that are handed over; and semaphores.
const SORTS: [Range<usize>; 5] = [2..14, 14..270, 2..14, 0..2, 270..272];

impl PairsReport {
    pub(crate) fn is_clean(&self) -> bool {
        self.not_announced.is_empty()
    }

    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        for (kind, count) in &self.pairs {
            println!("{kind:12} {count:>12} pairs");
        }
        println!(
            "{:12} {:>12} pairs in {:.0} s, {} without a hand-over",
            "all", self.pairs_in_all, self.seconds, self.pairs_without_hand_over
        );
        println!("longest wait {:.0} ms", self.longest_wait_ms);
        for (what, growth) in &self.grows {
            println!(
                "{what:20} {:>14.1}, {:+.2} an hour",
                growth.at_the_end, growth.an_hour
            );
        }
        for violation in &self.not_announced {
            println!("  {violation}");
        }
        Ok(())
    }
}

pub(crate) fn run(
    options: &Options,
    seed: u64,
    interrupted: &AtomicBool,
) -> anyhow::Result<PairsReport> {
    let server = Server::start()?;
    let locks = Locks::connect(&server.url())?;
    let shared = Shared {
        cells: cells(&locks),
        stop: AtomicBool::new(false),
        counts: Mutex::default(),
        longest: AtomicU64::new(0),
        failures: AtomicU64::new(0),
        broken: Mutex::default(),
        sort: AtomicUsize::new(0),
        pace: options.pace.map(|_| Pace::default()),
    };
    let threads = u64::from(options.workers) * 2;
    // Reserve room for all samples, so that they do not appear as growth.
    let most = options.duration().as_secs() / SAMPLE.as_secs() + 2;
    let mut samples = Vec::with_capacity(usize::try_from(most)?);
    let started = Instant::now();
    let mut conn = server.connection()?;
    thread::scope(|scope| -> anyhow::Result<()> {
        for thread in 0..threads {
            let shared = &shared;
            scope.spawn(move || work(shared, thread, seed));
        }
        let watched = watch(
            options,
            &shared,
            started,
            &mut conn,
            &mut samples,
            interrupted,
        );
        shared.stop.store(true, Ordering::SeqCst);
        watched
    })?;
    let pairs = shared
        .counts
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let in_all: u64 = pairs.values().sum();
    let longest = Duration::from_micros(shared.longest.into_inner());
    Ok(PairsReport {
        program: "torture --pairs",
        seed,
        seconds: started.elapsed().as_secs_f64(),
        threads,
        pace: options.pace,
        pairs_in_all: in_all,
        pairs_without_hand_over: in_all - pairs.get("hand-over").copied().unwrap_or(0),
        pairs,
        longest_wait_ms: longest.as_secs_f64() * 1_000.0,
        failures: shared.failures.into_inner(),
        not_announced: shared
            .broken
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner),
        grows: growth(&samples),
    })
}

fn cells(locks: &Locks) -> Vec<Cell> {
    let cell = |kind, lock| Cell {
        kind,
        lock,
        permits: 1,
        inside: AtomicU64::new(0),
        greatest: AtomicU64::new(0),
        last: AtomicU64::new(0),
    };
    let hands_over = How::new().hand_over(256, Duration::from_millis(20));
    let mut cells = vec![
        cell("hand-over", locks.lock("h0").with(hands_over.clone())),
        cell("hand-over", locks.lock("h1").with(hands_over)),
    ];
    for number in 0..4 {
        cells.push(cell("mutex", locks.lock(&format!("m{number}"))));
        cells.push(cell("reentrant", locks.reentrant(&format!("r{number}"))));
        cells.push(cell("write", locks.write(&format!("w{number}"))));
    }
    let free = |number| cell("mostly free", locks.lock(&format!("f{number}")));
    cells.extend((0..256).map(free));
    cells.extend((0..2).map(|number| Cell {
        permits: 3,
        ..cell("semaphore", locks.semaphore(&format!("n{number}"), 3))
    }));
    cells
}

/// Switches the hand-over on and off in turns, and records the resources of the process and the
/// server.
fn watch(
    options: &Options,
    shared: &Shared,
    started: Instant,
    conn: &mut Connection,
    samples: &mut Vec<Sample>,
    interrupted: &AtomicBool,
) -> anyhow::Result<()> {
    let (mut last, mut second) = (Instant::now(), 0);
    while started.elapsed() < options.duration() && !interrupted.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(100));
        let slice = started.elapsed().as_secs() / SLICE.as_secs();
        let sort = usize::try_from(slice)? % SORTS.len();
        shared.sort.store(sort, Ordering::Relaxed);
        if let (Some(pace), Some(pairs)) = (&shared.pace, options.pace)
            && started.elapsed().as_secs() > second
        {
            second = started.elapsed().as_secs();
            pace.allow(pairs);
        }
        if last.elapsed() >= SAMPLE {
            last = Instant::now();
            samples.push((started.elapsed().as_secs_f64(), sample(conn)?));
        }
    }
    Ok(())
}

fn work(shared: &Shared, thread: u64, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed ^ thread);
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.pace.as_ref().is_some_and(|pace| !pace.take()) {
            continue;
        }
        let among = SORTS[shared.sort.load(Ordering::Relaxed)].clone();
        let cell = &shared.cells[random.usize(among)];
        match pair(cell, thread + 1, &shared.longest) {
            Ok(()) => *counts.entry(cell.kind).or_default() += 1,
            Err(Trouble::Failed) => {
                shared.failures.fetch_add(1, Ordering::Relaxed);
            }
            Err(Trouble::Broken(what)) => {
                let mut broken = shared.broken.lock().unwrap_or_else(PoisonError::into_inner);
                broken.push(format!("{} `{}`: {what}", cell.kind, cell.lock.name()));
            }
        }
    }
    let mut all = shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
    for (kind, count) in counts {
        *all.entry(kind).or_default() += count;
    }
}

/// The reason for which a pair does not count.
enum Trouble {
    Failed,
    Broken(String),
}

/// Takes the lock, checks that no other thread holds it, and gives it back.
fn pair(cell: &Cell, me: u64, longest: &AtomicU64) -> Result<(), Trouble> {
    let asked = Instant::now();
    let lease = cell.lock.acquire(WAIT).map_err(|_| Trouble::Failed)?;
    let waited = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
    longest.fetch_max(waited, Ordering::Relaxed);
    if cell.permits > 1 {
        return permit(cell, lease);
    }
    let other = cell.inside.swap(me, Ordering::SeqCst);
    let number = lease
        .fencing_token()
        .map_or(0, leasehold::FencingToken::get);
    let before = cell.greatest.swap(number, Ordering::SeqCst);
    let last = cell.last.swap(me, Ordering::SeqCst);
    let is_held = lease.is_held();
    let still = cell.inside.swap(0, Ordering::SeqCst);
    let released = lease.release();
    if other != 0 || still != me {
        return broken(format!(
            "thread {me} entered while {other} held the lock, and left while {still} did"
        ));
    }
    // An owner whose release got no answer may re-enter a hold that it still has.
    let is_same_hold = number == before && last == me && cell.kind == "reentrant";
    if number <= before && !is_same_hold {
        return broken(format!(
            "fencing number {number} of thread {me} after {before} of thread {last}"
        ));
    }
    if !is_held {
        return broken(String::from(
            "the lock was not held right after it was granted",
        ));
    }
    released.map_err(|_| Trouble::Failed)
}

/// Counts the holders, and gives the permit back.
fn permit(cell: &Cell, lease: Lease) -> Result<(), Trouble> {
    let others = cell.inside.fetch_add(1, Ordering::SeqCst);
    let is_held = lease.is_held();
    // Threads meet only if each stays for a while.
    thread::sleep(Duration::from_micros(100));
    cell.inside.fetch_sub(1, Ordering::SeqCst);
    let released = lease.release();
    if others >= cell.permits {
        let (number, of) = (others + 1, cell.permits);
        return broken(format!("holder {number} of {of} permits entered"));
    }
    if !is_held {
        return broken(String::from(
            "the permit was not held right after it was granted",
        ));
    }
    released.map_err(|_| Trouble::Failed)
}

fn broken(what: String) -> Result<(), Trouble> {
    Err(Trouble::Broken(what))
}

const WATCHED: [&str; 6] = [
    "resident KiB",
    "allocated KiB",
    "threads",
    "files",
    "server's clients",
    "server's keys",
];

fn sample(conn: &mut Connection) -> anyhow::Result<[f64; WATCHED.len()]> {
    let status = fs::read_to_string("/proc/self/status")?;
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    let files = fs::read_dir("/proc/self/fd")?.count();
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(conn)?;
    let keys: u32 = redis::cmd("DBSIZE").query(conn)?;
    Ok([
        of("VmRSS:").unwrap_or(0.0),
        f64::from(HEAP.current_usage_as_kb()),
        of("Threads:").unwrap_or(0.0),
        f64::from(u32::try_from(files)?),
        f64::from(u32::try_from(clients.lines().count())?),
        f64::from(keys),
    ])
}

/// Fits a line to the second half by least squares.
fn growth(samples: &[Sample]) -> BTreeMap<&'static str, Growth> {
    let half = samples.get(samples.len() / 2..).unwrap_or_default();
    let count = f64::from(u32::try_from(half.len()).unwrap_or(u32::MAX));
    let mut grows = BTreeMap::new();
    if half.len() < 3 {
        return grows;
    }
    for (nth, what) in WATCHED.into_iter().enumerate() {
        let mean = |of: &dyn Fn(&Sample) -> f64| half.iter().map(of).sum::<f64>() / count;
        let (at, value) = (mean(&|sample| sample.0), mean(&|sample| sample.1[nth]));
        let together = mean(&|sample| (sample.0 - at) * (sample.1[nth] - value));
        let alone = mean(&|sample| (sample.0 - at).powi(2));
        grows.insert(
            what,
            Growth {
                at_the_end: half.last().map_or(0.0, |sample| sample.1[nth]),
                an_hour: together / alone * 3_600.0,
                samples: half.len(),
            },
        );
    }
    grows
}
