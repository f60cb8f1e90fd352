//! The `finally` of the book's `try … finally`: giving back a lock after whatever has happened
//! under it.

use redis::{Connection, RedisError, Value};

use super::release_lock;
use crate::{
    error::{Error, Result},
    exchange::is_interrupted,
    name::LockName,
    token::Token,
};

/// The tries to give a lock back while signals interrupt it.
const RELEASES: u32 = 100;

/// Releases a lock, and again when a signal interrupts it. A `MULTI` that the caller has left open
/// refuses the release: it is discarded. A lock that cannot be given back ends by itself.
pub(crate) fn give_back(conn: &mut Connection, lock: &LockName, token: &Token) -> Result<bool> {
    let mut tries = 1;
    loop {
        let released = release_lock(conn, lock.text(), token);
        let goes_on = match &released {
            // The server is there, and has not or has deleted what is ours: asked again, it does no
            // harm.
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

/// Of a lock that was lost, or may be gone with what was written, there is nothing to give back;
/// and on a connection that is gone or silent no way to.
pub(crate) fn leaves_a_lock(error: &Error) -> bool {
    match error {
        interrupted if was_interrupted(interrupted) => true,
        Error::Lost { .. } | Error::Unknown { .. } => false,
        Error::Redis { source, .. } => !source.is_io_error(),
        _ => true,
    }
}

pub(crate) fn was_interrupted(error: &Error) -> bool {
    match error {
        Error::Redis { source, .. } | Error::Unknown { source, .. } => is_interrupted(source),
        _ => false,
    }
}

/// The slot of the lock is on its way to another node of a cluster, or there.
pub(crate) fn is_elsewhere(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN"))
}
