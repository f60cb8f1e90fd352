//! Transactions that watch, read, decide and write, and restart if a watched key has changed.
//!
//! The first round trip sends, in this order: the `SET` that acquires the lock (if it is not yet
//! held), `WATCH` of the lock and the keys, the [proof] of the hold, and the closure's first read.
//! The second sends `MULTI`, the writes and `EXEC`. The closure reads on a
//! [`WatchedConnection`]. Each restart, an error and a panic drop it, which ends the watch.

mod proof;
mod watched;

use std::time::Duration;

use redis::{Cmd, Connection, FromRedisValue, Pipeline, Value};

use super::once::LastRun;
use crate::{
    error::{Operation, Result},
    name::Owner,
    time::{Backoff, Deadline},
    wire::{command, typed},
};
pub(crate) use proof::Proof;
pub use watched::WatchedConnection;
use watched::check_commands;
pub(crate) use watched::{Attempted, LockState, WantedLock, was_interrupted};

/// The time after its first failed attempt for which a commit or a transaction restarts, as in the
/// book's `list_item`.
const PATIENCE: Duration = Duration::from_secs(5);

/// A transaction that restarts if a watched key has changed.
pub(crate) struct Transaction<'a> {
    pub(crate) operation: Operation<'a>,
    /// All watched keys, those of locks first.
    keys: Vec<&'a str>,
    proof: Option<&'a Proof<'a>>,
    patience: Duration,
}

/// The closure's value and the replies to its commands, from a transaction that was executed or had
/// nothing to write.
pub(crate) type Executed<T> = (T, Vec<Value>);

impl<'a> Transaction<'a> {
    /// Creates a transaction that is retried for this long after its first failed attempt.
    pub(crate) fn new(operation: Operation<'a>, keys: &[&'a str], patience: Duration) -> Self {
        Self {
            operation,
            keys: keys.to_vec(),
            proof: None,
            patience,
        }
    }

    /// Creates a transaction that is executed only while the lock is held.
    pub(crate) fn while_held(
        operation: Operation<'a>,
        keys: &[&'a str],
        proof: &'a Proof<'a>,
    ) -> Self {
        Self::new(operation, keys, PATIENCE).proving(proof)
    }

    /// Executes only while the lock is held.
    pub(crate) fn proving(self, proof: &'a Proof<'a>) -> Self {
        Self {
            keys: [&*proof.keys, &*self.keys].concat(),
            proof: Some(proof),
            ..self
        }
    }

    /// # Errors
    /// [`Error::Contended`](crate::Error::Contended): all attempts failed.
    pub(crate) fn run<T>(
        &self,
        conn: &mut Connection,
        attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Attempted<Executed<T>> {
        self.run_taking(conn, None, attempt)
    }

    /// Acquires the wanted lock in the first round trip, or waits for it, and deletes it in the
    /// transaction. After any other result `state` shows whether it must be released.
    pub(crate) fn run_taking<T>(
        &self,
        conn: &mut Connection,
        mut wanted: Option<(&WantedLock, &mut LockState)>,
        mut attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Attempted<Executed<T>> {
        let key = wanted.as_ref().map(|(wanted, _)| wanted.lock.key());
        let release = key.map(|key| command(&["DEL", key]));
        let (mut deadline, mut pauses) = (None, Backoff::new());
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
            let is_first = deadline.is_none();
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(self.patience));
            if deadline.has_passed() {
                return Err(self.operation.contended());
            }
            // The first restart is immediate, since the change may have been a renewal of our own.
            // Under a shared lock the later changes are other holders', so the restarts are spread.
            // Without a lock every restart is immediate, as in the book.
            if !is_first && self.proof.is_some() {
                pauses.pause(deadline);
            }
        }
    }
}

/// A pipeline that is executed only while a lock of any kind is held.
pub(crate) struct HeldCommit<'a> {
    pub(crate) operation: Operation<'a>,
    proof: Proof<'a>,
    /// The caller's writes.
    pub(crate) writes: Pipeline,
    /// The commands that release the locks after the writes.
    pub(crate) releases: Vec<Cmd>,
    pub(crate) mark: Option<CommitMark>,
}

/// The key that records, for `millis`, the time and the owner of the commit.
pub(crate) struct CommitMark {
    pub(crate) key: String,
    pub(crate) millis: u64,
    pub(crate) by: Owner,
}

impl CommitMark {
    /// Returns the mark that is set, if any, and the server's clock in milliseconds.
    fn read(
        &self,
        operation: Operation<'_>,
        conn: &mut WatchedConnection<'_>,
    ) -> Result<(Option<LastRun>, u64)> {
        let (mark, (seconds, micros)): (Option<Vec<u8>>, (u64, u64)) =
            redis::pipe().get(&self.key).cmd("TIME").query(conn)?;
        let now = seconds.saturating_mul(1_000).saturating_add(micros / 1_000);
        let Some(mark) = mark else {
            return Ok((None, now));
        };
        let mark = String::from_utf8_lossy(&mark);
        let run = mark.split_once(' ').and_then(|(at, by)| {
            let at = at.parse().ok()?;
            LastRun::new(at, Some(by), now)
        });
        let found = || {
            operation.wrong_kind(format!(
                "something that is not the mark of a commit, at `{}`",
                self.key
            ))
        };
        Ok((Some(run.ok_or_else(found)?), now))
    }

    fn setting(&self, now: u64) -> Cmd {
        let mark = format!("{now} {}", self.by.as_str());
        command(&["SET", &self.key, &mark, "PX", &self.millis.to_string()])
    }
}

impl<'a> HeldCommit<'a> {
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid): a command cannot be part of a transaction.
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
            releases: Vec::new(),
            mark: None,
        })
    }

    /// Also releases the locks in the transaction, with these commands.
    pub(crate) fn releasing(mut self, releases: Vec<Cmd>) -> Self {
        self.releases = releases;
        self
    }

    /// Executes at most once: the transaction also sets the mark, and does nothing if the mark
    /// exists.
    pub(crate) fn once(mut self, mark: CommitMark) -> Self {
        self.mark = Some(mark);
        self
    }

    /// Watches the lock and reads the proof of the hold in one round trip, then writes. An aborted
    /// transaction does not mean that the lock is lost, since a renewal also changes the key, so it
    /// is retried. Returns the replies to the writes, and to the releases. The inner error: the
    /// mark already exists.
    pub(crate) fn send(&self, conn: &mut Connection) -> Result<Result<Vec<Value>, LastRun>> {
        let keys: Vec<&str> = self.mark.iter().map(|mark| &*mark.key).collect();
        let transaction = Transaction::while_held(self.operation, &keys, &self.proof);
        let attempt = |conn: &mut WatchedConnection<'_>, pipe: &mut Pipeline| {
            let mut setting = None;
            if let Some(mark) = &self.mark {
                let (earlier, now) = mark.read(self.operation, conn)?;
                if earlier.is_some() {
                    return Ok(earlier);
                }
                setting = Some(mark.setting(now));
            }
            pipe.clone_from(&self.writes);
            for command in self.releases.iter().cloned().chain(setting) {
                pipe.add_command(command);
            }
            Ok(None)
        };
        let (earlier, mut results) = transaction.run(conn, attempt)??;
        results.truncate(self.writes.len() + self.releases.len());
        Ok(earlier.map_or(Ok(results), Err))
    }

    /// Returns the replies to the caller's commands.
    ///
    /// # Errors
    /// [`Error::Reply`](crate::Error::Reply): they have another type.
    pub(crate) fn answer<T: FromRedisValue>(&self, results: Vec<Value>) -> Result<T> {
        typed(&self.writes, results).map_err(|_| self.operation.misfit())
    }
}
