//! Writing while a lock is held, and reading before it: in a transaction that watches the lock.
//!
//! Called on the holder's thread. What is sent goes by a connection of the pool, or by the
//! caller's, with nothing locked.
//!
//! A commit that got no answer may still be executed later. [`while_out`](Lease::while_out) notes
//! it as [`outstanding`](crate::renewing::outstanding): the lock is then not handed over, and its
//! release changes the key that the commit watches.

use std::{sync::Arc, time::Duration};

use redis::{Connection, FromRedisValue, Pipeline, Value};

use super::lease::Lease;
use crate::{
    error::{Error, LostReason, Operation, Result},
    name::check_size,
    recipes::{
        simple::PATIENCE,
        transaction::{HeldCommit, Transaction, WatchedConnection},
    },
    renewing::{entry::Ask, lease_state::RenewalState},
    time::{Backoff, Deadline, lease_millis},
};
#[cfg(feature = "testing")]
use crate::{
    server::{CommitOutcome, CommitRequest, Committer},
    wire::{is_error, refused},
};

const RELEASING: &str = "Lease::commit_and_release";

/// Says which call has executed a commit that is executed [once](Lease::commit_once).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it says whether this call has written anything"]
#[non_exhaustive]
pub enum Committed {
    /// By this call.
    Now,
    /// By one before it with the same operation id. This call has written nothing.
    Before,
}

impl Lease {
    /// Writes what `build` puts into the pipeline, in one transaction, only while the lock is held.
    /// Does not release it.
    ///
    /// `build` is called once. If the lock has been renewed meanwhile, the transaction is sent
    /// again, up to 8 times. It goes by a connection of the pool that the lock came from, to the
    /// server that keeps the lock: for other resources there is the [fencing
    /// token](Self::fencing_token).
    ///
    /// Two round trips. Waits for a connection as [`Pool::get`](crate::Pool::get) does: give back
    /// what your thread has borrowed there first, or take [`commit_on`](Self::commit_on).
    ///
    /// A commit that got no answer may still be executed while the lock is held, and never in
    /// another's turn. To be able to repeat it, take [`commit_once`](Self::commit_once).
    ///
    /// # Errors
    /// As [`commit_while_held`](crate::commit_while_held), and [`Error::Pool`] if there is no
    /// connection. [`Error::Lost`]: the lock is not ours any more, and nothing was written.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.lock("report:daily").acquire(Duration::from_secs(5))?;
    /// lease.commit(|pipe| {
    ///     pipe.set("report:text", "all is well");
    ///     pipe.incr("report:editions", 1);
    /// })?;
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit(&self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        self.committed("Lease::commit", build).map(drop)
    }

    /// As [`commit`](Self::commit), and answers what the commands have answered: a tuple or a `Vec`
    /// with one value for each, without those marked [`ignore`](redis::Pipeline::ignore).
    ///
    /// # Errors
    /// As [`commit`](Self::commit); [`Error::Reply`] if it was written, and the answers are of
    /// another type.
    ///
    /// # Examples
    /// ```no_run
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// # let lease = locks.lock("report:daily").acquire(std::time::Duration::from_secs(5))?;
    /// let (editions,): (u64,) = lease.commit_returning(|pipe| {
    ///     pipe.set("report:text", "all is well").ignore();
    ///     pipe.incr("report:editions", 1);
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit_returning<T: FromRedisValue>(
        &self,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<T> {
        let (commit, results) = self.committed("Lease::commit_returning", build)?;
        commit.answer(results)
    }

    /// As [`commit_returning`](Self::commit_returning), by a connection of the caller's to the same
    /// server, and so without waiting for one. Two round trips.
    ///
    /// It needs a real server: on the stand-in of the feature `testing`, to which no connection
    /// leads, it is an [`Error::Invalid`], and nothing is built. That records what goes by
    /// [`commit`](Self::commit) and its other variants.
    ///
    /// # Errors
    /// As [`commit_returning`](Self::commit_returning). If `conn` does not show the lock as ours,
    /// nothing is written, and a connection of the pool is waited for and looks. [`Error::Lost`]:
    /// that one does not show it either. [`Error::Invalid`]: it does, so `conn` leads to another
    /// server or database, and the lease goes on.
    ///
    /// # Examples
    /// ```no_run
    /// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
    /// # let lease = leasehold::Locks::new(&pool)?.lock("a").acquire(std::time::Duration::from_secs(5))?;
    /// let mut conn = pool.get()?;
    /// let () = lease.commit_on(&mut conn, |pipe| {
    ///     pipe.incr("report:editions", 1).ignore();
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit_on<T: FromRedisValue>(
        &self,
        conn: &mut Connection,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<T> {
        let name = "Lease::commit_on";
        self.check_here(name)?;
        self.stack.server.stores_data()?;
        let commit = self.a_commit(name, build)?;
        let results = match self.until_answered(|| commit.send(conn)) {
            Err(Error::Lost { .. }) => return Err(self.not_found_by_theirs(name)),
            sent => sent?,
        };
        commit.answer(results.unwrap_or_default())
    }

    /// As [`commit`](Self::commit), at most once for this operation id: a commit that got no answer
    /// can be repeated, under this lease or another one of the same lock, and is not doubled.
    ///
    /// Its transaction writes a mark too: a key beside the lock that ends after `remember`, 1 ms
    /// to 24 h. A later call with the same id finds it and writes nothing. Repeat within that time.
    ///
    /// **The id names the run**, as `2026-11-27:item:4711` does. A job that uses `item:4711` every
    /// night writes nothing in the second night while the mark of the first is still there.
    ///
    /// Two round trips.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and [`Error::Invalid`] for an id that is empty or longer than
    /// 512 bytes, or for the time. After [`Error::Unknown`] repeat it; after [`Error::Partial`] the
    /// mark is there, and some of the commands were refused.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Committed, Error, Locks};
    ///
    /// # fn night() -> &'static str { "2026-11-27" }
    /// # fn item() -> u64 { 4711 }
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.lock("items");
    /// let id = format!("{}:item:{}", night(), item());
    /// let committed = loop {
    ///     let lease = lock.acquire(Duration::from_secs(5))?;
    ///     let an_hour = Duration::from_secs(3_600);
    ///     match lease.commit_once(&id, an_hour, |pipe| { pipe.incr("items:done", 1); }) {
    ///         Err(error @ Error::Unknown { .. }) => eprintln!("again: {error}"),
    ///         committed => break committed?,
    ///     }
    /// };
    /// if committed == Committed::Before {
    ///     println!("an attempt before this one has done it");
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn commit_once(
        &self,
        operation_id: &str,
        remember: Duration,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<Committed> {
        let name = "Lease::commit_once";
        self.check_here(name)?;
        check_size("operation_id", operation_id)?;
        let millis = lease_millis("remember", remember)?;
        let mark = self.hold().lock_name().mark(operation_id);
        let commit = self.a_commit(name, build)?.once(mark, millis);
        let sent = self.while_out(name, || self.send(&commit))?;
        Ok(sent.map_or(Committed::Before, |_| Committed::Now))
    }

    /// As [`commit`](Self::commit), and releases the lock in the same transaction. Two round trips
    /// for both.
    ///
    /// However it ends, the lease is over. Where nothing was written the lock is given back as by
    /// [`release`](Self::release); where no answer came, by the watchdog's thread. It is not handed
    /// over to another thread of this process.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Examples
    /// ```no_run
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// # let lease = locks.lock("report:daily").acquire(std::time::Duration::from_secs(5))?;
    /// lease.commit_and_release(|pipe| {
    ///     pipe.set("report:text", "all is well");
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit_and_release(mut self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        self.check_here(RELEASING)?;
        let hold = Arc::clone(self.hold());
        let operation = Operation::new(RELEASING, hold.lock_name().text());
        let commit = HeldCommit::new(operation, hold.proof(), build)?
            .releasing(hold.giving_back_while_watched());
        // The caller's closure may have forked.
        self.stack.process.refuse_forked_child()?;
        // From here on no renewal touches the lock.
        let state = self.stop_renewing(Deadline::after(Duration::MAX));
        let done = match state {
            RenewalState::Lost(reason) => Err(operation.lost_because(Some(reason))),
            RenewalState::Held | RenewalState::Unknown => self.send(&commit),
        };
        let given_back = match &done {
            Ok(_) => Ok(true),
            Err(Error::Lost { .. }) => Ok(false),
            Err(error @ Error::Unknown { .. }) => Err(error.clone()),
            Err(_) => self.give_back(Deadline::after(self.drop_timeout)),
        };
        // The caller is told of the commit.
        let _ = self.settle(RELEASING, given_back, state);
        done.map(drop)
    }

    /// Reads, decides and writes in one transaction, only while the lock is held: in the shape of
    /// redis-rs's [`transaction`](redis::transaction). Does not release the lock.
    ///
    /// Watches the lock and the keys, and calls `attempt` with the connection and a pipeline. It
    /// reads on the connection, puts what is to be written into the pipeline, and returns; it does
    /// not send the pipeline. Then the pipeline is executed, in one `EXEC`, if neither the lock nor
    /// any of the keys has changed since it was read; an empty one is not sent. If a key has
    /// changed, or the lock was renewed, all of it starts again, at once, for up to 5 s:
    /// **`attempt` may be called several times**, and should do nothing but read and decide.
    ///
    /// Name in `keys` whatever the decision rests on and others may change without this lock. What
    /// only holders of this lock change need not be named.
    ///
    /// An error of `attempt` ends the transaction, nothing is written, and this lease goes on: also
    /// where the error is the loss of another lease. `?` takes what redis-rs says; for an error of
    /// your own there is [`Error::other`](crate::Error::other). A refusal that is no error is
    /// better a value. Whatever happens, panics included, nothing is left watched.
    ///
    /// **Two round trips if it reads once**: `WATCH` goes out with the first read. Several values
    /// are read at once by `MGET`, several fields of a hash by `HMGET`; each further read is a
    /// round trip more. A key that may be missing is read as an `Option`.
    ///
    /// `attempt` must not go on in the child of a fork: parent and child would have one connection.
    ///
    /// It needs a real server: on the stand-in of the feature `testing`, which has nothing to read,
    /// it is an [`Error::Invalid`](crate::Error::Invalid), and `attempt` is not called. That
    /// records [commits](Self::commit).
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): the lock is not ours any more. Nothing was written.
    /// - [`Error::Contended`](crate::Error::Contended): the keys changed again and again, for 5 s.
    ///   Nothing was written.
    /// - [`Error::Unknown`](crate::Error::Unknown): no answer came to the `EXEC`. Either all was
    ///   written or nothing.
    /// - [`Error::Partial`](crate::Error::Partial): a command was refused inside `EXEC`, the others
    ///   were executed.
    /// - [`Error::Invalid`](crate::Error::Invalid): a command that would end the transaction, on
    ///   the connection or in the pipeline.
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::WrongKind`](crate::Error::WrongKind),
    ///   [`Error::Redis`](crate::Error::Redis): nothing was written.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, redis::Commands};
    ///
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.lock("order:4711").acquire(Duration::from_secs(5))?;
    /// let paid = lease.transaction(&["wallet:7"], |conn, pipe| {
    ///     let funds: Option<i64> = conn.get("wallet:7")?;
    ///     if funds.unwrap_or(0) < 5 {
    ///         return Ok(false); // nothing is written
    ///     }
    ///     pipe.decr("wallet:7", 5).incr("wallet:8", 5);
    ///     Ok(true)
    /// })?;
    /// lease.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn transaction<T>(
        &self,
        keys: &[&str],
        mut attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<T> {
        let name = "Lease::transaction";
        self.check_here(name)?;
        let proof = self.hold().proof();
        let transaction = Transaction::new(self.operation(name), keys, PATIENCE).while_held(&proof);
        let attempted = self.while_out(name, || {
            self.by_the_pool(|conn| transaction.run(conn, &mut attempt))
        })?;
        attempted.map(|(value, _)| value)
    }

    fn committed(
        &self,
        name: &'static str,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<(HeldCommit<'_>, Vec<Value>)> {
        self.check_here(name)?;
        let commit = self.a_commit(name, build)?;
        let sent = self.while_out(name, || self.send(&commit))?;
        Ok((commit, sent.unwrap_or_default()))
    }

    fn a_commit(
        &self,
        name: &'static str,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<HeldCommit<'_>> {
        let commit = HeldCommit::new(self.operation(name), self.hold().proof(), build)?;
        // The caller's closure may have forked.
        self.stack.process.refuse_forked_child()?;
        Ok(commit)
    }

    /// `None`: it was marked before.
    fn send(&self, commit: &HeldCommit<'_>) -> Result<Option<Vec<Value>>> {
        #[cfg(feature = "testing")]
        if let Some(committer) = self.stack.server.committer() {
            return self.send_to(committer, commit);
        }
        self.by_the_pool(|conn| commit.send(conn))
    }

    /// To a server to which no connection leads.
    #[cfg(feature = "testing")]
    fn send_to(
        &self,
        committer: &dyn Committer,
        commit: &HeldCommit<'_>,
    ) -> Result<Option<Vec<Value>>> {
        let (hold, operation) = (self.hold(), commit.operation);
        let release = commit.release.as_ref().map(|_| hold.giving_back());
        let request = CommitRequest {
            lock: hold.lock_name().text(),
            look: &hold.look(),
            writes: &commit.writes,
            release: release.as_ref(),
            mark: (commit.mark.as_ref()).map(|mark| (&*mark.key, mark.millis)),
        };
        let outcome = committer.commit(&request)?;
        match outcome.map_err(|error| operation.unanswered(None, error))? {
            CommitOutcome::Lost => Err(operation.lost()),
            CommitOutcome::Before => Ok(None),
            CommitOutcome::Executed(mut results) if results.iter().any(is_error) => {
                // A release and a mark are executed whatever is refused.
                if commit.release.is_some() || commit.mark.is_some() {
                    results.push(Value::Okay);
                }
                Err(refused(operation, &commit.writes, results))
            }
            CommitOutcome::Executed(results) => Ok(Some(results)),
        }
    }

    /// Refuses a lost lease, and a child's copy. To be called before anything is made or sent.
    pub(super) fn check_here(&self, name: &'static str) -> Result<()> {
        self.stack.process.refuse_forked_child()?;
        self.check_for(name)
    }

    /// Sends a transaction to the server that keeps the lock, and tells of a loss that this server
    /// answers. An error of `send` is one that the transaction has met, never one of a caller's
    /// closure.
    fn while_out<T>(&self, name: &'static str, send: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = self.until_answered(send);
        if let Err(Error::Lost { .. }) = done {
            self.handle.lose(LostReason::TakenAway);
            return Err(self.lost_for(name));
        }
        done
    }

    /// Sends a transaction, which is out for as long as it has no answer.
    fn until_answered<T>(&self, send: impl FnOnce() -> Result<T>) -> Result<T> {
        // A panic in between leaves it out.
        self.lease_state().outstanding().commit_is_out();
        let done = send();
        if !matches!(done, Err(Error::Unknown { .. })) {
            self.lease_state().outstanding().commit_is_answered();
        }
        done
    }

    /// Explains why a connection of the caller's does not show the lock as ours. The lease ends
    /// only if the server that keeps the lock says so.
    fn not_found_by_theirs(&self, name: &'static str) -> Error {
        match self.ask(name, Ask::Look) {
            Ok(_) => Error::invalid(
                "conn",
                "it does not show the lock as ours, and the pool's do: it leads to another server or database",
            ),
            // A look without an answer has changed nothing.
            Err(Error::Unknown { source, .. }) => self.operation(name).failed(source),
            Err(error) => error,
        }
    }

    /// Sends by a connection of the pool, and by another one where the first turns out to have been
    /// closed before anything was written, as after a restart of the server. Where the lock is on
    /// another server by now, or on its way, sends again after a pause, for one I/O time-out.
    fn by_the_pool<T>(&self, mut send: impl FnMut(&mut Connection) -> Result<T>) -> Result<T> {
        let server = &self.stack.server;
        let patience = Deadline::after(server.limits().answer);
        let (mut pauses, mut was_closed) = (Backoff::new(), false);
        loop {
            let mut conn = server.lend(self.hold().lock_name().key())?;
            let done = send(conn.connection());
            drop(conn);
            let Err(Error::Redis { source, .. }) = &done else {
                return done;
            };
            let is_closed = source.is_connection_dropped() && !was_closed;
            was_closed |= is_closed;
            let is_elsewhere = server.is_elsewhere(source) && pauses.pause(patience);
            if !is_closed && !is_elsewhere {
                return done;
            }
        }
    }
}
