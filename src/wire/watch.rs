//! `WATCH` … `MULTI` … `EXEC` in two round trips. No key stays watched afterwards.

use redis::{Cmd, Connection, Pipeline, RedisError, Value};

use super::exchange::{exchange, exchange_partly, is_interrupted, words};
use crate::error::{Error, Operation, Result, makes_no_sense};

/// A connection that may have watched keys. Dropping it without a commit sends `UNWATCH`.
pub(crate) struct Watched<'a> {
    /// For commands that do not end the watch.
    pub(crate) conn: &'a mut Connection,
    pub(crate) operation: Operation<'a>,
    /// Keys that exist only for this transaction.
    made: &'a [String],
    /// True if the server may be watching keys, or may have those that were made.
    pub(crate) armed: bool,
}

/// The replies to a [start](Watched::start) that arrived.
pub(crate) struct WatchReplies {
    /// The reply to the command before `WATCH`.
    pub(crate) before: Option<Value>,
    /// The reply to `WATCH`, then those to the reads.
    pub(crate) replies: Vec<Value>,
    /// The error if some replies are missing.
    pub(crate) missing: Option<RedisError>,
}

impl<'a> Watched<'a> {
    /// Watches nothing yet. The keys that the reads make are deleted with the watch.
    pub(crate) fn new(
        conn: &'a mut Connection,
        operation: Operation<'a>,
        made: &'a [String],
    ) -> Self {
        Self {
            conn,
            operation,
            made,
            armed: false,
        }
    }

    /// Watches the keys and sends the reads in one round trip, so that no write between the two
    /// goes unnoticed. `before` is sent first, while nothing is watched. On a restart an `UNWATCH`
    /// takes its place.
    pub(crate) fn start(
        &mut self,
        before: Option<&Cmd>,
        keys: &[&str],
        reads: &[u8],
        count: usize,
    ) -> WatchReplies {
        let unwatch = self.armed.then(|| redis::cmd("UNWATCH"));
        let before = unwatch.as_ref().or(before);
        let mut packed = before.map(Cmd::get_packed_command).unwrap_or_default();
        let watch_at = usize::from(before.is_some());
        redis::cmd("WATCH")
            .arg(keys)
            .write_packed_command(&mut packed);
        packed.extend_from_slice(reads);
        let (mut replies, missing) = exchange_partly(self.conn, &packed, watch_at + 1 + count);
        self.armed = match &missing {
            // The reads may watch more, even if the first `WATCH` was refused.
            None => !self.made.is_empty() || !replies.get(watch_at).is_some_and(is_error),
            Some(error) => is_interrupted(error),
        };
        let others = replies.split_off(watch_at.min(replies.len()));
        WatchReplies {
            before: replies.pop(),
            replies: others,
            missing,
        }
    }

    /// Executes the commands in one transaction if no watched key has changed. `None`: one has
    /// changed, and nothing was executed. Deletes the keys that were made.
    ///
    /// # Errors
    /// `Redis` if nothing was executed, `Partial` if some commands were executed and some refused,
    /// `Unknown` if no valid reply came.
    pub(crate) fn commit(mut self, mut writes: Pipeline) -> Result<Option<Vec<Value>>> {
        let count = writes.len();
        if !self.made.is_empty() {
            writes.del(self.made);
        }
        let exchanged = exchange(self.conn, &in_transaction(&writes), writes.len() + 2);
        self.armed = false;
        let operation = self.operation;
        let mut replies = exchanged.map_err(|error| operation.unanswered(None, error))?;
        let executed = replies.pop();
        match replies.first() {
            Some(Value::Okay) => {}
            Some(Value::ServerError(_)) => {
                // Only an access list that forbids MULTI but allows the other commands leads here.
                self.armed = true;
                replies.truncate(1 + count);
                return Err(refused(operation, &writes, replies));
            }
            _ => return Err(senseless(operation)),
        }
        match executed {
            Some(Value::Nil) => Ok(None),
            Some(Value::Array(mut results)) if results.len() == writes.len() => {
                results.truncate(count);
                if results.iter().any(is_error) {
                    return Err(refused(operation, &writes, results));
                }
                Ok(Some(results))
            }
            Some(Value::ServerError(aborted)) => {
                self.armed = !self.made.is_empty();
                let cause = replies.into_iter().find_map(into_error);
                Err(operation.failed(cause.unwrap_or_else(|| aborted.into())))
            }
            _ => Err(senseless(operation)),
        }
    }
}

/// The error for a transaction with refused commands. Redis does not roll back: the other commands
/// took effect, and so did the writes of a script before it failed.
fn refused(operation: Operation<'_>, writes: &Pipeline, results: Vec<Value>) -> Error {
    let nothing_happened = results.iter().all(is_error) && !writes.cmd_iter().any(is_script);
    match results.into_iter().find_map(into_error) {
        Some(refusal) if nothing_happened => operation.failed(refusal),
        Some(refusal) => operation.partial(refusal),
        None => senseless(operation),
    }
}

fn senseless(operation: Operation<'_>) -> Error {
    operation.unknown(None, makes_no_sense())
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let mut packed = redis::cmd("UNWATCH").get_packed_command();
        if !self.made.is_empty() {
            redis::cmd("DEL")
                .arg(self.made)
                .write_packed_command(&mut packed);
        }
        let commands = 1 + usize::from(!self.made.is_empty());
        let replies = exchange(self.conn, &packed, commands);
        if replies.is_ok_and(|replies| replies.first().is_some_and(is_error)) {
            // An access list that forbids UNWATCH may allow an empty transaction, which also ends
            // the watch.
            let _ = exchange(self.conn, &in_transaction(&Pipeline::new()), 2);
        }
    }
}

/// The commands between `MULTI` and `EXEC`, unless the pipeline already has these two.
fn in_transaction(writes: &Pipeline) -> Vec<u8> {
    if writes.is_transaction() {
        return writes.get_packed_pipeline();
    }
    let mut packed = redis::cmd("MULTI").get_packed_command();
    packed.extend(writes.get_packed_pipeline());
    packed.extend(redis::cmd("EXEC").get_packed_command());
    packed
}

/// A command of these words, allocated at its exact size.
pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::with_capacity(words.len(), words.iter().map(|word| word.len()).sum());
    command.arg(words);
    command
}

fn is_script(command: &Cmd) -> bool {
    words(command).next().is_some_and(|name| {
        let name = name.to_ascii_uppercase();
        name.starts_with(b"EVAL") || name.starts_with(b"FCALL")
    })
}

fn is_error(value: &Value) -> bool {
    matches!(value, Value::ServerError(_))
}

fn into_error(value: Value) -> Option<RedisError> {
    match value {
        Value::ServerError(error) => Some(error.into()),
        _ => None,
    }
}
