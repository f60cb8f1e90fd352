//! Many threads on a few locks: a writer never holds one together with another thread.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Server,
    kinds::{Kind, READ_WRITE},
    wait::at_once,
};
use leasehold::{
    FencingToken, Token,
    recipes::read_write::{try_acquire_read, try_acquire_write},
};
use redis::Commands;

/// A hold, from just after its grant to just before its release.
#[derive(Clone, Copy, Debug)]
struct Stay {
    name: usize,
    writes: bool,
    /// A writer's, if compared.
    fence: Option<FencingToken>,
    from: Instant,
    to: Instant,
}

/// No hold overlaps with a writer's, on any name, and later writers have greater fencing tokens.
fn assert_exclusion(mut history: Vec<Stay>) {
    history.sort_by_key(|stay| (stay.name, stay.from));
    let mut last: [Option<Stay>; 2] = [None; 2];
    for stay in history {
        let [reader, writer] = last.map(|last| last.filter(|last| last.name == stay.name));
        let before = [writer, reader.filter(|_| stay.writes)];
        for other in before.into_iter().flatten() {
            assert!(other.to <= stay.from, "{other:?} and {stay:?}");
        }
        let same = [reader, writer][usize::from(stay.writes)];
        let last_fence = same.and_then(|same| same.fence);
        assert!(
            stay.fence.is_none() || stay.fence > last_fence,
            "{same:?} and {stay:?}"
        );
        let latest = same.filter(|same| same.to > stay.to).unwrap_or(stay);
        last[usize::from(stay.writes)] = Some(latest);
    }
}

/// Threads that acquire as readers, and every fourth time as writers.
fn storm(sides: [Kind; 2], threads: usize, names: usize, rounds: usize) -> Vec<Stay> {
    let server = Server::start().unwrap();
    let come_and_go = |thread: usize| {
        let mut conn = server.connection().unwrap();
        let mut stays = Vec::new();
        for round in 0..rounds {
            let name = (thread + round * 7) % names;
            let writes = (thread / names + round).is_multiple_of(4);
            let (side, token) = (sides[usize::from(writes)], Token::random());
            let key = format!("name{name}");
            let wait = Duration::from_secs(20);
            assert!(side.acquire.unwrap()(&mut conn, &key, &token, wait).unwrap());
            let from = Instant::now();
            if round.is_multiple_of(3) {
                thread::sleep(Duration::from_micros(200));
            }
            let to = Instant::now();
            assert!((side.release)(&mut conn, &key, &token).unwrap());
            stays.push(Stay {
                name,
                writes,
                fence: None,
                from,
                to,
            });
        }
        stays
    };
    let history: Vec<Stay> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || come_and_go(thread)))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(history.len(), threads * rounds);
    let left: Vec<String> = server.connection().unwrap().keys("*").unwrap();
    let left: Vec<_> = left.iter().filter(|key| !key.ends_with(":lease")).collect();
    assert!(left.is_empty(), "{left:?} left behind");
    history
}

fn storms(sides: [Kind; 2], rounds: usize) {
    let crowds = [(2, 1), (8, 2), (32, 1), (32, 8)];
    at_once(crowds, |(threads, names)| {
        assert_exclusion(storm(sides, threads, names, rounds / threads));
    });
}

#[test]
fn read_write() {
    storms(READ_WRITE[0], 240);
}

#[test]
fn two_key() {
    storms(READ_WRITE[1], 240);
}

#[test]
fn one_hash() {
    storms(READ_WRITE[2], 240);
}

#[test]
#[ignore = "minutes: cargo test --release --test recipes long_storms -- --ignored"]
fn long_storms() {
    for sides in READ_WRITE {
        storms(sides, 20_000);
    }
}

/// Holders that never release: their holds by their own clocks, started before the request, never
/// overlap either.
#[test]
fn leases_that_expire() {
    const LEASE: Duration = Duration::from_millis(8);
    let server = Server::start().unwrap();
    // Numbers of readers and writers granted.
    let seen = [(); 2].map(|()| AtomicUsize::new(0));
    let seen_enough = || seen.iter().all(|seen| seen.load(Ordering::Relaxed) > 3);
    let crash_again_and_again = |thread: usize| {
        let mut conn = server.connection().unwrap();
        let (mut stays, started) = (Vec::new(), Instant::now());
        let writes = thread.is_multiple_of(2);
        while started.elapsed() < Duration::from_millis(if seen_enough() { 500 } else { 30_000 }) {
            let (token, asked) = (Token::random(), Instant::now());
            let fence = if writes {
                let grant = try_acquire_write(&mut conn, "a", &token, LEASE).unwrap();
                grant.map(|grant| Some(grant.fencing_token()))
            } else {
                let granted = try_acquire_read(&mut conn, "a", &token, LEASE).unwrap();
                granted.then_some(None)
            };
            let (from, to) = (Instant::now(), asked + LEASE);
            match fence {
                Some(fence) if from < to => {
                    seen[usize::from(writes)].fetch_add(1, Ordering::Relaxed);
                    stays.push(Stay {
                        name: 0,
                        writes,
                        fence,
                        from,
                        to,
                    });
                    // Readers pause longer, so that others get a turn.
                    thread::sleep(if writes { LEASE / 2 } else { LEASE * 3 });
                }
                _ => thread::sleep(Duration::from_micros(300)),
            }
        }
        stays
    };
    let history: Vec<Stay> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| scope.spawn(move || crash_again_and_again(thread)))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(seen_enough(), "one kind was never granted");
    assert_exclusion(history);
}
