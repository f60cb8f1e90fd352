//! A semaphore with three permits against a mutex: 64 threads on each, in turn.

use std::{thread, time::Duration};

use leasehold::{Lock, Locks, Options};

use crate::{
    common::{Proxy, Server},
    crowds::{Crowd, Served},
    measure::median,
    processes::commands,
};

const NAME: &str = "benchmark-semaphore";
const HOLDS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_micros(100),
    Duration::from_millis(1),
];
const CROWDS: [&[usize]; 2] = [&[64], &[32, 32]];
/// Crowds for a comparison with other programs, which do nothing during a hold.
const BESIDE_PEERS: [&[usize]; 2] = [&[1], &[16]];

/// A kind of lock. The rounds of two kinds alternate.
struct Kind {
    name: &'static str,
    lock: fn(&Locks) -> Lock,
    rounds: Vec<Round>,
    /// This program's calls per turn, counted separately.
    calls: f64,
}

struct Round {
    turns: f64,
    /// The server's commands per turn, including those in scripts.
    commands: f64,
    worst: f64,
    fairness: f64,
}

/// Prints the turns a second and the commands a turn for each time of a hold. Holders sleep, as if
/// they waited for something else.
pub(crate) fn semaphores(server: &Server, rounds: usize, length: Duration) -> anyhow::Result<()> {
    println!(
        "{:<44} {:>8} {:>7} {:>11} {:>9} {:>11} {:>14}",
        "", "turns/s", "ratio", "worst wait", "fairness", "calls/turn", "commands/turn"
    );
    for processes in BESIDE_PEERS {
        beside_a_mutex(server, processes, Duration::ZERO, rounds, length)?;
    }
    for processes in CROWDS {
        for hold in HOLDS {
            beside_a_mutex(server, processes, hold, rounds, length)?;
        }
    }
    Ok(())
}

fn beside_a_mutex(
    server: &Server,
    processes: &[usize],
    hold: Duration,
    rounds: usize,
    length: Duration,
) -> anyhow::Result<()> {
    let mut kinds = [
        Kind::new("a mutex", |locks| locks.lock(NAME)),
        Kind::new("three permits", |locks| locks.semaphore(NAME, 3)),
    ];
    let crowd = |lock| Crowd {
        processes,
        hold,
        inside: sleeps,
        lock,
        options: Options::new(),
    };
    for _ in 0..rounds {
        for kind in &mut kinds {
            let before = commands(server)?;
            let came = crowd(kind.lock).run(&server.url(), length)?;
            let commands = commands(server)? - before;
            kind.rounds.push(Round::new(&came, commands)?);
        }
    }
    for kind in &mut kinds {
        // Counting takes time, so it is done separately.
        let proxy = Proxy::in_front_of(server)?;
        let run = || crowd(kind.lock).run(&proxy.url(), length / 4);
        let (came, traffic) = proxy.traffic_of(run);
        let calls = f64::from(u32::try_from(traffic.commands.len())?);
        kind.calls = calls / f64::from(came?.total().max(1));
    }
    let [mutex, _] = &kinds;
    for kind in &kinds {
        let beside = kind.rounds.iter().zip(&mutex.rounds);
        let ratio = median(beside.map(|(ours, mutex)| ours.turns / mutex.turns));
        kind.show(&format!("{processes:?} threads, {hold:?}"), ratio);
    }
    Ok(())
}

fn sleeps(hold: Duration) {
    if !hold.is_zero() {
        thread::sleep(hold);
    }
}

impl Kind {
    fn new(name: &'static str, lock: fn(&Locks) -> Lock) -> Self {
        Self {
            name,
            lock,
            rounds: Vec::new(),
            calls: 0.0,
        }
    }

    fn show(&self, crowd: &str, ratio: f64) {
        let of_rounds = |figure: fn(&Round) -> f64| median(self.rounds.iter().map(figure));
        println!(
            "{:<44} {:>8.0} {:>7.2} {:>8.1} ms {:>9.2} {:>11.2} {:>14.2}",
            format!("{crowd}, {}", self.name),
            of_rounds(|round| round.turns),
            ratio,
            of_rounds(|round| round.worst),
            of_rounds(|round| round.fairness),
            self.calls,
            of_rounds(|round| round.commands),
        );
    }
}

impl Round {
    fn new(came: &Served, commands: u64) -> anyhow::Result<Self> {
        let total = f64::from(came.total().max(1));
        Ok(Self {
            turns: total / came.took.as_secs_f64(),
            commands: f64::from(u32::try_from(commands)?) / total,
            worst: came.worst_wait().as_secs_f64() * 1_000.0,
            fairness: came.fairness(),
        })
    }
}
