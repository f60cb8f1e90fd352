//! Every function of `mutex` × every command that it sends × {cut before, cut after, reply
//! swallowed}.
//!
//! The result is Unknown or right, a retry with the same token does not count twice, and the lock
//! is free within the lease.

use std::time::Duration;

use crate::common::{
    Proxy, Server,
    faults::{SILENCE, assert_unknown, for_each_fault, left},
    wait::at_once,
};
use leasehold::{
    Result, Token,
    recipes::mutex::{self, End},
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);
const LONGER: Duration = Duration::from_secs(20);
const END: End = End::After(LEASE);

fn fence(conn: &mut Connection) -> Option<u64> {
    conn.hget("{lock:a}:lease", "fence").unwrap()
}

fn mutex_is_acquired(
    call: impl Fn(&mut Connection, &str, &Token) -> Result<Option<mutex::Grant>> + Sync,
) {
    let token = Token::random();
    for_each_fault(
        true,
        |_| {},
        |conn, name| call(conn, name, &token),
        |conn, result, executed| {
            assert_unknown(&result, Some(&token));
            assert_eq!(left(conn, LEASE).is_some(), executed);
            let sent = fence(conn);
            let again = mutex::try_acquire(conn, "a", &token, END).unwrap().unwrap();
            if executed {
                assert_eq!(Some(again.fencing_token().get()), sent, "granted once");
            }
            assert!(mutex::release(conn, "a", &token).unwrap());
            assert_eq!(left(conn, LEASE), None);
        },
    );
}

/// Runs concurrently: each mostly waits.
#[test]
fn every_function_at_every_command() {
    let cases: [fn(); 6] = [
        mutex_try_acquire,
        mutex_acquire,
        mutex_try_acquire_unfenced,
        mutex_renew,
        mutex_release,
        a_wait_sends_an_attempt_again_whose_answer_is_late,
    ];
    at_once(cases, |case| case());
}

fn mutex_try_acquire() {
    mutex_is_acquired(|conn, name, token| mutex::try_acquire(conn, name, token, END));
}

fn mutex_acquire() {
    mutex_is_acquired(|conn, name, token| mutex::acquire(conn, name, token, Duration::ZERO, END));
}

fn mutex_try_acquire_unfenced() {
    let token = Token::random();
    for_each_fault(
        false,
        |_| {},
        |conn, name| mutex::try_acquire_unfenced(conn, name, &token, LEASE),
        |conn, result, executed| {
            assert_unknown(&result, Some(&token));
            assert_eq!(left(conn, LEASE).is_some(), executed);
            assert_eq!(mutex::release(conn, "a", &token).unwrap(), executed);
        },
    );
}

fn mutex_renew() {
    let token = Token::random();
    for_each_fault(
        true,
        |conn| {
            assert!(
                mutex::try_acquire(conn, "a", &token, END)
                    .unwrap()
                    .is_some()
            );
        },
        |conn, name| mutex::renew(conn, name, &token, LONGER),
        |conn, result, executed| {
            assert_unknown(&result, None);
            assert_eq!(left(conn, LONGER).unwrap() > LEASE, executed);
            assert!(mutex::renew(conn, "a", &token, LONGER).unwrap());
        },
    );
}

fn mutex_release() {
    let token = Token::random();
    for_each_fault(
        true,
        |conn| {
            assert!(
                mutex::try_acquire(conn, "a", &token, END)
                    .unwrap()
                    .is_some()
            );
        },
        |conn, name| mutex::release(conn, name, &token),
        |conn, result, executed| {
            assert_unknown(&result, None);
            assert_eq!(left(conn, LEASE).is_none(), executed);
            assert_eq!(mutex::release(conn, "a", &token).unwrap(), !executed);
        },
    );
}

fn a_wait_sends_an_attempt_again_whose_answer_is_late() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    let token = Token::random();
    assert!(!mutex::renew(&mut conn, "a", &token, LEASE).unwrap());
    conn.set_read_timeout(Some(SILENCE)).unwrap();

    proxy.at("EVALSHA").delay(SILENCE * 3 / 2);
    let granted = mutex::acquire(&mut conn, "a", &token, LEASE, END).unwrap();
    assert!(granted.is_some() && proxy.happened());
    conn.set_read_timeout(None).unwrap();
    assert!(mutex::release(&mut conn, "a", &token).unwrap());
}
