//! Reads and writes while all locks of a set are held, in a transaction that watches all of them:
//! what `commit` is for one lock. Runs on the holder's thread, with no mutex locked.

use std::{iter, mem, sync::Arc, time::Duration};

use redis::{FromRedisValue, Pipeline, Value};

use super::{
    commit::Committed,
    lease::Lease,
    release::{GIVES_BACK_WITHIN, let_go_all},
    set::Leases,
};
use crate::{
    error::{Error, Operation, Result, ensure},
    recipes::{HeldCommit, LastRun, Proof, Transaction, WatchedConnection},
    renewing::lease_state::RenewalState,
    time::Deadline,
    wire::count,
};

const RELEASING: &str = "Leases::commit_and_release";

impl Leases {
    /// Writes the pipeline that `build` fills, in one transaction, only while all locks are held.
    ///
    /// Like [`Lease::commit`]. The server watches all locks. Two round trips.
    ///
    /// # Errors
    /// - [`Error::Lost`]: names a lock that was lost. Nothing was written.
    /// - [`Error::Invalid`]: the locks are not from one [`Locks`](crate::Locks) or, on a cluster,
    ///   the locks and keys are in different slots. Give their names a common tag, as in
    ///   `{bank}:4711` and `{bank}:4712`. Nothing was written.
    /// - All others as [`Lease::commit`].
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let leases = locks.all_of(["account:1", "account:2"]).acquire(Duration::from_secs(30))?;
    /// leases.commit(|pipe| {
    ///     pipe.decr("balance:1", 5).incr("balance:2", 5);
    /// })?;
    /// leases.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commit(&self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        self.committed("Leases::commit", build).map(drop)
    }

    /// Like [`commit`](Self::commit), and returns the results, as [`Lease::commit_returning`] does.
    ///
    /// # Errors
    /// - [`Error::Reply`]: the results do not have the type `T`. Everything was written.
    /// - All others as [`commit`](Self::commit).
    pub fn commit_returning<T: FromRedisValue>(
        &self,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<T> {
        let name = "Leases::commit_returning";
        let (commit, results) = self.committed(name, build)?;
        commit.answer(results)
    }

    /// Like [`commit`](Self::commit), at most once for this operation id, as
    /// [`Lease::commit_once`].
    ///
    /// The mark is that of the lock with the smallest key: a repeat must be under a set with the
    /// same first lock, or under that lock alone.
    ///
    /// # Errors
    /// As [`Lease::commit_once`] and [`commit`](Self::commit).
    pub fn commit_once(
        &self,
        operation_id: &str,
        remember: Duration,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<Committed> {
        let name = "Leases::commit_once";
        self.operation(name).run(|operation| {
            let first = self.on_one_server(name)?;
            let mark = first.mark(operation_id, remember)?;
            let commit = HeldCommit::new(operation, self.proof(), build)?.once(mark);
            let sent = self.send(name, &commit)?;
            Ok(sent.map_or_else(Committed::Before, |_| Committed::Now))
        })
    }

    /// Like [`commit`](Self::commit), and releases all locks in the same transaction, as
    /// [`Lease::commit_and_release`]. Two round trips in all.
    ///
    /// The holds end in any case. If nothing was written, the locks are released as by
    /// [`release`](Self::release); if no reply came, in the background.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_and_release(mut self, build: impl FnOnce(&mut Pipeline)) -> Result<()> {
        let name = self.operation(RELEASING).lock.to_owned();
        Operation::new(RELEASING, &name).run(|operation| self.commit_last(operation, build))
    }

    /// Reads, decides and writes in one transaction, only while all locks are held.
    ///
    /// Like [`Lease::transaction`]. The server watches all locks, and the keys.
    ///
    /// # Errors
    /// - [`Error::Lost`], [`Error::Invalid`]: as [`commit`](Self::commit).
    /// - All others as [`Lease::transaction`].
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, redis::Commands};
    ///
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let leases = locks.all_of(["account:1", "account:2"]).acquire(Duration::from_secs(30))?;
    /// let moved = leases.transaction(&[], |conn, pipe| {
    ///     let funds: Option<i64> = conn.get("balance:1")?;
    ///     if funds.unwrap_or(0) < 5 {
    ///         return Ok(false); // nothing is written
    ///     }
    ///     pipe.decr("balance:1", 5).incr("balance:2", 5);
    ///     Ok(true)
    /// })?;
    /// leases.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn transaction<T>(
        &self,
        keys: &[&str],
        mut attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<T> {
        let name = "Leases::transaction";
        self.operation(name).run(|operation| {
            let first = self.on_one_server(name)?;
            let proof = self.proof();
            let transaction = Transaction::while_held(operation, keys, &proof);
            let attempted = self.send_checked(name, || {
                first.on_pooled(|conn| transaction.run(conn, &mut attempt))
            })?;
            attempted.map(|(value, _)| value)
        })
    }

    fn committed(
        &self,
        name: &'static str,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<(HeldCommit<'_>, Vec<Value>)> {
        self.operation(name).run(|operation| {
            self.on_one_server(name)?;
            let commit = HeldCommit::new(operation, self.proof(), build)?;
            let results = self.send(name, &commit)?.unwrap_or_default();
            Ok((commit, results))
        })
    }

    /// Sends a commit. The inner error: its mark already exists.
    fn send(
        &self,
        name: &'static str,
        commit: &HeldCommit<'_>,
    ) -> Result<Result<Vec<Value>, LastRun>> {
        // The caller's closure may have forked the process.
        let first = self.on_one_server(name)?;
        self.send_checked(name, || first.on_pooled(|conn| commit.send(conn)))
    }

    /// Sends the last commit, and releases the locks in any case.
    fn commit_last(
        &mut self,
        operation: Operation<'_>,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<()> {
        self.on_one_server(RELEASING)?;
        let holds: Vec<_> = self.leases.iter().map(|it| Arc::clone(it.hold())).collect();
        let releases = holds.iter().map(|hold| hold.giving_back_while_watched());
        let proof = Proof::of_all(holds.iter().map(|hold| hold.proof()));
        let commit = HeldCommit::new(operation, proof, build)?.releasing(releases.collect());
        // The caller's closure may have forked the process.
        self.refuse_forked_child()?;
        let mut leases = mem::take(&mut self.leases);
        let longest = leases
            .first()
            .map(|lease| lease.stack.server.limits().answer);
        let answer_by = Deadline::after(longest.unwrap_or_default());
        // A renewal would change a key that the transaction watches.
        let never = Deadline::after(Duration::MAX);
        let states = leases.iter_mut().map(|lease| lease.stop_renewing(never));
        let states: Vec<RenewalState> = states.collect();
        let done = send_last(&leases, &states, &commit).map_err(in_one_slot);
        let ends: Vec<Result<()>> = match &done {
            Ok(results) => {
                let replies = results.iter().skip(commit.writes.len());
                let levels = replies.map(|it| count(it).unwrap_or(0));
                let levels = levels.chain(iter::repeat(0));
                let settled = leases.iter_mut().zip(levels).zip(states);
                let settled = settled.map(|((lease, levels), state)| {
                    lease.note_released(levels);
                    lease.settle(RELEASING, Ok(true), state)
                });
                settled.collect()
            }
            // The watchdog's thread waits for a server that has just been silent.
            Err(error) if error.is_silence() => {
                let settled = leases.iter_mut().zip(states);
                let settled = settled
                    .map(|(lease, state)| lease.settle(RELEASING, Err(error.clone()), state));
                settled.collect()
            }
            Err(_) => {
                let left = answer_by.remaining().max(GIVES_BACK_WITHIN);
                let_go_all(&mut leases, Deadline::after(left))
            }
        };
        let is_lost = |error: &Error| matches!(error, Error::Lost { .. });
        match (
            done,
            ends.into_iter().find_map(|it| it.err().filter(is_lost)),
        ) {
            // The commit names no reason, or a key of another type, which may be a lock's.
            (
                Err(Error::Lost { .. } | Error::WrongKind { .. }),
                Some(Error::Lost {
                    context,
                    reason,
                    source,
                }),
            ) => Err(Error::Lost {
                context: Operation::new(RELEASING, &context.lock).context(),
                reason,
                source,
            }),
            (done, _) => done.map(drop),
        }
    }

    /// Returns the first lease, for its server.
    ///
    /// # Errors
    /// A lock is lost, this is a forked child, or the locks are from several `Locks`.
    fn on_one_server(&self, name: &'static str) -> Result<&Lease> {
        let Some(first) = self.leases.first() else {
            return Err(Error::invalid("locks", "the set is empty"));
        };
        // In a forked child the state of a lease may stay locked forever.
        first.stack.process.refuse_forked_child()?;
        self.check_for(name)?;
        // On a cluster the server checks the slots: a slot may have moved to another shard since
        // its first lock was acquired.
        let are_beside = (self.leases.iter()).all(|lease| lease.stack.is_sibling_of(&first.stack));
        let reason = "a transaction needs all locks of the set to be from one `Locks`";
        ensure(are_beside, "locks", reason)?;
        Ok(first)
    }

    fn proof(&self) -> Proof<'_> {
        Proof::of_all(self.leases.iter().map(|lease| lease.hold().proof()))
    }

    /// Sends a transaction, which counts as outstanding for each lock, and records the loss if the
    /// server reports one. `send` must not return an error of a caller's closure.
    fn send_checked<T>(
        &self,
        name: &'static str,
        mut send: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut done = self.send_tracked(&mut send);
        if let Err(error @ Error::Lost { .. }) = &done {
            self.find_the_lost(name, error);
            // No lock is lost, so a replica that is behind its master answered the read of the
            // proof.
            if self.check_for(name).is_ok() {
                done = self.send_tracked(send);
            }
        }
        match done {
            Err(error @ (Error::Lost { .. } | Error::WrongKind { .. })) => {
                self.find_the_lost(name, &error);
                self.check_for(name).and(Err(error))
            }
            done => done.map_err(in_one_slot),
        }
    }

    fn send_tracked<T>(&self, send: impl FnOnce() -> Result<T>) -> Result<T> {
        let outstanding = || {
            self.leases
                .iter()
                .map(|lease| lease.lease_state().outstanding())
        };
        outstanding().for_each(|mut it| it.commit_is_out());
        let done = send();
        if !matches!(done, Err(Error::Unknown { .. })) {
            outstanding().for_each(|mut it| it.commit_is_answered());
        }
        done
    }

    /// Asks the server about each lock that the error of a transaction may mean. Two locks may have
    /// the name that it gives, and a key of another type may be any lock's.
    fn find_the_lost(&self, name: &'static str, error: &Error) {
        let of_the_name = |lease: &&Lease| match error {
            Error::Lost { context, .. } => lease.name() == context.lock,
            _ => true,
        };
        for lease in self.leases.iter().filter(of_the_name) {
            let _ = lease.look_if_lost(name);
        }
    }
}

/// Sends the last commit of a set whose renewals are stopped.
fn send_last(
    leases: &[Lease],
    states: &[RenewalState],
    commit: &HeldCommit<'_>,
) -> Result<Vec<Value>> {
    let lost = leases
        .iter()
        .zip(states)
        .find_map(|(lease, state)| match state {
            RenewalState::Lost(reason) => Some((lease, *reason)),
            RenewalState::Held | RenewalState::Unknown => None,
        });
    if let Some((lease, reason)) = lost {
        let operation = lease.operation(RELEASING);
        return Err(lease.lease_state().lost_error(operation, Some(reason)));
    }
    let Some(first) = leases.first() else {
        return Ok(Vec::new());
    };
    let write = || first.on_pooled(|conn| commit.send(conn));
    let results = match write() {
        // Then a replica that is behind its master answered the read of the proof.
        Err(Error::Lost { .. }) if leases.iter().all(Lease::is_found_ours) => write(),
        results => results,
    };
    results.map(Result::unwrap_or_default)
}

/// Explains why a transaction fails on a cluster: its keys are in different slots.
fn in_one_slot(error: Error) -> Error {
    match &error {
        Error::Redis { source, .. } if source.code() == Some("CROSSSLOT") => {
            let reason = "a transaction on a cluster needs all locks and keys in one slot, by a \
                          {tag} in common";
            Error::invalid("locks", reason)
        }
        _ => error,
    }
}
