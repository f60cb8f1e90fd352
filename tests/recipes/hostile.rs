//! Foreign values at a lock's keys: every function returns an error and changes nothing.

use std::time::Duration;

use crate::common::{
    State,
    kinds::{
        BARE, COMPANION, KINDS, Kind, LEASE, LEVEL, MUTEX, PERMIT, READ_WRITE, READER, WRITER,
    },
    start,
    wait::calls,
};
use leasehold::{
    Error, Owner, Result, Token,
    recipes::{
        read_write::{
            one_hash::{self, Lifetimes},
            two_key::Keys,
        },
        reentrant::{self, Release},
        semaphore,
    },
};
use redis::{Commands, Connection};

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
        assert!(
            !(kind.try_acquire)(conn, "a", &token()).unwrap(),
            "{value:?}"
        );
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
        "mutex" | "bare mutex" => &[],
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
    for kind in KINDS {
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
        assert!((held.try_acquire)(&mut conn, "a", &Token::random()).unwrap());
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
        assert!((BARE.try_acquire)(&mut conn, "a", &token()).unwrap());
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
        for value in TYPES {
            assert!((kind.try_acquire)(&mut conn, "a", &token()).unwrap());
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
                let is_fine = matches!(done, Ok(true) | Err(Error::WrongKind { .. }));
                assert!(is_fine, "{what}: {done:?}");
                assert_eq!(dump(&mut conn), before, "{what} {value:?}");
            }
            flush(&mut conn);
        }
    }
}

#[test]
fn a_count_of_levels_has_to_be_a_positive_integer_that_can_grow() {
    let (_server, mut conn) = start();
    for count in NUMBERS.iter().chain(&["0", "9007199254740991"]) {
        put(&mut conn, LOCK, &["HSET", "?", "ours", count]);
        let is_whole = count.len() > 1 && count.bytes().all(|byte| byte.is_ascii_digit());
        if !is_whole {
            assert_stops(&mut conn, "level: holds", |conn, _| {
                reentrant::holds(conn, "a", &Owner::new("ours")?).map(drop)
            });
        }
        for kind in [LEVEL, LEVEL.rival()] {
            assert_no_lock(&mut conn, kind, LOCK, &["HSET", "?", "ours", count]);
        }
    }
    assert_no_lock(
        &mut conn,
        LEVEL,
        LOCK,
        &["HSET", "?", "ours", "1", "stray", "1"],
    );
    let token = token();
    put(&mut conn, LOCK, &["HSET", "?", "ours", "9007199254740989"]);
    let ours = Owner::new("ours").unwrap();
    let granted = reentrant::try_acquire(&mut conn, "a", &ours, &token, LEASE).unwrap();
    assert_eq!(
        granted.unwrap().count(),
        9_007_199_254_740_990,
        "the greatest is exact"
    );
    let count = 9_007_199_254_740_989;
    let released = reentrant::release(&mut conn, "a", &ours, &token).unwrap();
    assert_eq!(released, Release::StillHeld { count });
}

#[test]
fn stray_fields_beside_levels_are_ignored() {
    let (_server, mut conn) = start();
    let level = format!("t:{TOKEN}");
    // As after an earlier hold of ours that was not released, with a time that no hold of ours has.
    for hold in ["7", "", "abc"] {
        let words = [
            "HSET", "?", "fence", "8", "owner", "ours", "hold", hold, &level, "1", "stray", "x",
        ];
        put(&mut conn, COMPANION, &words);
        assert!(
            (LEVEL.try_acquire)(&mut conn, "a", &token()).unwrap(),
            "hold {hold:?}"
        );
        assert!((LEVEL.release)(&mut conn, "a", &token()).unwrap());
        assert!(!conn.exists::<_, bool>(LOCK).unwrap());
        flush(&mut conn);
    }
}

#[test]
fn an_expiry_at_the_limit_of_time_is_kept() {
    let (_server, mut conn) = start();
    put(&mut conn, LOCK, &["HSET", "?", "ours", "1"]);
    put(&mut conn, LOCK, &["PEXPIRE", "?", "9000000000000000000"]);
    assert!((LEVEL.try_acquire)(&mut conn, "a", &token()).unwrap());
    assert!(LEVEL.renew.unwrap()(&mut conn, "a", &token()).unwrap());
    assert!(conn.pttl::<_, i64>(LOCK).unwrap() > 8_000_000_000_000_000_000);
    assert!((LEVEL.release)(&mut conn, "a", &token()).unwrap());
    put(&mut conn, COMPANION, &["DEL", "?"]);
    assert!((LEVEL.release)(&mut conn, "a", &Token::random()).unwrap());
    assert!(!conn.exists::<_, bool>(LOCK).unwrap());
}

/// A release and an acquire read all holders, a renewal only its own.
#[test]
fn times_of_readers_and_writers_and_stray_fields() {
    let (_server, mut conn) = start();
    let mut fields: Vec<(String, &str)> = ["r", "w:", "i", "x:1", "Kind", "", "1"]
        .map(|field| (field.to_owned(), "99999999999999"))
        .to_vec();
    for side in ["r", "w", "i"] {
        for holder in ["somebody", TOKEN] {
            fields.extend(NUMBERS.map(|value| (format!("{side}:{holder}"), value)));
        }
    }
    for (field, value) in fields {
        let value = ["HSET", "?", "kind", "rw", &field, value];
        for kind in [READER, WRITER] {
            put(&mut conn, LOCK, &value);
            let renew = kind.renew.unwrap();
            if field == format!("{}:{TOKEN}", &kind.name[..1]) {
                assert_stops(
                    &mut conn,
                    &format!("{}: renew", kind.name),
                    |conn, token| renew(conn, "a", token).map(drop),
                );
            } else {
                assert!(!renew(&mut conn, "a", &token()).unwrap(), "{value:?}");
            }
            assert_no_acquire(&mut conn, kind);
            assert_stops(
                &mut conn,
                &format!("{}: release", kind.name),
                |conn, token| (kind.release)(conn, "a", token).map(drop),
            );
            flush(&mut conn);
        }
    }
}

#[test]
fn the_largest_time_of_a_reader_is_valid() {
    let (_server, mut conn) = start();
    let largest = "9007199254740991";
    put(
        &mut conn,
        LOCK,
        &["HSET", "?", "kind", "rw", "r:somebody", largest],
    );
    assert!(!(WRITER.try_acquire)(&mut conn, "a", &token()).unwrap());
    assert!((READER.try_acquire)(&mut conn, "a", &token()).unwrap());
    let left: i64 = conn.pttl(LOCK).unwrap();
    assert!(left > 9_000_000_000_000_000 - 9_000_000_000_000, "{left}");
    assert!(READER.renew.unwrap()(&mut conn, "a", &token()).unwrap());
    assert!((READER.release)(&mut conn, "a", &token()).unwrap());
    assert_eq!(conn.hget(LOCK, "r:somebody"), Ok(largest.to_owned()));
}

#[test]
fn a_lock_without_holders_or_expiry_is_free_and_gets_one() {
    let (_server, mut conn) = start();
    let dead = [
        "HSET", "?", "kind", "rw", "w:dead", "1", "i:dead", "0", "r:dead", "007",
    ];
    put(&mut conn, LOCK, &dead);
    assert!((WRITER.try_acquire)(&mut conn, "a", &token()).unwrap());
    assert!((1..=10_001).contains(&conn.pttl::<_, i64>(LOCK).unwrap()));
    assert_eq!(conn.hlen(LOCK), Ok(2));
}

#[test]
fn the_greatest_fencing_token() {
    let (_server, mut conn) = start();
    for kind in [MUTEX, LEVEL, WRITER] {
        put(
            &mut conn,
            COMPANION,
            &["HSET", "?", "fence", "9007199254740990"],
        );
        assert!((kind.try_acquire)(&mut conn, "a", &token()).unwrap());
        assert_eq!(conn.hget(COMPANION, "fence"), Ok(9_007_199_254_740_991_u64));
        flush(&mut conn);
    }
}

#[test]
fn a_set_that_is_none_of_ours_shows_no_holders() {
    let (_server, mut conn) = start();
    for value in foreign_values(PERMIT) {
        put(&mut conn, LOCK, value);
        assert_stops(&mut conn, "permit: holders", |conn, _| {
            semaphore::holders(conn, "a").map(drop)
        });
        flush(&mut conn);
    }
}

/// Any other value of the read key counts as a read lock until it expires, and is kept.
#[test]
fn two_key_treats_other_values_as_a_reader() {
    let (_server, mut conn) = start();
    let [[reader, writer], _] = [READ_WRITE[1], READ_WRITE[2]];
    let values = [
        "",
        "1",
        "-1",
        "null",
        "[]",
        "{}",
        "[1,2]",
        "\"text\"",
        "\0",
        "{\"a\":\"b\"}",
        "{\"a\":[]}",
        "{\"a\":NaN}",
        "{\"a\":1e999}",
        "{\"a\":-Infinity",
        "{\"a\":9007199254740992}",
        "{\"a\":9223372036854775807}",
        "{\"a\":{\"b\":1}}",
    ];
    for value in values {
        conn.pset_ex::<_, _, ()>(reader.key, value, 60_000).unwrap();
        assert!(!(writer.try_acquire)(&mut conn, "a", &token()).unwrap());
        assert!(!(reader.release)(&mut conn, "a", &token()).unwrap());
        assert_eq!(conn.get(reader.key), Ok(value.to_owned()));
        assert!(reader.use_once(&mut conn), "{value}");
        assert!(!(writer.try_acquire)(&mut conn, "a", &token()).unwrap());
        let left: i64 = conn.pttl(reader.key).unwrap();
        assert!((50_000..=60_001).contains(&left), "{value}: {left}");
    }
    // And gets no expiry if it has none.
    conn.set::<_, _, ()>(reader.key, "1").unwrap();
    assert!((reader.try_acquire)(&mut conn, "a", &token()).unwrap());
    assert!(!(reader.release)(&mut conn, "a", &token()).unwrap());
    assert!(!(writer.try_acquire)(&mut conn, "a", &token()).unwrap());
    let kept = (conn.pttl(reader.key), conn.get(reader.key));
    assert_eq!(kept, (Ok(-1), Ok("1".to_owned())));
}

#[test]
fn two_key_refuses_invalid_keys() {
    let long = "k".repeat(513);
    for (read, write) in [
        ("", "w"),
        ("r", ""),
        ("same", "same"),
        (&long, "w"),
        ("r", &long),
    ] {
        let refused = Keys::new(read, write);
        assert!(
            matches!(refused, Err(Error::Invalid { .. })),
            "{read} {write}"
        );
    }
}

#[test]
fn one_hash_does_not_read_all_of_a_large_hash() {
    let (_server, mut conn) = start();
    let fill = "for n = 1, 5000 do redis.call('HSET', KEYS[1], n, n) end";
    let () = redis::Script::new(fill).key("a").invoke(&mut conn).unwrap();
    for kind in READ_WRITE[2] {
        assert_stops(
            &mut conn,
            &format!("{}: acquire", kind.name),
            |conn, token| (kind.try_acquire)(conn, "a", token).map(drop),
        );
    }
    // `State` has read it each time.
    assert_eq!(calls(&mut conn, "hgetall").unwrap(), 4);
}

#[test]
fn one_hash_stops_at_a_stamp_that_is_not_a_time() {
    let (_server, mut conn) = start();
    for field in ["read", "write", "read:", "read:somebody", "write:somebody"] {
        for value in NUMBERS
            .iter()
            .chain(&[".5", "1.7e+18"])
            .filter(|value| **value != "1.5")
        {
            for kind in READ_WRITE[2] {
                assert_no_lock(&mut conn, kind, "a", &["HSET", "?", field, value]);
            }
        }
    }
}

#[test]
fn one_hash_refuses_invalid_keys_and_leases() {
    let (_server, mut conn) = start();
    let [zero, day_and_more] = [Duration::ZERO, Duration::from_secs(86_401)];
    let defaults = Lifetimes::default();
    let with = |read, write, key| Lifetimes { read, write, key };
    let Lifetimes { read, write, key } = defaults;
    let refused = [
        with(zero, write, key),
        with(read, zero, key),
        with(read, write, zero),
        with(day_and_more, write, day_and_more),
        with(read, write, Duration::from_millis(2_999)),
        with(key + Duration::from_millis(1), write, key),
    ];
    for leases in refused {
        let token = &token();
        let answers = [
            one_hash::acquire_read(&mut conn, "a", token, zero, &leases),
            one_hash::acquire_write(&mut conn, "a", token, zero, &leases),
            one_hash::release_read(&mut conn, "a", token, &leases),
            one_hash::release_write(&mut conn, "a", token, &leases),
        ];
        for answer in answers {
            assert!(
                matches!(answer, Err(Error::Invalid { .. })),
                "{leases:?}: {answer:?}"
            );
        }
    }
    for key in ["", &"k".repeat(513)] {
        let answer = one_hash::acquire_read(&mut conn, key, &token(), zero, &defaults);
        assert!(
            matches!(
                answer,
                Err(Error::Invalid {
                    argument: "key",
                    ..
                })
            ),
            "{answer:?}"
        );
    }
    assert_eq!(conn.keys::<_, Vec<String>>("*").unwrap(), [""; 0]);
}
