//! The two editions of the article *Redis 分布式读写锁*, for programs that share a lock with its scripts.

pub mod one_hash;
pub mod two_key;

use std::time::Duration;

use redis::Connection;

use super::wait::until_granted;
use crate::{
    error::{Operation, Result},
    token::Token,
    wire::Call,
};

/// Tries at least once, until a lock of either edition is granted or the deadline has passed.
fn acquired(
    conn: &mut Connection,
    operation: Operation<'_>,
    token: &Token,
    acquire_timeout: Duration,
    attempt: &Call,
) -> Result<bool> {
    let granted = until_granted(operation, token, acquire_timeout, || {
        Ok(attempt.asks(conn)?.then_some(()))
    })?;
    Ok(granted.is_some())
}
