//! Pairs of acquire and release a second, with 1 to 32 threads that each have a lock of their own.
//! Each contender runs in its own process, which is this program, started again, or an earlier
//! build of it; their turns alternate.

use std::{
    env,
    io::BufRead,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use leasehold::{Lease, Locks, Options};
use redis::Script;
use uuid::Uuid;

use crate::{chart, common::Server, measure::median, worker::Worker};

/// The environment variable that makes this program a worker: server, contender, threads.
const WORKS: &str = "LEASEHOLD_BENCHMARK_PAIRS";
pub(crate) const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// A way to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `SET NX PX` and a compare-and-delete script, with a connection per thread.
    Raw,
    /// `Lock::acquire` and `Lease::release`.
    Guard,
    /// The same without a fencing token.
    Unfenced,
}

/// One line of the chart: two numbers for each of [`THREADS`].
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    way: Way,
    program: PathBuf,
    /// For each number of threads, the pairs a second and their ratio to the first contender's in
    /// the same round: medians.
    pub(crate) came: Vec<(f64, f64)>,
}

impl Contender {
    fn new(name: &'static str, way: Way, program: &Path) -> Self {
        Self {
            name,
            way,
            program: program.to_owned(),
            came: Vec::new(),
        }
    }
}

/// Measures each contender for each number of threads, and draws the chart.
pub(crate) fn pairs(
    server: &Server,
    rounds: usize,
    turn: Duration,
    before: Option<&Path>,
    chart: Option<&Path>,
) -> anyhow::Result<()> {
    let this = env::current_exe()?;
    let mut all = vec![
        Contender::new("by hand", Way::Raw, &this),
        Contender::new("Lease, fencing token", Way::Guard, &this),
        Contender::new("Lease, no fencing token", Way::Unfenced, &this),
    ];
    all.extend(before.map(|before| Contender::new("Lease, before", Way::Guard, before)));
    println!(
        "{:<38} {:>8} {:>7}",
        "pairs, a lock per thread", "a second", "ratio"
    );
    for threads in THREADS {
        measure(server, rounds, turn, threads, &mut all)?;
        for contender in &all {
            let what = format!("{threads} thread(s), {}", contender.name);
            let (speed, ratio) = contender.came.last().context("nothing was measured")?;
            println!("{what:<38} {speed:>8.0} {ratio:>7.2}");
        }
    }
    chart.map_or(Ok(()), |file| chart::draw(&all, file))
}

/// Runs rounds in which each contender has a turn, after a warm-up round.
fn measure(
    server: &Server,
    rounds: usize,
    turn: Duration,
    threads: usize,
    all: &mut [Contender],
) -> anyhow::Result<()> {
    let start = |contender: &Contender| {
        let how = format!("{} {:?} {threads}", server.url(), contender.way);
        Worker::start(&contender.program, WORKS, &how)
    };
    let mut workers = all.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let mut speeds = vec![Vec::new(); all.len()];
    for round in 0..=rounds {
        for number in 0..workers.len() {
            // Rotate which one goes first.
            let number = (number + round) % workers.len();
            let millis = turn.as_millis().to_string();
            let pairs: f64 = workers[number].ask(&millis)?.trim().parse()?;
            if round > 0 {
                speeds[number].push(pairs);
            }
        }
    }
    let raw = speeds[0].clone();
    for (contender, speeds) in all.iter_mut().zip(speeds) {
        let ratios = speeds.iter().zip(&raw).map(|(speed, raw)| speed / raw);
        contender
            .came
            .push((median(speeds.iter().copied()), median(ratios)));
    }
    Ok(())
}

/// Works, if this program was started as a worker. Each input line starts a turn of that many
/// milliseconds. With `pairs` after the number, makes that many pairs on one thread instead, for an
/// instrument that counts. False: not a worker.
pub(crate) fn works() -> anyhow::Result<bool> {
    let Ok(how) = env::var(WORKS) else {
        return Ok(false);
    };
    let how: Vec<&str> = how.split(' ').collect();
    let [url, way, threads] = how[..] else {
        anyhow::bail!("{WORKS} is not complete");
    };
    let threads: usize = threads.parse()?;
    let locker = Locker::new(url, way, threads)?;
    let mut hands = (0..threads)
        .map(|thread| locker.hand(thread))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if let Some(pairs) = line.strip_suffix(" pairs") {
            let hand = hands.first_mut().context("no thread")?;
            for _ in 0..pairs.parse()? {
                hand()?;
            }
            println!("{pairs}");
            continue;
        }
        let turn = Duration::from_millis(line.parse()?);
        println!("{}", pairs_per_second(&mut hands, turn)?);
    }
    Ok(true)
}

/// Makes one pair of acquire and release.
type Hand<'a> = Box<dyn FnMut() -> anyhow::Result<()> + Send + 'a>;

struct Locker {
    url: String,
    locks: Option<Locks>,
    release: Script,
}

impl Locker {
    fn new(url: &str, way: &str, threads: usize) -> anyhow::Result<Self> {
        let client = redis::Client::open(url)?;
        let locks = if way == format!("{:?}", Way::Raw) {
            None
        } else {
            // As many connections as the raw contender has.
            let size = u32::try_from(threads)?.max(10);
            let pool = leasehold::Pool::builder().max_size(size).build(&client)?;
            let fencing = way != format!("{:?}", Way::Unfenced);
            Some(Locks::new(&pool)?.with(Options::new().fencing(fencing)))
        };
        Ok(Self {
            url: url.to_owned(),
            locks,
            release: Script::new(include_str!("../../../src/wire/release.lua")),
        })
    }

    fn hand(&self, thread: usize) -> anyhow::Result<Hand<'_>> {
        let name = format!("benchmark-pairs-{thread}");
        if let Some(locks) = &self.locks {
            let lock = locks.lock(&name);
            return Ok(Box::new(move || {
                let lease: Lease = lock.acquire(Duration::ZERO)?;
                Ok(lease.release()?)
            }));
        }
        let mut conn = redis::Client::open(&*self.url)?.get_connection()?;
        let key = format!("lock:{name}");
        Ok(Box::new(move || {
            let token = Uuid::new_v4().to_string();
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(&token).arg("NX").arg("PX").arg(10_000);
            anyhow::ensure!(set.query::<bool>(&mut conn)?, "the lock is held");
            let released: bool = self.release.key(&key).arg(&token).invoke(&mut conn)?;
            anyhow::ensure!(released, "the lock is lost");
            Ok(())
        }))
    }
}

fn pairs_per_second(hands: &mut [Hand<'_>], turn: Duration) -> anyhow::Result<f64> {
    let started = Instant::now();
    let pairs = thread::scope(|scope| {
        let pairs_of = |hand: &mut Hand<'_>| {
            let mut pairs = 0_u32;
            while started.elapsed() < turn {
                hand()?;
                pairs += 1;
            }
            anyhow::Ok(pairs)
        };
        let threads: Vec<_> = hands
            .iter_mut()
            .map(|hand| scope.spawn(move || pairs_of(hand)))
            .collect();
        let mut pairs = 0;
        for thread in threads {
            let ended = thread.join();
            pairs += ended.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        anyhow::Ok(pairs)
    })?;
    Ok(f64::from(pairs) / started.elapsed().as_secs_f64())
}
