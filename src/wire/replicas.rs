//! `WAIT`: the number of replicas that have the writes of a connection.
//!
//! A [`Call`](super::Call) that is `confirmed_by` replicas is sent with one `WAIT` behind it, in
//! the same write. A batch of renewals has one `WAIT` for all: see `server/renewals.rs`.

use std::time::Duration;

use redis::{
    Cmd, Connection, ConnectionLike, RedisError, RedisResult, Value, make_extension_error,
};

use super::{exchange::exchange, finished::note};
use crate::{
    error::{Error, REFUSED_WAIT, Result, TOO_FEW_REPLICAS, makes_no_sense},
    time::{lease_millis, whole_millis},
};

/// The server stops waiting for replicas, since it becomes one itself. As far as is known, none of
/// them has the write.
const INTERRUPTED: &str = "UNBLOCKED";
/// More than anybody has.
pub(crate) const MOST_REPLICAS: u32 = 100;

/// The number of replicas that have to have a write, and the longest wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) wait: Duration,
}

impl Replicas {
    /// Enough for both.
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
            return Err(Error::invalid("replicas", "it has to be 1 to 100"));
        }
        Ok(Self { count, wait })
    }

    /// Asks how many have all writes before this on the same connection. Waits for the replicas, and
    /// for the answer.
    ///
    /// # Errors
    /// Too few have them, or the server refused.
    pub(crate) fn confirm(self, conn: &mut Connection) -> RedisResult<()> {
        let had = conn.req_command(&self.question());
        self.check(had.inspect_err(note)?)
    }

    /// The command that asks how many have all writes before it on the same connection.
    pub(crate) fn question(self) -> Cmd {
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.count).arg(whole_millis(self.wait));
        wait
    }

    /// Sends a command and the question in one write. A write that too few have is an error, though
    /// it was done; a refusal without a write is none.
    pub(super) fn ask(self, conn: &mut Connection, command: &Cmd) -> RedisResult<Value> {
        let mut packed = command.get_packed_command();
        self.question().write_packed_command(&mut packed);
        let mut replies = exchange(conn, &packed, 2)?.into_iter();
        let (answer, had) = (replies.next(), replies.next());
        let answer = answer.ok_or_else(makes_no_sense)?.extract_error()?;
        if has_written(&answer) {
            self.check(had.unwrap_or(Value::Nil))?;
        }
        Ok(answer)
    }

    /// Judges the answer to the question.
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

/// The scripts answer nil, 0 or a list of one where somebody else has the lock, or it is not ours.
fn has_written(answer: &Value) -> bool {
    match answer {
        Value::Nil | Value::Int(0) => false,
        Value::Array(list) => list.len() != 1,
        _ => true,
    }
}
