//! Transactions of the caller's own: watch, read, decide, write, and all of it again when something
//! came between.
//!
//! On one connection: `WATCH` of the lock and the keys goes out together with what proves the hold
//! and the first read of the caller's closure, and where the lock is still to be taken, behind the
//! `SET` that takes it. `MULTI`, the writes and `EXEC` are the second round trip.
//! [`WatchedConnection`] is what the closure reads on. It is dropped before each new start, on an
//! error and on a panic, and lets go of what is watched.

mod watched;
mod words;

use std::time::Duration;

use redis::{Connection, Pipeline, Value};

use super::{
    commit::Proof,
    simple::giving_back::{give_back, is_elsewhere, leaves_a_lock},
};
use crate::{
    error::{Error, Operation, Result},
    time::Deadline,
    transaction::command,
};
use watched::State;
pub use watched::WatchedConnection;
pub(crate) use watched::{Attempted, Entry};

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
    /// [`Error::Contended`] if something came between for the whole time.
    pub(crate) fn run<T>(
        &self,
        conn: &mut Connection,
        attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Attempted<Done<T>> {
        self.until_committed(conn, None, attempt)
    }

    /// Takes a book lock in the first round trip, or waits for it, and deletes it in the
    /// transaction. An error of the closure gives it back. `None`: it was not to be had.
    pub(crate) fn run_with_lock<T>(
        self,
        conn: &mut Connection,
        entry: Entry,
        attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Attempted<Option<Done<T>>> {
        let (operation, lock, token) = (self.operation, entry.lock.clone(), entry.token.clone());
        let mut locked = Locked { conn, entry };
        let on_the_lock = self.while_held(Proof::by_value(&lock, &token));
        let attempted = on_the_lock.until_committed(locked.conn, Some(&mut locked.entry), attempt);
        let met = match attempted {
            Ok(Ok(done)) => {
                locked.entry.state = State::Over;
                return Ok(Ok(Some(done)));
            }
            Ok(Err(error)) => return Ok(Err(error)),
            Err(_) if locked.entry.state == State::Busy => return Ok(Ok(None)),
            Err(met) => met,
        };
        if !leaves_a_lock(&met) {
            locked.entry.state = State::Over;
        } else if has_moved(&met) && locked.entry.state == State::Held {
            locked.entry.state = State::Over;
            // Here it cannot be given back, if it has moved along.
            let given_back = give_back(locked.conn, &lock, &token);
            if given_back.as_ref().is_err_and(has_moved)
                && let Error::Redis { source, .. } = met
            {
                return Err(operation.unknown(Some(&token), source));
            }
        }
        Err(met)
    }

    fn until_committed<T>(
        &self,
        conn: &mut Connection,
        mut entry: Option<&mut Entry>,
        mut attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Attempted<Done<T>> {
        let release = entry
            .as_ref()
            .map(|entry| command(&["DEL", entry.lock.key()]));
        let mut deadline = None;
        loop {
            let wanted = (&*self.keys, self.proof.as_ref());
            let entry = entry.as_deref_mut();
            let mut watched = WatchedConnection::new(conn, self.operation, wanted, entry);
            let mut writes = Pipeline::new();
            let value = attempt(&mut watched, &mut writes);
            let value = match watched.attempted(value)? {
                Ok(value) => value,
                Err(error) => return Ok(Err(error)),
            };
            if let Some(results) = watched.commit(writes, release.as_ref())? {
                return Ok(Ok(Done { value, results }));
            }
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(self.patience));
            if deadline.has_passed() {
                return Err(self.operation.contended());
            }
        }
    }
}

fn has_moved(error: &Error) -> bool {
    matches!(error, Error::Redis { source, .. } if is_elsewhere(source))
}

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
