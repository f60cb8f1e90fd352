//! The two editions of the article *Redis 分布式读写锁*, for programs that share a lock with its scripts.

pub mod one_hash;
pub mod two_key;

use std::time::Duration;

use redis::ConnectionLike;

use super::wait::until_granted;
use crate::{
    error::{Operation, Result},
    script::Call,
    token::Token,
};

/// One attempt at a lock of one of the article's editions, which grant a yes or a no.
fn once(
    conn: &mut dyn ConnectionLike,
    operation: Operation<'_>,
    token: &Token,
    attempt: &Call,
) -> Result<bool> {
    attempt
        .asks(conn)
        .map_err(|error| operation.unanswered(Some(token), error))
}

/// The same attempt until it is granted or the time is over.
fn repeatedly<C: ConnectionLike>(
    conn: &mut C,
    operation: Operation<'_>,
    token: &Token,
    acquire_timeout: Duration,
    attempt: &Call,
) -> Result<bool> {
    until_granted(conn, operation, token, acquire_timeout, |conn| {
        let granted = attempt.asks(conn)?;
        Ok(granted.then_some(()))
    })
    .map(|granted| granted.is_some())
}
