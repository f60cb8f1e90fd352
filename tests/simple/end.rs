//! `acquire_lock_with_timeout` sets an expiry on another holder's lock only if it has none.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{Proxy, SLACK, Server, monitor::Monitor, start, wait::unless_halted};
use leasehold::{acquire_lock, acquire_lock_with_timeout};
use redis::Commands;

const NO_WAIT: Duration = Duration::ZERO;
const LEASE: Duration = Duration::from_secs(10);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The lock of a program that died between `SETNX` and `EXPIRE`, as the book's functions send them.
fn lock_without_end(conn: &mut redis::Connection) {
    conn.set::<_, _, ()>("lock:a", "another holder").unwrap();
}

fn lock_with_end(conn: &mut redis::Connection, millis: u64) {
    conn.pset_ex::<_, _, ()>("lock:a", "another holder", millis)
        .unwrap();
}

#[test]
fn a_waiter_with_a_lease_below_a_second_never_deletes_a_lock_without_expiry() {
    unless_halted(a_waiter_with_a_lease_below_a_second);
}

fn a_waiter_with_a_lease_below_a_second() {
    let (_server, mut conn) = start();
    lock_without_end(&mut conn);

    let refused = acquire_lock_with_timeout(&mut conn, "a", NO_WAIT, millis(900)).unwrap();

    assert_eq!(refused, None);
    assert_eq!(conn.get("lock:a"), Ok("another holder".to_owned()));
    let ttl: i64 = conn.pttl("lock:a").unwrap();
    assert!((1..=900).contains(&ttl), "{ttl}");
}

#[test]
fn a_lock_left_without_expiry_is_free_after_a_waiters_lease() {
    let (_server, mut conn) = start();
    lock_without_end(&mut conn);

    let started = Instant::now();
    let token = acquire_lock_with_timeout(&mut conn, "a", LEASE, millis(200)).unwrap();

    assert!(token.is_some());
    assert!(started.elapsed() >= millis(199), "its expiry was respected");
    assert!(started.elapsed() <= millis(200) + SLACK);
}

#[test]
fn an_expiry_set_by_one_waiter_is_not_moved_by_the_next() {
    let (_server, mut conn) = start();
    lock_without_end(&mut conn);

    let hour = Duration::from_hours(1);
    assert_eq!(
        acquire_lock_with_timeout(&mut conn, "a", NO_WAIT, LEASE).unwrap(),
        None
    );
    for lease in [millis(1), hour] {
        let refused = acquire_lock_with_timeout(&mut conn, "a", NO_WAIT, lease).unwrap();
        assert_eq!(refused, None);
    }
    let ttl: i64 = conn.pttl("lock:a").unwrap();
    assert!(
        (5_000..=10_000).contains(&ttl),
        "{ttl}: the first waiter's lease"
    );
}

#[test]
fn a_waiter_does_not_change_a_lock_that_has_an_expiry() {
    let (server, mut conn) = start();
    lock_with_end(&mut conn, 60_000);
    let ends = end_of_the_lock(&mut conn);
    let mut monitor = Monitor::start(&server).unwrap();

    for lease in [millis(1), Duration::from_mins(1), Duration::from_hours(1)] {
        let refused = acquire_lock_with_timeout(&mut conn, "a", millis(20), lease).unwrap();
        assert_eq!(refused, None);
    }

    let commands = monitor.commands().unwrap();
    let now = end_of_the_lock(&mut conn);
    assert!((now - ends).abs() < 250, "{ends} became {now}");
    for command in commands {
        let reads = ["EVALSHA ", "EVAL ", "GET ", "PTTL ", "TIME"];
        let asks_only = reads.iter().any(|read| command.starts_with(read));
        let first_try = command.starts_with("SET ") && command.contains(" NX ");
        // Changes nothing, and is refused by a replica.
        let is_by_a_master = command.starts_with("RENAMENX lock:a lock:a");
        assert!(asks_only || first_try || is_by_a_master, "{command}");
    }
}

/// Milliseconds since 1970 on the server's clock, read in one transaction so that no time passes in
/// between.
fn end_of_the_lock(conn: &mut redis::Connection) -> i64 {
    let mut both = redis::pipe();
    both.atomic().cmd("TIME").pttl("lock:a");
    let ((seconds, micros), left): ((i64, i64), i64) = both.query(conn).unwrap();
    seconds * 1000 + micros / 1000 + left
}

#[test]
fn a_lock_in_its_last_half_second_is_left_to_expire() {
    // TTL rounds to whole seconds: 0 here, which the book's printed code takes for "has no end".
    let (_server, mut conn) = start();
    lock_with_end(&mut conn, 300);

    let token = acquire_lock_with_timeout(&mut conn, "a", Duration::from_secs(2), LEASE).unwrap();

    assert!(token.is_some(), "the waiting threads kept it alive");
}

#[test]
fn a_lock_that_changes_hands_between_two_requests_keeps_its_expiry() {
    // If the check and the repair were two requests, the repair could shorten the next holder's
    // lock.
    let server = Server::start().unwrap();
    let mut other = server.connection().unwrap();
    lock_without_end(&mut other);
    let shortest = Arc::new(AtomicI64::new(i64::MAX));
    let seen = Arc::clone(&shortest);
    let mut with_end = false;
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    proxy.at_command(1).run_each_time(move || {
        if with_end {
            let ttl: i64 = other.pttl("lock:a").unwrap();
            seen.fetch_min(ttl, Ordering::Relaxed);
            lock_without_end(&mut other);
        } else {
            lock_with_end(&mut other, 60_000);
        }
        with_end = !with_end;
    });

    let refused = acquire_lock_with_timeout(&mut conn, "a", millis(100), millis(5_000)).unwrap();

    assert_eq!(refused, None);
    let shortest = shortest.load(Ordering::Relaxed);
    assert!((30_000..=60_000).contains(&shortest), "{shortest}");
}

#[test]
fn an_endless_lease_gives_a_lock_without_expiry_none() {
    let (_server, mut conn) = start();
    lock_without_end(&mut conn);

    assert_eq!(acquire_lock(&mut conn, "a", millis(20)).unwrap(), None);
    assert_eq!(conn.pttl("lock:a"), Ok(-1));
}
