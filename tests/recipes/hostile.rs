//! Foreign values at a lock's keys: every function returns an error and changes nothing.

mod own_values;

use crate::common::{
    State,
    kinds::{BARE, COMPANION, Kind, LEASE, LEVEL, MUTEX, PERMIT, READER, WRITER, kinds},
    start,
};
use leasehold::{Error, Result, Token};
use redis::Connection;

const LOCK: &str = "lock:a";
/// The caller's, also where it stands in a value.
const TOKEN: &str = "5ec7e700-face-4bad-8ace-0123456789ab";

/// What writes a value; `?` is the key.
type Value<'v> = &'v [&'v str];

const TYPES: [Value<'_>; 6] = [
    &["SET", "?", TOKEN],
    &["RPUSH", "?", TOKEN],
    &["SADD", "?", TOKEN],
    &["ZADD", "?", "1", "x"],
    &["XADD", "?", "*", "w", TOKEN],
    &["HSET", "?", "thread-1", "abc"],
];

/// Not whole numbers, or too great to grow.
const NUMBERS: [&str; 19] = [
    "",
    "abc",
    "-1",
    "+1",
    " 1",
    "1 ",
    "1.5",
    "1e12",
    "0x10",
    "nan",
    "inf",
    "1\0",
    "1.2.3",
    "-9223372036854775808",
    "9007199254740992",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "99999999999999999999999999999999",
];

fn token() -> Token {
    TOKEN.parse().unwrap()
}

fn put(conn: &mut Connection, key: &str, value: &[&str]) {
    let words = value
        .iter()
        .map(|word| if *word == "?" { key } else { word });
    let mut words = words.map(str::to_owned);
    let mut command = redis::cmd(&words.next().unwrap());
    command.arg(words.collect::<Vec<_>>()).exec(conn).unwrap();
}

fn flush(conn: &mut Connection) {
    put(conn, "", &["FLUSHALL"]);
}

/// The error says that the key is of another kind, and where, and contains no token; the data and
/// its expiry are unchanged.
#[track_caller]
fn assert_stops(
    conn: &mut Connection,
    what: &str,
    call: impl FnOnce(&mut Connection, &Token) -> Result<()>,
) {
    let before = State::of(conn).unwrap();
    let stopped = call(conn, &token());
    let Err(error @ Error::WrongKind { .. }) = &stopped else {
        panic!("{what}: {stopped:?}");
    };
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(TOKEN), "{shown}");
    let (_, verb) = what.split_once(": ").unwrap();
    assert!(shown.contains(verb), "{what}: {shown}");
    assert_eq!(State::of(conn).unwrap(), before, "{what} changed the data");
}

/// A wait does not go on either.
fn assert_no_acquire(conn: &mut Connection, kind: Kind) {
    let what = format!("{}: acquire", kind.name);
    for wait in [None, Some(6 * LEASE)] {
        assert_stops(conn, &what, |conn, token| {
            kind.take(wait, conn, "a", token).map(drop)
        });
    }
}

fn assert_no_lock(conn: &mut Connection, kind: Kind, key: &str, value: &[&str]) {
    put(conn, key, value);
    put(conn, key, &["PEXPIRE", "?", "60000"]);
    if kind.is_bare() {
        let before = State::of(conn).unwrap();
        assert!(!kind.try_acquire(conn, "a", &token()).unwrap(), "{value:?}");
        assert_eq!(State::of(conn).unwrap(), before, "{value:?}");
    } else {
        assert_no_acquire(conn, kind);
    }
    // Of the two keys, a release reads its own.
    if key == kind.key {
        for (what, call) in kind.others() {
            assert_stops(conn, &what, |conn, token| call(conn, "a", token).map(drop));
        }
    }
    flush(conn);
}

/// A kind's own type has other values beside the locks of the kind.
fn foreign_values(kind: Kind) -> Vec<Value<'static>> {
    const HASHES: [Value<'_>; 3] = [
        &["HSET", "?", "kind", "rw", "r:x", "1"],
        &["HSET", "?", "kind", "semaphore"],
        &["HSET", "?", "kind", ""],
    ];
    let own: &[Value<'_>] = match kind.name {
        "level" => &[&["HSET", "?", "kind", "rw"]],
        "permit" => &[
            &["ZADD", "?", "1764240000.5", "x"],
            &["ZADD", "?", "1764240000000", "x", "inf", "y"],
        ],
        "reader" | "writer" => &[
            &["HSET", "?", "9b2e:1:0", "1"],
            &["HSET", "?", "kind", "RW"],
            &[
                "HSET",
                "?",
                "read",
                "1700000000000",
                "write",
                "1700000000000",
            ],
            &[
                "HSET",
                "?",
                "r:5ec7e700-face-4bad-8ace-0123456789ab",
                "99999999999999",
            ],
        ],
        "one_hash reader" | "one_hash writer" => &[
            &["HSET", "?", "9b2e:1:0", "1"],
            &["HSET", "?", "Read", "1700000000000"],
            &["HSET", "?", "write:", "1700000000000"],
            &["HSET", "?", "", "1700000000000"],
        ],
        _ => &[],
    };
    let is_string = kind.name.contains("mutex") || kind.name.contains("two_key");
    let others = TYPES
        .into_iter()
        .filter(|value| !(is_string && value[0] == "SET"));
    let hashes = HASHES
        .into_iter()
        .filter(|value| !(value[3] == "rw" && ["reader", "writer"].contains(&kind.name)));
    others.chain(hashes).chain(own.iter().copied()).collect()
}

#[test]
fn a_key_of_another_type_or_kind_is_no_lock() {
    let (_server, mut conn) = start();
    for kind in kinds() {
        for value in foreign_values(kind) {
            assert_no_lock(&mut conn, kind, kind.key, value);
            let rivals_key = kind.rival().key;
            if rivals_key != kind.key {
                assert_no_lock(&mut conn, kind, rivals_key, value);
            }
        }
    }
}

/// Each kind is foreign to the others that have its key.
#[test]
fn a_lock_of_another_kind_is_no_lock() {
    let (_server, mut conn) = start();
    for (held, kind) in [MUTEX, LEVEL, PERMIT, READER]
        .into_iter()
        .flat_map(|held| [MUTEX, LEVEL, PERMIT, READER, WRITER].map(|kind| (held, kind)))
        .filter(|(held, kind)| held.name != kind.name && kind.rival().name != held.name)
    {
        assert!(held.try_acquire(&mut conn, "a", &Token::random()).unwrap());
        assert_no_acquire(&mut conn, kind);
        for (what, call) in kind.others() {
            assert_stops(&mut conn, &what, |conn, token| {
                call(conn, "a", token).map(drop)
            });
        }
        flush(&mut conn);
    }
}

#[test]
fn the_key_beside_the_lock_has_to_be_a_companion() {
    let (_server, mut conn) = start();
    let fences = NUMBERS.iter().chain(&["9007199254740991"]).map(|fence| {
        vec![
            "HSET", "?", "fence", fence, "token", TOKEN, "owner", "ours", "hold", fence, "t:x", "1",
        ]
    });
    let others = [
        &["HSET", "?", "token", TOKEN][..],
        &["HSET", "?", "owner", "ours"],
    ];
    let others = TYPES.into_iter().chain(others).map(<[_]>::to_vec);
    for value in others.chain(fences) {
        for kind in [MUTEX, LEVEL, WRITER, PERMIT] {
            put(&mut conn, COMPANION, &value);
            assert_no_acquire(&mut conn, kind);
            flush(&mut conn);
        }
        // Also beside a lock that was taken without a companion.
        assert!(BARE.try_acquire(&mut conn, "a", &token()).unwrap());
        put(&mut conn, COMPANION, &value);
        assert_no_acquire(&mut conn, MUTEX);
        flush(&mut conn);
        for count in ["1", "2"] {
            put(&mut conn, LOCK, &["HSET", "?", "ours", count]);
            put(&mut conn, COMPANION, &value);
            assert_no_acquire(&mut conn, LEVEL);
            assert_stops(&mut conn, "level: release", |conn, token| {
                (LEVEL.release)(conn, "a", token).map(drop)
            });
            flush(&mut conn);
        }
    }
}

/// A companion would expire with the hold.
#[test]
fn a_foreign_key_beside_a_held_lock_is_unchanged() {
    let (_server, mut conn) = start();
    for kind in [BARE, MUTEX, LEVEL, PERMIT, READER, WRITER] {
        let fences: [Value<'_>; 2] = [
            &["HSET", "?", "fence", "x"],
            &["HSET", "?", "fence", "9007199254740991"],
        ];
        for value in TYPES.into_iter().chain(fences) {
            assert!(kind.try_acquire(&mut conn, "a", &token()).unwrap());
            put(&mut conn, COMPANION, &["DEL", "?"]);
            put(&mut conn, COMPANION, value);
            let dump = |conn: &mut Connection| -> (Vec<u8>, i64) {
                let mut both = redis::pipe();
                both.cmd("DUMP").arg(COMPANION).pttl(COMPANION);
                both.query(conn).unwrap()
            };
            let before = dump(&mut conn);
            for (what, call) in kind.others().into_iter().rev() {
                let done = call(&mut conn, "a", &token());
                // Its end must not keep a permit from being released.
                let may_stop =
                    matches!(done, Err(Error::WrongKind { .. })) && kind.name != "permit";
                let is_fine = may_stop || matches!(done, Ok(true));
                assert!(is_fine, "{what}: {done:?}");
                assert_eq!(dump(&mut conn), before, "{what} {value:?}");
            }
            flush(&mut conn);
        }
    }
}
