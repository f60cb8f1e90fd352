//! Reads and writes while a lock is held, in a transaction that watches the lock. The server writes
//! nothing once the hold has ended: the header of `recipes/transaction/proof.rs` says how.
//!
//! Runs on the holder's thread. Sends on a connection of the pool, or on the caller's, with no
//! mutex locked.
//!
//! A commit without a reply may be executed later. [`send_checked`](Lease::send_checked) records it
//! as [outstanding](crate::renewing::lease_state::Outstanding): the lock is then not handed over,
//! and its release changes the key that the commit watches.

use std::{sync::Arc, time::Duration};

use redis::{Connection, FromRedisValue, Pipeline, Value};

use super::{lease::Lease, release::GIVES_BACK_WITHIN};
use crate::{
    error::{Error, Operation, Result},
    name::check_size,
    recipes::{CommitMark, Evidence, HeldCommit, Hold, LastRun, Transaction, WatchedConnection},
    renewing::{entry::Ask, lease_state::RenewalState},
    server::Patience,
    time::{Backoff, Deadline, lease_millis},
    wire::{count, is_interrupted},
};

/// Two nodes that redirect to each other agree within this time. A command on a key of another slot
/// also gets `MOVED`, but never succeeds.
const NODES_AGREE: Duration = Duration::from_millis(250);
const RELEASING: &str = "Lease::commit_and_release";

/// The call of [`Lease::commit_once`] that executed the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it tells whether this call wrote anything"]
pub enum Committed {
    /// This call.
    Now,
    /// An earlier call with the same operation id: the run has its time and owner. This call wrote
    /// nothing.
    Before(LastRun),
}

impl Lease {
    /// Writes the pipeline that `build` fills, in one transaction, only while the lock is held.
    ///
    /// Does not release the lock. Calls `build` once. If the lock is renewed meanwhile, the
    /// transaction is sent again at once, for up to 5 s. It uses a connection of the lock's pool,
    /// to the server that has the lock. For other resources use the
    /// [fencing token](Self::fencing_token).
    ///
    /// Two round trips. Waits for a connection as [`Pool::get`](crate::Pool::get) does: first
    /// return any connection that your thread has borrowed.
    ///
    /// A commit without a reply may still be executed while the lock is held, never while another
    /// holder has it. To be able to repeat it, use [`commit_once`](Self::commit_once).
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lock was lost. Nothing was written.
    /// - [`Error::Pool`]: no connection. Nothing was written.
    /// - All others as [`commit_while_held`](crate::commit_while_held).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lease = locks.lock("report:daily").acquire(Duration::from_secs(30))?;
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

    /// Like [`commit`](Self::commit), and returns the results of the commands.
    ///
    /// `T` is a tuple or a `Vec` with one value for each command, except those marked
    /// [`ignore`](redis::Pipeline::ignore).
    ///
    /// # Errors
    /// - [`Error::Reply`]: the results do not have the type `T`. Everything was written.
    /// - All others as [`commit`](Self::commit).
    ///
    /// # Examples
    /// ```no_run
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// # let lease = locks.lock("report:daily").acquire(std::time::Duration::from_secs(30))?;
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

    /// Like [`commit`](Self::commit), at most once for this operation id.
    ///
    /// A commit without a reply can be repeated, under this lease or another one of the same lock:
    /// for as long as the server has its mark, it is not executed twice.
    ///
    /// The transaction also writes that mark: a key that expires after `remember`, 1 ms to 24 h. A
    /// later call with the same id finds the mark and writes nothing. Repeat within that time. A
    /// server that loses its data, or evicts keys (`maxmemory-policy` other than `noeviction`), may
    /// lose the mark and keep the writes: then a repeat writes again.
    ///
    /// **The id must name the run**, as `2026-11-27/item:4711` does. A job that uses `item:4711`
    /// every night writes nothing on the second night if the mark of the first remains.
    ///
    /// Two round trips.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the id is empty or longer than 512 bytes, or `remember` is out of
    ///   range. Nothing was sent.
    /// - [`Error::Unknown`]: no reply came. Repeat the call.
    /// - [`Error::Partial`]: some of the commands were refused. The others were executed, and the
    ///   mark was written.
    /// - [`Error::WrongKind`]: the key of the mark holds something else. Nothing was written.
    /// - All others as [`commit`](Self::commit).
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
    /// let id = format!("{}/item:{}", night(), item()); // 2026-11-27/item:4711
    /// let committed = loop {
    ///     let lease = lock.acquire(Duration::from_secs(30))?;
    ///     let an_hour = Duration::from_secs(3_600);
    ///     match lease.commit_once(&id, an_hour, |pipe| { pipe.incr("items:done", 1); }) {
    ///         Err(error @ Error::Unknown { .. }) => eprintln!("again: {error}"),
    ///         committed => break committed?,
    ///     }
    /// };
    /// if let Committed::Before(run) = committed {
    ///     println!("{:?} has done it {:?} ago", run.by(), run.ago());
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
        self.operation(name).run(|_| {
            self.check_here(name)?;
            let mark = self.mark(operation_id, remember)?;
            let commit = self.build_commit(name, build)?.once(mark);
            let sent = self.send_checked(name, || self.send(&commit))?;
            Ok(sent.map_or_else(Committed::Before, |_| Committed::Now))
        })
    }

    /// Like [`commit`](Self::commit), and releases the lock in the same transaction. Two round
    /// trips in all.
    ///
    /// The hold ends in any case. If the server refused the writes, the lock is released as by
    /// [`release`](Self::release); if no reply came, the watchdog's thread releases it as soon as
    /// the server answers. So a silent server delays the call by one I/O time-out, and by one more
    /// if a renewal was already sent. The lock is not handed over to another thread of this
    /// process.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Examples
    /// ```no_run
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// # let lease = locks.lock("report:daily").acquire(std::time::Duration::from_secs(30))?;
    /// lease.commit_and_release(|pipe| {
    ///     pipe.set("report:text", "all is well");
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit_and_release(self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        let hold = Arc::clone(self.hold());
        let operation = Operation::new(RELEASING, hold.lock.text());
        operation.run(|operation| self.commit_last(operation, &hold, build))
    }

    fn commit_last(
        mut self,
        operation: Operation<'_>,
        hold: &Hold,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<()> {
        self.check_here(RELEASING)?;
        let commit = HeldCommit::new(operation, hold.proof(), build)?
            .releasing(vec![hold.giving_back_while_watched()]);
        // The caller's closure may have forked the process.
        self.stack.process.refuse_forked_child()?;
        let answer_by = Deadline::after(self.stack.server.limits().answer);
        // A renewal would change the key that the transaction watches.
        let state = self.stop_renewing(Deadline::after(Duration::MAX));
        let done = match state {
            RenewalState::Lost(reason) => {
                Err(self.lease_state().lost_error(operation, Some(reason)))
            }
            RenewalState::Held | RenewalState::Unknown => self.unless_behind(|| self.send(&commit)),
        };
        let was_released = match &done {
            Ok(results) => {
                let release = results.as_ref().ok().and_then(|results| results.last());
                self.note_released(release.and_then(|it| count(it).ok()).unwrap_or(0));
                Ok(true)
            }
            Err(Error::Lost { .. }) => Ok(false),
            // The watchdog's thread waits for a server that has just been silent.
            Err(error) if error.is_silence() => Err(error.clone()),
            Err(_) => {
                let left = answer_by.remaining().max(GIVES_BACK_WITHIN);
                self.send_release(Deadline::after(left))
            }
        };
        match (done, self.settle(RELEASING, was_released, state)) {
            // The commit names no reason, or a key of another type, which may be the lock's.
            (Err(Error::Lost { .. } | Error::WrongKind { .. }), Err(lost @ Error::Lost { .. })) => {
                Err(lost)
            }
            (done, _) => done.map(drop),
        }
    }

    /// Reads, decides and writes in one transaction, only while the lock is held. Modelled on
    /// redis-rs's [`transaction`](redis::transaction).
    ///
    /// Does not release the lock. Watches the lock and the keys, and calls `attempt` with the
    /// connection and a pipeline. `attempt` reads on the connection, adds its writes to the
    /// pipeline, and returns without sending it. Then one `EXEC` executes the pipeline if neither
    /// the lock nor any of the keys has changed since the watch; an empty pipeline is not sent. If
    /// a key has changed, or the lock was renewed, the transaction is retried at once, for up to 5
    /// s. So **`attempt` may be called several times**, and should only read and decide.
    ///
    /// List in `keys` every key that the decision depends on and that others may change without
    /// this lock. Keys that only holders of this lock change need not be listed.
    ///
    /// An error from `attempt` ends the transaction without writing, and this lease continues, even
    /// if the error is the loss of another lease. `?` converts errors of redis-rs; wrap your own
    /// with [`Error::other`](crate::Error::other). Return a refusal that is not an error as a
    /// value. In every case, including a panic, no key stays watched.
    ///
    /// **Two round trips with one read**: `WATCH` goes out with the first read. Each further read
    /// costs one more, so read several values at once with `MGET`, and several fields of a hash
    /// with `HMGET`. Read a key that may be missing as an `Option`.
    ///
    /// `attempt` must not continue in a forked child: parent and child would share one connection.
    ///
    /// # Errors
    /// - [`Error::Lost`](crate::Error::Lost): the lock was lost. Nothing was written.
    /// - [`Error::Contended`](crate::Error::Contended): the keys kept changing for 5 s. Nothing was
    ///   written.
    /// - [`Error::Unknown`](crate::Error::Unknown): the `EXEC` got no reply. Either everything was
    ///   written or nothing.
    /// - [`Error::Partial`](crate::Error::Partial): a command inside `EXEC` was refused; the others
    ///   were executed.
    /// - [`Error::Invalid`](crate::Error::Invalid): a command on the connection or in the pipeline
    ///   would end the transaction.
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
    /// let lease = locks.lock("order:4711").acquire(Duration::from_secs(30))?;
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
        self.operation(name).run(|operation| {
            self.check_here(name)?;
            let proof = self.hold().proof();
            let transaction = Transaction::while_held(operation, keys, &proof);
            let attempted = self.send_checked(name, || {
                self.on_pooled(|conn| transaction.run(conn, &mut attempt))
            })?;
            attempted.map(|(value, _)| value)
        })
    }

    /// Returns the mark of this operation beside the lock.
    pub(super) fn mark(&self, operation_id: &str, remember: Duration) -> Result<CommitMark> {
        check_size("operation_id", operation_id)?;
        Ok(CommitMark {
            key: self.hold().lock.mark(operation_id),
            millis: lease_millis("remember", remember)?,
            by: self.hold().owner.clone(),
        })
    }

    fn committed(
        &self,
        name: &'static str,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<(HeldCommit<'_>, Vec<Value>)> {
        self.operation(name).run(|_| {
            self.check_here(name)?;
            let commit = self.build_commit(name, build)?;
            let sent = self.send_checked(name, || self.send(&commit))?;
            Ok((commit, sent.unwrap_or_default()))
        })
    }

    fn build_commit(
        &self,
        name: &'static str,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<HeldCommit<'_>> {
        let commit = HeldCommit::new(self.operation(name), self.hold().proof(), build)?;
        // The caller's closure may have forked the process.
        self.stack.process.refuse_forked_child()?;
        Ok(commit)
    }

    /// Sends a commit. The inner error: its mark already exists.
    fn send(&self, commit: &HeldCommit<'_>) -> Result<Result<Vec<Value>, LastRun>> {
        self.on_pooled(|conn| commit.send(conn))
    }

    /// Refuses a lost lease and a forked child. Call it before building or sending anything.
    pub(super) fn check_here(&self, name: &'static str) -> Result<()> {
        self.stack.process.refuse_forked_child()?;
        self.check_for(name)
    }

    /// Sends a transaction to the server that has the lock, and records the loss if the server
    /// reports one. `send` must not return an error of a caller's closure.
    fn send_checked<T>(
        &self,
        name: &'static str,
        mut send: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let done = self.unless_behind(|| self.send_tracked(&mut send));
        match &done {
            Err(Error::Lost { .. }) => Err(self.not_ours(name, None)),
            Err(Error::WrongKind { .. }) => self.look_if_lost(name).and(done),
            _ => done,
        }
    }

    /// Sends a transaction, and sends it again if it found the lock lost but a look finds it held:
    /// then a replica that is behind its master answered the read of the proof.
    fn unless_behind<T>(&self, mut send: impl FnMut() -> Result<T>) -> Result<T> {
        match send() {
            Err(Error::Lost { .. }) if self.is_found_ours() => send(),
            done => done,
        }
    }

    /// Asks the server whether the lock is ours, also after the renewals were stopped.
    pub(super) fn is_found_ours(&self) -> bool {
        let look = Ask::Look.of(self.hold());
        let asked = self.stack.server.ask(&look, Patience::USUAL);
        let evidence = asked.map(|asked| Evidence::of(asked.write_result()));
        matches!(evidence, Ok(Evidence::Ours(_)))
    }

    /// Asks whether a key of another type is the lock's own.
    ///
    /// # Errors
    /// [`Error::Lost`]: the lock is not ours. Any other result of the look is no error.
    pub(super) fn look_if_lost(&self, name: &'static str) -> Result<()> {
        match self.ask(name, Ask::Look) {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            _ => Ok(()),
        }
    }

    /// Sends a transaction, which counts as outstanding until it has a reply.
    fn send_tracked<T>(&self, send: impl FnOnce() -> Result<T>) -> Result<T> {
        // If `send` panics, the commit stays outstanding.
        self.lease_state().outstanding().commit_is_out();
        let done = send();
        if !matches!(done, Err(Error::Unknown { .. })) {
            self.lease_state().outstanding().commit_is_answered();
        }
        done
    }

    /// Sends on a connection of the pool. Sends on a second one if the first was closed before
    /// anything was written, such as by a restart of the server. If the lock has moved to another
    /// server, or is moving, retries after a pause, for one I/O time-out.
    pub(super) fn on_pooled<T>(
        &self,
        mut send: impl FnMut(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let server = &self.stack.server;
        let slot_moves_until = Deadline::after(server.limits().answer);
        let nodes_agree = NODES_AGREE.min(server.limits().answer);
        // Counts from the first `MOVED` in a row: before it the slot may have been moving.
        let mut nodes_agree_by = None;
        let (mut pauses, mut was_closed) = (Backoff::new(), false);
        loop {
            let mut conn = server.lend(self.hold().lock.key())?;
            let done = conn.asked(&mut send);
            drop(conn);
            let Err(Error::Redis { source, .. }) = &done else {
                return done;
            };
            let is_lost = source.is_connection_dropped() || is_interrupted(source);
            let is_closed = is_lost && !was_closed;
            was_closed |= is_closed;
            let has_moved = source.code() == Some("MOVED");
            let from_now_on = || Deadline::after(nodes_agree);
            nodes_agree_by = has_moved.then(|| nodes_agree_by.unwrap_or_else(from_now_on));
            let patience = nodes_agree_by.unwrap_or(slot_moves_until);
            let is_elsewhere = server.is_elsewhere(source) && pauses.pause(patience);
            if !is_closed && !is_elsewhere {
                return done;
            }
        }
    }
}
