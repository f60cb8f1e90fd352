//! `WAIT`: the number of replicas that have the writes of a connection.
//!
//! A [`Call`](super::Call) that is `confirmed_by` replicas is sent together with one `WAIT`. A
//! batch of renewals has one `WAIT` for all: see `server/renewals.rs`.

use std::time::Duration;

use redis::{Cmd, Connection, RedisError, RedisResult, Value, make_extension_error};

use super::exchange::exchange;
use crate::{
    error::{Error, REFUSED_WAIT, Result, TOO_FEW_REPLICAS, makes_no_sense},
    time::{lease_millis, whole_millis},
};

/// The error code of a `WAIT` that ended because the server became a replica: no replica is known
/// to have the write.
const INTERRUPTED: &str = "UNBLOCKED";
/// More replicas than any server has.
pub(crate) const MOST_REPLICAS: u32 = 100;

/// The number of replicas that must have a write, and the longest wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) wait: Duration,
}

impl Replicas {
    /// Returns a requirement that satisfies both.
    pub(crate) fn or_more(self, other: Self) -> Self {
        Self {
            count: self.count.max(other.count),
            wait: self.wait.max(other.wait),
        }
    }

    /// # Errors
    /// [`Error::Invalid`]: not 1 to 100 replicas, or a wait that is not 1 ms to 24 h.
    pub(crate) fn wanted(count: u32, wait: Duration) -> Result<Self> {
        lease_millis("wait", wait)?;
        if count == 0 || count > MOST_REPLICAS {
            return Err(Error::invalid("replicas", "it must be 1 to 100"));
        }
        Ok(Self { count, wait })
    }

    /// Waits until enough replicas have all earlier writes of this connection.
    ///
    /// # Errors
    /// Too few replicas have them, or the server refused.
    pub(crate) fn confirm(self, conn: &mut Connection) -> RedisResult<()> {
        let had = exchange(conn, &self.question().get_packed_command(), 1)?;
        self.check(had.into_iter().next().unwrap_or(Value::Nil))
    }

    /// The `WAIT` for all earlier writes of the connection.
    pub(crate) fn question(self) -> Cmd {
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.count).arg(whole_millis(self.wait));
        wait
    }

    /// Sends a command and its `WAIT` together. Too few replicas are an error, although the write
    /// was executed. If the script wrote nothing, the `WAIT` is ignored.
    pub(super) fn ask(self, conn: &mut Connection, command: &Cmd) -> RedisResult<Value> {
        let mut packed = command.get_packed_command();
        self.question().write_packed_command(&mut packed);
        let mut replies = exchange(conn, &packed, 2)?.into_iter();
        let (answer, had) = (replies.next(), replies.next());
        self.confirmed(
            answer.ok_or_else(makes_no_sense)?,
            Ok(had.unwrap_or(Value::Nil)),
        )
    }

    /// Judges the reply to a call and the reply to the `WAIT` that was sent after it.
    pub(crate) fn confirmed(self, answer: Value, had: RedisResult<Value>) -> RedisResult<Value> {
        let answer = answer.extract_error()?;
        if has_written(&answer) {
            self.check(had?)?;
        }
        Ok(answer)
    }

    /// Judges the reply to `WAIT`.
    pub(crate) fn check(self, had: Value) -> RedisResult<()> {
        match had {
            Value::Int(had) if had >= i64::from(self.count) => Ok(()),
            Value::Int(had) => Err(self.too_few(had)),
            Value::ServerError(error) => {
                let error = RedisError::from(error);
                if error.code() == Some(INTERRUPTED) {
                    return Err(self.too_few(0));
                }
                let words = Some(error.to_string());
                Err(make_extension_error(REFUSED_WAIT.to_owned(), words))
            }
            _ => Err(makes_no_sense()),
        }
    }

    fn too_few(self, had: i64) -> RedisError {
        let detail = format!("{had} of {}", self.count);
        make_extension_error(TOO_FEW_REPLICAS.to_owned(), Some(detail))
    }
}

/// Scripts reply nil, 0 or a list of one if another holder has the lock, or if it is no longer
/// ours.
fn has_written(answer: &Value) -> bool {
    match answer {
        Value::Nil | Value::Int(0) => false,
        Value::Array(list) => list.len() != 1,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_waits_for_the_most_replicas_and_the_longest_time_of_any_lease() {
        let replicas = |(count, millis)| Replicas {
            count,
            wait: Duration::from_millis(millis),
        };
        for (one, other) in
            [((1, 50), (2, 20)), ((2, 20), (1, 50))].map(|it| (replicas(it.0), replicas(it.1)))
        {
            assert_eq!(one.or_more(other), replicas((2, 50)));
        }
    }
}
