//! Locks acquired by plain functions and confirmed on replicas.

use leasehold::{
    Owner, Token, acquire_lock_with_timeout,
    recipes::{
        Hold,
        mutex::{self, End},
        read_write, reentrant,
    },
};

use super::*;
use crate::common::tell;

const LEASE: Duration = Duration::from_mins(1);

/// Acquires a lock of each kind by its plain function, and returns the hold.
fn acquired(conn: &mut Connection) -> Vec<(&'static str, Hold)> {
    let token = Token::random();
    let end = End::After(LEASE);
    let owner = Owner::new("me").unwrap();
    assert!(
        mutex::try_acquire(conn, "mutex", &token, end)
            .unwrap()
            .is_some()
    );
    assert!(mutex::try_acquire_unfenced(conn, "unfenced", &token, LEASE).unwrap());
    let granted = reentrant::try_acquire(conn, "reentrant", &owner, &token, LEASE);
    assert!(granted.unwrap().is_some());
    assert!(read_write::try_acquire_read(conn, "read", &token, LEASE).unwrap());
    let granted = read_write::try_acquire_write(conn, "write", &token, LEASE);
    assert!(granted.unwrap().is_some());
    let simple = acquire_lock_with_timeout(conn, "simple", Duration::ZERO, LEASE);
    let simple = simple.unwrap().unwrap();
    vec![
        ("mutex", Hold::mutex("mutex", &token).unwrap()),
        ("unfenced", Hold::mutex("unfenced", &token).unwrap()),
        (
            "reentrant",
            Hold::reentrant("reentrant", &owner, &token).unwrap(),
        ),
        ("read", Hold::read("read", &token).unwrap()),
        ("write", Hold::write("write", &token).unwrap()),
        ("simple", Hold::mutex("simple", &simple).unwrap()),
    ]
}

#[test]
fn a_plain_acquire_succeeds_once_enough_replicas_have_it() {
    let group = Replicated::start(2);
    let mut conn = group.conn();
    for (name, hold) in acquired(&mut conn) {
        hold.confirm_by_replicas(&mut conn, 2, LONG).unwrap();
        for replica in &group.replicas {
            assert!(exists(&mut replica.connection().unwrap(), name), "{name}");
        }
        assert!(exists(&mut conn, name), "{name}");
    }
}

#[test]
fn a_lock_on_too_few_replicas_is_released_and_no_other() {
    let group = Replicated::start(1);
    let mut conn = group.conn();
    group.gate.shut_for_replicas();
    for (name, hold) in acquired(&mut conn) {
        let asked = Instant::now();
        let answer = hold.confirm_by_replicas(&mut conn, 1, 1_000 * MS);
        assert!(is_too_few(&answer), "{name}: {answer:?}");
        assert!(asked.elapsed() >= 1_000 * MS && asked.elapsed() < 1_900 * MS);
        assert!(!exists(&mut conn, name), "{name}");
    }
    let other = Locks::connect(&group.master.url()).unwrap();
    let lease = other.lock("a").acquire(LONG).unwrap();
    let not_ours = Hold::mutex("a", &Token::random()).unwrap();
    assert!(is_too_few(&not_ours.confirm_by_replicas(
        &mut conn,
        1,
        100 * MS
    )));
    lease.verify().unwrap();
}

#[test]
fn the_lock_is_released_if_the_server_forbids_wait() {
    let group = Replicated::start(1);
    let mut conn = group.conn();
    tell(&mut conn, "ACL SETUSER default -wait");
    for (name, hold) in acquired(&mut conn) {
        let refused = hold.confirm_by_replicas(&mut conn, 1, 100 * MS);
        assert!(
            matches!(refused, Err(Error::Redis { .. })),
            "{name}: {refused:?}"
        );
        assert!(!exists(&mut conn, name), "{name}");
    }
}

#[test]
fn replication_is_unknown_without_an_answer() {
    let group = Replicated::start(1);
    let mut conn = group.conn();
    group.gate.shut_for_replicas();
    let token = Token::random();
    mutex::try_acquire(&mut conn, "a", &token, End::After(LEASE)).unwrap();
    let hold = Hold::mutex("a", &token).unwrap();
    let refused = |count, wait, conn: &mut Connection| {
        let answer = hold.confirm_by_replicas(conn, count, wait);
        assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
    };
    refused(0, 100 * MS, &mut conn);
    refused(101, 100 * MS, &mut conn);
    refused(1, Duration::ZERO, &mut conn);
    assert!(exists(&mut conn, "a"));
    conn.set_read_timeout(Some(100 * MS)).unwrap();
    let answer = hold.confirm_by_replicas(&mut conn, 1, 5_000 * MS);
    let Err(error @ Error::Unknown { .. }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(error.token(), Some(&token));
    let mut other = group.conn();
    assert!(exists(&mut other, "a") && mutex::release(&mut other, "a", &token).unwrap());
}
