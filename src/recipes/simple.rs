//! The book's lock: [`acquire_lock`], [`acquire_lock_with_timeout`], [`release_lock`], [`commit_while_held`].
//!
//! Section 6.2 of *Redis in Action*. The key is `lock:NAME`, its value the holder's token, as in the book's code in any
//! language, so that a program on the book's functions and one on these exclude each other.

use std::time::Duration;

use redis::{Connection, FromRedisValue, Pipeline, RedisResult, Value};

use crate::{
    Error, Result,
    error::Operation,
    exchange::typed,
    name::LockName,
    script,
    time::{Backoff, Deadline, lease_millis},
    token::Token,
    transaction::{Watched, watch},
};

/// How often a release starts again because somebody touched the lock between its two round trips.
const RELEASE_ATTEMPTS: u32 = 100;
/// How often a commit is repeated while the lock is still ours.
const COMMIT_ATTEMPTS: u32 = 8;

/// Takes the book's lock, **which has no end**: if its holder dies it stays until somebody deletes it.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn acquire_lock(
    conn: &mut Connection,
    lock_name: &str,
    acquire_timeout: Duration,
) -> Result<Option<Token>> {
    let lock = LockName::new(lock_name)?;
    let operation = Operation::new("acquire_lock", lock_name);
    acquire(conn, operation, &lock, acquire_timeout, None)
}

/// Takes a lock that ends by itself after `lock_timeout`, waiting up to `acquire_timeout` for it.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn acquire_lock_with_timeout(
    conn: &mut Connection,
    lock_name: &str,
    acquire_timeout: Duration,
    lock_timeout: Duration,
) -> Result<Option<Token>> {
    let lock = LockName::new(lock_name)?;
    let lease = lease_millis("lock_timeout", lock_timeout)?;
    let operation = Operation::new("acquire_lock_with_timeout", lock_name);
    acquire(conn, operation, &lock, acquire_timeout, Some(lease))
}

/// Gives a lock back, if it is still ours.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn release_lock(conn: &mut Connection, lock_name: &str, token: &Token) -> Result<bool> {
    let lock = LockName::new(lock_name)?;
    let operation = Operation::new("release_lock", lock_name);
    let mut delete = Pipeline::new();
    delete.cmd("DEL").arg(lock.key());
    for _ in 0..RELEASE_ATTEMPTS {
        let Some(watched) = watch_while_held(conn, operation, &lock, token)? else {
            return Ok(false);
        };
        if let Some(results) = watched.commit(&delete)? {
            return Ok(results == [Value::Int(1)]);
        }
    }
    Err(operation.contended())
}

/// Executes a transaction only while the lock is still ours. Does not release it.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn commit_while_held<T: FromRedisValue>(
    conn: &mut Connection,
    lock_name: &str,
    token: &Token,
    mut build: impl FnMut(&mut Pipeline),
) -> Result<T> {
    let lock = LockName::new(lock_name)?;
    let operation = Operation::new("commit_while_held", lock_name);
    for _ in 0..COMMIT_ATTEMPTS {
        let mut writes = Pipeline::new();
        build(&mut writes);
        check_commands(&writes)?;
        let Some(watched) = watch_while_held(conn, operation, &lock, token)? else {
            return Err(operation.lost());
        };
        if let Some(results) = watched.commit(&writes)? {
            return typed(&writes, results).map_err(|_| operation.unreadable());
        }
    }
    Err(operation.contended())
}

/// The book's loop: attempt, sleep, attempt again until the deadline, with one token throughout.
fn acquire(
    conn: &mut Connection,
    operation: Operation<'_>,
    lock: &LockName,
    acquire_timeout: Duration,
    lease_millis: Option<u64>,
) -> Result<Option<Token>> {
    let deadline = Deadline::after(acquire_timeout);
    let mut backoff = Backoff::new();
    let token = Token::random();
    let mut unanswered = false;
    let mut answer = set_if_absent(conn, lock, &token, lease_millis);
    if matches!(answer, Ok(false)) {
        answer = script::acquire_simple(conn, lock, &token, lease_millis);
    }
    loop {
        match answer {
            Ok(true) => return Ok(Some(token)),
            Ok(false) if !backoff.pause(deadline) => return Ok(None),
            Ok(false) => unanswered = false,
            // The connection may only be slow: the same token, sent again, finds out whether the lock is ours.
            Err(error) if error.is_timeout() && !deadline.has_passed() => unanswered = true,
            Err(error) if unanswered => return Err(operation.unknown(Some(&token), error)),
            Err(error) => return Err(operation.unanswered(Some(&token), error)),
        }
        answer = script::acquire_simple(conn, lock, &token, lease_millis);
    }
}

/// The book's `SETNX` and `EXPIRE` in one command, so that no crash can come between them.
fn set_if_absent(
    conn: &mut Connection,
    lock: &LockName,
    token: &Token,
    lease_millis: Option<u64>,
) -> RedisResult<bool> {
    let mut set = redis::cmd("SET");
    set.arg(lock.key()).arg(token.as_str()).arg("NX");
    if let Some(millis) = lease_millis {
        set.arg("PX").arg(millis);
    }
    set.query(conn)
}

/// Watches the lock and reads it in the same round trip. `None`: it is not ours.
fn watch_while_held<'c, 'o>(
    conn: &'c mut Connection,
    operation: Operation<'o>,
    lock: &LockName,
    token: &Token,
) -> Result<Option<Watched<'c, 'o>>> {
    let mut read = Pipeline::new();
    read.cmd("GET").arg(lock.key());
    let (watched, values) = watch(conn, operation, &[lock.key()], &read)?;
    Ok(token.is_value(values.first()).then_some(watched))
}

/// Refuses what would end the transaction early or leave the connection changed.
fn check_commands(writes: &Pipeline) -> Result<()> {
    const REFUSED: [&str; 14] = [
        "MULTI",
        "EXEC",
        "DISCARD",
        "WATCH",
        "UNWATCH",
        "SUBSCRIBE",
        "PSUBSCRIBE",
        "SSUBSCRIBE",
        "MONITOR",
        "CLIENT",
        "QUIT",
        "RESET",
        "HELLO",
        "SELECT",
    ];
    for command in writes.cmd_iter() {
        let name = match command.args_iter().next() {
            Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).to_uppercase(),
            _ => String::new(),
        };
        if name.is_empty() || REFUSED.contains(&name.as_str()) {
            return Err(Error::invalid(
                "pipeline",
                format!("`{name}` may not be part of a transaction"),
            ));
        }
    }
    Ok(())
}
