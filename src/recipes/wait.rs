//! The book's loop, for every recipe: attempt, pause, attempt again until the deadline, with one
//! token throughout.

use std::time::Duration;

use redis::RedisResult;

use crate::{
    error::{Operation, Result},
    time::{Backoff, Deadline},
    token::Token,
};

/// Attempts until one is granted; there is always one try. `None`: refused until the deadline.
///
/// An attempt has to be safe to repeat with the same token: one that timed out is sent again while
/// the connection is open, and finds out whether the lock is ours. All attempts go by one socket,
/// in this order: a refusal says that those before it came to nothing.
pub(crate) fn until_granted<G>(
    operation: Operation<'_>,
    token: &Token,
    acquire_timeout: Duration,
    mut attempt: impl FnMut() -> RedisResult<Option<G>>,
) -> Result<Option<G>> {
    let deadline = Deadline::after(acquire_timeout);
    let mut backoff = None;
    let mut is_unanswered = false;
    loop {
        match attempt() {
            Ok(Some(grant)) => return Ok(Some(grant)),
            Ok(None) => {
                is_unanswered = false;
                if !backoff.get_or_insert_with(Backoff::new).pause(deadline) {
                    return Ok(None);
                }
            }
            Err(error) if error.is_timeout() && !deadline.has_passed() => is_unanswered = true,
            Err(error) if is_unanswered => return Err(operation.unknown(Some(token), error)),
            Err(error) => return Err(operation.unanswered(Some(token), error)),
        }
    }
}
