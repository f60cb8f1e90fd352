//! `Locks`: guards on a free lock, from hand to hand, and in a crowd.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use leasehold::{Locks, Pool};
use redis::{Client, Connection, Script};
use uuid::Uuid;

use crate::{
    common::{Proxy, Server},
    measure::{Effort, compare},
    show,
};

/// Spun inside, since a sleep of this length takes twice as long.
const HOLD: Duration = Duration::from_micros(100);
/// Long enough for a waiter to wait.
const QUIET: Duration = Duration::from_millis(3);
const PATIENCE: Duration = Duration::from_secs(60);

/// A guard, against its scripts and against the shortest safe way, by hand.
pub(crate) fn free(
    server: &Server,
    connections: &mut [Connection],
    effort: Effort,
) -> anyhow::Result<()> {
    let locks = Locks::connect(&server.url())?;
    let acquire = Script::new(include_str!("../../src/recipes/lua/acquire_mutex.lua"));
    let release = Script::new(include_str!("../../src/recipes/lua/release_mutex.lua"));
    let guards = |_: &mut Connection, thread: usize| {
        let lease = locks.lock(&name(thread)).acquire(Duration::ZERO)?;
        Ok(lease.release()?)
    };
    let scripts = |conn: &mut Connection, thread: usize| {
        let (key, token) = (format!("lock:{}", name(thread)), Uuid::new_v4().to_string());
        let fence: Option<u64> = acquire
            .key(&key)
            .key(format!("{{{key}}}:lease"))
            .arg(&token)
            .arg(10_000)
            .arg(0)
            .arg("by hand")
            .arg(1)
            .invoke(conn)?;
        fence.context("the lock is held")?;
        delete_if_ours(&release, conn, &key, &token)
    };
    let shortest = |conn: &mut Connection, thread: usize| {
        let (key, token) = (format!("lock:{}", name(thread)), Uuid::new_v4().to_string());
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&token).arg("NX").arg("PX").arg(10_000);
        anyhow::ensure!(set.query::<bool>(conn)?, "the lock is held");
        delete_if_ours(&release, conn, &key, &token)
    };
    for threads in [1, 8] {
        let connections = &mut connections[..threads];
        let compared = compare(connections, effort, &guards, &scripts)?;
        show(
            &format!("guard / its scripts, {threads} thread(s)"),
            &compared,
        );
        let compared = compare(connections, effort, &guards, &shortest)?;
        show(
            &format!("guard / SET + EVALSHA, {threads} thread(s)"),
            &compared,
        );
    }
    Ok(())
}

fn name(thread: usize) -> String {
    format!("benchmark-guard-{thread}")
}

fn delete_if_ours(
    release: &Script,
    conn: &mut Connection,
    key: &str,
    token: &str,
) -> anyhow::Result<()> {
    let released: bool = release.key(key).arg(token).invoke(conn)?;
    anyhow::ensure!(released, "the lock is lost");
    Ok(())
}

/// From the call that releases to the next holder, each with its own connections and threads as two processes have them,
/// against a `PING` in between.
pub(crate) fn hand_over(server: &Server, rounds: usize) -> anyhow::Result<()> {
    let sides = [
        Locks::connect(&server.url())?,
        Locks::connect(&server.url())?,
    ];
    let mut conn = server.connection()?;
    let (mut passed, mut pinged) = (Vec::new(), Vec::new());
    let mut held = sides[0].lock("benchmark-hand-over").acquire(PATIENCE)?;
    for turn in 1..=rounds * 100 {
        let next = &sides[turn % 2];
        let (lease, got, released) = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let lease = next.lock("benchmark-hand-over").acquire(PATIENCE)?;
                anyhow::Ok((lease, Instant::now()))
            });
            thread::sleep(QUIET);
            let released = Instant::now();
            held.release()?;
            let waited = waiting.join();
            let (lease, got) = waited.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            anyhow::Ok((lease, got, released))
        })?;
        held = lease;
        passed.push(got - released);
        // As quiet before it as before a release: what has slept is slower.
        thread::sleep(QUIET);
        let asked = Instant::now();
        redis::cmd("PING").exec(&mut conn)?;
        pinged.push(asked.elapsed());
    }
    let (passed, pinged) = (percentiles(passed), percentiles(pinged));
    println!(
        "hand-over p50 {:?} p99 {:?}; PING p50 {:?} p99 {:?}; ratio of p50 {:.2}",
        passed.0,
        passed.1,
        pinged.0,
        pinged.1,
        passed.0.as_secs_f64() / pinged.0.as_secs_f64()
    );
    Ok(())
}

fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Threads of one process on one lock, and then of two.
pub(crate) fn crowds(server: &Server, length: Duration) -> anyhow::Result<()> {
    println!(
        "{:<20} {:>10} {:>12} {:>9} {:>16} {:>14}",
        "", "acquires/s", "worst wait", "fairness", "commands/acquire", "largest share"
    );
    for threads in [8, 64, 1_000] {
        crowd(server, &[threads], length)?;
    }
    crowd(server, &[8, 8], length)
}

fn crowd(server: &Server, processes: &[usize], length: Duration) -> anyhow::Result<()> {
    let turns_of = turns_of_all(&server.url(), processes, length)?;
    // Counting takes time of its own, so it is done apart.
    let proxy = Proxy::in_front_of(server)?;
    let (counted, traffic) = proxy.traffic_of(|| turns_of_all(&proxy.url(), processes, length / 4));
    let counted: u32 = counted?.iter().flatten().map(|(turns, _)| turns).sum();

    let sum = |process: &Vec<(u32, Duration)>| process.iter().map(|(turns, _)| turns).sum();
    let shares: Vec<u32> = turns_of.iter().map(sum).collect();
    let total: u32 = shares.iter().sum();
    let all = || turns_of.iter().flatten();
    let (least, most) = (
        all().map(|(turns, _)| *turns).min(),
        all().map(|(turns, _)| *turns).max(),
    );
    println!(
        "{:<20} {:>10.0} {:>9.1} ms {:>9.2} {:>16.2} {:>14.2}",
        format!("{processes:?} threads"),
        f64::from(total) / length.as_secs_f64(),
        all()
            .map(|(_, worst)| worst.as_secs_f64() * 1_000.0)
            .fold(0.0, f64::max),
        f64::from(least.unwrap_or(0)) / f64::from(most.unwrap_or(1).max(1)),
        f64::from(u32::try_from(traffic.commands.len())?) / f64::from(counted),
        shares
            .iter()
            .map(|share| f64::from(*share) / f64::from(total))
            .fold(0.0, f64::max),
    );
    Ok(())
}

/// For each process its threads' turns and worst waits.
fn turns_of_all(
    url: &str,
    processes: &[usize],
    length: Duration,
) -> anyhow::Result<Vec<Vec<(u32, Duration)>>> {
    let all = processes
        .iter()
        .map(|_| Ok(Locks::new(&Pool::builder().build(&Client::open(url)?)?)?))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for locks in &all {
        drop(locks.lock("warm").acquire(PATIENCE)?);
    }
    let started = Instant::now();
    thread::scope(|scope| {
        let threads = all.iter().zip(processes).map(|(locks, threads)| {
            let start = |_| scope.spawn(move || turns(locks, started, length));
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
        ended.collect()
    })
}

/// How many turns one thread got, and its worst wait.
fn turns(locks: &Locks, started: Instant, length: Duration) -> anyhow::Result<(u32, Duration)> {
    let lock = locks.lock("benchmark-crowd");
    let (mut turns, mut worst) = (0, Duration::ZERO);
    while started.elapsed() < length {
        let asked = Instant::now();
        let lease = lock.acquire(PATIENCE)?;
        worst = worst.max(asked.elapsed());
        let inside = Instant::now();
        while inside.elapsed() < HOLD {
            hint::spin_loop();
        }
        lease.release()?;
        turns += 1;
    }
    Ok((turns, worst))
}
