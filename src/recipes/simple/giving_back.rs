//! The `finally` of the book's `try … finally`: releases a lock after its work, whatever the
//! outcome.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use redis::{Connection, Pipeline, RedisError, Value};

use super::release_lock;
use crate::{
    error::{Error, Result},
    name::LockName,
    recipes::transaction::{
        Attempted, Executed, LockState, Proof, Transaction, WantedLock, WatchedConnection,
        was_interrupted,
    },
    token::Token,
};

/// The most attempts to release a lock while signals interrupt them.
const RELEASES: u32 = 100;

/// Releases a lock, and retries if a signal interrupts it. If the caller has left a `MULTI` open,
/// that refuses the release: it is discarded first. A lock that cannot be released ends by itself.
pub(super) fn give_back(conn: &mut Connection, lock: &LockName, token: &Token) -> Result<bool> {
    let mut tries = 1;
    loop {
        let released = release_lock(conn, lock.text(), token);
        let goes_on = match &released {
            // The server is alive and may have deleted the lock: a repeated release does no harm.
            Err(error) if was_interrupted(error) => true,
            Err(Error::Redis { source, .. }) if !source.is_io_error() => discards(conn),
            _ => false,
        };
        if !goes_on || tries == RELEASES {
            return released;
        }
        tries += 1;
    }
}

/// Discards an open transaction. False: none was open.
fn discards(conn: &mut Connection) -> bool {
    matches!(redis::cmd("DISCARD").query(conn), Ok(Value::Okay))
}

/// True if the lock may still have to be released. A lost lock, or one that the transaction may
/// have deleted, need not be, and a closed or silent connection cannot release it.
fn leaves_a_lock(error: &Error) -> bool {
    match error {
        interrupted if was_interrupted(interrupted) => true,
        Error::Lost { .. } | Error::Unknown { .. } => false,
        Error::Redis { source, .. } => !source.is_io_error(),
        _ => true,
    }
}

/// True if the lock's slot is moving, or has moved, to another node of the cluster.
pub(super) fn is_elsewhere(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN"))
}

/// Takes a lock of the book in the first round trip of the transaction, or waits for it, and
/// deletes it in the transaction. An error of the closure releases it. `None`: another holder had
/// it until the deadline.
pub(crate) fn run_with_lock<T>(
    conn: &mut Connection,
    transaction: Transaction<'_>,
    wanted: &WantedLock,
    attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
) -> Attempted<Option<Executed<T>>> {
    let (lock, token) = (&wanted.lock, &wanted.token);
    let proof = Proof::by_value(lock, token);
    let transaction = transaction.while_held(&proof);
    let mut state = LockState::Wanted;
    let attempted = catch_unwind(AssertUnwindSafe(|| {
        transaction.run_taking(conn, Some((wanted, &mut state)), attempt)
    }));
    let is_left = match &attempted {
        Ok(Ok(ended)) => ended.is_err(),
        Ok(Err(met)) => leaves_a_lock(met),
        Err(_panic) => true,
    };
    let is_held = is_left && state == LockState::Held;
    let given_back = is_held.then(|| give_back(conn, lock, token));
    match attempted.unwrap_or_else(|panic| resume_unwind(panic)) {
        Ok(ended) => Ok(ended.map(Some)),
        Err(_) if state == LockState::Busy => Ok(Ok(None)),
        // The lock has moved with its slot, so it cannot be released here.
        Err(Error::Redis { source, .. })
            if is_elsewhere(&source) && given_back.is_some_and(has_moved) =>
        {
            Err(transaction.operation.unknown(Some(token), source))
        }
        Err(met) => Err(met),
    }
}

fn has_moved(given_back: Result<bool>) -> bool {
    matches!(given_back, Err(Error::Redis { source, .. }) if is_elsewhere(&source))
}
