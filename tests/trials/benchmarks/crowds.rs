//! `Locks`: many threads, of one process and of two, on one lock.

use std::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lock, Locks, Options, Pool};
use parking_lot::FairMutex;
use redis::Client;

use crate::common::{Proxy, Server};

const PATIENCE: Duration = Duration::from_mins(1);
/// The holder spins, since a sleep this short takes twice as long.
const HOLD: Duration = Duration::from_micros(100);
const TURNS: u32 = 256;
const LONGEST: Duration = Duration::from_millis(20);

/// The threads that want the lock, and their work.
#[derive(Clone)]
pub(crate) struct Crowd<'a> {
    /// The number of threads of each process.
    pub(crate) processes: &'a [usize],
    pub(crate) hold: Duration,
    /// Passes the time of a hold.
    pub(crate) inside: fn(Duration),
    pub(crate) lock: fn(&Locks) -> Lock,
    pub(crate) options: Options,
}

/// The result of a crowd.
pub(crate) struct Served {
    /// For each process, the turns and worst waits of its threads.
    processes: Vec<Vec<(u32, Duration)>>,
    /// The time until the last thread had its turn.
    pub(crate) took: Duration,
}

fn mutex(locks: &Locks) -> Lock {
    locks.lock("benchmark-crowd")
}

/// Measures threads of one process on one lock, and then of two.
pub(crate) fn crowds(server: &Server, length: Duration) -> anyhow::Result<()> {
    heading();
    for processes in [&[2][..], &[8], &[64], &[1_000], &[8, 8]] {
        let crowd = Crowd {
            processes,
            hold: HOLD,
            inside: spin,
            lock: mutex,
            options: Options::new(),
        };
        show(&crowd, server, length)?;
    }
    Ok(())
}

/// Measures the lock with and without a hand-over.
pub(crate) fn hand_overs(server: &Server, rounds: usize, length: Duration) -> anyhow::Result<()> {
    let handing = Options::new().hand_over(TURNS, LONGEST);
    for hold in [Duration::ZERO, HOLD] {
        let crowd = Crowd {
            processes: &[64],
            hold,
            inside: spin,
            lock: mutex,
            options: Options::new(),
        };
        let handed = Crowd {
            options: handing.clone(),
            ..crowd.clone()
        };
        let mut ratios = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            let without = crowd.run(&server.url(), length)?.total();
            let with = handed.run(&server.url(), length)?.total();
            let in_memory = in_memory(64, hold, length);
            for (ratios, reference) in ratios.iter_mut().zip([without, in_memory]) {
                ratios.push(f64::from(with) / f64::from(reference.max(1)));
            }
        }
        let [without, in_memory] = ratios.map(median);
        println!(
            "64 threads, hold {hold:?}: with hand-over {without:.2} times without, {in_memory:.2} times a fair mutex in memory"
        );
    }
    heading();
    for (processes, hold) in [
        (&[64][..], Duration::ZERO),
        (&[64], HOLD),
        (&[8, 8], Duration::ZERO),
        (&[8, 8], HOLD),
    ] {
        let crowd = Crowd {
            processes,
            hold,
            inside: spin,
            lock: mutex,
            options: handing.clone(),
        };
        show(&crowd, server, length)?;
    }
    Ok(())
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// Returns the turns of such a crowd with a fair mutex in memory and no server: the limit that
/// thread switches set.
fn in_memory(threads: u32, hold: Duration, length: Duration) -> u32 {
    let (mutex, turns) = (FairMutex::new(()), AtomicU32::new(0));
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while started.elapsed() < length {
                    let guard = mutex.lock();
                    spin(hold);
                    drop(guard);
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    turns.into_inner()
}

fn spin(hold: Duration) {
    let inside = Instant::now();
    while inside.elapsed() < hold {
        hint::spin_loop();
    }
}

fn heading() {
    println!(
        "{:<28} {:>10} {:>12} {:>9} {:>16} {:>14}",
        "", "acquires/s", "worst wait", "fairness", "commands/acquire", "smallest share"
    );
}

fn show(crowd: &Crowd<'_>, server: &Server, length: Duration) -> anyhow::Result<()> {
    let came = crowd.run(&server.url(), length)?;
    // Counting takes time, so it is done separately.
    let proxy = Proxy::in_front_of(server)?;
    let (counted, traffic) = proxy.traffic_of(|| crowd.run(&proxy.url(), length / 4));
    let commands = f64::from(u32::try_from(traffic.commands.len())?);
    println!(
        "{:<28} {:>10.0} {:>9.1} ms {:>9.2} {:>16.2} {:>14.2}",
        format!("{:?} threads, {:?}", crowd.processes, crowd.hold),
        f64::from(came.total()) / length.as_secs_f64(),
        came.worst_wait().as_secs_f64() * 1_000.0,
        came.fairness(),
        commands / f64::from(counted?.total().max(1)),
        came.smallest_share(),
    );
    Ok(())
}

impl Served {
    fn all(&self) -> impl Iterator<Item = &(u32, Duration)> {
        self.processes.iter().flatten()
    }

    pub(crate) fn total(&self) -> u32 {
        self.all().map(|(turns, _)| turns).sum()
    }

    pub(crate) fn worst_wait(&self) -> Duration {
        self.all()
            .map(|(_, worst)| *worst)
            .max()
            .unwrap_or_default()
    }

    /// Returns the turns of the thread with the fewest over those of the thread with the most.
    pub(crate) fn fairness(&self) -> f64 {
        let turns = || self.all().map(|(turns, _)| *turns);
        f64::from(turns().min().unwrap_or(0)) / f64::from(turns().max().unwrap_or(1).max(1))
    }

    /// Returns the smallest share of a process.
    fn smallest_share(&self) -> f64 {
        let turns =
            |process: &Vec<(u32, Duration)>| process.iter().map(|(turns, _)| *turns).sum::<u32>();
        let smallest = self.processes.iter().map(turns).min().unwrap_or(0);
        f64::from(smallest) / f64::from(self.total().max(1))
    }
}

impl Crowd<'_> {
    pub(crate) fn run(&self, url: &str, length: Duration) -> anyhow::Result<Served> {
        let locks_of_all = self
            .processes
            .iter()
            .map(|_| {
                Ok(Locks::new(&Pool::builder().build(&Client::open(url)?)?)?
                    .with(self.options.clone()))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        for locks in &locks_of_all {
            drop(locks.lock("warm").acquire(PATIENCE)?);
        }
        let started = Instant::now();
        thread::scope(|scope| {
            let threads = locks_of_all
                .iter()
                .zip(self.processes)
                .map(|(locks, threads)| {
                    let start = |_| scope.spawn(move || self.turns(locks, started, length));
                    (0..*threads).map(start).collect::<Vec<_>>()
                });
            let threads: Vec<Vec<_>> = threads.collect();
            let ended = threads.into_iter().map(|process| {
                let ended = process.into_iter().map(|thread| {
                    let ended = thread.join();
                    ended.map_err(|_| anyhow::anyhow!("a thread panicked"))?
                });
                ended.collect::<anyhow::Result<Vec<_>>>()
            });
            Ok(Served {
                processes: ended.collect::<anyhow::Result<_>>()?,
                took: started.elapsed(),
            })
        })
    }

    /// Returns the turns of one thread, and its worst wait.
    fn turns(
        &self,
        locks: &Locks,
        started: Instant,
        length: Duration,
    ) -> anyhow::Result<(u32, Duration)> {
        let lock = (self.lock)(locks);
        let (mut turns, mut worst) = (0, Duration::ZERO);
        while started.elapsed() < length {
            let asked = Instant::now();
            let lease = lock.acquire(PATIENCE)?;
            worst = worst.max(asked.elapsed());
            (self.inside)(self.hold);
            lease.release()?;
            turns += 1;
        }
        Ok((turns, worst))
    }
}
