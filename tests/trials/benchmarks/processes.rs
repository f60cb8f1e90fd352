//! `Locks`: turns between processes. Each is this program, started again, and all of its threads
//! want one lock.

use std::{
    env,
    io::BufRead,
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use leasehold::{Locks, Options};

use crate::{common::Server, worker::Worker};

/// The environment variable that makes this program a worker: server, threads, microseconds of a
/// hold, milliseconds in total, and optionally "no fencing token".
const WORKS: &str = "LEASEHOLD_BENCHMARK_WORKS";
const PATIENCE: Duration = Duration::from_mins(1);

/// The number of threads of each process.
struct Crowd {
    processes: &'static [usize],
    /// The time of a hold: slept, or spun if it is less than a millisecond.
    hold: Duration,
    fenced: bool,
}

const UNFENCED: &str = " unfenced";

const CROWDS: [Crowd; 7] = [
    Crowd::of(&[1; 20], 1_000),
    Crowd::of(&[4, 1], 1_000),
    Crowd::of(&[2, 2, 2, 2], 1_000),
    Crowd::of(&[2, 2, 2, 2], 100),
    Crowd {
        fenced: false,
        ..Crowd::of(&[2, 2, 2, 2], 100)
    },
    Crowd::of(&[8, 8], 100),
    Crowd::of(&[1, 1], 100),
];

/// The result of a round.
struct Round {
    /// For each process, the turns of its threads, and their worst wait in milliseconds.
    processes: Vec<(u64, f64)>,
    /// The commands that the server executed.
    commands: u64,
    length: Duration,
}

/// Works, if this program was started as a worker. False: it was not.
pub(crate) fn works() -> anyhow::Result<bool> {
    let Ok(how) = env::var(WORKS) else {
        return Ok(false);
    };
    let fenced = !how.ends_with(UNFENCED);
    let how: Vec<&str> = how.trim_end_matches(UNFENCED).split(' ').collect();
    let [url, threads, hold, length] = how[..] else {
        anyhow::bail!("{WORKS} is not complete");
    };
    let hold = Duration::from_micros(hold.parse()?);
    let length = Duration::from_millis(length.parse()?);
    let threads: usize = threads.parse()?;
    let locks = Locks::connect(url)?.with(Options::new().fencing(fenced));
    drop(locks.lock("warm").acquire(PATIENCE)?);
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let barrier = Barrier::new(threads);
    let all = thread::scope(|scope| {
        let turns = || {
            barrier.wait();
            turns(&locks, hold, length)
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(turns)).collect();
        let ended = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow::anyhow!("a thread panicked"))?
        });
        ended.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let turns: u64 = all.iter().map(|(turns, _)| turns).sum();
    let worst = all.iter().map(|(_, worst)| *worst).max();
    println!("{turns} {}", worst.unwrap_or_default().as_micros());
    Ok(true)
}

/// Returns the turns of a thread, and its worst wait.
fn turns(locks: &Locks, hold: Duration, length: Duration) -> anyhow::Result<(u64, Duration)> {
    let lock = locks.lock("benchmark-processes");
    let (started, mut turns, mut worst) = (Instant::now(), 0, Duration::ZERO);
    while started.elapsed() < length {
        let asked = Instant::now();
        let lease = lock.acquire(PATIENCE)?;
        worst = worst.max(asked.elapsed());
        inside(hold);
        lease.release()?;
        turns += 1;
    }
    Ok((turns, worst))
}

fn inside(hold: Duration) {
    if hold >= Duration::from_millis(1) {
        return thread::sleep(hold);
    }
    let inside = Instant::now();
    while inside.elapsed() < hold {
        std::hint::spin_loop();
    }
}

/// Measures each crowd. Rounds alternate with those of an earlier build of this program, if one is
/// given.
pub(crate) fn processes(
    server: &Server,
    rounds: usize,
    length: Duration,
    before: Option<&Path>,
) -> anyhow::Result<()> {
    let this = env::current_exe()?;
    let mut programs: Vec<(&str, PathBuf)> = Vec::new();
    programs.extend(before.map(|before| ("before", before.to_owned())));
    programs.push(("now", this));
    println!(
        "{:<45} {:>8} {:>11} {:>13} {:>11} {:>14}",
        "", "turns/s", "worst wait", "least/most", "share", "commands/turn"
    );
    for crowd in CROWDS {
        let mut came: Vec<Vec<Round>> = programs.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((_, program), came) in programs.iter().zip(&mut came) {
                came.push(crowd.run(server, program, length)?);
            }
        }
        for ((name, _), came) in programs.iter().zip(came) {
            crowd.show(name, &came);
        }
    }
    Ok(())
}

impl Crowd {
    const fn of(processes: &'static [usize], hold_micros: u64) -> Self {
        Self {
            processes,
            hold: Duration::from_micros(hold_micros),
            fenced: true,
        }
    }

    fn run(&self, server: &Server, program: &Path, length: Duration) -> anyhow::Result<Round> {
        let start = |threads: &usize| {
            let (url, hold) = (server.url(), self.hold.as_micros());
            let unfenced = if self.fenced { "" } else { UNFENCED };
            let how = format!("{url} {threads} {hold} {}{unfenced}", length.as_millis());
            Worker::start(program, WORKS, &how)
        };
        let workers = self.processes.iter().map(start);
        let mut workers = workers.collect::<anyhow::Result<Vec<_>>>()?;
        for worker in &mut workers {
            worker.hear()?;
        }
        let before = commands(server)?;
        for worker in &mut workers {
            // The worker starts when its input ends.
            worker.no_more();
        }
        let said = workers.iter_mut().map(|worker| {
            let said = worker.hear()?;
            let (turns, worst) = said
                .trim()
                .split_once(' ')
                .context("unexpected output of a worker")?;
            Ok((turns.parse()?, worst.parse::<f64>()? / 1_000.0))
        });
        let processes = said.collect::<anyhow::Result<_>>()?;
        Ok(Round {
            processes,
            commands: commands(server)? - before,
            length,
        })
    }

    fn show(&self, name: &str, rounds: &[Round]) {
        let median = |figure: &dyn Fn(&Round) -> f64| {
            let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        let unfenced = if self.fenced { "" } else { UNFENCED };
        let what = format!(
            "{:?} threads, {:?}{unfenced}, {name}",
            self.processes, self.hold
        );
        println!(
            "{what:<45} {:>8.0} {:>8.1} ms {:>13.2} {:>11.2} {:>14.2}",
            median(&|round| round.total() / round.length.as_secs_f64()),
            median(&Round::worst),
            median(&|round| round.least() / round.most()),
            median(&|round| round.least() / round.total()),
            median(&|round| f64::from(u32::try_from(round.commands).unwrap_or(0)) / round.total()),
        );
    }
}

#[allow(clippy::cast_precision_loss, reason = "far fewer than 2^53 turns")]
impl Round {
    fn turns(&self) -> impl Iterator<Item = f64> {
        self.processes.iter().map(|(turns, _)| *turns as f64)
    }

    fn total(&self) -> f64 {
        self.turns().sum::<f64>().max(1.0)
    }

    fn least(&self) -> f64 {
        self.turns().fold(f64::MAX, f64::min)
    }

    fn most(&self) -> f64 {
        self.turns().fold(1.0, f64::max)
    }

    fn worst(&self) -> f64 {
        self.processes
            .iter()
            .map(|(_, worst)| *worst)
            .fold(0.0, f64::max)
    }
}

/// Returns the number of commands that the server has executed, including those in scripts.
pub(crate) fn commands(server: &Server) -> anyhow::Result<u64> {
    let stats: String = redis::cmd("INFO")
        .arg("stats")
        .query(&mut server.connection()?)?;
    let all = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(all.context("INFO stats")?.trim().parse()?)
}
