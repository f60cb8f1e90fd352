//! `WATCH` … `MULTI` … `EXEC` in two round trips, and never a `WATCH` left behind.

use redis::{Arg, Cmd, Connection, Pipeline, RedisError, Value};

use crate::{
    error::{Error, Operation, Result, is_wrong_type, makes_no_sense},
    exchange::{exchange, is_interrupted},
};

/// A connection on which keys are watched. Unless it commits, dropping it sends `UNWATCH`.
pub(crate) struct Watched<'c, 'o> {
    conn: &'c mut Connection,
    operation: Operation<'o>,
    armed: bool,
}

/// Watches the keys and reads in the same round trip, so that no write between the two goes unseen.
///
/// Returns one value for each read.
///
/// # Errors
/// The first refusal, whether of the `WATCH` or of a read. Nothing is watched then.
pub(crate) fn watch<'c, 'o>(
    conn: &'c mut Connection,
    operation: Operation<'o>,
    keys: &[&str],
    reads: &Pipeline,
) -> Result<(Watched<'c, 'o>, Vec<Value>)> {
    let mut packed = redis::cmd("WATCH").arg(keys).get_packed_command();
    packed.extend(reads.get_packed_pipeline());
    let exchanged = exchange(conn, &packed, reads.len() + 1);
    let watched = Watched {
        conn,
        operation,
        armed: match &exchanged {
            Ok(replies) => !replies.first().is_some_and(is_error),
            Err(error) => is_interrupted(error),
        },
    };
    let mut replies = exchanged
        .map_err(|error| operation.failed(error))?
        .into_iter();
    let watching = replies.next();
    match watching {
        Some(Value::Okay) => {}
        Some(Value::ServerError(refusal)) => return Err(operation.failed(refusal.into())),
        _ => return Err(operation.unreadable()),
    }
    let values: Vec<Value> = replies.collect();
    for (value, read) in values.iter().zip(reads.cmd_iter()) {
        if let Value::ServerError(refusal) = value {
            return Err(read_refused(operation, read, refusal.clone().into()));
        }
    }
    Ok((watched, values))
}

fn read_refused(operation: Operation<'_>, read: &Cmd, refusal: RedisError) -> Error {
    match read.args_iter().nth(1) {
        Some(Arg::Simple(key)) if is_wrong_type(&refusal) => operation.wrong_kind(format!(
            "another type at `{}`",
            String::from_utf8_lossy(key)
        )),
        _ => operation.failed(refusal),
    }
}

impl Watched<'_, '_> {
    /// Executes the commands in one transaction, if no watched key has changed since. `None`: one has, nothing was done.
    ///
    /// # Errors
    /// `Redis` if nothing was executed, `Partial` if some were and some refused, `Unknown` if no answer came that makes
    /// sense.
    pub(crate) fn commit(mut self, writes: &Pipeline) -> Result<Option<Vec<Value>>> {
        let exchanged = exchange(self.conn, &in_transaction(writes), writes.len() + 2);
        self.armed = false;
        let mut replies = exchanged.map_err(|error| self.operation.unanswered(None, error))?;

        let executed = replies.pop();
        match replies.first() {
            Some(Value::Okay) => {}
            Some(Value::ServerError(_)) => {
                // Only an access list that forbids MULTI, but not what follows, gets here.
                self.armed = true;
                return Err(self.refused(writes, replies));
            }
            _ => return Err(self.senseless()),
        }
        match executed {
            Some(Value::Nil) => Ok(None),
            Some(Value::Array(results)) if results.iter().any(is_error) => {
                Err(self.refused(writes, results))
            }
            Some(Value::Array(results)) if results.len() == writes.len() => Ok(Some(results)),
            Some(Value::ServerError(aborted)) => {
                let cause = replies.into_iter().find_map(into_error);
                Err(self
                    .operation
                    .failed(cause.unwrap_or_else(|| aborted.into())))
            }
            _ => Err(self.senseless()),
        }
    }

    fn senseless(&self) -> Error {
        self.operation.unknown(None, makes_no_sense())
    }

    /// What to say of commands of which some were refused: without roll-back, the others have happened, and so has what
    /// a script did before it failed.
    fn refused(&self, writes: &Pipeline, results: Vec<Value>) -> Error {
        let nothing_happened = results.iter().all(is_error) && !writes.cmd_iter().any(is_script);
        match results.into_iter().find_map(into_error) {
            Some(refusal) if nothing_happened => self.operation.failed(refusal),
            Some(refusal) => self.operation.partial(refusal),
            None => self.senseless(),
        }
    }
}

impl Drop for Watched<'_, '_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Err(refusal) = redis::cmd("UNWATCH").exec(self.conn)
            && !refusal.is_io_error()
        {
            // An access list that forbids UNWATCH may still allow an empty transaction, which does the same.
            let _ = exchange(self.conn, &in_transaction(&Pipeline::new()), 2);
        }
    }
}

/// The commands between `MULTI` and `EXEC`, where the pipeline does not bring these itself.
fn in_transaction(writes: &Pipeline) -> Vec<u8> {
    if writes.is_transaction() {
        return writes.get_packed_pipeline();
    }
    let mut packed = redis::cmd("MULTI").get_packed_command();
    packed.extend(writes.get_packed_pipeline());
    packed.extend(redis::cmd("EXEC").get_packed_command());
    packed
}

/// A command of these words, with room for just them.
pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::with_capacity(words.len(), words.iter().map(|word| word.len()).sum());
    for word in words {
        command.arg(word);
    }
    command
}

fn is_script(command: &Cmd) -> bool {
    match command.args_iter().next() {
        Some(Arg::Simple(name)) => {
            let name = name.to_ascii_uppercase();
            name.starts_with(b"EVAL") || name.starts_with(b"FCALL")
        }
        _ => false,
    }
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
