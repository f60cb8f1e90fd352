//! What the server does to the scripts of the read-write locks: it forgets them, has no memory, is part of a cluster.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::{fs, path::Path, time::Duration};

use common::{
    Proxy, Server,
    probe::{stored, until},
    sides::{LEASE, RECIPES},
};
use leasehold::{
    Error, Token,
    recipes::read_write::two_key::{self, Keys},
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
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
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

/// A script that the server stops leaves nothing behind.
#[test]
fn a_server_without_memory() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let (token, another) = (Token::random(), Token::random());
    for [reader, writer] in RECIPES {
        put(&mut conn, &["CONFIG", "SET", "maxmemory", "0"]);
        assert!((reader.try_acquire)(&mut conn, "read", &another).unwrap());
        put(&mut conn, &["CONFIG", "SET", "maxmemory", "1"]);
        let before = stored(&mut conn);
        let refusals = [
            (reader.try_acquire)(&mut conn, "new", &token),
            (writer.try_acquire)(&mut conn, "new", &token),
            (reader.try_acquire)(&mut conn, "read", &token),
        ];
        for refused in refusals {
            assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
        }
        assert_eq!(stored(&mut conn), before, "{}", reader.recipe);
        assert!((reader.release)(&mut conn, "read", &another).unwrap());
        assert!(stored(&mut conn).is_empty());
    }
}

/// Where it makes room first, a script is executed to its end.
#[test]
fn a_server_without_memory_and_what_is_over() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let token = Token::random();
    put(&mut conn, &["HSET", "lock:a", "kind", "rw", "r:dead", "1"]);
    put(&mut conn, &["HSET", "a", "read:dead", "1", "write", "1"]);
    put(&mut conn, &["CONFIG", "SET", "maxmemory", "1"]);
    for [_, writer] in [RECIPES[0], RECIPES[2]] {
        assert!((writer.try_acquire)(&mut conn, "a", &token).unwrap());
    }
    for key in ["lock:a", "{lock:a}:lease", "a"] {
        assert!(conn.pttl::<_, i64>(key).unwrap() > 0, "{key} has no end");
    }
    for [_, writer] in [RECIPES[0], RECIPES[2]] {
        assert!((writer.release)(&mut conn, "a", &token).unwrap());
    }
}

/// A connection that asked to be told of changes is told when what it has just acquired, renewed or found held ends: the
/// last thing that a script does with the lock is to read it.
#[test]
fn whoever_acquires_or_renews_is_told_of_the_end() {
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

/// On a cluster a script whose keys lie in different slots is refused, as is one that touches a key of another slot.
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
    until("serves", || conn.exists::<_, bool>("a").is_ok());
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
    let refused = two_key::try_acquire_read(&mut conn, &apart, &token, LEASE).unwrap_err();
    let says = format!("{:#}", anyhow::Error::from(refused));
    assert!(says.to_uppercase().contains("SLOT"), "{says}");
}

/// Every script says what it takes and answers, and names no key that is not among its `KEYS`.
#[test]
fn every_key_is_declared() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/recipes/lua");
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        let (script, name) = (fs::read_to_string(&path).unwrap(), path.display());
        assert!(script.starts_with("-- "), "{name} does not say what it is");
        let code = script.lines().filter(|line| !line.starts_with("--"));
        for line in code {
            for call in line.split("redis.call(").skip(1) {
                let declared = call
                    .split_once(", ")
                    .is_some_and(|(_, key)| key.starts_with("KEYS["));
                assert!(declared || call.starts_with("'TIME')"), "{name}: {line}");
            }
        }
    }
}
