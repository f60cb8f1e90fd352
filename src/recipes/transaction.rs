//! Transactions of the caller's own: watch, read, decide, write, and all of it again when something came between.
//!
//! On one connection: `WATCH` of the lock and the keys goes out together with what proves the hold and the first read of the
//! caller's closure, and where the lock is still to be taken, behind the `SET` that takes it. `MULTI`, the writes and `EXEC` are the
//! second round trip. [`WatchedConnection`] is what the closure reads on. It is dropped before each new start, on an error and on a
//! panic, and lets go of what is watched.

use std::time::Duration;

use redis::{Cmd, Connection, ConnectionLike, ErrorKind, Pipeline, RedisError, RedisResult, Value};

use super::{
    commit::{Proof, check_commands, is_refused_in_transactions},
    simple::{
        calls,
        giving_back::{give_back, leaves_a_lock, was_interrupted},
    },
    wait::until_granted,
};
use crate::{
    error::{Error, Operation, Result, makes_no_sense},
    name::LockName,
    time::Deadline,
    token::Token,
    transaction::{Watched, command, is_error, is_watching, read_refused},
};

/// A transaction that starts again when something that it watches has changed.
pub(crate) struct Transaction<'a> {
    operation: Operation<'a>,
    /// What is watched, the lock first if there is one.
    keys: Vec<&'a str>,
    proof: Option<Proof<'a>>,
    patience: Duration,
}

/// A transaction that was executed, or had nothing to write.
pub(crate) struct Done<T> {
    /// What the closure has returned.
    pub(crate) value: T,
    /// What the commands have answered.
    pub(crate) results: Vec<Value>,
}

impl<'a> Transaction<'a> {
    /// Starts again for so long after it came to nothing for the first time.
    pub(crate) fn new(operation: Operation<'a>, keys: &[&'a str], patience: Duration) -> Self {
        Self {
            operation,
            keys: keys.to_vec(),
            proof: None,
            patience,
        }
    }

    /// Only while the lock is held.
    pub(crate) fn while_held(self, proof: Proof<'a>) -> Self {
        Self {
            keys: [&[proof.lock.key()], &*self.keys].concat(),
            proof: Some(proof),
            ..self
        }
    }

    /// # Errors
    /// [`Error::Contended`] if something came between for the whole time, and what the closure says.
    pub(crate) fn run<T>(
        &self,
        conn: &mut Connection,
        attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<Done<T>> {
        self.until_committed(conn, None, attempt)
    }

    /// Takes a book lock in the first round trip, or waits for it, and deletes it in the transaction. `None`: it was not to be had.
    pub(crate) fn run_with_lock<T>(
        self,
        conn: &mut Connection,
        entry: Entry,
        attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<Option<Done<T>>> {
        let (lock, token) = (entry.lock.clone(), entry.token.clone());
        let mut locked = Locked { conn, entry };
        let on_the_lock = self.while_held(Proof::by_value(&lock, &token));
        let done = on_the_lock.until_committed(locked.conn, Some(&mut locked.entry), attempt);
        match (done, locked.entry.state) {
            (Ok(done), _) => {
                locked.entry.state = State::Over;
                Ok(Some(done))
            }
            (Err(_), State::Busy) => Ok(None),
            (Err(error), _) => {
                if !leaves_a_lock(&error) {
                    locked.entry.state = State::Over;
                }
                Err(error)
            }
        }
    }

    fn until_committed<T>(
        &self,
        conn: &mut Connection,
        mut entry: Option<&mut Entry>,
        mut attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<Done<T>> {
        let release = entry
            .as_ref()
            .map(|entry| command(&["DEL", entry.lock.key()]));
        let mut deadline = None;
        loop {
            let mut watched = WatchedConnection {
                watched: Watched::nothing(conn, self.operation),
                transaction: self,
                entry: entry.as_deref_mut(),
                has_begun: false,
                failure: None,
                refusal: None,
            };
            let mut writes = Pipeline::new();
            let value = attempt(&mut watched, &mut writes);
            let value = watched.judge(value)?;
            if let Some(results) = watched.commit(writes, release.as_ref())? {
                return Ok(Done { value, results });
            }
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(self.patience));
            if deadline.has_passed() {
                return Err(self.operation.contended());
            }
        }
    }
}

/// A lock that is taken in the first round trip of a transaction.
pub(crate) struct Entry {
    lock: LockName,
    token: Token,
    lease_millis: u64,
    acquire_timeout: Duration,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
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

/// The connection and a lock that is given back when this is dropped, if it is held then.
struct Locked<'c> {
    conn: &'c mut Connection,
    entry: Entry,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.entry.state == State::Held {
            let _ = give_back(self.conn, &self.entry.lock, &self.entry.token);
        }
    }
}

/// The connection on which a transaction of yours reads: see [`Lease::transaction`](crate::Lease::transaction).
///
/// The lock and the keys are watched since before the first read. Whatever is read on it goes by the same connection: commands and
/// pipelines, also those of [`redis::Commands`]. What is *written* on it is written at once, whatever becomes of the transaction:
/// writes belong into the pipeline. Commands that would end the watching (`EXEC`, `UNWATCH`, …) are refused.
#[must_use]
pub struct WatchedConnection<'a> {
    watched: Watched<'a, 'a>,
    transaction: &'a Transaction<'a>,
    entry: Option<&'a mut Entry>,
    has_begun: bool,
    /// What ends the transaction, whatever the closure makes of it.
    failure: Option<Error>,
    /// Why the last read was refused.
    refusal: Option<Error>,
}

/// What a read on a transaction that is over is told.
const OVER: &str = "the transaction is over";

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
        let commands: Vec<_> = first_words(packed).collect();
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
                self.refusal = Some(read_refused(operation, key, refusal.clone().into()));
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
        if let Some(proof) = &self.transaction.proof {
            reads = proof.reads.get_packed_pipeline();
            proofs = proof.reads.len();
        }
        reads.extend_from_slice(packed);
        let count = proofs + count;
        let (mut replies, missing) = match self.enter(&reads, count)? {
            Some(started) => started,
            None => (self.watched).start(None, &self.transaction.keys, &reads, count),
        };
        if let Some(error) = missing {
            return Err(operation.failed(error));
        }
        let mut values = replies.split_off(1);
        is_watching(operation, replies.pop())?;
        let read = values.split_off(proofs);
        if let Some(proof) = &self.transaction.proof {
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

    /// Takes the lock that is wanted, if one is, and waits for it. The replies from `WATCH` on, where it was free; `None` where
    /// they have to be asked for.
    fn enter(&mut self, reads: &[u8], count: usize) -> Result<Option<Started>> {
        let Some(entry) = (self.entry.as_mut()).filter(|entry| entry.state == State::Wanted) else {
            return Ok(None);
        };
        let (operation, keys) = (self.watched.operation(), &self.transaction.keys);
        let (lock, token, millis) = (&entry.lock, &entry.token, Some(entry.lease_millis));
        let mut first = Some(calls::set(lock, token, millis));
        let mut unanswered = false;
        let granted = until_granted(
            &mut self.watched,
            operation,
            token,
            entry.acquire_timeout,
            |watched| {
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
                let ours = calls::acquire(lock, token, millis).asks(watched.connection())?;
                Ok(ours.then_some(None))
            },
        );
        match granted {
            Ok(Some(replies)) => {
                entry.state = State::Held;
                if unanswered && replies.is_none() {
                    // By now the server has executed that, too.
                    self.watched.may_be_armed();
                }
                Ok(replies)
            }
            Ok(None) => {
                entry.state = State::Busy;
                if unanswered {
                    self.watched.may_be_armed();
                }
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

    /// What the closure has come to, in words.
    fn judge<T>(&mut self, value: Result<T>) -> Result<T> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        value.map_err(|error| match error {
            // Made from what redis-rs said by `?`: nothing has been written yet.
            Error::Redis {
                operation: "",
                source,
                ..
            }
            | Error::Unknown {
                operation: "",
                source,
                ..
            } => {
                let refusal = self.refusal.take();
                refusal.unwrap_or_else(|| self.watched.operation().failed(source))
            }
            Error::Reply { operation: "", .. } => (self.watched.operation())
                .wrong_kind("a value that is not of the type that was asked for"),
            error => error,
        })
    }

    /// Writes, and releases the lock where that is asked for. `None`: something that is watched has changed, so nothing happened.
    ///
    /// Where there is nothing to write, nothing is sent but the look at the lock, if there was none yet.
    fn commit(mut self, mut writes: Pipeline, release: Option<&Cmd>) -> Result<Option<Vec<Value>>> {
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

/// The name of each packed command, and its first argument, or nothing.
fn first_words(packed: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = packed;
    std::iter::from_fn(move || {
        let words = number(&mut rest, b'*')?;
        let mut first: [&[u8]; 2] = [&[]; 2];
        for at in 0..words {
            let length = number(&mut rest, b'$')?;
            let word = rest.get(..length)?;
            rest = rest.get(length + 2..)?;
            if let Some(place) = first.get_mut(at) {
                *place = word;
            }
        }
        Some((first[0], first[1]))
    })
}

/// Takes a sign, a number and the end of the line.
fn number(rest: &mut &[u8], sign: u8) -> Option<usize> {
    let line = rest.iter().position(|byte| *byte == b'\r')?;
    let (head, tail) = rest.split_at(line);
    *rest = tail.get(2..)?;
    let digits = head.strip_prefix(&[sign])?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_known_by_their_first_words() {
        let mut packed = redis::cmd("get").arg("a\r\n$1").get_packed_command();
        packed.extend(redis::cmd("PING").get_packed_command());
        packed.extend(
            redis::cmd("HGET")
                .arg("users:1")
                .arg("funds")
                .get_packed_command(),
        );
        let words: Vec<_> = first_words(&packed).collect();
        let expected: [(&[u8], &[u8]); 3] =
            [(b"get", b"a\r\n$1"), (b"PING", b""), (b"HGET", b"users:1")];
        assert_eq!(words, expected);
        assert_eq!(first_words(b"*1\r\n$9\r\nGE").count(), 0);
        assert_eq!(first_words(b"nonsense").count(), 0);
    }
}
