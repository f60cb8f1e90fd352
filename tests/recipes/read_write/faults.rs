//! The connection breaks at each command of the read-write locks: the outcome is unknown or right,
//! a retry counts once, and every lock that was acquired expires.

use std::time::{Duration, Instant};

use crate::common::{
    Proxy, SLACK, Server,
    proxy::Point,
    sides::{LONGER, RECIPES, Side},
    wait::at_once,
};
use leasehold::{Error, Result, Token};
use redis::{Commands, Connection};

const WAIT: Duration = Duration::from_millis(60);
const TIME_OUT: Duration = Duration::from_millis(40);

type Arm = fn(Point<'_>);

/// Each fault, and whether the server executes the command.
const FAULTS: [(&str, bool, Arm); 3] = [
    ("cut before", false, |point| point.cut_before()),
    ("cut after", true, |point| point.cut_after()),
    ("swallowed", true, |point| point.swallow()),
];

#[test]
fn read_write() {
    break_each_function_of(RECIPES[0]);
}

#[test]
fn two_key() {
    break_each_function_of(RECIPES[1]);
}

#[test]
fn one_hash() {
    break_each_function_of(RECIPES[2]);
}

fn break_each_function_of([reader, writer]: [Side; 2]) {
    let sides = [(reader, writer), (writer, reader)];
    let cases = sides.map(|sides| FAULTS.map(|fault| (sides, fault)));
    at_once(cases.into_iter().flatten(), |((side, other), fault)| {
        break_each_of_a_side(side, other, fault);
    });
}

fn break_each_of_a_side(side: Side, other: Side, (fault, is_executed, arm): (&str, bool, Arm)) {
    let server = Server::start().unwrap();
    let mut direct = server.connection().unwrap();
    // Now the server knows every script, so each call is one command.
    assert!(use_once(&mut direct, other) && use_once(&mut direct, side));
    for (name, needs_a_hold, call) in side.functions() {
        let what = format!("{name}, {fault}");
        let token = Token::random();
        if needs_a_hold {
            assert!((side.try_acquire)(&mut direct, "a", &token).unwrap());
        }
        break_one(&server, arm, &what, &token, |conn| call(conn, "a", &token));
        assert_what_is_held_ends(&mut direct, &what);

        let again = call(&mut direct, "a", &token).unwrap();
        let was_released = is_executed && name.contains("release");
        assert_eq!(again, !was_released, "{what}: sent again");
        let _ = (side.release)(&mut direct, "a", &token).unwrap();
        assert!(use_once(&mut direct, other), "{what}: not free");
    }
    let (token, what) = (Token::random(), format!("acquire, {fault}"));
    break_one(&server, arm, &what, &token, |conn| {
        (side.acquire)(conn, "a", &token, WAIT)
    });
    assert_what_is_held_ends(&mut direct, &what);
    let held = (side.release)(&mut direct, "a", &token).unwrap();
    assert_eq!(held, is_executed, "{what}");
    assert!(use_once(&mut direct, other), "{what}: not free");
}

/// Breaks the connection at the next command; the outcome has to be unknown, in time, with the
/// token.
fn break_one(
    server: &Server,
    arm: Arm,
    what: &str,
    token: &Token,
    call: impl FnOnce(&mut Connection) -> Result<bool>,
) {
    let proxy = Proxy::in_front_of(server).unwrap();
    let mut conn = proxy.connection().unwrap();
    if what.ends_with("swallowed") {
        conn.set_read_timeout(Some(TIME_OUT)).unwrap();
    }
    arm(proxy.at_command(1));
    let asked = Instant::now();
    let error = call(&mut conn).unwrap_err();
    let is_acquire = what.contains("acquire");
    assert!(matches!(error, Error::Unknown { .. }), "{what}: {error}");
    assert_eq!(error.token(), is_acquire.then_some(token), "{what}");
    assert!(asked.elapsed() < WAIT + TIME_OUT + SLACK, "{what}");
    assert!(proxy.happened(), "{what}");
}

fn assert_what_is_held_ends(conn: &mut Connection, what: &str) {
    // A key expires a millisecond after its last hold.
    let longest = i64::try_from(LONGER.as_millis()).unwrap() + 1;
    for key in conn.keys::<_, Vec<String>>("*").unwrap() {
        let left: i64 = conn.pttl(&key).unwrap();
        let is_companion = key.ends_with(":lease");
        assert!(
            left > 0 && (left <= longest || is_companion),
            "{what}: {key} lasts {left} ms"
        );
    }
}

/// Acquires and releases the lock. False if it is held.
fn use_once(conn: &mut Connection, side: Side) -> bool {
    let token = Token::random();
    if let Some(renew) = side.renew {
        assert!(!renew(conn, "a", &token).unwrap());
    }
    (side.try_acquire)(conn, "a", &token).unwrap() && (side.release)(conn, "a", &token).unwrap()
}
