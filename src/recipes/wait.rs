//! The book's loop, for every recipe: attempt, pause, attempt again until the deadline, with one
//! token throughout.

use std::{any::type_name, time::Duration};

use redis::RedisResult;

use crate::{
    connection::PooledConnection,
    error::{Operation, Result},
    time::{Backoff, Deadline},
    token::Token,
    transaction::Watched,
};

/// Attempts until one is granted; there is always one try. `None`: refused until the deadline.
///
/// An attempt has to be safe to repeat with the same token: one whose answer did not come in time
/// is sent again while the connection is open, and finds out whether the lock is ours.
///
/// A refusal says that an attempt before it without an answer came to nothing only where both went
/// by one socket, in this order. A connection of another type may have sent the second by another
/// socket, and the first may yet be executed.
pub(crate) fn until_granted<C, G>(
    conn: &mut C,
    operation: Operation<'_>,
    token: &Token,
    acquire_timeout: Duration,
    mut attempt: impl FnMut(&mut C) -> RedisResult<Option<G>>,
) -> Result<Option<G>> {
    let deadline = Deadline::after(acquire_timeout);
    let has_one_socket = has_one_socket::<C>();
    let mut backoff = None;
    let mut unanswered = None;
    loop {
        match attempt(conn) {
            Ok(Some(grant)) => return Ok(Some(grant)),
            Ok(None) => {
                unanswered = unanswered.filter(|_| !has_one_socket);
                if !backoff.get_or_insert_with(Backoff::new).pause(deadline) {
                    return match unanswered {
                        Some(error) => Err(operation.unknown(Some(token), error)),
                        None => Ok(None),
                    };
                }
            }
            Err(error) if error.is_timeout() && !deadline.has_passed() => unanswered = Some(error),
            Err(error) if unanswered.is_some() => {
                return Err(operation.unknown(Some(token), error));
            }
            Err(error) => return Err(operation.unanswered(Some(token), error)),
        }
    }
}

/// Whether all that is sent on a connection of this type goes by the same socket. Of other types
/// nobody knows.
fn has_one_socket<C>() -> bool {
    let known = [
        type_name::<redis::Connection>(),
        type_name::<PooledConnection>(),
        type_name::<Watched<'_, '_>>(),
        type_name::<r2d2::PooledConnection<redis::Client>>(),
    ];
    known.contains(&type_name::<C>())
}
