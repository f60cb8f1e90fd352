//! Servers that answer, but refuse.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use leasehold::{Error, acquire_lock_with_timeout, commit_while_held, release_lock};
use redis::Commands;

use crate::common::{
    Proxy, Server, start, tell,
    wait::comes_true,
    world::{self, Function, Kind, LEASE, PASSWORD},
};

/// Calls every function in a bad state of the server, in which the error has one of these words,
/// and in its good state.
fn every_function(server: &Server, spoil: &str, heal: &str, words: &[&str]) {
    let mut operator = server.connection().unwrap();
    let mut conn = server.connection().unwrap();
    for function in world::functions() {
        let what = format!("{} where {}", function.name, words[0]);
        redis::cmd("FLUSHALL").exec(&mut operator).unwrap();
        world::seed(&mut operator);
        tell(&mut operator, spoil);
        let called = (function.call)(&mut conn);
        tell(&mut operator, heal);
        if is_let_through(&function, &called) {
            continue;
        }
        let error = called.unwrap_err();
        assert_refused(&error, &function, words);
        assert!(!(function.is_done)(&mut operator).unwrap(), "{what}: done");
        world::assert_conserved(&mut operator, &what);
        assert_eq!(world::new_locks(&mut operator), [""; 0], "{what}");
        assert!((function.call)(&mut conn).unwrap(), "{what}: afterwards");
        world::assert_nothing_is_watched(&mut conn, &mut operator, &what);
    }
}

/// Valkey after 8 accepts a transaction that only deletes even if its memory is full.
fn is_let_through(function: &Function, called: &anyhow::Result<bool>) -> bool {
    function.name == "release_lock" && matches!(called, Ok(true))
}

/// The call did not happen, for a reason that the server gave.
fn assert_refused(error: &anyhow::Error, function: &Function, words: &[&str]) {
    let text = format!("{error:#}");
    assert!(
        matches!(error.downcast_ref(), Some(Error::Redis { .. })),
        "{text}"
    );
    assert!(words.iter().any(|words| text.contains(words)), "{text}");
    world::assert_names(error, function);
    world::assert_tells_no_secret(error);
}

#[test]
fn a_server_in_a_bad_state_says_so() {
    every_function(
        &Server::start().unwrap(),
        "REPLICAOF 127.0.0.1 1",
        "REPLICAOF NO ONE",
        &["read only replica"],
    );
    every_function(
        &Server::start_with(&["--replica-serve-stale-data", "no"]).unwrap(),
        "REPLICAOF 127.0.0.1 1",
        "REPLICAOF NO ONE",
        &["Link with MASTER is down", "read only replica"],
    );
    every_function(
        &Server::start().unwrap(),
        "CONFIG SET min-replicas-to-write 1",
        "CONFIG SET min-replicas-to-write 0",
        &["Not enough good replicas"],
    );
    // The server then refuses even a DEL in a transaction: a lock stays until it expires, or until
    // memory is free again.
    every_function(
        &Server::start().unwrap(),
        "CONFIG SET maxmemory 1",
        "CONFIG SET maxmemory 0",
        &["used memory > 'maxmemory'"],
    );
}

#[test]
fn a_server_that_fills_up_midway_moves_nothing() {
    for function in world::functions() {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = proxy.connection().unwrap();
        let mut operator = server.connection().unwrap();
        let mut direct = server.connection().unwrap();
        world::seed(&mut operator);
        proxy
            .at("MULTI")
            .run(move || tell(&mut operator, "CONFIG SET maxmemory 1"));
        if function.kind == Kind::Acquire {
            continue;
        }
        let called = (function.call)(&mut conn);
        if is_let_through(&function, &called) {
            continue;
        }
        let error = called.unwrap_err();
        assert_refused(&error, &function, &["used memory > 'maxmemory'"]);
        world::assert_conserved(&mut direct, function.name);
        world::assert_locks_end(&mut direct, function.name);
        tell(&mut direct, "CONFIG SET maxmemory 0");
        world::assert_nothing_is_watched(&mut conn, &mut direct, function.name);
    }
}

#[test]
fn a_server_busy_with_a_script_says_so() {
    let server = Server::start_with(&["--lua-time-limit", "1"]).unwrap();
    let mut operator = server.connection().unwrap();
    let mut conn = server.connection().unwrap();
    world::seed(&mut operator);
    let mut busy = server.connection().unwrap();
    let script = thread::spawn(move || {
        let endless = redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .exec(&mut busy);
        assert!(endless.is_err());
    });
    assert!(comes_true(|| redis::cmd("PING")
        .exec(&mut operator)
        .is_err()));

    for function in world::functions() {
        let error = (function.call)(&mut conn).unwrap_err();
        assert_refused(&error, &function, &["busy running a script"]);
    }
    tell(&mut operator, "SCRIPT KILL");
    script.join().unwrap();
    assert_eq!(world::new_locks(&mut operator), [""; 0]);
    world::assert_conserved(&mut operator, "busy");
    world::assert_nothing_is_watched(&mut conn, &mut operator, "busy");
}

#[test]
fn a_server_that_serves_nobody_yet_says_so() {
    for (setting, value, words) in [
        ("--requirepass", PASSWORD, &["Authentication required"][..]),
        // The server refuses several keys before it looks up their slots.
        ("--cluster-enabled", "yes", &["not served", "same slot"]),
    ] {
        let server = Server::start_with(&[setting, value]).unwrap();
        let mut conn = server.connection().unwrap();
        for function in world::functions() {
            let error = (function.call)(&mut conn).unwrap_err();
            assert_refused(&error, &function, words);
        }
    }
}

#[test]
fn a_key_of_another_type_is_not_a_lock() {
    let (server, mut conn) = start();
    world::seed(&mut conn);
    for key in [
        "lock:free",
        "lock:held",
        "lock:market",
        "lock:market:listed.17",
        "lock:market:stocked.17",
    ] {
        let _: () = conn.del(key).unwrap();
        let _: () = conn.rpush(key, "no lock").unwrap();
    }
    for function in world::functions() {
        if !function.has_lock() {
            continue;
        }
        let error = (function.call)(&mut conn).unwrap_err();
        assert!(
            matches!(error.downcast_ref(), Some(Error::WrongKind { .. })),
            "{error:?}"
        );
        world::assert_names(&error, &function);
        world::assert_conserved(&mut conn, function.name);
    }
    let left: Vec<String> = conn.lrange("lock:free", 0, -1).unwrap();
    assert_eq!(left, ["no lock"]);
    let mut operator = server.connection().unwrap();
    world::assert_nothing_is_watched(&mut conn, &mut operator, "another type");
}

#[test]
fn constantly_flushed_scripts_are_sent_again() {
    const HOLDERS: usize = 4;
    const TURNS: usize = 25;
    let server = Server::start().unwrap();
    let mut operator = server.connection().unwrap();
    let done = AtomicBool::new(false);
    let flush = || {
        let mut flushes = 0;
        while !done.load(Ordering::Relaxed) {
            tell(&mut operator, "SCRIPT FLUSH");
            flushes += 1;
        }
        flushes
    };
    thread::scope(|scope| {
        let flushing = scope.spawn(flush);
        let holders = [(); HOLDERS].map(|()| scope.spawn(|| take_turns(&server, TURNS)));
        let ended = holders.map(thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Relaxed);
        assert!(flushing.join().unwrap() > 2);
        assert!(ended.iter().all(Result::is_ok));
    });
    let turns: usize = server.connection().unwrap().get("turns").unwrap();
    assert_eq!(turns, HOLDERS * TURNS, "two held the lock at once");
}

/// Increments without INCR, which only a lock makes safe.
fn take_turns(server: &Server, turns: usize) {
    let mut conn = server.connection().unwrap();
    for _ in 0..turns {
        let wait = Duration::from_secs(20);
        let token = acquire_lock_with_timeout(&mut conn, "turns", wait, LEASE)
            .unwrap()
            .unwrap();
        let count: Option<u64> = conn.get("turns").unwrap();
        let next = count.unwrap_or(0) + 1;
        commit_while_held::<()>(&mut conn, "turns", &token, |pipe| {
            pipe.set("turns", next).ignore();
        })
        .unwrap();
        assert!(release_lock(&mut conn, "turns", &token).unwrap());
    }
}
