//! Transactions: watch, read, decide, write, and all of it again when something came between.
//!
//! On one connection: `WATCH` of the lock and the keys goes out together with the reads that prove
//! the hold and the first read of the caller's closure, and where the lock is still to be taken,
//! behind the `SET` that takes it. `MULTI`, the writes and `EXEC` are the second round trip.
//! The closure reads on a [`WatchedConnection`]. It is dropped before each new start, on an error
//! and on a panic, and lets go of what is watched.

mod watched;

use std::time::Duration;

use redis::{Cmd, Connection, FromRedisValue, Pipeline, Value};

use crate::{
    error::{Operation, Result},
    time::Deadline,
    wire::{command, typed},
};
pub use watched::WatchedConnection;
use watched::check_commands;
pub(crate) use watched::{Attempted, LockState, Proof, WantedLock, was_interrupted};

/// The most attempts of a commit while the lock is still ours.
const COMMIT_ATTEMPTS: u32 = 8;

/// A transaction that starts again when something that it watches has changed.
pub(crate) struct Transaction<'a> {
    pub(super) operation: Operation<'a>,
    /// All that is watched, the lock first if there is one.
    keys: Vec<&'a str>,
    proof: Option<&'a Proof<'a>>,
    patience: Duration,
    attempts: u32,
}

/// The value of the closure of a transaction that was executed, or had nothing to write, and the
/// answers to its commands.
pub(crate) type Executed<T> = (T, Vec<Value>);

impl<'a> Transaction<'a> {
    /// Starts again for this long after it came to nothing for the first time.
    pub(crate) fn new(operation: Operation<'a>, keys: &[&'a str], patience: Duration) -> Self {
        Self {
            operation,
            keys: keys.to_vec(),
            proof: None,
            patience,
            attempts: u32::MAX,
        }
    }

    /// Gives up after this many attempts as well.
    pub(crate) fn at_most(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Only while the lock is held.
    pub(crate) fn while_held(self, proof: &'a Proof<'a>) -> Self {
        Self {
            keys: [&[proof.lock.key()], &*self.keys].concat(),
            proof: Some(proof),
            ..self
        }
    }

    /// # Errors
    /// [`Error::Contended`](crate::Error::Contended) if something came between for the whole time.
    pub(crate) fn run<T>(
        &self,
        conn: &mut Connection,
        attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Attempted<Executed<T>> {
        self.run_taking(conn, None, attempt)
    }

    /// Takes the lock that is wanted in the first round trip, or waits for it, and deletes it in
    /// the transaction. Whatever else happens, its state says whether to give it back.
    pub(super) fn run_taking<T>(
        &self,
        conn: &mut Connection,
        mut wanted: Option<(&WantedLock, &mut LockState)>,
        mut attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Attempted<Executed<T>> {
        let key = wanted.as_ref().map(|(wanted, _)| wanted.lock.key());
        let release = key.map(|key| command(&["DEL", key]));
        let mut deadline = None;
        let mut made = 0;
        loop {
            let watching = (&*self.keys, self.proof);
            let taking = wanted.as_mut().map(|(lock, state)| (*lock, &mut **state));
            let mut watched = WatchedConnection::new(conn, self.operation, watching, taking);
            let mut writes = Pipeline::new();
            let value = attempt(&mut watched, &mut writes);
            let value = match watched.attempted(value)? {
                Ok(value) => value,
                Err(error) => return Ok(Err(error)),
            };
            if let Some(results) = watched.commit(writes, release.as_ref())? {
                return Ok(Ok((value, results)));
            }
            made += 1;
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(self.patience));
            if made >= self.attempts || deadline.has_passed() {
                return Err(self.operation.contended());
            }
        }
    }
}

/// A pipeline that is executed only while the lock is held, of whatever kind.
pub(crate) struct HeldCommit<'a> {
    pub(crate) operation: Operation<'a>,
    proof: Proof<'a>,
    /// The caller's writes.
    pub(crate) writes: Pipeline,
    /// Lets go of the lock behind them.
    pub(crate) release: Option<Cmd>,
    pub(crate) mark: Option<CommitMark>,
}

/// The key that says, for so many milliseconds, that a commit was executed before.
pub(crate) struct CommitMark {
    pub(crate) key: String,
    pub(crate) millis: u64,
}

impl CommitMark {
    fn setting(&self) -> Cmd {
        command(&["SET", &self.key, "done", "PX", &self.millis.to_string()])
    }
}

impl<'a> HeldCommit<'a> {
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a command that cannot be part of a
    /// transaction.
    pub(crate) fn new(
        operation: Operation<'a>,
        proof: Proof<'a>,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<Self> {
        let mut writes = Pipeline::new();
        build(&mut writes);
        check_commands(&writes)?;
        Ok(Self {
            operation,
            proof,
            writes,
            release: None,
            mark: None,
        })
    }

    /// Releases the lock in the same transaction, by this command.
    pub(crate) fn releasing(mut self, release: Cmd) -> Self {
        self.release = Some(release);
        self
    }

    /// Once: leaves a mark in the same transaction, for so long, and does nothing where it is
    /// already.
    pub(crate) fn once(mut self, key: String, millis: u64) -> Self {
        self.mark = Some(CommitMark { key, millis });
        self
    }

    /// Watches the lock and reads what proves the hold, in one round trip, then writes. A
    /// transaction that came to nothing need not be a loss, since a renewal touches the key too:
    /// then all of it is done again. `None`: it was marked before.
    pub(crate) fn send(&self, conn: &mut Connection) -> Result<Option<Vec<Value>>> {
        let keys: Vec<&str> = self.mark.iter().map(|mark| &*mark.key).collect();
        let transaction = Transaction::new(self.operation, &keys, Duration::MAX)
            .at_most(COMMIT_ATTEMPTS)
            .while_held(&self.proof);
        let attempt = |conn: &mut WatchedConnection<'_>, pipe: &mut Pipeline| {
            if let Some(mark) = &self.mark
                && command(&["EXISTS", &mark.key]).query(conn)?
            {
                return Ok(false);
            }
            pipe.clone_from(&self.writes);
            let setting = self.mark.as_ref().map(CommitMark::setting);
            for command in self.release.iter().cloned().chain(setting) {
                pipe.add_command(command);
            }
            Ok(true)
        };
        let (is_first, mut results) = transaction.run(conn, attempt)??;
        results.truncate(self.writes.len());
        Ok(is_first.then_some(results))
    }

    /// The answers to the caller's commands.
    ///
    /// # Errors
    /// [`Error::Reply`](crate::Error::Reply) if they are of another type.
    pub(crate) fn answer<T: FromRedisValue>(&self, results: Vec<Value>) -> Result<T> {
        typed(&self.writes, results).map_err(|_| self.operation.misfit())
    }
}
