//! A lock that is held, for what keeps it alive.

use std::time::Duration;

use leasehold::{
    Lock, Locks, Token,
    recipes::mutex::{self, End, Hold},
};
use redis::Connection;

pub use super::wait::{PATIENCE, comes_true};

/// Takes the lock for so long.
pub fn take(conn: &mut Connection, name: &str, lease: Duration) -> anyhow::Result<Hold> {
    let token = Token::random();
    let granted = mutex::try_acquire(conn, name, &token, End::After(lease))?;
    anyhow::ensure!(granted.is_some(), "{name} is held by somebody else");
    Ok(Hold::new(name, &token)?)
}

/// A lock of each kind, named after it.
pub fn every_kind(locks: &Locks) -> [Lock; 4] {
    [
        locks.lock("mutex"),
        locks.reentrant("reentrant"),
        locks.read("read"),
        locks.write("write"),
    ]
}
