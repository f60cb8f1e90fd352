//! One holder at a time, however many threads compete for the lock.

use std::{collections::HashSet, thread, time::Duration};

use crate::common::Server;
use leasehold::{Token, acquire_lock, acquire_lock_with_timeout, release_lock};
use redis::{Commands, Connection};

const PATIENT: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(10);

/// Increments the lock's number by `GET` and `SET`, and asserts that no other thread does.
fn count_up(conn: &mut Connection, name: &str, token: &Token) {
    let (number, mark) = (format!("number:{name}"), format!("mark:{name}"));
    let alone: bool = conn.set_nx(&mark, token.to_string()).unwrap();
    assert!(alone, "two hold `{name}` at once");
    let before: Option<u32> = conn.get(&number).unwrap();
    thread::yield_now();
    let () = conn.set(&number, before.unwrap_or(0) + 1).unwrap();
    assert_eq!(conn.get_del(&mark), Ok(token.to_string()));
}

const NAMES: [&str; 3] = ["a", "b", "{shop}:c"];

/// In each round, each of six threads acquires the next lock.
#[test]
fn threads_hold_each_of_several_locks_one_at_a_time() {
    let server = Server::start().unwrap();
    let work = |thread: usize| {
        let mut conn = server.connection().unwrap();
        let round = |round: usize| {
            let name = NAMES[(thread + round) % NAMES.len()];
            let token = if round.is_multiple_of(5) {
                acquire_lock(&mut conn, name, PATIENT)
            } else {
                acquire_lock_with_timeout(&mut conn, name, PATIENT, LEASE)
            };
            let token = token.unwrap().unwrap();
            count_up(&mut conn, name, &token);
            assert!(release_lock(&mut conn, name, &token).unwrap());
            token.to_string()
        };
        (0..30).map(round).collect::<Vec<_>>()
    };
    let tokens: HashSet<String> = thread::scope(|scope| {
        let threads = [0, 1, 2, 3, 4, 5].map(|thread| scope.spawn(move || work(thread)));
        let tokens = threads.into_iter().map(|thread| thread.join().unwrap());
        tokens.flatten().collect()
    });
    assert_eq!(tokens.len(), 180);
    let mut conn = server.connection().unwrap();
    let numbers = NAMES.map(|name| conn.get::<_, u32>(format!("number:{name}")).unwrap());
    assert_eq!(numbers, [60, 60, 60]);
}
