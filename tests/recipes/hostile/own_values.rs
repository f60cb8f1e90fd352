//! Values of a lock's own type that no lock of its kind has, and the greatest that it may have.

use std::time::Duration;

use super::{
    LOCK, NUMBERS, TOKEN, assert_no_acquire, assert_no_lock, assert_stops, flush, foreign_values,
    put, token,
};
use crate::common::{
    kinds::{COMPANION, LEASE, LEVEL, LONGER, MUTEX, PERMIT, READ_WRITE, READER, WRITER},
    start,
    wait::calls,
};
use leasehold::{
    Error, Owner, Token,
    book::article::{
        one_hash::{self, Lifetimes},
        two_key::Keys,
    },
    recipes::{
        reentrant::{self, Release},
        semaphore,
    },
};
use redis::Commands;

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
            LEVEL.try_acquire(&mut conn, "a", &token()).unwrap(),
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
    assert!(LEVEL.try_acquire(&mut conn, "a", &token()).unwrap());
    assert!(LEVEL.renew.unwrap()(&mut conn, "a", &token(), LONGER).unwrap());
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
                    |conn, token| renew(conn, "a", token, LONGER).map(drop),
                );
            } else {
                assert!(
                    !renew(&mut conn, "a", &token(), LONGER).unwrap(),
                    "{value:?}"
                );
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
    assert!(!WRITER.try_acquire(&mut conn, "a", &token()).unwrap());
    assert!(READER.try_acquire(&mut conn, "a", &token()).unwrap());
    let left: i64 = conn.pttl(LOCK).unwrap();
    assert!(left > 9_000_000_000_000_000 - 9_000_000_000_000, "{left}");
    assert!(READER.renew.unwrap()(&mut conn, "a", &token(), LONGER).unwrap());
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
    assert!(WRITER.try_acquire(&mut conn, "a", &token()).unwrap());
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
        assert!(kind.try_acquire(&mut conn, "a", &token()).unwrap());
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
        assert!(!writer.try_acquire(&mut conn, "a", &token()).unwrap());
        assert!(!(reader.release)(&mut conn, "a", &token()).unwrap());
        assert_eq!(conn.get(reader.key), Ok(value.to_owned()));
        assert!(reader.use_once(&mut conn), "{value}");
        assert!(!writer.try_acquire(&mut conn, "a", &token()).unwrap());
        let left: i64 = conn.pttl(reader.key).unwrap();
        assert!((50_000..=60_001).contains(&left), "{value}: {left}");
    }
    // And gets no expiry if it has none.
    conn.set::<_, _, ()>(reader.key, "1").unwrap();
    assert!(reader.try_acquire(&mut conn, "a", &token()).unwrap());
    assert!(!(reader.release)(&mut conn, "a", &token()).unwrap());
    assert!(!writer.try_acquire(&mut conn, "a", &token()).unwrap());
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
            |conn, token| kind.try_acquire(conn, "a", token).map(drop),
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
