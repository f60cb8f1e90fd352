//! `Locks`: guards on a free lock, and from hand to hand.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use leasehold::Locks;
use redis::{Connection, Script};
use uuid::Uuid;

use crate::{
    common::Server,
    measure::{Effort, compare},
    show,
};

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
    let acquire = Script::new(include_str!("../../src/recipes/mutex/acquire.lua"));
    let release = Script::new(include_str!("../../src/recipes/mutex/release.lua"));
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
            .arg("by hand")
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
