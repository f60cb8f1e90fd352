//! The lock by `SET … NX`: its holder, its lease, and the effect of a retry.

mod end;
mod set_options;

use std::time::Duration;

use crate::common::start;
use leasehold::{
    Token, acquire_lock,
    recipes::{
        mutex,
        mutex::{End, Grant},
    },
    release_lock,
};
use redis::{Commands, Connection};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: End = End::After(Duration::from_secs(10));

fn try_acquire(conn: &mut Connection, token: &Token, end: End) -> Option<Grant> {
    mutex::try_acquire(conn, "a", token, end).unwrap()
}

/// The lock's remaining milliseconds, -1 without an end, -2 if free.
fn left(conn: &mut Connection) -> i64 {
    conn.pttl("lock:a").unwrap()
}

#[test]
fn the_bare_command_takes_it_once_with_an_expiry() {
    let (_server, mut conn) = start();
    let token = Token::random();
    assert!(mutex::try_acquire_unfenced(&mut conn, "a", &token, 10 * SECOND).unwrap());
    assert!((9_000..=10_000).contains(&left(&mut conn)));
    assert_eq!(
        conn.keys::<_, Vec<String>>("*").unwrap(),
        ["lock:a"],
        "no companion"
    );
    assert!(
        !mutex::try_acquire_unfenced(&mut conn, "a", &token, SECOND).unwrap(),
        "it does not recognise its own"
    );
    assert!(mutex::renew(&mut conn, "a", &token, 100 * SECOND).unwrap());
    assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), ["lock:a"]);
    assert!(mutex::release(&mut conn, "a", &token).unwrap());
}

#[test]
fn a_lock_without_a_fencing_token_gets_one_and_is_never_shortened() {
    let (_server, mut conn) = start();
    let token = Token::random();
    assert!(mutex::try_acquire_unfenced(&mut conn, "a", &token, 60 * SECOND).unwrap());
    let first = try_acquire(&mut conn, &token, LEASE);
    assert!(first.is_some());
    assert!(left(&mut conn) > 59_000);
    assert_eq!(try_acquire(&mut conn, &token, LEASE), first);
}

#[test]
fn the_books_lock_without_expiry_gets_none() {
    let (_server, mut conn) = start();
    let token = acquire_lock(&mut conn, "a", SECOND).unwrap().unwrap();
    assert!(try_acquire(&mut conn, &token, LEASE).is_some());
    assert_eq!(left(&mut conn), -1);
    assert!(try_acquire(&mut conn, &token, LEASE).is_some());
    assert!(mutex::renew(&mut conn, "a", &token, SECOND).unwrap());
    assert_eq!(left(&mut conn), -1);
    assert!(release_lock(&mut conn, "a", &token).unwrap());
}

#[test]
fn a_mutex_and_any_set_nx_lock_exclude_each_other() {
    let (_server, mut conn) = start();
    let set_nx = |conn: &mut Connection| -> Option<String> {
        let mut set = redis::cmd("SET");
        set.arg("lock:a")
            .arg("somebody")
            .arg("EX")
            .arg(10)
            .arg("NX");
        set.query(conn).unwrap()
    };
    let ours = Token::random();
    try_acquire(&mut conn, &ours, LEASE).unwrap();
    assert_eq!(set_nx(&mut conn), None);
    assert!(mutex::release(&mut conn, "a", &ours).unwrap());

    assert!(set_nx(&mut conn).is_some());
    assert_eq!(try_acquire(&mut conn, &ours, LEASE), None);
    assert!(!mutex::release(&mut conn, "a", &ours).unwrap());
    assert!(!mutex::renew(&mut conn, "a", &ours, 100 * SECOND).unwrap());
    assert!(left(&mut conn) <= 10_000);
    let theirs: Token = "somebody".parse().unwrap();
    assert!(mutex::release(&mut conn, "a", &theirs).unwrap());
}
