//! Every function of `reentrant` × every command that it sends × {cut before, cut after, reply
//! swallowed}.
//!
//! The result is Unknown or right, a retry with the same token does not count twice, and the lock
//! is free within the lease.

use std::time::Duration;

use crate::common::{
    Proxy, Server,
    faults::{SILENCE, assert_unknown, for_each_fault, left},
    start,
    wait::at_once,
};
use leasehold::{
    Error, Owner, Result, Token,
    recipes::reentrant::{self, Release},
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);
const LONGER: Duration = Duration::from_secs(20);

/// An owner, its existing acquisition, and the one under test.
struct Reentrant {
    owner: Owner,
    outer: Token,
    inner: Token,
}

impl Reentrant {
    fn new() -> Self {
        Self {
            owner: Owner::current_thread(),
            outer: Token::random(),
            inner: Token::random(),
        }
    }

    fn acquire(&self, conn: &mut Connection, token: &Token) -> u64 {
        let granted = reentrant::try_acquire(conn, "a", &self.owner, token, LEASE);
        granted.unwrap().unwrap().count()
    }

    fn release(&self, conn: &mut Connection, token: &Token) -> Release {
        reentrant::release(conn, "a", &self.owner, token).unwrap()
    }

    fn holds(&self, conn: &mut Connection) -> u64 {
        reentrant::holds(conn, "a", &self.owner).unwrap()
    }
}

/// With this many existing acquisitions.
fn reentrant_is_acquired(
    already: u64,
    call: impl Fn(&mut Connection, &str, &Owner, &Token) -> Result<Option<reentrant::Grant>> + Sync,
) {
    let ours = Reentrant::new();
    for_each_fault(
        true,
        |conn| {
            if already == 1 {
                ours.acquire(conn, &ours.outer);
            }
        },
        |conn, name| call(conn, name, &ours.owner, &ours.inner),
        |conn, result, executed| {
            assert_unknown(&result, Some(&ours.inner));
            assert_eq!(ours.holds(conn), already + u64::from(executed));
            left(conn, LEASE);
            assert_eq!(ours.acquire(conn, &ours.inner), already + 1, "counted once");
            let released = ours.release(conn, &ours.inner);
            if already == 1 {
                assert_eq!(released, Release::StillHeld { count: 1 });
                assert_eq!(ours.release(conn, &ours.outer), Release::Freed);
            } else {
                assert_eq!(released, Release::Freed);
            }
            assert_eq!(left(conn, LEASE), None);
        },
    );
}

/// Runs concurrently: each mostly waits.
#[test]
fn every_acquire_at_every_command() {
    let cases: [fn(); 4] = [
        reentrant_try_acquire,
        reentrant_try_acquire_again,
        reentrant_acquire,
        a_wait_sends_an_attempt_again_whose_answer_is_late,
    ];
    at_once(cases, |case| case());
}

fn reentrant_try_acquire() {
    reentrant_is_acquired(0, |conn, name, owner, token| {
        reentrant::try_acquire(conn, name, owner, token, LEASE)
    });
}

fn reentrant_try_acquire_again() {
    reentrant_is_acquired(1, |conn, name, owner, token| {
        reentrant::try_acquire(conn, name, owner, token, LEASE)
    });
}

fn reentrant_acquire() {
    reentrant_is_acquired(1, |conn, name, owner, token| {
        reentrant::acquire(conn, name, owner, token, Duration::ZERO, LEASE)
    });
}

/// Runs concurrently: each mostly waits.
#[test]
fn every_other_function_at_every_command() {
    let cases: [fn(); 4] = [
        reentrant_renew,
        reentrant_release_of_one_of_two,
        reentrant_release_of_what_a_program_without_a_companion_took,
        reentrant_holds,
    ];
    at_once(cases, |case| case());
}

fn reentrant_renew() {
    let ours = Reentrant::new();
    for_each_fault(
        true,
        |conn| assert_eq!(ours.acquire(conn, &ours.outer), 1),
        |conn, name| reentrant::renew(conn, name, &ours.owner, &ours.outer, LONGER),
        |conn, result, executed| {
            assert_unknown(&result, None);
            assert_eq!(left(conn, LONGER).unwrap() > LEASE, executed);
            assert!(reentrant::renew(conn, "a", &ours.owner, &ours.outer, LONGER).unwrap());
            assert_eq!(ours.holds(conn), 1);
        },
    );
}

fn reentrant_release_of_one_of_two() {
    let ours = Reentrant::new();
    for_each_fault(
        true,
        |conn| {
            ours.acquire(conn, &ours.outer);
            ours.acquire(conn, &ours.inner);
        },
        |conn, name| reentrant::release(conn, name, &ours.owner, &ours.inner),
        |conn, result, executed| {
            assert_unknown(&result, None);
            assert_eq!(ours.holds(conn), if executed { 1 } else { 2 });
            let again = ours.release(conn, &ours.inner);
            let done = Release::StillHeld { count: 1 };
            assert_eq!(again, if executed { Release::NotHeld } else { done });
            assert_eq!(
                ours.release(conn, &ours.outer),
                Release::Freed,
                "counted once"
            );
        },
    );
}

fn reentrant_release_of_what_a_program_without_a_companion_took() {
    let ours = Reentrant::new();
    for_each_fault(
        true,
        |conn| {
            conn.hset::<_, _, _, ()>("lock:a", ours.owner.as_str(), 2)
                .unwrap();
            conn.pexpire::<_, ()>("lock:a", 10_000).unwrap();
        },
        |conn, name| reentrant::release(conn, name, &ours.owner, &ours.inner),
        |conn, result, executed| {
            assert_unknown(&result, None);
            assert_eq!(ours.holds(conn), if executed { 1 } else { 2 });
            ours.release(conn, &ours.inner);
            assert_eq!(ours.holds(conn), 1, "counted once");
        },
    );
}

fn reentrant_holds() {
    let ours = Reentrant::new();
    for_each_fault(
        false,
        |conn| assert_eq!(ours.acquire(conn, &ours.outer), 1),
        |conn, name| reentrant::holds(conn, name, &ours.owner),
        |conn, result, _| {
            assert!(matches!(result, Err(Error::Redis { .. })), "{result:?}");
            assert_eq!(ours.holds(conn), 1);
        },
    );
}

fn a_wait_sends_an_attempt_again_whose_answer_is_late() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    let ours = Reentrant::new();
    ours.acquire(&mut conn, &ours.outer);
    conn.set_read_timeout(Some(SILENCE)).unwrap();

    proxy.at("EVALSHA").delay(SILENCE * 3 / 2);
    let granted = reentrant::acquire(&mut conn, "a", &ours.owner, &ours.inner, LEASE, LEASE);
    assert_eq!(granted.unwrap().unwrap().count(), 2, "counted once");
    assert!(proxy.happened());
}

#[test]
fn an_attempt_that_arrives_after_its_release_does_not_count() {
    let (_server, mut conn) = start();
    let owner = Owner::new("job").unwrap();
    let (outer, inner) = (Token::random(), Token::random());
    let lease = Duration::from_secs(10);
    for token in [&outer, &inner] {
        reentrant::try_acquire(&mut conn, "a", &owner, token, lease)
            .unwrap()
            .unwrap();
    }
    reentrant::release(&mut conn, "a", &owner, &inner).unwrap();

    // A delayed copy of the attempt.
    let late = reentrant::try_acquire(&mut conn, "a", &owner, &inner, lease).unwrap_err();
    assert!(
        matches!(
            late,
            Error::Invalid {
                argument: "token",
                ..
            }
        ),
        "{late}"
    );
    assert_eq!(
        reentrant::release(&mut conn, "a", &owner, &outer).unwrap(),
        Release::Freed
    );
}
