//! The article's two editions on keys with foreign values.

use std::time::Duration;

use crate::common::{Server, State, clock::millis, wait::calls};
use leasehold::{
    Error, Result, Token,
    book::article::{
        one_hash::{self, Lifetimes},
        two_key::{self, Keys},
    },
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);
const TOKEN: &str = "5ec7e700-face-4bad-8ace-0123456789ab";

fn start() -> (Server, Connection, Token) {
    let server = Server::start().unwrap();
    let conn = server.connection().unwrap();
    (server, conn, TOKEN.parse().unwrap())
}

/// The error says that the key is of another kind and contains no token; the data is unchanged.
#[track_caller]
fn assert_stops(conn: &mut Connection, call: impl FnOnce(&mut Connection) -> Result<bool>) {
    let before = State::of(conn).unwrap();
    let error = call(conn).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(matches!(error, Error::WrongKind { .. }), "{shown}");
    assert!(!shown.contains(TOKEN), "{shown}");
    assert_eq!(State::of(conn).unwrap(), before, "changed the data");
}

/// Any other value of the read key counts as a read lock until it expires, and is kept.
#[test]
fn two_key_treats_other_values_as_a_reader() {
    let (_server, mut conn, token) = start();
    let keys = Keys::new("r", "w").unwrap();
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
        conn.pset_ex::<_, _, ()>("r", value, 60_000).unwrap();
        assert!(!two_key::acquire_write(&mut conn, &keys, &token, Duration::ZERO, LEASE).unwrap());
        assert!(!two_key::release_read(&mut conn, &keys, &token).unwrap());
        assert_eq!(conn.get("r"), Ok(value.to_owned()));

        assert!(two_key::acquire_read(&mut conn, &keys, &token, Duration::ZERO, LEASE).unwrap());
        assert!(
            two_key::release_read(&mut conn, &keys, &token).unwrap(),
            "{value}"
        );
        assert!(!two_key::acquire_write(&mut conn, &keys, &token, Duration::ZERO, LEASE).unwrap());
        let left: i64 = conn.pttl("r").unwrap();
        assert!((50_000..=60_001).contains(&left), "{value}: {left}");
    }
}

#[test]
fn two_key_gives_no_expiry_to_a_reader_without_one() {
    let (_server, mut conn, token) = start();
    let keys = Keys::new("r", "w").unwrap();
    conn.set::<_, _, ()>("r", "1").unwrap();
    assert!(two_key::acquire_read(&mut conn, &keys, &token, Duration::ZERO, LEASE).unwrap());
    assert!(!two_key::release_read(&mut conn, &keys, &token).unwrap());
    assert!(!two_key::acquire_write(&mut conn, &keys, &token, Duration::ZERO, LEASE).unwrap());
    assert_eq!(
        (conn.pttl("r"), conn.get("r")),
        (Ok(-1), Ok("1".to_owned()))
    );
}

#[test]
fn two_key_stops_at_other_types() {
    let (_server, mut conn, token) = start();
    let keys = Keys::new("r", "w").unwrap();
    for key in ["r", "w"] {
        conn.hset::<_, _, _, ()>(key, TOKEN, 1).unwrap();
        assert_stops(&mut conn, |conn| {
            two_key::acquire_read(conn, &keys, &token, Duration::ZERO, LEASE)
        });
        assert_stops(&mut conn, |conn| {
            two_key::acquire_write(conn, &keys, &token, Duration::ZERO, LEASE)
        });
        assert_stops(&mut conn, |conn| {
            two_key::acquire_read(conn, &keys, &token, LEASE, LEASE)
        });
        assert_stops(&mut conn, |conn| {
            two_key::acquire_write(conn, &keys, &token, LEASE, LEASE)
        });
        assert_stops(&mut conn, |conn| match key {
            "r" => two_key::release_read(conn, &keys, &token),
            _ => two_key::release_write(conn, &keys, &token),
        });
        conn.del::<_, ()>(key).unwrap();
    }
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
        assert!(
            matches!(Keys::new(read, write), Err(Error::Invalid { .. })),
            "{read} {write}"
        );
    }
}

type Function = fn(&mut Connection, &Token, &Lifetimes) -> Result<bool>;

/// Every function of `one_hash` on the key `a`.
const ONE_HASH: [Function; 6] = [
    |conn, token, leases| one_hash::acquire_read(conn, "a", token, Duration::ZERO, leases),
    |conn, token, leases| one_hash::acquire_read(conn, "a", token, LEASE, leases),
    |conn, token, leases| one_hash::release_read(conn, "a", token, leases),
    |conn, token, leases| one_hash::acquire_write(conn, "a", token, Duration::ZERO, leases),
    |conn, token, leases| one_hash::acquire_write(conn, "a", token, LEASE, leases),
    |conn, token, leases| one_hash::release_write(conn, "a", token, leases),
];

#[test]
fn one_hash_stops_at_other_types_and_fields() {
    let (_server, mut conn, token) = start();
    let (leases, now) = (Lifetimes::default(), millis(&mut conn).to_string());
    let others: [&[&str]; 9] = [
        &["SET", "a", TOKEN],
        &["RPUSH", "a", TOKEN],
        &["SADD", "a", TOKEN],
        &["ZADD", "a", "1", TOKEN],
        &["HSET", "a", "9b2e:1:0", "1"],
        &["HSET", "a", "kind", "rw", &format!("r:{TOKEN}"), &now],
        &["HSET", "a", "Read", &now],
        &["HSET", "a", "write:", &now],
        &["HSET", "a", "", &now],
    ];
    for other in others {
        redis::cmd(other[0])
            .arg(&other[1..])
            .exec(&mut conn)
            .unwrap();
        for call in ONE_HASH {
            assert_stops(&mut conn, |conn| call(conn, &token, &leases));
        }
        conn.del::<_, ()>("a").unwrap();
    }
}

#[test]
fn one_hash_does_not_read_all_of_a_large_hash() {
    let (_server, mut conn, token) = start();
    let fill = "for n = 1, 5000 do redis.call('HSET', KEYS[1], n, n) end";
    let () = redis::Script::new(fill).key("a").invoke(&mut conn).unwrap();
    let leases = Lifetimes::default();
    assert_stops(&mut conn, |conn| {
        one_hash::acquire_read(conn, "a", &token, Duration::ZERO, &leases)
    });
    assert_stops(&mut conn, |conn| {
        one_hash::acquire_write(conn, "a", &token, Duration::ZERO, &leases)
    });
    // `State` has read it each time.
    assert_eq!(calls(&mut conn, "hgetall").unwrap(), 4);
}

#[test]
fn one_hash_stops_at_a_stamp_that_is_not_a_time() {
    let (_server, mut conn, token) = start();
    let leases = Lifetimes::default();
    let values = [
        "",
        "abc",
        "-1",
        "+1",
        " 1",
        "1 ",
        ".5",
        "1e12",
        "1.7e+18",
        "0x10",
        "nan",
        "inf",
        "1\0",
        "1.2.3",
        "9007199254740992",
        "9223372036854775807",
        "-9223372036854775808",
        "99999999999999999999999",
    ];
    let fields = ["read", "write", "read:", "read:somebody", "write:somebody"];
    for (field, value) in fields
        .iter()
        .flat_map(|field| values.map(|value| (field, value)))
    {
        conn.hset::<_, _, _, ()>("a", field, value).unwrap();
        for call in ONE_HASH {
            assert_stops(&mut conn, |conn| call(conn, &token, &leases));
        }
        conn.del::<_, ()>("a").unwrap();
    }
}

#[test]
fn one_hash_refuses_invalid_keys_and_leases() {
    let (_server, mut conn, token) = start();
    let [zero, day_and_more] = [Duration::ZERO, Duration::from_secs(86_401)];
    let defaults = Lifetimes::default();
    let refused = [
        Lifetimes {
            read: zero,
            ..defaults
        },
        Lifetimes {
            write: zero,
            ..defaults
        },
        Lifetimes {
            key: zero,
            ..defaults
        },
        Lifetimes {
            read: day_and_more,
            key: day_and_more,
            ..defaults
        },
        Lifetimes {
            key: Duration::from_millis(2_999),
            ..defaults
        },
        Lifetimes {
            read: defaults.key + Duration::from_millis(1),
            ..defaults
        },
    ];
    for leases in refused {
        for call in ONE_HASH {
            let answer = call(&mut conn, &token, &leases);
            assert!(
                matches!(answer, Err(Error::Invalid { .. })),
                "{leases:?}: {answer:?}"
            );
        }
    }
    let long = "k".repeat(513);
    for key in ["", &long] {
        let answer = one_hash::acquire_read(&mut conn, key, &token, Duration::ZERO, &defaults);
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
    let keys: Vec<String> = conn.keys("*").unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}
