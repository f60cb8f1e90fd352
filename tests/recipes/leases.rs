//! The lease of every kind: how long a hold lasts, and what a second copy of a call does to it.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    SLACK, State,
    kinds::{COMPANION, Kind, LEASE, LEVEL, LONGER, MUTEX, SHARED, kinds},
    monitor::Monitor,
    start,
    wait::{at_once, comes_true},
};
use leasehold::{Error, Result, Token};
use redis::{Commands, Connection};

const MINUTE: Duration = Duration::from_mins(1);

fn left(conn: &mut Connection, kind: Kind) -> i64 {
    conn.pttl(kind.key).unwrap()
}

fn is_free(conn: &mut Connection, kind: Kind) -> bool {
    !conn.exists::<_, bool>(kind.key).unwrap()
}

/// The fencing token, if the kind has one.
fn number(conn: &mut Connection) -> Option<u64> {
    conn.hget(COMPANION, "fence").unwrap()
}

fn grant(conn: &mut Connection, kind: Kind, token: &Token, lease: Duration) -> bool {
    (kind.grant)(conn, "a", token, lease).unwrap()
}

#[test]
fn an_attempt_sent_twice_is_granted_once_and_never_shortens() {
    let (_server, mut conn) = start();
    for kind in kinds() {
        let (what, token) = (kind.name, Token::random());
        assert!(grant(&mut conn, kind, &token, MINUTE), "{what}");
        let first = number(&mut conn);
        // The bare command does not know its own.
        let knows = !kind.is_bare();
        assert_eq!(grant(&mut conn, kind, &token, LEASE), knows, "{what}");
        assert!(left(&mut conn, kind) > 50_000, "{what}");
        assert_eq!(grant(&mut conn, kind, &token, 2 * MINUTE), knows, "{what}");
        assert_eq!(left(&mut conn, kind) > 110_000, knows, "{what}");
        assert_eq!(number(&mut conn), first, "{what}");
        assert!((kind.release)(&mut conn, "a", &token).unwrap(), "{what}");
        assert!(is_free(&mut conn, kind), "{what}: counted twice");
        assert!(!(kind.release)(&mut conn, "a", &token).unwrap(), "{what}");
    }
}

#[test]
fn a_renewal_lengthens_and_never_shortens() {
    let (_server, mut conn) = start();
    for kind in kinds() {
        let Some(renew) = kind.renew else {
            continue;
        };
        let (what, token) = (kind.name, Token::random());
        assert!(!renew(&mut conn, "a", &token, MINUTE).unwrap(), "{what}");
        assert!(is_free(&mut conn, kind), "{what}: a renewal never acquires");
        assert!(grant(&mut conn, kind, &token, LEASE));
        let first = number(&mut conn);
        let before = State::of(&mut conn).unwrap();
        let stranger = Token::random();
        assert!(!renew(&mut conn, "a", &stranger, MINUTE).unwrap(), "{what}");
        assert_eq!(State::of(&mut conn).unwrap(), before, "{what}");
        for lease in [MINUTE, LEASE] {
            assert!(renew(&mut conn, "a", &token, lease).unwrap(), "{what}");
            assert!(left(&mut conn, kind) > 50_000, "{what}");
            assert_eq!(number(&mut conn), first, "{what}");
        }
        if [MUTEX.name, LEVEL.name].contains(&what) {
            let _: bool = conn.pexpire(COMPANION, 1_000).unwrap();
            assert!(renew(&mut conn, "a", &token, LEASE).unwrap());
            let companion: i64 = conn.pttl(COMPANION).unwrap();
            assert!(companion > left(&mut conn, kind), "{what}: it outlives it");
        }
        assert!((kind.release)(&mut conn, "a", &token).unwrap());
        assert!(!renew(&mut conn, "a", &token, MINUTE).unwrap(), "{what}");
        assert!(is_free(&mut conn, kind), "{what}");
    }
}

/// Another hold keeps the key, so the data of the one that has ended is still there.
#[test]
fn a_hold_that_has_ended_is_never_regained() {
    at_once(SHARED, |kind| {
        let (_server, mut conn) = start();
        let (what, [over, stays]) = (kind.name, [(); 2].map(|()| Token::random()));
        assert!(grant(&mut conn, kind, &stays, LEASE));
        assert!(grant(&mut conn, kind, &over, Duration::from_millis(1)));
        // A level still counts for 100 ms after its end.
        thread::sleep(Duration::from_millis(150));
        let before = State::of(&mut conn).unwrap();
        if let Some(renew) = kind.renew {
            assert!(!renew(&mut conn, "a", &over, MINUTE).unwrap(), "{what}");
            assert_eq!(State::of(&mut conn).unwrap(), before, "{what}");
        }
        assert!(!(kind.release)(&mut conn, "a", &over).unwrap(), "{what}");
        // The next takes its place.
        let next = Token::random();
        assert!(grant(&mut conn, kind, &next, LEASE), "{what}");
        assert!(!(kind.release)(&mut conn, "a", &over).unwrap(), "{what}");
        for token in [stays, next] {
            let released = (kind.release)(&mut conn, "a", &token);
            assert!(released.unwrap(), "{what}");
        }
        assert!(is_free(&mut conn, kind), "{what}");
    });
}

#[test]
fn a_dead_holder_blocks_others_only_until_its_own_lease_ends() {
    let short = Duration::from_millis(900);
    at_once(SHARED, |kind| {
        let (_server, mut conn) = start();
        let (what, [dead, living]) = (kind.name, [(); 2].map(|()| Token::random()));
        assert!(grant(&mut conn, kind, &dead, short));
        let died = Instant::now();
        assert!(grant(&mut conn, kind, &living, LEASE));
        if let Some(renew) = kind.renew {
            assert!(renew(&mut conn, "a", &living, LONGER).unwrap());
        }
        assert!((kind.release)(&mut conn, "a", &living).unwrap());
        assert!(left(&mut conn, kind) <= 1_000, "{what}: the key lasts on");
        let rival = kind.rival();
        assert!(comes_true(|| rival.use_once(&mut conn)), "{what}");
        assert!(died.elapsed() < short + SLACK, "{what}");
    });
}

#[test]
fn an_invalid_lease_is_refused_before_anything_is_sent() {
    let (server, mut conn) = start();
    let mut monitor = Monitor::start(&server).unwrap();
    let token = Token::random();
    let is_refused = |answer: Result<bool>| matches!(answer, Err(Error::Invalid { .. }));
    for kind in kinds() {
        for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let what = format!("{}: {lease:?}", kind.name);
            assert!(
                is_refused((kind.grant)(&mut conn, "a", &token, lease)),
                "{what}"
            );
            let renewed = kind.renew.map(|renew| renew(&mut conn, "a", &token, lease));
            assert!(renewed.is_none_or(is_refused), "{what}");
        }
    }
    assert_eq!(monitor.commands().unwrap(), [""; 0]);
}
