//! `WATCH` … `MULTI` … `EXEC` in two round trips, and never a `WATCH` left behind.

use redis::{Arg, Cmd, Connection, ConnectionLike, Pipeline, RedisError, RedisResult, Value};

use crate::{
    error::{Error, Operation, Result, is_wrong_type, makes_no_sense},
    exchange::{exchange, exchange_partly, is_interrupted},
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
    let mut watched = Watched::nothing(conn, operation);
    let (replies, missing) = watched.start(None, keys, &reads.get_packed_pipeline(), reads.len());
    if let Some(error) = missing {
        return Err(operation.failed(error));
    }
    let mut replies = replies.into_iter();
    is_watching(operation, replies.next())?;
    let values: Vec<Value> = replies.collect();
    for (value, read) in values.iter().zip(reads.cmd_iter()) {
        if let Value::ServerError(refusal) = value {
            let key = match read.args_iter().nth(1) {
                Some(Arg::Simple(key)) => key,
                _ => &[],
            };
            return Err(read_refused(operation, key, refusal.clone().into()));
        }
    }
    Ok((watched, values))
}

/// What the reply to `WATCH` says.
pub(crate) fn is_watching(operation: Operation<'_>, reply: Option<Value>) -> Result<()> {
    match reply {
        Some(Value::Okay) => Ok(()),
        Some(Value::ServerError(refusal)) => Err(operation.failed(refusal.into())),
        _ => Err(operation.unreadable()),
    }
}

/// Why what was read at this key could not be read.
pub(crate) fn read_refused(operation: Operation<'_>, key: &[u8], refusal: RedisError) -> Error {
    if is_wrong_type(&refusal) && !key.is_empty() {
        let key = String::from_utf8_lossy(key);
        return operation.wrong_kind(format!("another type at `{key}`"));
    }
    operation.failed(refusal)
}

impl<'c, 'o> Watched<'c, 'o> {
    /// Until it is [started](Self::start).
    pub(crate) fn nothing(conn: &'c mut Connection, operation: Operation<'o>) -> Self {
        Self {
            conn,
            operation,
            armed: false,
        }
    }

    /// Watches the keys, after `before` if there is something to do first, and reads, in one round
    /// trip. What was watched before is let go of. Returns the reply to `before`, the one to
    /// `WATCH`, and one for each read, as far as they came, and why the others did not.
    pub(crate) fn start(
        &mut self,
        before: Option<&Cmd>,
        keys: &[&str],
        reads: &[u8],
        count: usize,
    ) -> (Vec<Value>, Option<RedisError>) {
        let mut packed = Vec::new();
        let let_go = usize::from(self.armed);
        if self.armed {
            packed.extend(redis::cmd("UNWATCH").get_packed_command());
        }
        if let Some(before) = before {
            before.write_packed_command(&mut packed);
        }
        let watch = redis::cmd("WATCH").arg(keys).get_packed_command();
        packed.extend(watch);
        packed.extend_from_slice(reads);
        let before = usize::from(before.is_some());
        let commands = let_go + before + 1 + count;
        let (mut replies, missing) = exchange_partly(self.conn, &packed, commands);
        self.armed = match &missing {
            None => !replies.get(let_go + before).is_some_and(is_error),
            Some(error) => is_interrupted(error),
        };
        let replies = replies.split_off(let_go.min(replies.len()));
        (replies, missing)
    }

    /// Reads more while the keys are watched. One value for each command.
    pub(crate) fn read(&mut self, packed: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        exchange(self.conn, packed, count)
    }

    /// The connection. What is sent on it must not end the watching.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.conn
    }

    /// The server may be watching after all: it has executed what got no answer.
    pub(crate) fn may_be_armed(&mut self) {
        self.armed = true;
    }

    pub(crate) fn database(&self) -> i64 {
        self.conn.get_db()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.conn.is_open()
    }

    pub(crate) fn operation(&self) -> Operation<'o> {
        self.operation
    }
}

impl Watched<'_, '_> {
    /// Executes the commands in one transaction, if no watched key has changed since. `None`: one
    /// has, nothing was done.
    ///
    /// # Errors
    /// `Redis` if nothing was executed, `Partial` if some were and some refused, `Unknown` if no
    /// answer came that makes sense.
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
                return Err(refused(self.operation, writes, replies));
            }
            _ => return Err(self.senseless()),
        }
        match executed {
            Some(Value::Nil) => Ok(None),
            Some(Value::Array(results)) if results.iter().any(is_error) => {
                Err(refused(self.operation, writes, results))
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
        senseless(self.operation)
    }
}

/// What to say of commands of which some were refused: without roll-back, the others have happened,
/// and so has what a script did before it failed.
pub(crate) fn refused(operation: Operation<'_>, writes: &Pipeline, results: Vec<Value>) -> Error {
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

impl Drop for Watched<'_, '_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Err(refusal) = redis::cmd("UNWATCH").exec(self.conn)
            && !refusal.is_io_error()
        {
            // An access list that forbids UNWATCH may still allow an empty transaction, which does
            // the same.
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

pub(crate) fn is_error(value: &Value) -> bool {
    matches!(value, Value::ServerError(_))
}

fn into_error(value: Value) -> Option<RedisError> {
    match value {
        Value::ServerError(error) => Some(error.into()),
        _ => None,
    }
}
