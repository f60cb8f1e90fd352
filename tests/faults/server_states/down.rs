//! Servers that do not answer because they are killed or frozen.

use std::{
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use leasehold::{Error, Token, release_lock};
use redis::{Commands, Connection, ConnectionLike};

use crate::common::{
    Server, wait,
    world::{self, Function, Kind},
};

const TIME_OUT: Duration = Duration::from_millis(200);

/// The error leaves the outcome open, unless no command was sent that could change anything.
fn judge(function: &Function, result: anyhow::Result<bool>) -> Error {
    let error = result.unwrap_err();
    world::assert_names(&error, function);
    let error = error.downcast().unwrap();
    match function.kind {
        Kind::Transaction => assert!(matches!(error, Error::Redis { .. }), "{error:?}"),
        Kind::Acquire | Kind::UnderLock => assert!(error.token().is_some(), "{error:?}"),
    }
    error
}

#[test]
fn killed_and_started_again() {
    let mut server = Server::start().unwrap();
    let mut conns: Vec<Connection> = world::functions()
        .iter()
        .map(|_| server.connection().unwrap())
        .collect();
    server.kill().unwrap();
    for (function, conn) in world::functions().iter().zip(&mut conns) {
        judge(function, (function.call)(conn));
        // Again, on the broken connection.
        judge(function, (function.call)(conn));
        assert!(!conn.is_open(), "{}", function.name);
    }
    server.restart().unwrap();
    for function in world::functions() {
        let mut conn = server.connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
        world::seed(&mut conn);
        assert!((function.call)(&mut conn).unwrap(), "{}", function.name);
    }
}

#[test]
fn frozen_and_thawed() {
    let server = Server::start().unwrap();
    let mut operator = server.connection().unwrap();
    world::seed(&mut operator);
    let functions: Vec<Function> = world::functions()
        .into_iter()
        // These would retry for ten seconds.
        .filter(|function| function.kind != Kind::UnderLock)
        .collect();
    let mut conns: Vec<Connection> = functions
        .iter()
        .map(|_| server.connection().unwrap())
        .collect();

    server.freeze().unwrap();
    let tokens = call_until_thawed(&server, &functions, &mut conns);
    world::assert_conserved(&mut operator, "thawed");
    for conn in &mut conns {
        assert_answers_what_it_is_asked(conn);
    }
    let freed: Vec<bool> = tokens
        .iter()
        .map(|token| release_lock(&mut operator, "free", token).unwrap())
        .collect();
    assert_eq!(freed.iter().filter(|freed| **freed).count(), 1, "{freed:?}");
    for (function, conn) in functions.iter().zip(&mut conns) {
        redis::cmd("FLUSHALL").exec(&mut operator).unwrap();
        world::seed(&mut operator);
        assert!((function.call)(conn).unwrap(), "{}", function.name);
        world::assert_conserved(&mut operator, function.name);
    }
}

/// Calls all functions at once on a frozen server, and thaws it when they have given up. Returns
/// the tokens that may hold a lock.
fn call_until_thawed(
    server: &Server,
    functions: &[Function],
    conns: &mut [Connection],
) -> Vec<Token> {
    thread::scope(|scope| {
        let calls: Vec<_> = functions
            .iter()
            .zip(conns)
            .map(|(function, conn)| {
                scope.spawn(|| {
                    conn.set_read_timeout(Some(TIME_OUT)).unwrap();
                    judge(function, (function.call)(conn))
                })
            })
            .collect();
        let all_gave_up = wait::comes_true(|| calls.iter().all(ScopedJoinHandle::is_finished));
        // Calls that have not given up get their answers now, so the test ends.
        server.thaw().unwrap();
        assert!(all_gave_up);
        calls
            .into_iter()
            .filter_map(|call| call.join().unwrap().token().cloned())
            .collect()
    })
}

/// The outstanding replies arrive now, and are not taken for this command's.
fn assert_answers_what_it_is_asked(conn: &mut Connection) {
    conn.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mine: String = conn.get("mine").unwrap();
    assert_eq!(mine, "intact");
}
