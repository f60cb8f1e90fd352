//! The scripts of the read-write locks on a server that forgets them, has no memory left, or is
//! part of a cluster.

use std::{fs, path::Path, time::Duration};

use crate::common::{
    Proxy, Server,
    clock::millis,
    sides::{LEASE, RECIPES},
    start,
    wait::comes_true,
};
use leasehold::{
    Error, Token,
    book::article::two_key::{self, Keys},
};
use redis::{Commands, Connection};

fn put(conn: &mut Connection, command: &[&str]) {
    redis::cmd(command[0])
        .arg(&command[1..])
        .exec(conn)
        .unwrap();
}

#[test]
fn each_call_is_one_round_trip() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    let token = Token::random();
    for side in RECIPES.into_iter().flatten() {
        for (name, needs_a_hold, call) in side.functions() {
            for known in [false, true] {
                put(&mut conn, &["FLUSHALL"]);
                if needs_a_hold {
                    assert!((side.try_acquire)(&mut conn, "a", &token).unwrap());
                }
                let (answer, traffic) = proxy.traffic_of(|| call(&mut conn, "a", &token));
                assert!(answer.unwrap(), "{name}");
                if known {
                    assert_eq!(traffic.commands, ["EVALSHA"], "{name}");
                }
            }
        }
        put(&mut conn, &["FLUSHALL"]);
        let (answer, traffic) = proxy.traffic_of(|| (side.acquire)(&mut conn, "a", &token, LEASE));
        assert!(answer.unwrap());
        assert_eq!(traffic.commands, ["EVALSHA"]);
    }
}

#[test]
fn a_server_that_forgets_its_scripts() {
    let (_server, mut conn) = start();
    let token = Token::random();
    for side in RECIPES.into_iter().flatten() {
        for (name, needs_a_hold, call) in side.functions() {
            if needs_a_hold {
                assert!((side.try_acquire)(&mut conn, "a", &token).unwrap());
            }
            put(&mut conn, &["SCRIPT", "FLUSH"]);
            assert!(call(&mut conn, "a", &token).unwrap(), "{name}");
            put(&mut conn, &["FLUSHALL"]);
        }
    }
}

/// The data before the call: none, or expired holders.
const BEFORE: [&[&[&str]]; 2] = [
    &[],
    &[
        &["HSET", "lock:a", "kind", "rw", "r:dead", "1", "i:dead", "1"],
        &["PEXPIRE", "lock:a", "60000"],
        &["HSET", "a", "read", "1", "read:dead", "1", "write", "1"],
        &["PEXPIRE", "a", "60000"],
    ],
];

/// Even if a script is stopped half-way: a refused lock is not held, and every key expires.
fn assert_true_to_the_state(conn: &mut Connection, spoil: &[&str], repair: &[&str]) {
    let (token, stranger) = (Token::random(), Token::random());
    let sides = RECIPES.map(|[reader, writer]| [(reader, writer), (writer, reader)]);
    for (side, other) in sides.into_iter().flatten() {
        for before in BEFORE {
            let what = format!("{} {}, {spoil:?}, {before:?}", side.recipe, side.mode);
            put(conn, &["FLUSHALL"]);
            for command in before {
                put(conn, command);
            }
            put(conn, spoil);
            let answer = (side.try_acquire)(conn, "a", &token);
            put(conn, repair);
            assert!(
                matches!(answer, Ok(true) | Err(Error::Redis { .. })),
                "{what}: {answer:?}"
            );
            let mut keys: Vec<String> = conn.keys("*").unwrap();
            keys.retain(|key| !key.ends_with(":lease"));
            for key in keys {
                assert!(conn.pttl::<_, i64>(&key).unwrap() > 0, "{what}: {key}");
            }
            let was_held = (side.release)(conn, "a", &token).unwrap();
            assert_eq!(was_held, answer.is_ok(), "{what}");
            assert!((other.try_acquire)(conn, "a", &stranger).unwrap(), "{what}");
        }
    }
}

#[test]
fn a_server_out_of_memory() {
    let (_server, mut conn) = start();
    let limit = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
    assert_true_to_the_state(&mut conn, &limit("1"), &limit("0"));
    put(&mut conn, &limit("1"));
    let refused = two_key::acquire_write(
        &mut conn,
        &Keys::new("r", "w").unwrap(),
        &Token::random(),
        Duration::ZERO,
        LEASE,
    );
    assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
}

#[test]
fn a_forbidden_command_leaves_no_lock() {
    let (_server, mut conn) = start();
    let allow = ["ACL", "SETUSER", "default", "+@all"];
    let commands = [
        "exists", "get", "hgetall", "hget", "hmget", "pttl", "time", "set", "hset", "hdel", "del",
        "pexpire",
    ];
    for command in commands {
        let forbidden = format!("-{command}");
        let forbid = ["ACL", "SETUSER", "default", "+@all", &forbidden];
        assert_true_to_the_state(&mut conn, &forbid, &allow);
    }
}

/// A connection with tracking is notified when a lock that it acquired, renewed or checked expires:
/// the last command of each script is a read.
#[test]
fn acquire_and_renew_return_the_expiry() {
    let server = Server::start().unwrap();
    let [mut conn, mut other, mut listener] = [(); 3].map(|()| server.connection().unwrap());
    listener
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let listening: i64 = redis::cmd("CLIENT").arg("ID").query(&mut listener).unwrap();
    let mut pushes = listener.as_pubsub();
    pushes.subscribe("__redis__:invalidate").unwrap();
    let tracking = listening.to_string();
    put(
        &mut conn,
        &["CLIENT", "TRACKING", "ON", "REDIRECT", &tracking, "NOLOOP"],
    );

    let keys = [["lock:a", "lock:a"], ["{a}:read", "{a}:write"], ["a", "a"]];
    let (token, stranger) = (Token::random(), Token::random());
    for (side, key) in RECIPES
        .into_iter()
        .flatten()
        .zip(keys.into_iter().flatten())
    {
        let mut told = |what: &str| {
            put(&mut other, &["DEL", key]);
            let mut next = || pushes.get_message().unwrap().get_payload().unwrap();
            let mut keys: Vec<String> = next();
            while keys[0].ends_with(":lease") {
                keys = next();
            }
            assert_eq!(keys, [key], "{} {}: {what}", side.recipe, side.mode);
        };
        assert!((side.try_acquire)(&mut conn, "a", &token).unwrap());
        told("acquired");
        if let Some(renew) = side.renew {
            assert!((side.try_acquire)(&mut conn, "a", &token).unwrap());
            assert!(renew(&mut conn, "a", &token).unwrap());
            told("renewed");
        }
        if side.mode == "write" {
            let another = &mut server.connection().unwrap();
            assert!((side.try_acquire)(another, "a", &stranger).unwrap());
            assert!(!(side.acquire)(&mut conn, "a", &token, Duration::ZERO).unwrap());
            told("refused");
        }
    }
}

/// Since Redis 7.2 an expiry counts from the start of the script, but `TIME` in it returns a later
/// time: a key with the expiry of its last hold would expire before the hold.
#[test]
fn the_key_lasts_as_long_as_the_last_hold() {
    let (server, mut conn) = start();
    let token = Token::random();
    let [[reads, writes], [reads_two_key, _], _] = RECIPES;
    let holds = [
        (reads, "lock:a", format!("r:{token}")),
        (writes, "lock:a", format!("w:{token}")),
        (reads_two_key, "{a}:read", String::new()),
    ];
    for (side, key, field) in holds {
        let mut outlives = |what: &str| {
            let end: i64 = if field.is_empty() {
                let list: String = conn.get(key).unwrap();
                list.trim_end_matches('}')
                    .rsplit_once(':')
                    .unwrap()
                    .1
                    .parse()
                    .unwrap()
            } else {
                conn.hget(key, &field).unwrap()
            };
            // Time that passes between the two reads makes the expiry look too early, never too
            // late.
            let seen = comes_true(|| millis(&mut conn) + conn.pttl::<_, i64>(key).unwrap() > end);
            assert!(seen, "{} {}: {what}", side.recipe, side.mode);
        };
        let mut other = server.connection().unwrap();
        assert!((side.try_acquire)(&mut other, "a", &token).unwrap());
        outlives("acquired");
        if let Some(renew) = side.renew {
            assert!(renew(&mut other, "a", &token).unwrap());
            outlives("renewed");
        }
        assert!((side.release)(&mut other, "a", &token).unwrap());
    }
}

/// A cluster refuses a script whose keys are in different slots, or that touches a key of another
/// slot.
#[test]
fn all_keys_are_in_one_slot() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]).unwrap();
    let mut conn = server.connection().unwrap();
    let slots: Vec<u16> = (0..16_384).collect();
    redis::cmd("CLUSTER")
        .arg("ADDSLOTS")
        .arg(slots)
        .exec(&mut conn)
        .unwrap();
    assert!(comes_true(|| conn.exists::<_, bool>("a").is_ok()));
    let token = Token::random();
    for side in RECIPES.into_iter().flatten() {
        for name in ["a", "report.4", "名前"] {
            assert!((side.try_acquire)(&mut conn, name, &token).unwrap());
            for (what, _, call) in side.functions().into_iter().rev() {
                assert!(call(&mut conn, name, &token).unwrap(), "{what}");
            }
            assert!((side.release)(&mut conn, name, &token).unwrap());
        }
    }

    let apart = Keys::new("readKey", "writeKey").unwrap();
    let refused =
        two_key::acquire_read(&mut conn, &apart, &token, Duration::ZERO, LEASE).unwrap_err();
    let says = format!("{:#}", anyhow::Error::from(refused));
    assert!(says.to_uppercase().contains("SLOT"), "{says}");
}

/// Every script documents its arguments and its reply, and uses only the keys in `KEYS`.
#[test]
fn every_key_is_declared() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/recipes")];
    let mut scripts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                None => folders.push(path),
                Some(extension) if extension == "lua" => scripts.push(path),
                Some(_) => {}
            }
        }
    }
    assert!(!scripts.is_empty());
    for path in scripts {
        let (script, name) = (fs::read_to_string(&path).unwrap(), path.display());
        assert!(script.starts_with("-- "), "{name} has no description");
        let code = script
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"));
        for line in code {
            for call in line.replace("pcall(", "call(").split("redis.call(").skip(1) {
                let declared = call
                    .split_once(", ")
                    .is_some_and(|(_, key)| key.starts_with("KEYS["));
                assert!(declared || call.starts_with("'TIME')"), "{name}: {line}");
            }
        }
    }
}
