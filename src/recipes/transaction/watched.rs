//! The connection on which a transaction's closure reads, and the lock that its first read may
//! acquire.

use std::time::Duration;

use redis::{
    Cmd, Connection, ConnectionLike, ErrorKind, Parser, Pipeline, RedisError, RedisResult,
    ServerError, Value,
};

use super::proof::{Proof, read_refused};
use crate::{
    error::{Error, Operation, Result, makes_no_sense},
    name::LockName,
    token::Token,
    wire::{Call, WatchReplies, Watched, exchange, is_interrupted, until_granted, words},
};

/// The result of a transaction. The outer error is the transaction's own: an error reply to one of
/// its commands, or a missing reply. The inner error is the closure's, which may have any cause.
pub(crate) type Attempted<T> = Result<Result<T>>;

/// A lock that the first round trip of a transaction acquires.
pub(crate) struct WantedLock {
    pub(crate) lock: LockName,
    pub(crate) token: Token,
    /// The first attempt.
    pub(crate) first: Cmd,
    /// Every later attempt.
    pub(crate) again: Call,
    pub(crate) timeout: Duration,
}

/// The state of a wanted lock during its transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockState {
    Wanted,
    Held,
    /// Another holder had it until the deadline.
    Busy,
}

/// The connection on which your transaction reads: see
/// [`Lease::transaction`](crate::Lease::transaction).
///
/// The lock and the keys are watched from before the first read. All reads use the same connection:
/// commands and pipelines, including those of [`redis::Commands`]. A *write* on it takes effect at
/// once, even if the transaction fails: put writes into the pipeline. Commands that would end the
/// watch (`EXEC`, `UNWATCH`, …) are refused.
#[must_use]
pub struct WatchedConnection<'a> {
    watched: Watched<'a>,
    /// All watched keys, with the lock first if there is one.
    keys: &'a [&'a str],
    proof: Option<&'a Proof<'a>>,
    wanted: Option<(&'a WantedLock, &'a mut LockState)>,
    has_begun: bool,
    /// An error that ends the transaction, even if the closure ignores it.
    failure: Option<Error>,
    /// The last error reply to a read, and the error for it.
    refusal: Option<(ServerError, Error)>,
}

/// The error text of a read on a transaction that has failed.
const OVER: &str = "the transaction is over";

impl<'a> WatchedConnection<'a> {
    /// Creates a connection that watches nothing yet. The first read acquires a wanted lock.
    pub(crate) fn new(
        conn: &'a mut Connection,
        operation: Operation<'a>,
        (keys, proof): (&'a [&'a str], Option<&'a Proof<'a>>),
        wanted: Option<(&'a WantedLock, &'a mut LockState)>,
    ) -> Self {
        Self {
            watched: Watched::new(conn, operation, proof.map_or(&[], |proof| &*proof.made)),
            keys,
            proof,
            wanted,
            has_begun: false,
            failure: None,
            refusal: None,
        }
    }

    /// Sends packed commands and returns one reply per command, including error replies.
    fn ask(&mut self, packed: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        let answered = match &self.failure {
            Some(failure) => return Err(over(failure)),
            None => self.ask_the_server(packed, count),
        };
        answered.map_err(|failure| {
            let error = over(&failure);
            self.failure = Some(failure);
            error
        })
    }

    fn ask_the_server(&mut self, packed: &[u8], count: usize) -> Result<Vec<Value>> {
        let operation = self.watched.operation;
        let Some(commands) = unpacked(packed, count) else {
            let reason = "it is not packed the way redis-rs packs commands";
            return Err(Error::invalid("command", reason));
        };
        for words in &commands {
            check_name("command", words.first().map(Vec::as_slice))?;
        }
        let values = if self.has_begun {
            let read = exchange(self.watched.conn, packed, count);
            read.map_err(|error| operation.failed(error))?
        } else {
            self.begin(packed, count)?
        };
        for (value, words) in values.iter().zip(commands) {
            if let Value::ServerError(refusal) = value {
                let key = words.get(1).map(Vec::as_slice);
                self.refusal = Some((refusal.clone(), read_refused(operation, key, refusal)));
                break;
            }
        }
        Ok(values)
    }

    /// Watches the lock and checks in the same round trip that it is ours.
    pub(crate) fn is_ours(&mut self) -> Result<bool> {
        match self.begin(&[], 0) {
            Err(Error::Lost { .. }) => Ok(false),
            begun => begun.map(|_| true),
        }
    }

    /// Watches, checks that the lock is ours, and reads, in one round trip.
    fn begin(&mut self, packed: &[u8], count: usize) -> Result<Vec<Value>> {
        self.has_begun = true;
        let operation = self.watched.operation;
        let (mut reads, proofs) = self.proof.map(Proof::packed).unwrap_or_default();
        reads.extend_from_slice(packed);
        let count = proofs + count;
        let started = match self.enter(&reads, count)? {
            Some(started) => started,
            None => (self.watched).start(None, self.keys, &reads, count),
        };
        if let Some(error) = started.missing {
            return Err(operation.failed(error));
        }
        let mut replies = started.replies.into_iter();
        match replies.next() {
            Some(Value::Okay) => {}
            Some(Value::ServerError(refusal)) => return Err(operation.failed(refusal.into())),
            _ => return Err(operation.unreadable()),
        }
        let proven_by: Vec<Value> = replies.by_ref().take(proofs).collect();
        if let Some(proof) = self.proof {
            proof.check(operation, &proven_by)?;
        }
        Ok(replies.collect())
    }

    /// Acquires the wanted lock, if any, or waits for it. Returns the replies to `WATCH` and the
    /// reads if the first attempt, which carried them, acquired the lock.
    fn enter(&mut self, reads: &[u8], count: usize) -> Result<Option<WatchReplies>> {
        let Some((wanted, state)) = &mut self.wanted else {
            return Ok(None);
        };
        if **state != LockState::Wanted {
            return Ok(None);
        }
        let (operation, keys) = (self.watched.operation, self.keys);
        let (token, timeout) = (&wanted.token, wanted.timeout);
        let mut first = Some(&wanted.first);
        let mut unanswered = false;
        let watched = &mut self.watched;
        let granted = until_granted(operation, token, timeout, || {
            if let Some(set) = first.take() {
                let mut started = watched.start(Some(set), keys, reads, count);
                unanswered = started.missing.as_ref().is_some_and(RedisError::is_timeout);
                match (started.before.take(), &started.missing) {
                    (Some(Value::Okay), _) => return Ok(Some(Some(started))),
                    (Some(Value::ServerError(refusal)), _) => return Err(refusal.into()),
                    (_, Some(missing)) => return Err(missing.clone()),
                    (Some(Value::Nil), None) => {}
                    _ => return Err(makes_no_sense()),
                }
            }
            let ours = wanted.again.asks(watched.conn)?;
            Ok(ours.then_some(None))
        });
        if unanswered && matches!(granted, Ok(None | Some(None))) {
            // By now the server has also executed the `WATCH`.
            self.watched.armed = true;
        }
        **state = match &granted {
            Ok(Some(_)) => LockState::Held,
            Ok(None) => LockState::Busy,
            // The server is alive, and the lock may be ours.
            Err(error) if was_interrupted(error) => LockState::Held,
            Err(_) => LockState::Wanted,
        };
        granted?.ok_or_else(|| operation.contended())
    }

    /// Separates errors of this connection from those of the closure. A failed connection ends the
    /// transaction, whatever the closure returned. An error reply to a read ends it if the closure
    /// returned that error.
    pub(super) fn attempted<T>(&mut self, value: Result<T>) -> Attempted<T> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        match (value, self.refusal.take()) {
            (Err(error), Some((refusal, met))) if carries(&error, &refusal) => Err(met),
            (value, _) => Ok(value.map_err(|error| self.named(error))),
        }
    }

    /// Adds the function and the lock to an error that redis-rs returned to the closure. Nothing
    /// has been written.
    fn named(&self, error: Error) -> Error {
        let operation = self.watched.operation;
        match error {
            error if error.context().is_some() => error,
            Error::Redis { source, .. } | Error::Unknown { source, .. } => operation.failed(source),
            Error::Reply { .. } => operation.wrong_kind(
                "a value of another type than requested; read a key that may be missing as an `Option`",
            ),
            error => error,
        }
    }

    /// Writes, and releases the lock if `release` is given. `None`: a watched key has changed, and
    /// nothing was executed.
    ///
    /// If there is nothing to write, sends nothing, except the check of the lock if there was none
    /// yet.
    pub(crate) fn commit(
        mut self,
        mut writes: Pipeline,
        release: Option<&Cmd>,
    ) -> Result<Option<Vec<Value>>> {
        check_commands(&writes)?;
        if !self.has_begun {
            self.begin(&[], 0)?;
        }
        let count = writes.len();
        if let Some(release) = release {
            writes.add_command(release.clone());
        }
        if writes.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let results = self.watched.commit(writes)?;
        Ok(results.map(|mut results| {
            results.truncate(count);
            results
        }))
    }
}

/// Returns true if an error carries this error reply, alone or among those of a pipeline.
fn carries(error: &Error, refusal: &ServerError) -> bool {
    let Error::Redis { source, .. } = error else {
        return false;
    };
    let refusals = source.clone().into_server_errors();
    error.context().is_none()
        && refusals.is_some_and(|refusals| refusals.iter().any(|(_, error)| error == refusal))
}

fn over(failure: &Error) -> RedisError {
    RedisError::from((ErrorKind::Client, OVER, failure.to_string()))
}

/// Returns true if the read was interrupted: the server is alive, and may have executed the
/// command.
pub(crate) fn was_interrupted(error: &Error) -> bool {
    match error {
        Error::Redis { source, .. } | Error::Unknown { source, .. } => is_interrupted(source),
        _ => false,
    }
}

/// Returns the words of each packed command. `None`: part of it is not packed the way redis-rs
/// packs commands. The server may still execute it, because a line of text is also a command.
fn unpacked(packed: &[u8], count: usize) -> Option<Vec<Vec<Vec<u8>>>> {
    let (mut parser, mut rest) = (Parser::new(), packed);
    let mut commands = Vec::with_capacity(count);
    for _ in 0..count {
        let words: Vec<Vec<u8>> =
            redis::from_redis_value(parser.parse_value(&mut rest).ok()?).ok()?;
        commands.push(words);
    }
    let packed_again = commands.iter().flat_map(|words| redis::pack_command(words));
    packed_again.eq(packed.iter().copied()).then_some(commands)
}

pub(super) fn check_commands(writes: &Pipeline) -> Result<()> {
    (writes.cmd_iter()).try_for_each(|command| check_name("pipeline", words(command).next()))
}

/// Refuses a command that would end the transaction early, reply more than once or change the state
/// of the connection.
fn check_name(argument: &'static str, name: Option<&[u8]>) -> Result<()> {
    let name = String::from_utf8_lossy(name.unwrap_or_default()).to_uppercase();
    let is_refused = match &*name {
        "" | "MULTI" | "EXEC" | "DISCARD" | "WATCH" | "UNWATCH" | "MONITOR" | "CLIENT" | "QUIT"
        | "RESET" | "HELLO" | "AUTH" | "SELECT" => true,
        name => name.ends_with("SUBSCRIBE"),
    };
    if is_refused {
        let reason = format!("`{name}` cannot be part of a transaction");
        return Err(Error::invalid(argument, reason));
    }
    Ok(())
}

impl ConnectionLike for WatchedConnection<'_> {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        let mut values = self.ask(command, 1)?;
        values.pop().ok_or_else(makes_no_sense)
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut values = self.ask(commands, offset + count)?;
        Ok(values.split_off(offset.min(values.len())))
    }

    fn get_db(&self) -> i64 {
        self.watched.conn.get_db()
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.watched.conn.is_open()
    }
}

impl std::fmt::Debug for WatchedConnection<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedConnection").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_recognised_by_their_words() {
        let mut packed = redis::cmd("get").arg("a\r\n$1").get_packed_command();
        redis::cmd("PING").write_packed_command(&mut packed);
        redis::cmd("HGET")
            .arg("users:1")
            .arg("funds")
            .write_packed_command(&mut packed);
        let words = unpacked(&packed, 3).unwrap();
        let expected: [&[&[u8]]; 3] = [
            &[b"get", b"a\r\n$1"],
            &[b"PING"],
            &[b"HGET", b"users:1", b"funds"],
        ];
        assert_eq!(words, expected);
        assert_eq!(unpacked(&packed, 2), None);
        assert_eq!(unpacked(&packed, 4), None);
        for nonsense in [
            b"*1\r\n$9\r\nGE".as_slice(),
            b"PING\r\n",
            b"+PING\r\n",
            b"*1\r\n:7\r\n",
            b"*1\r\n$4\r\nPING\r\nUNWATCH\r\n",
            b"*1\r\n$4\r\nPING\r\n*1\r\n",
            b"*1\r\n$18446744073709551615\r\nPING\r\n",
            b"\r\n",
            b"",
        ] {
            assert_eq!(unpacked(nonsense, 1), None);
        }
    }
}
