//! Every function of every kind × every command that it sends × {cut before, cut after, reply
//! swallowed}.
//!
//! The outcome is unknown, a retry with the same token does not count twice, and every key ends
//! within the lease.

use std::time::Duration;

use crate::common::{
    Proxy, Server,
    faults::{SILENCE, assert_all_ends, assert_unknown, for_each_fault},
    kinds::{ARTICLES, COMPANION, Kind, LEASE, LEVEL, LONGER, MUTEX, OURS, PERMIT, READER, WRITER},
    start,
    wait::at_once,
};
use leasehold::{
    Error, Owner, Token,
    recipes::reentrant::{self, Release},
};
use redis::{Commands, Connection};

fn fence(conn: &mut Connection) -> Option<u64> {
    conn.hget(COMPANION, "fence").unwrap()
}

/// Runs concurrently: each mostly waits.
fn break_each_of(kinds: &[Kind]) {
    type Case = fn(Kind);
    let cases: [Case; 4] = [
        |kind| acquire(kind, None),
        |kind| acquire(kind, Some(Duration::ZERO)),
        renew,
        release,
    ];
    let cases = kinds
        .iter()
        .flat_map(|kind| cases.map(|case| (*kind, case)));
    at_once(cases, |(kind, case)| case(kind));
}

#[test]
fn every_function_of_our_kinds_at_every_command() {
    break_each_of(OURS);
}

#[test]
fn every_function_of_the_articles_editions_at_every_command() {
    break_each_of(ARTICLES);
}

fn acquire(kind: Kind, wait: Option<Duration>) {
    let (what, token) = (kind.name, Token::random());
    for_each_fault(
        !kind.is_bare(),
        |_| {},
        |conn, name| kind.take(wait, conn, name, &token),
        |conn, result, executed| {
            assert_unknown(what, &result, Some(&token));
            assert_eq!(
                conn.exists::<_, bool>(kind.key).unwrap(),
                executed,
                "{what}"
            );
            assert_all_ends(conn, LEASE);
            let sent = fence(conn);
            let again = kind.try_acquire(conn, "a", &token).unwrap();
            // The bare command does not know its own.
            assert!(again || (kind.is_bare() && executed), "{what}");
            if executed {
                assert_eq!(fence(conn), sent, "{what}: granted once");
            }
            assert!((kind.release)(conn, "a", &token).unwrap(), "{what}");
            assert!(kind.rival().use_once(conn), "{what}: counted twice");
        },
    );
}

fn hold(kind: Kind, conn: &mut Connection, token: &Token) {
    assert!(kind.try_acquire(conn, "a", token).unwrap(), "{}", kind.name);
}

fn renew(kind: Kind) {
    let (what, token) = (kind.name, Token::random());
    let Some(renew) = kind.renew else {
        return;
    };
    for_each_fault(
        true,
        |conn| hold(kind, conn, &token),
        |conn, name| renew(conn, name, &token, LONGER),
        |conn, result, executed| {
            assert_unknown(what, &result, None);
            assert_all_ends(conn, LONGER);
            let left: u128 = conn.pttl(kind.key).unwrap();
            assert_eq!(left > LEASE.as_millis() + 1, executed, "{what}");
            assert!(renew(conn, "a", &token, LONGER).unwrap(), "{what}");
            assert!((kind.release)(conn, "a", &token).unwrap(), "{what}");
            assert!(kind.rival().use_once(conn), "{what}: counted twice");
        },
    );
}

fn release(kind: Kind) {
    let (what, token) = (kind.name, Token::random());
    for_each_fault(
        true,
        |conn| hold(kind, conn, &token),
        |conn, name| (kind.release)(conn, name, &token),
        |conn, result, executed| {
            assert_unknown(what, &result, None);
            assert_ne!(
                conn.exists::<_, bool>(kind.key).unwrap(),
                executed,
                "{what}"
            );
            assert_all_ends(conn, LEASE);
            let again = (kind.release)(conn, "a", &token).unwrap();
            assert_eq!(again, !executed, "{what}");
            assert!(kind.rival().use_once(conn), "{what}: not free");
        },
    );
}

#[test]
fn a_wait_sends_an_attempt_again_whose_answer_is_late() {
    at_once([MUTEX, LEVEL, PERMIT, READER, WRITER], |kind| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let (mut conn, token) = (proxy.connection().unwrap(), Token::random());
        assert!(kind.use_once(&mut conn));
        conn.set_read_timeout(Some(SILENCE)).unwrap();
        proxy.at("EVALSHA").delay(SILENCE * 3 / 2);
        let granted = kind.take(Some(LEASE), &mut conn, "a", &token);
        assert!(granted.unwrap() && proxy.happened(), "{}", kind.name);
        conn.set_read_timeout(None).unwrap();
        assert!((kind.release)(&mut conn, "a", &token).unwrap());
        assert!(
            kind.rival().use_once(&mut conn),
            "{}: counted twice",
            kind.name
        );
    });
}

/// An owner, its outer level, and the inner one under test.
struct Levels {
    owner: Owner,
    outer: Token,
    inner: Token,
}

impl Levels {
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

#[test]
fn a_level_inside_another_at_every_command() {
    let cases: [fn(&Levels); 4] = [enter_again, release_one_of_two, release_of_the_notes, holds];
    at_once(cases, |case| {
        case(&Levels {
            owner: Owner::current_thread(),
            outer: Token::random(),
            inner: Token::random(),
        });
    });
}

fn enter_again(ours: &Levels) {
    for_each_fault(
        true,
        |conn| assert_eq!(ours.acquire(conn, &ours.outer), 1),
        |conn, name| reentrant::try_acquire(conn, name, &ours.owner, &ours.inner, LEASE),
        |conn, result, executed| {
            assert_unknown("enter", &result, Some(&ours.inner));
            assert_eq!(ours.holds(conn), 1 + u64::from(executed));
            assert_eq!(ours.acquire(conn, &ours.inner), 2, "counted once");
            let inner = ours.release(conn, &ours.inner);
            assert_eq!(inner, Release::StillHeld { count: 1 });
            assert_eq!(ours.release(conn, &ours.outer), Release::Freed);
        },
    );
}

fn release_one_of_two(ours: &Levels) {
    for_each_fault(
        true,
        |conn| _ = [&ours.outer, &ours.inner].map(|token| ours.acquire(conn, token)),
        |conn, name| reentrant::release(conn, name, &ours.owner, &ours.inner),
        |conn, result, executed| {
            assert_unknown("release", &result, None);
            assert_eq!(ours.holds(conn), 2 - u64::from(executed));
            let again = ours.release(conn, &ours.inner);
            let done = Release::StillHeld { count: 1 };
            assert_eq!(again, if executed { Release::NotHeld } else { done });
            let outer = ours.release(conn, &ours.outer);
            assert_eq!(outer, Release::Freed, "counted once");
        },
    );
}

/// Which were taken without a companion.
fn release_of_the_notes(ours: &Levels) {
    for_each_fault(
        true,
        |conn| {
            let () = conn.hset("lock:a", ours.owner.as_str(), 2).unwrap();
            let () = conn.pexpire("lock:a", 10_000).unwrap();
        },
        |conn, name| reentrant::release(conn, name, &ours.owner, &ours.inner),
        |conn, result, executed| {
            assert_unknown("release", &result, None);
            assert_eq!(ours.holds(conn), 2 - u64::from(executed));
            ours.release(conn, &ours.inner);
            assert_eq!(ours.holds(conn), 1, "counted once");
        },
    );
}

fn holds(ours: &Levels) {
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

/// A delayed copy of the attempt.
#[test]
fn an_attempt_that_arrives_after_its_release_does_not_count() {
    let (_server, mut conn) = start();
    let [outer, inner] = [(); 2].map(|()| Token::random());
    for token in [&outer, &inner] {
        hold(LEVEL, &mut conn, token);
    }
    assert!((LEVEL.release)(&mut conn, "a", &inner).unwrap());
    let late = LEVEL.try_acquire(&mut conn, "a", &inner).unwrap_err();
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
    assert!((LEVEL.release)(&mut conn, "a", &outer).unwrap());
    assert!(LEVEL.rival().use_once(&mut conn));
}
