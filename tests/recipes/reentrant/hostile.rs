//! A foreign key or companion is an error, and nothing changes.

use std::time::Duration;

use crate::common::{State, start};
use leasehold::{
    Error, Owner, Token,
    recipes::reentrant::{self, Release},
};
use redis::{Connection, cmd};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);
const LOCK: &str = "lock:a";
const COMPANION: &str = "{lock:a}:lease";

/// Commands that write such a value; `?` is the key.
const OTHER_TYPES: [&[&str]; 5] = [
    &["SET", "?", "x"],
    &["RPUSH", "?", "x"],
    &["SADD", "?", "x"],
    &["ZADD", "?", "1", "x"],
    &["XADD", "?", "*", "x", "y"],
];

fn put(conn: &mut Connection, key: &str, words: &[&str]) {
    let mut command = cmd(words[0]);
    for word in &words[1..] {
        command.arg(if *word == "?" { key } else { word });
    }
    command.exec(conn).unwrap();
}

fn ours() -> Owner {
    Owner::new("ours").unwrap()
}

/// Every function that writes, for the lock's owner and for another.
fn writers(conn: &mut Connection, owner: &Owner, token: &Token) -> Vec<leasehold::Result<()>> {
    vec![
        reentrant::try_acquire(conn, "a", owner, token, LEASE).map(drop),
        reentrant::acquire(conn, "a", owner, token, 60 * SECOND, LEASE).map(drop),
        reentrant::renew(conn, "a", owner, token, 60 * SECOND).map(drop),
        reentrant::release(conn, "a", owner, token).map(drop),
    ]
}

#[track_caller]
fn assert_wrong_kind(results: &[leasehold::Result<()>], token: &Token) {
    for result in results {
        assert!(matches!(result, Err(Error::WrongKind { .. })), "{result:?}");
        let told = format!("{result:?} {}", result.as_ref().unwrap_err());
        assert!(!told.contains(&token.to_string()), "{told}");
    }
}

/// With this value in the key, every function fails and changes nothing.
#[track_caller]
fn assert_is_no_lock(conn: &mut Connection, words: &[&str], holds_too: bool) {
    put(conn, LOCK, words);
    let before = State::of(conn).unwrap();
    for owner in [ours(), Owner::new("theirs").unwrap()] {
        let token = Token::random();
        assert_wrong_kind(&writers(conn, &owner, &token), &token);
    }
    if holds_too {
        let held = reentrant::holds(conn, "a", &ours()).map(drop);
        assert_wrong_kind(&[held], &Token::random());
    }
    assert_eq!(State::of(conn).unwrap(), before, "{words:?}");
    cmd("FLUSHALL").exec(conn).unwrap();
}

#[test]
fn a_key_of_another_type_is_not_a_lock() {
    let (_server, mut conn) = start();
    for other in OTHER_TYPES {
        assert_is_no_lock(&mut conn, other, true);
    }
}

#[test]
fn a_hash_of_another_kind_is_not_a_lock() {
    let (_server, mut conn) = start();
    assert_is_no_lock(&mut conn, &["HSET", "?", "kind", "rw"], true);
    assert_is_no_lock(&mut conn, &["HSET", "?", "kind", "rw", "r:x", "1"], true);
    // The article's, with two times.
    let two = [
        "HSET",
        "?",
        "read",
        "1700000000000",
        "write",
        "1700000000000",
    ];
    assert_is_no_lock(&mut conn, &two, false);
    assert_is_no_lock(&mut conn, &["HSET", "?", "ours", "1", "stray", "1"], false);
}

#[test]
fn a_count_has_to_be_a_positive_integer_that_can_grow() {
    let (_server, mut conn) = start();
    for count in [
        "abc",
        "",
        "0",
        "-1",
        "-9223372036854775808",
        "1.5",
        "1e3",
        " 1",
        "1 ",
        "0x10",
        "+1",
    ] {
        assert_is_no_lock(&mut conn, &["HSET", "?", "ours", count], true);
    }
    for count in [
        "9007199254740991",
        "9223372036854775807",
        "99999999999999999999999999",
    ] {
        assert_is_no_lock(&mut conn, &["HSET", "?", "ours", count], false);
    }
}

#[test]
fn the_greatest_count_is_exact() {
    let (_server, mut conn) = start();
    put(&mut conn, LOCK, &["HSET", "?", "ours", "9007199254740989"]);
    let token = Token::random();
    let granted = reentrant::try_acquire(&mut conn, "a", &ours(), &token, LEASE).unwrap();
    assert_eq!(granted.unwrap().count(), 9_007_199_254_740_990);
    assert_eq!(
        reentrant::release(&mut conn, "a", &ours(), &token).unwrap(),
        Release::StillHeld {
            count: 9_007_199_254_740_989
        }
    );
}

#[test]
fn the_key_beside_the_lock_has_to_be_a_companion() {
    let (_server, mut conn) = start();
    for other in OTHER_TYPES {
        assert_is_no_companion(&mut conn, other);
        // A renewal reads it only if the lock belongs to the owner.
        put(&mut conn, LOCK, &["HSET", "?", "ours", "1"]);
        put(&mut conn, COMPANION, other);
        let before = State::of(&mut conn).unwrap();
        let renewed = reentrant::renew(&mut conn, "a", &ours(), &Token::random(), LEASE).map(drop);
        assert_wrong_kind(&[renewed], &Token::random());
        assert_eq!(State::of(&mut conn).unwrap(), before);
        cmd("FLUSHALL").exec(&mut conn).unwrap();
    }
    assert_is_no_companion(&mut conn, &["HSET", "?", "owner", "ours"]);
    for fence in [
        "abc",
        "",
        "-1",
        "1.5",
        "9007199254740991",
        "9007199254740992",
        "9223372036854775808",
    ] {
        let words = [
            "HSET", "?", "fence", fence, "owner", "ours", "hold", fence, "t:x", "1",
        ];
        assert_is_no_companion(&mut conn, &words);
    }
}

#[track_caller]
fn assert_is_no_companion(conn: &mut Connection, words: &[&str]) {
    put(conn, COMPANION, words);
    for lock in [None, Some("1"), Some("2")] {
        if let Some(count) = lock {
            put(conn, LOCK, &["HSET", "?", "ours", count]);
        }
        let before = State::of(conn).unwrap();
        let token = Token::random();
        let mut results = vec![
            reentrant::try_acquire(conn, "a", &ours(), &token, LEASE).map(drop),
            reentrant::acquire(conn, "a", &ours(), &token, 60 * SECOND, LEASE).map(drop),
        ];
        if lock.is_some() {
            results.push(reentrant::release(conn, "a", &ours(), &token).map(drop));
        }
        assert_wrong_kind(&results, &token);
        assert_eq!(State::of(conn).unwrap(), before, "{words:?}");
    }
    cmd("FLUSHALL").exec(conn).unwrap();
}

#[test]
fn stray_fields_beside_the_lock_are_ignored() {
    let (_server, mut conn) = start();
    let token = Token::random();
    let level = format!("t:{token}");
    // As after an earlier hold of ours that was not released, with a time that no hold of ours has.
    for hold in ["7", "", "abc"] {
        let words = [
            "HSET", "?", "fence", "8", "owner", "ours", "hold", hold, &level, "1", "stray", "x",
        ];
        put(&mut conn, COMPANION, &words);
        let granted = reentrant::try_acquire(&mut conn, "a", &ours(), &token, LEASE).unwrap();
        assert_eq!(granted.unwrap().count(), 1, "hold {hold:?}");
        assert_eq!(
            reentrant::release(&mut conn, "a", &ours(), &token).unwrap(),
            Release::Freed
        );
        cmd("FLUSHALL").exec(&mut conn).unwrap();
    }
}

#[test]
fn an_expiry_at_the_limit_of_time_is_kept() {
    let (_server, mut conn) = start();
    put(&mut conn, LOCK, &["HSET", "?", "ours", "1"]);
    let far = "9000000000000000000";
    let set: bool = cmd("PEXPIRE").arg(LOCK).arg(far).query(&mut conn).unwrap();
    assert!(set);
    let token = Token::random();
    reentrant::try_acquire(&mut conn, "a", &ours(), &token, LEASE)
        .unwrap()
        .unwrap();
    assert!(reentrant::renew(&mut conn, "a", &ours(), &token, LEASE).unwrap());
    let left: i64 = cmd("PTTL").arg(LOCK).query(&mut conn).unwrap();
    assert!(left > 8_000_000_000_000_000_000);
    reentrant::release(&mut conn, "a", &ours(), &token).unwrap();
    put(&mut conn, COMPANION, &["DEL", "?"]);
    let released = reentrant::release(&mut conn, "a", &ours(), &Token::random()).unwrap();
    assert_eq!(released, Release::Freed);
}

#[test]
fn every_function_resends_a_forgotten_script() {
    let (_server, mut conn) = start();
    let token = Token::random();
    let forget = |conn: &mut Connection| cmd("SCRIPT").arg("FLUSH").exec(conn).unwrap();
    forget(&mut conn);
    let granted = reentrant::try_acquire(&mut conn, "a", &ours(), &token, LEASE).unwrap();
    assert!(granted.is_some());
    forget(&mut conn);
    let again = reentrant::acquire(&mut conn, "a", &ours(), &token, SECOND, LEASE).unwrap();
    assert_eq!(again, granted);
    forget(&mut conn);
    assert!(reentrant::renew(&mut conn, "a", &ours(), &token, SECOND).unwrap());
    forget(&mut conn);
    let released = reentrant::release(&mut conn, "a", &ours(), &token).unwrap();
    assert_eq!(released, Release::Freed);
}

#[test]
fn a_forbidden_command_leaves_no_lock() {
    let (_server, mut conn) = start();
    for forbidden in ["hset", "pexpire", "hincrby", "time", "hgetall"] {
        cmd("ACL")
            .arg(&["SETUSER", "default", "+@all", &format!("-{forbidden}")])
            .exec(&mut conn)
            .unwrap();
        let refused = reentrant::try_acquire(&mut conn, "a", &ours(), &Token::random(), LEASE);
        assert!(
            matches!(refused, Err(Error::Redis { .. })),
            "{forbidden}: {refused:?}"
        );
        let there: bool = cmd("EXISTS").arg(LOCK).query(&mut conn).unwrap();
        assert!(!there, "{forbidden}");
    }
}
