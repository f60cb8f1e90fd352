//! The read-write lock on keys with foreign values: it returns an error and changes nothing.

use std::time::Duration;

use crate::common::{Server, State, clock::millis};
use leasehold::{
    Error, Result, Token,
    recipes::{
        mutex::{self, End},
        read_write::{
            acquire_read, acquire_write, release_read, release_write, renew_read, renew_write,
            try_acquire_read, try_acquire_write,
        },
    },
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);
const TOKEN: &str = "5ec7e700-face-4bad-8ace-0123456789ab";

type Function = fn(&mut Connection, &Token) -> Result<bool>;

/// Every function, on the lock `a`, and whether it reads all holders.
const FUNCTIONS: [(&str, bool, Function); 8] = [
    ("try_acquire_read", true, |conn, token| {
        try_acquire_read(conn, "a", token, LEASE)
    }),
    ("try_acquire_write", true, |conn, token| {
        try_acquire_write(conn, "a", token, LEASE).map(|grant| grant.is_some())
    }),
    ("acquire_read", true, |conn, token| {
        acquire_read(conn, "a", token, LEASE, LEASE)
    }),
    ("acquire_write", true, |conn, token| {
        acquire_write(conn, "a", token, LEASE, LEASE).map(|grant| grant.is_some())
    }),
    ("renew_read", false, |conn, token| {
        renew_read(conn, "a", token, LEASE)
    }),
    ("renew_write", false, |conn, token| {
        renew_write(conn, "a", token, LEASE)
    }),
    ("release_read", true, |conn, token| {
        release_read(conn, "a", token)
    }),
    ("release_write", true, |conn, token| {
        release_write(conn, "a", token)
    }),
];

fn start() -> (Server, Connection, Token) {
    let server = Server::start().unwrap();
    let conn = server.connection().unwrap();
    (server, conn, TOKEN.parse().unwrap())
}

fn put(conn: &mut Connection, command: &[&str]) {
    redis::cmd(command[0])
        .arg(&command[1..])
        .exec(conn)
        .unwrap();
}

/// The data and its expiry are unchanged, and the error names the function and no token.
#[track_caller]
fn assert_stops(conn: &mut Connection, token: &Token, (name, _, call): (&str, bool, Function)) {
    let (before, end) = (
        State::of(conn).unwrap(),
        conn.pttl::<_, i64>("lock:a").unwrap(),
    );
    let error = call(conn, token).unwrap_err();
    let shown = format!("{error} {error:?}");
    let names_it = |operation: &str| operation == format!("read_write::{name}");
    assert!(
        matches!(error, Error::WrongKind { context, .. } if names_it(context.operation)),
        "{name}: {shown}"
    );
    assert!(!shown.contains(TOKEN), "{shown}");
    assert_eq!(State::of(conn).unwrap(), before, "{name} changed the data");
    let left: i64 = conn.pttl("lock:a").unwrap();
    assert!(
        left <= end && left + 10_000 > end,
        "{name} changed the expiry"
    );
}

#[test]
fn keys_of_other_types_and_other_hashes() {
    let (_server, mut conn, token) = start();
    let now = millis(&mut conn).to_string();
    let others: [&[&str]; 11] = [
        &["SET", "lock:a", TOKEN],
        &["RPUSH", "lock:a", TOKEN],
        &["SADD", "lock:a", TOKEN],
        &["ZADD", "lock:a", "1", TOKEN],
        &["XADD", "lock:a", "*", "w", TOKEN],
        &["HSET", "lock:a", "9b2e:1:0", "1"],
        &["HSET", "lock:a", "read", &now, "write", &now],
        &["HSET", "lock:a", "kind", "semaphore"],
        &["HSET", "lock:a", "kind", "RW"],
        &["HSET", "lock:a", "kind", ""],
        &["HSET", "lock:a", &format!("r:{TOKEN}"), "99999999999999"],
    ];
    for other in others {
        put(&mut conn, other);
        put(&mut conn, &["PEXPIRE", "lock:a", "60000"]);
        for function in FUNCTIONS {
            assert_stops(&mut conn, &token, function);
        }
        put(&mut conn, &["FLUSHALL"]);
    }
}

#[test]
fn stray_fields_and_values_that_are_not_times() {
    let (_server, mut conn, token) = start();
    let values = [
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
        "9007199254740992",
        "9223372036854775807",
        "-9223372036854775808",
        "99999999999999999999999",
    ];
    let mut others: Vec<(String, &str)> = ["r", "w:", "i", "x:1", "Kind", "", "1"]
        .map(|field| (field.to_owned(), "99999999999999"))
        .to_vec();
    for side in ["r", "w", "i"] {
        let fields = [format!("{side}:somebody"), format!("{side}:{TOKEN}")];
        others.extend(
            fields
                .into_iter()
                .flat_map(|field| values.map(|value| (field.clone(), value))),
        );
    }
    for (field, value) in others {
        put(&mut conn, &["HSET", "lock:a", "kind", "rw", &field, value]);
        put(&mut conn, &["PEXPIRE", "lock:a", "60000"]);
        for function in FUNCTIONS {
            let (name, looks_at_all, call) = function;
            let is_its_own =
                field == format!("{}:{TOKEN}", if name.ends_with("read") { "r" } else { "w" });
            if looks_at_all || is_its_own {
                assert_stops(&mut conn, &token, function);
            } else {
                assert!(!call(&mut conn, &token).unwrap(), "{name}: {field} {value}");
            }
        }
        put(&mut conn, &["DEL", "lock:a"]);
    }
}

#[test]
fn the_largest_time_is_valid() {
    let (_server, mut conn, token) = start();
    let largest = "9007199254740991";
    put(
        &mut conn,
        &["HSET", "lock:a", "kind", "rw", "r:somebody", largest],
    );
    assert!(
        try_acquire_write(&mut conn, "a", &token, LEASE)
            .unwrap()
            .is_none()
    );
    assert!(try_acquire_read(&mut conn, "a", &token, LEASE).unwrap());
    let left: i64 = conn.pttl("lock:a").unwrap();
    assert!(left > 9_000_000_000_000_000 - 9_000_000_000_000, "{left}");
    assert!(renew_read(&mut conn, "a", &token, LEASE * 2).unwrap());
    assert!(release_read(&mut conn, "a", &token).unwrap());
    assert_eq!(conn.hget("lock:a", "r:somebody"), Ok(largest.to_owned()));
}

#[test]
fn a_lock_without_holders_or_expiry_is_free_and_gets_one() {
    let (_server, mut conn, token) = start();
    put(
        &mut conn,
        &[
            "HSET", "lock:a", "kind", "rw", "w:dead", "1", "i:dead", "0", "r:dead", "007",
        ],
    );
    assert!(
        try_acquire_write(&mut conn, "a", &token, LEASE)
            .unwrap()
            .is_some()
    );
    assert!((1..=10_001).contains(&conn.pttl::<_, i64>("lock:a").unwrap()));
    assert_eq!(conn.hlen("lock:a"), Ok(2));
}

#[test]
fn a_companion_key_without_a_fencing_token() {
    let (_server, mut conn, token) = start();
    let values = [
        "",
        "abc",
        "-1",
        "1.5",
        "1e3",
        "9007199254740991",
        "9223372036854775807",
        "18446744073709551616",
    ];
    let mut others: Vec<Vec<&str>> = values
        .map(|value| vec!["HSET", "{lock:a}:lease", "fence", value])
        .to_vec();
    others.push(vec!["HSET", "{lock:a}:lease", "token", TOKEN]);
    others.push(vec!["SET", "{lock:a}:lease", "1"]);
    others.push(vec!["RPUSH", "{lock:a}:lease", "1"]);
    for other in others {
        put(&mut conn, &other);
        for function in [FUNCTIONS[1], FUNCTIONS[3]] {
            assert_stops_free(&mut conn, &token, function);
        }
        put(&mut conn, &["FLUSHALL"]);
    }
    // The largest number that can be incremented.
    put(
        &mut conn,
        &["HSET", "{lock:a}:lease", "fence", "9007199254740990"],
    );
    let grant = try_acquire_write(&mut conn, "a", &token, LEASE)
        .unwrap()
        .unwrap();
    assert_eq!(grant.fencing_token().get(), 9_007_199_254_740_991);
}

#[track_caller]
fn assert_stops_free(
    conn: &mut Connection,
    token: &Token,
    (name, _, call): (&str, bool, Function),
) {
    let before = State::of(conn).unwrap();
    let error = call(conn, token).unwrap_err();
    assert!(matches!(error, Error::WrongKind { .. }), "{name}: {error}");
    assert_eq!(State::of(conn).unwrap(), before, "{name} left data behind");
}

#[test]
fn a_mutex_with_the_name_is_another_kind() {
    let (_server, mut conn, token) = start();
    let end = End::After(LEASE);
    assert!(
        mutex::try_acquire(&mut conn, "a", &token, end)
            .unwrap()
            .is_some()
    );
    assert_stops(&mut conn, &token, FUNCTIONS[0]);
    assert!(mutex::release(&mut conn, "a", &token).unwrap());
    assert!(try_acquire_read(&mut conn, "a", &token, LEASE).unwrap());
    let error = mutex::try_acquire(&mut conn, "a", &token, end).unwrap_err();
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
}

#[test]
fn invalid_leases_and_names() {
    let (_server, mut conn, token) = start();
    for lease in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_secs(86_401),
        Duration::MAX,
    ] {
        let refusals = [
            try_acquire_read(&mut conn, "a", &token, lease),
            acquire_read(&mut conn, "a", &token, LEASE, lease),
            renew_read(&mut conn, "a", &token, lease),
            renew_write(&mut conn, "a", &token, lease),
            try_acquire_write(&mut conn, "a", &token, lease).map(|grant| grant.is_some()),
            acquire_write(&mut conn, "a", &token, LEASE, lease).map(|grant| grant.is_some()),
        ];
        for refused in refusals {
            assert!(
                matches!(
                    refused,
                    Err(Error::Invalid {
                        argument: "lease",
                        ..
                    })
                ),
                "{refused:?}"
            );
        }
    }
    for name in ["", "a:lease", "{}"] {
        let refused = try_acquire_read(&mut conn, name, &token, LEASE);
        assert!(
            matches!(
                refused,
                Err(Error::Invalid {
                    argument: "lock name",
                    ..
                })
            ),
            "{refused:?}"
        );
    }
    let keys: Vec<String> = conn.keys("*").unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}
