//! Many threads on a few locks: a writer never holds one together with another thread.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Server,
    kinds::{Kind, READ_WRITE},
    wait::at_once,
};
use leasehold::Token;
use redis::Commands;

/// A hold, from just after its grant to just before its release.
#[derive(Clone, Copy, Debug)]
struct Stay {
    name: usize,
    writes: bool,
    from: Instant,
    to: Instant,
}

/// No hold overlaps with a writer's, on any name.
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
