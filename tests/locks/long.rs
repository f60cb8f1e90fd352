//! Long runs: `cargo test --release --test locks long:: -- --ignored`.

use std::{
    collections::HashSet,
    fs, thread,
    time::{Duration, Instant},
};

use leasehold::Pool;
use redis::Commands;

use crate::common::{MS, Server, hold::comes_true};

const PATIENCE: Duration = Duration::from_mins(1);

/// Acquires and releases by eight threads on many locks leave everything as before.
fn nothing_is_left_behind(pairs: usize, names: usize) {
    let server = Server::start().unwrap();
    let locks = crate::connect_with(&server.url(), Pool::builder().max_size(8));
    let work = |pairs: usize| {
        thread::scope(|scope| {
            for thread in 0..8 {
                let locks = &locks;
                scope.spawn(move || {
                    for pair in 0..pairs / 8 {
                        let name = format!("lock-{}", (pair * 8 + thread) % names);
                        locks
                            .lock(&name)
                            .acquire(PATIENCE)
                            .unwrap()
                            .release()
                            .unwrap();
                    }
                });
            }
        });
    };
    let mut conn = server.connection().unwrap();
    work(pairs / 10);
    let resident_before = resident();
    work(pairs);
    let (clients, resident) = (clients(&mut conn), resident());
    // Threads of an earlier test may take a moment to end.
    let ours = || threads() == 2;
    assert!(
        comes_true(ours),
        "{} threads: the watchdog's and the listener's",
        threads()
    );
    assert!(
        clients <= 8 + 4 + 1,
        "{clients} connections: the pool, four, and ours"
    );
    assert!(
        resident < resident_before + 8_000,
        "kB of memory: {resident_before} then {resident}"
    );
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut conn).unwrap();
    let companions: HashSet<_> = keys.iter().filter(|key| key.ends_with(":lease")).collect();
    assert_eq!(companions.len(), keys.len(), "no lock is left");
    assert!(companions.len() <= names);
    let endless = keys.iter().filter(|key| {
        let left: i64 = redis::cmd("PTTL").arg(key).query(&mut conn).unwrap();
        left < 0
    });
    assert_eq!(endless.count(), 0, "and what is left ends by itself");
}

/// Only this crate's. Threads of a dropped pool end within half a minute, at r2d2's next round.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let name =
        |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks
        .filter_map(Result::ok)
        .filter(|task| name(task).starts_with("leasehold"))
        .count()
}

fn clients(conn: &mut redis::Connection) -> usize {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(conn).unwrap();
    list.lines().count()
}

/// Memory in use, in kB.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "minutes, and must run alone because it counts all threads: cargo test --release --test locks a_million -- --ignored"]
fn a_million_pairs_leave_nothing_behind() {
    nothing_is_left_behind(1_000_000, 1_000);
}

#[test]
#[ignore = "must run alone because it counts all threads: cargo test --test locks ten_thousand -- --ignored"]
fn ten_thousand_pairs_leave_nothing_behind() {
    nothing_is_left_behind(10_000, 100);
}

/// From the deletion to the signal, at any age of the lease; the watchdog has not yet read those
/// younger than 20 ms.
#[test]
#[ignore = "half a minute, and needs an idle machine: cargo test --release --test locks a_loss_is_reported_within -- --ignored"]
#[allow(clippy::print_stderr, reason = "the figures are the result")]
fn a_loss_is_reported_within_fifty_milliseconds() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let mut conn = server.connection().unwrap();
    for overwritten in [false, true] {
        let mut took: Vec<_> = (0..500)
            .map(|loss| {
                // A new name: the watchdog may still get a notification about the last one's key.
                let name = format!("{overwritten}-{loss}");
                let key = format!("lock:{name}");
                let lease = locks.lock(&name).acquire(PATIENCE).unwrap();
                thread::sleep([0, 5, 15, 25, 60][loss % 5] * MS);
                let harmed = Instant::now();
                if overwritten {
                    let () = conn.set(&key, "somebody").unwrap();
                } else {
                    let () = conn.del(&key).unwrap();
                }
                assert!(lease.lost().wait_for(PATIENCE));
                harmed.elapsed()
            })
            .collect();
        took.sort();
        let [half, most, all] = [249, 494, 499].map(|at| took[at]);
        let harm = if overwritten {
            "overwritten"
        } else {
            "deleted"
        };
        eprintln!("{harm}: told after p50 {half:?}, p99 {most:?}, at most {all:?}");
        assert!(most <= 50 * MS, "{harm}: {most:?}");
    }
}
