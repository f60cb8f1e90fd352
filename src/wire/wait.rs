//! The book's loop, for every recipe: try, pause, and try again until the deadline, always with the
//! same token.

use std::time::Duration;

use redis::RedisResult;

use crate::{
    error::{Operation, Result},
    time::{Backoff, Deadline},
    token::Token,
};

/// Tries until the lock is granted, at least once. `None`: refused until the deadline.
///
/// An attempt must be safe to repeat with the same token: one that timed out is repeated while the
/// connection is open, and shows whether the lock is ours. All attempts use one socket and are
/// executed in order, so a refusal proves that no earlier attempt acquired the lock.
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

#[cfg(test)]
mod tests {
    use std::io::{Error as IoError, ErrorKind};

    use super::*;
    use crate::error::Error;

    fn waited(mut answers: Vec<RedisResult<Option<()>>>) -> Result<Option<()>> {
        let operation = Operation::new("acquire", "a");
        answers.reverse();
        until_granted(operation, &Token::random(), Duration::from_mins(1), || {
            answers.pop().unwrap()
        })
    }

    fn silence() -> RedisResult<Option<()>> {
        Err(IoError::from(ErrorKind::TimedOut).into())
    }

    fn refusal() -> RedisResult<Option<()>> {
        Err(redis::make_extension_error("NOPERM".to_owned(), None))
    }

    #[test]
    fn an_error_does_not_settle_an_earlier_attempt_without_a_reply() {
        let unknown = waited(vec![silence(), refusal()]);
        assert!(matches!(unknown, Err(Error::Unknown { .. })), "{unknown:?}");
    }

    #[test]
    fn a_refusal_proves_that_earlier_attempts_failed() {
        let refused = waited(vec![silence(), Ok(None), refusal()]);
        assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
        let granted = waited(vec![silence(), Ok(None), Ok(Some(()))]);
        assert!(matches!(granted, Ok(Some(()))), "{granted:?}");
    }
}
