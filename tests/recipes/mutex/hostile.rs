//! A foreign key or companion is an error, and nothing changes.

use std::time::Duration;

use crate::common::{State, start};
use leasehold::{
    Error, Token,
    recipes::mutex::{self, End},
};
use redis::{Connection, cmd};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: End = End::After(Duration::from_secs(10));
const LOCK: &str = "lock:a";
const COMPANION: &str = "{lock:a}:lease";

/// Commands that write such a value; `?` is the key.
const OTHER_TYPES: [&[&str]; 6] = [
    &["RPUSH", "?", "x"],
    &["SADD", "?", "x"],
    &["ZADD", "?", "1", "x"],
    &["XADD", "?", "*", "x", "y"],
    &["HSET", "?", "thread-1", "1"],
    &["HSET", "?", "kind", "rw", "r:x", "1"],
];

fn put(conn: &mut Connection, key: &str, words: &[&str]) {
    let mut command = cmd(words[0]);
    for word in &words[1..] {
        command.arg(if *word == "?" { key } else { word });
    }
    command.exec(conn).unwrap();
}

fn acquires(conn: &mut Connection, token: &Token) -> [leasehold::Result<()>; 2] {
    [
        mutex::try_acquire(conn, "a", token, LEASE).map(drop),
        mutex::acquire(conn, "a", token, 60 * SECOND, LEASE).map(drop),
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

#[test]
fn a_key_of_another_type_is_not_a_lock() {
    let (_server, mut conn) = start();
    for other in OTHER_TYPES {
        put(&mut conn, LOCK, other);
        let before = State::of(&mut conn).unwrap();
        let token = Token::random();
        assert_wrong_kind(&acquires(&mut conn, &token), &token);
        let others = [
            mutex::renew(&mut conn, "a", &token, SECOND).map(drop),
            mutex::release(&mut conn, "a", &token).map(drop),
        ];
        assert_wrong_kind(&others, &token);
        assert!(!mutex::try_acquire_unfenced(&mut conn, "a", &token, SECOND).unwrap());
        assert_eq!(State::of(&mut conn).unwrap(), before, "{other:?}");
        cmd("FLUSHALL").exec(&mut conn).unwrap();
    }
}

#[test]
fn the_key_beside_the_lock_has_to_be_a_companion() {
    let (_server, mut conn) = start();
    for other in OTHER_TYPES {
        assert_is_no_companion(&mut conn, other);
    }
    assert_is_no_companion(&mut conn, &["SET", "?", "x"]);
    assert_is_no_companion(&mut conn, &["HSET", "?", "token", "x"]);
}

#[test]
fn a_fencing_token_has_to_be_a_number_that_can_grow() {
    let (_server, mut conn) = start();
    for fence in [
        "abc",
        "",
        "-1",
        "1.5",
        "1e3",
        " 1",
        "1 ",
        "0x10",
        "nan",
        "inf",
        "9007199254740991",
        "9007199254740992",
        "9223372036854775807",
        "9223372036854775808",
        "99999999999999999999999999999999",
    ] {
        assert_is_no_companion(&mut conn, &["HSET", "?", "fence", fence, "token", "x"]);
    }
}

#[track_caller]
fn assert_is_no_companion(conn: &mut Connection, words: &[&str]) {
    put(conn, COMPANION, words);
    let before = State::of(conn).unwrap();
    let token = Token::random();
    assert_wrong_kind(&acquires(conn, &token), &token);
    assert_eq!(State::of(conn).unwrap(), before, "{words:?}");

    // A lock that is ours is not granted again either.
    assert!(mutex::try_acquire_unfenced(conn, "a", &token, 10 * SECOND).unwrap());
    let before = State::of(conn).unwrap();
    assert_wrong_kind(&acquires(conn, &token), &token);
    assert_eq!(State::of(conn).unwrap(), before, "{words:?}");
    cmd("FLUSHALL").exec(conn).unwrap();
}

#[test]
fn a_renewal_gives_no_expiry_to_a_foreign_companion_key() {
    let (_server, mut conn) = start();
    let token = Token::random();
    for other in OTHER_TYPES {
        assert!(mutex::try_acquire_unfenced(&mut conn, "a", &token, SECOND).unwrap());
        put(&mut conn, COMPANION, other);
        let _ = mutex::renew(&mut conn, "a", &token, 10 * SECOND);
        let left: i64 = cmd("PTTL").arg(COMPANION).query(&mut conn).unwrap();
        assert_eq!(left, -1, "{other:?}");
        cmd("FLUSHALL").exec(&mut conn).unwrap();
    }
}

#[test]
fn every_function_resends_a_forgotten_script() {
    let (_server, mut conn) = start();
    let token = Token::random();
    let forget = |conn: &mut Connection| cmd("SCRIPT").arg("FLUSH").exec(conn).unwrap();
    forget(&mut conn);
    let granted = mutex::try_acquire(&mut conn, "a", &token, LEASE).unwrap();
    assert!(granted.is_some());
    forget(&mut conn);
    assert_eq!(
        mutex::acquire(&mut conn, "a", &token, SECOND, LEASE).unwrap(),
        granted
    );
    forget(&mut conn);
    assert!(mutex::renew(&mut conn, "a", &token, SECOND).unwrap());
    forget(&mut conn);
    assert!(mutex::release(&mut conn, "a", &token).unwrap());
}

#[test]
fn a_forbidden_command_leaves_no_lock() {
    let (_server, mut conn) = start();
    let forbidden = ["hset", "pexpire", "set", "time", "hget"];
    // The remains of the first attempt must not admit a second one.
    for forbidden in forbidden.into_iter().flat_map(|name| [name, name]) {
        cmd("ACL")
            .arg(&["SETUSER", "default", "+@all", &format!("-{forbidden}")])
            .exec(&mut conn)
            .unwrap();
        let token = Token::random();
        let refused = mutex::try_acquire(&mut conn, "a", &token, LEASE);
        assert!(
            matches!(refused, Err(Error::Redis { .. })),
            "{forbidden}: {refused:?}"
        );
        let there: bool = cmd("EXISTS").arg(LOCK).query(&mut conn).unwrap();
        assert!(!there, "{forbidden}");
    }
}

#[test]
fn a_full_server_grants_nothing() {
    let (_server, mut conn) = start();
    let token = Token::random();
    mutex::try_acquire(&mut conn, "held", &token, LEASE)
        .unwrap()
        .unwrap();
    cmd("CONFIG")
        .arg(&["SET", "maxmemory", "1"])
        .exec(&mut conn)
        .unwrap();
    let before = State::of(&mut conn).unwrap();
    let refused = mutex::try_acquire(&mut conn, "a", &token, LEASE);
    assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
    assert_eq!(State::of(&mut conn).unwrap(), before);
    assert!(
        mutex::release(&mut conn, "held", &token).unwrap(),
        "the release works"
    );
}
