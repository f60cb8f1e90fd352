//! The waits of `acquire_lock` and `acquire_lock_with_timeout`.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{SLACK, Server, start, tell, wait};
use leasehold::{Result, Token, acquire_lock, acquire_lock_with_timeout, release_lock};
use redis::Connection;

const NO_WAIT: Duration = Duration::ZERO;
const LEASE: Duration = Duration::from_secs(10);

type Acquire = fn(&mut Connection, Duration) -> Result<Option<Token>>;

/// Both functions wait in the same way.
const BOTH: [Acquire; 2] = [
    |conn, wait| acquire_lock(conn, "a", wait),
    |conn, wait| acquire_lock_with_timeout(conn, "a", wait, LEASE),
];

fn held_lock(conn: &mut Connection) -> Token {
    acquire_lock_with_timeout(conn, "a", NO_WAIT, LEASE)
        .unwrap()
        .unwrap()
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let (_server, mut conn) = start();
    held_lock(&mut conn);
    for acquire in BOTH {
        for patience in [NO_WAIT, Duration::from_millis(200)] {
            let started = Instant::now();
            assert_eq!(acquire(&mut conn, patience).unwrap(), None);
            let waited = started.elapsed();
            assert!(
                waited >= patience && waited <= patience + SLACK,
                "{waited:?}"
            );
        }
    }
}

#[test]
fn an_endless_wait_ends_with_the_release() {
    let server = Server::start().unwrap();
    for acquire in BOTH {
        let mut holder = server.connection().unwrap();
        tell(&mut holder, "CONFIG RESETSTAT");
        let token = held_lock(&mut holder);
        let mut conn = server.connection().unwrap();
        let waiter = thread::spawn(move || {
            let token = acquire(&mut conn, Duration::MAX).unwrap().unwrap();
            assert!(release_lock(&mut conn, "a", &token).unwrap());
            Instant::now()
        });
        assert!(wait::comes_true(|| wait::calls(&mut holder, "evalsha")
            .unwrap()
            >= 3));
        assert!(!waiter.is_finished());

        assert!(release_lock(&mut holder, "a", &token).unwrap());
        let released = Instant::now();
        let got_it = waiter.join().unwrap();
        assert!(got_it.saturating_duration_since(released) <= SLACK);
    }
}

#[test]
fn a_waiter_does_not_hammer_the_server() {
    wait::unless_halted(a_waiter_asks_now_and_then);
}

fn a_waiter_asks_now_and_then() {
    let (_server, mut conn) = start();
    held_lock(&mut conn);

    let patience = Duration::from_millis(600);
    let started = Instant::now();
    assert_eq!(acquire_lock(&mut conn, "a", patience).unwrap(), None);
    let waited = started.elapsed().as_millis();

    // Pauses of at least 0.5, 1, 2, 4, 5, 5, … ms, and one attempt before the first of them.
    let most = u128::from(6_u8) + waited / 5;
    let tries = u128::from(wait::calls(&mut conn, "evalsha").unwrap());
    assert!((3..=most).contains(&tries), "{tries} of at most {most}");
}

#[test]
fn a_waiter_gets_a_lock_that_expires() {
    let server = Server::start().unwrap();
    let mut holder = server.connection().unwrap();
    let mut conn = server.connection().unwrap();
    let lease = Duration::from_millis(250);

    let started = Instant::now();
    let dead = acquire_lock_with_timeout(&mut holder, "a", NO_WAIT, lease).unwrap();
    drop(holder);
    let token = acquire_lock_with_timeout(&mut conn, "a", LEASE, LEASE).unwrap();
    let waited = started.elapsed();

    assert!(token.is_some() && token != dead);
    assert!(waited <= lease + SLACK, "{waited:?}");
    assert!(
        waited + Duration::from_millis(1) >= lease,
        "{waited:?}: not before its end"
    );
}
