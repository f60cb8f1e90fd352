//! The connection on which the closure of a transaction reads, and the lock that its first read may
//! take.

use std::time::Duration;

use redis::{
    Cmd, Connection, ConnectionLike, ErrorKind, Pipeline, RedisError, RedisResult, ServerError,
    Value,
};

use super::words::first_words;
use crate::{
    error::{Error, Operation, Result, makes_no_sense},
    name::LockName,
    recipes::{
        commit::{Proof, check_commands, is_refused_in_transactions},
        simple::{giving_back::was_interrupted, set, take_or_give_an_end},
        wait::until_granted,
    },
    token::Token,
    transaction::{Watched, is_error, is_watching, read_refused},
};

/// The end of a transaction. The outer error is one that the transaction has met: an answer to a
/// command of its own, or none. The inner error is the closure's. It may be about anything, so
/// nothing is concluded from it.
pub(crate) type Attempted<T> = Result<Result<T>>;

/// A lock that is taken in the first round trip of a transaction.
pub(crate) struct Entry {
    pub(super) lock: LockName,
    pub(super) token: Token,
    lease_millis: u64,
    acquire_timeout: Duration,
    pub(super) state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Wanted,
    Held,
    /// Somebody else had it for the whole time.
    Busy,
    /// There is nothing to give back any more.
    Over,
}

impl Entry {
    pub(crate) fn new(lock: LockName, acquire_timeout: Duration, lease_millis: u64) -> Self {
        Self {
            lock,
            token: Token::random(),
            lease_millis,
            acquire_timeout,
            state: State::Wanted,
        }
    }
}

/// The replies from the one to `WATCH` on, and why some are missing.
type Started = (Vec<Value>, Option<RedisError>);

/// The connection on which a transaction of yours reads: see
/// [`Lease::transaction`](crate::Lease::transaction).
///
/// The lock and the keys are watched since before the first read. Whatever is read on it goes by
/// the same connection: commands and pipelines, also those of [`redis::Commands`]. What is
/// *written* on it is written at once, whatever becomes of the transaction: writes belong into the
/// pipeline. Commands that would end the watching (`EXEC`, `UNWATCH`, …) are refused.
#[must_use]
pub struct WatchedConnection<'a> {
    watched: Watched<'a, 'a>,
    /// What is watched, the lock first if there is one.
    keys: &'a [&'a str],
    proof: Option<&'a Proof<'a>>,
    entry: Option<&'a mut Entry>,
    has_begun: bool,
    /// What ends the transaction, whatever the closure makes of it.
    failure: Option<Error>,
    /// The last refusal of a read, and what to say of it.
    refusal: Option<(ServerError, Error)>,
}

/// What a read on a transaction that is over is told.
const OVER: &str = "the transaction is over";

impl<'a> WatchedConnection<'a> {
    /// Before anything is watched. Where a lock is to be taken, the first read takes it.
    pub(super) fn new(
        conn: &'a mut Connection,
        operation: Operation<'a>,
        (keys, proof): (&'a [&'a str], Option<&'a Proof<'a>>),
        entry: Option<&'a mut Entry>,
    ) -> Self {
        Self {
            watched: Watched::nothing(conn, operation),
            keys,
            proof,
            entry,
            has_begun: false,
            failure: None,
            refusal: None,
        }
    }
}

impl WatchedConnection<'_> {
    /// One value for each command, errors of the server among them.
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
        let operation = self.watched.operation();
        let commands = first_words(packed).filter(|commands| commands.len() == count);
        let Some(commands) = commands else {
            let reason = "it is not packed as redis-rs packs it";
            return Err(Error::invalid("command", reason));
        };
        for (name, _) in &commands {
            let name = String::from_utf8_lossy(name).to_uppercase();
            if is_refused_in_transactions(&name) {
                let reason = format!("`{name}` may not be sent in a transaction");
                return Err(Error::invalid("command", reason));
            }
        }
        let values = if self.has_begun {
            let read = self.watched.read(packed, count);
            read.map_err(|error| operation.failed(error))?
        } else {
            self.begin(packed, count)?
        };
        for (value, (_, key)) in values.iter().zip(commands) {
            if let Value::ServerError(refusal) = value {
                let told = read_refused(operation, key, refusal.clone().into());
                self.refusal = Some((refusal.clone(), told));
                break;
            }
        }
        Ok(values)
    }

    /// Watches, looks whether the lock is ours, and reads, in one round trip.
    fn begin(&mut self, packed: &[u8], count: usize) -> Result<Vec<Value>> {
        self.has_begun = true;
        let operation = self.watched.operation();
        let (mut reads, mut proofs) = (Vec::new(), 0);
        if let Some(proof) = self.proof {
            reads = proof.reads.get_packed_pipeline();
            proofs = proof.reads.len();
        }
        reads.extend_from_slice(packed);
        let count = proofs + count;
        let (mut replies, missing) = match self.enter(&reads, count)? {
            Some(started) => started,
            None => (self.watched).start(None, self.keys, &reads, count),
        };
        if let Some(error) = missing {
            return Err(operation.failed(error));
        }
        let mut values = replies.split_off(1);
        is_watching(operation, replies.pop())?;
        let read = values.split_off(proofs);
        if let Some(proof) = self.proof {
            if let Some(Value::ServerError(refusal)) = values.iter().find(|value| is_error(value)) {
                let key = proof.lock.key().as_bytes();
                return Err(read_refused(operation, key, refusal.clone().into()));
            }
            if !(proof.is_ours)(&values) {
                return Err(operation.lost());
            }
        }
        Ok(read)
    }

    /// Takes the lock that is wanted, if one is, and waits for it. The replies from `WATCH` on,
    /// where it was free; `None` where they have to be asked for.
    fn enter(&mut self, reads: &[u8], count: usize) -> Result<Option<Started>> {
        let Some(entry) = (self.entry.as_mut()).filter(|entry| entry.state == State::Wanted) else {
            return Ok(None);
        };
        let (operation, keys) = (self.watched.operation(), self.keys);
        let (lock, token, millis) = (&entry.lock, &entry.token, Some(entry.lease_millis));
        let mut first = Some(set(lock, token, millis));
        let mut unanswered = false;
        let watched = &mut self.watched;
        let granted = until_granted(operation, token, entry.acquire_timeout, || {
            if let Some(set) = first.take() {
                let (mut replies, missing) = watched.start(Some(&set), keys, reads, count);
                unanswered = missing.as_ref().is_some_and(RedisError::is_timeout);
                let others = replies.split_off(replies.len().min(1));
                match (replies.pop(), missing) {
                    (Some(Value::Okay), missing) => return Ok(Some(Some((others, missing)))),
                    (Some(Value::ServerError(refusal)), _) => return Err(refusal.into()),
                    (_, Some(missing)) => return Err(missing),
                    (Some(Value::Nil), None) => {}
                    _ => return Err(makes_no_sense()),
                }
            }
            let ours = take_or_give_an_end(lock, token, millis).asks(watched.connection())?;
            Ok(ours.then_some(None))
        });
        if unanswered && matches!(granted, Ok(None | Some(None))) {
            // By now the server has executed that, too.
            self.watched.may_be_armed();
        }
        match granted {
            Ok(Some(replies)) => {
                entry.state = State::Held;
                Ok(replies)
            }
            Ok(None) => {
                entry.state = State::Busy;
                Err(operation.contended())
            }
            Err(error) => {
                if was_interrupted(&error) {
                    // The server is there, and the lock may be ours.
                    entry.state = State::Held;
                }
                Err(error)
            }
        }
    }

    /// Tells what this connection has met from what the closure has returned. A failure of the
    /// connection ends the transaction whatever the closure has returned. A refusal of a read ends
    /// it if the closure has returned it.
    pub(super) fn attempted<T>(&mut self, value: Result<T>) -> Attempted<T> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        match (value, self.refusal.take()) {
            (Err(error), Some((refusal, told))) if tells_of(&error, &refusal) => Err(told),
            (value, _) => Ok(value.map_err(|error| self.in_words(error))),
        }
    }

    /// Names function and lock in an error that redis-rs has made for the closure. Nothing was
    /// written before it.
    fn in_words(&self, error: Error) -> Error {
        let operation = self.watched.operation();
        match error {
            error if !error.is_unnamed() => error,
            Error::Redis { source, .. } | Error::Unknown { source, .. } => operation.failed(source),
            Error::Reply { .. } => operation
                .wrong_kind("a value of another type than was asked for, or none, for which ask for an `Option`"),
            error => error,
        }
    }

    /// Writes, and releases the lock where that is asked for. `None`: something that is watched has
    /// changed, so nothing happened.
    ///
    /// Where there is nothing to write, nothing is sent but the look at the lock, if there was none
    /// yet.
    pub(super) fn commit(
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
        let results = self.watched.commit(&writes)?;
        Ok(results.map(|mut results| {
            results.truncate(count);
            results
        }))
    }
}

/// Compares an error with a refusal, which redis-rs hands on by itself or among those of a
/// pipeline.
fn tells_of(error: &Error, refusal: &ServerError) -> bool {
    let Error::Redis { source, .. } = error else {
        return false;
    };
    let refusals = source.clone().into_server_errors();
    error.is_unnamed()
        && refusals.is_some_and(|refusals| refusals.iter().any(|(_, error)| error == refusal))
}

fn over(failure: &Error) -> RedisError {
    RedisError::from((ErrorKind::Client, OVER, failure.to_string()))
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
        self.watched.database()
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.watched.is_open()
    }
}

impl std::fmt::Debug for WatchedConnection<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedConnection").finish_non_exhaustive()
    }
}
