//! The two editions of the article *Redis 分布式读写锁*, for programs that share a lock with its
//! scripts. For any other read-write lock use [`Locks::read`](crate::Locks::read) and
//! [`Locks::write`](crate::Locks::write), or [`recipes::read_write`](crate::recipes::read_write).
//!
//! - **[`one_hash`]**: other programs lock the same key with the scripts of the article's cluster
//!   edition.
//! - **[`two_key`]**: other programs lock the same keys with the scripts of the article's
//!   single-instance edition.
//!
//! Programs that use only our functions get a correct lock from either. But the article's own
//! scripts let one reader free, shorten or overwrite another's lock, and no function here can
//! prevent that; each edition documents these gaps. Neither has fencing tokens or renewals, and in
//! neither does a waiting writer keep new readers out.

pub mod one_hash;
pub mod two_key;

use std::time::Duration;

use redis::Connection;

use crate::{
    error::{Operation, Result},
    token::Token,
    wire::{Call, until_granted},
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
