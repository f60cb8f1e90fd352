//! Reads and writes while one lock is held, or all locks of a set, in a transaction that watches
//! them. The server writes nothing once a hold has ended: the header of
//! `recipes/transaction/proof.rs` says how.
//!
//! [`commit`](super::commit) calls it with one lease, [`set_commit`](super::set_commit) with those
//! of a set. Runs on the holder's thread, and sends on a connection of the pool with no mutex
//! locked.
//!
//! A commit without a reply may be executed later. [`send_checked`](WatchedLocks::send_checked)
//! records it as [outstanding](crate::renewing::lease_state::Outstanding): the lock is then not
//! handed over, and its release changes the key that the commit watches.

use std::{borrow::Cow, mem, sync::Arc, time::Duration};

use redis::{Connection, Pipeline, Value};

use super::{
    lease::Lease,
    release::{GIVES_BACK_WITHIN, let_go_all},
    set::{Leases, names_of},
};
use crate::{
    error::{Error, Operation, Result, ensure},
    name::check_size,
    recipes::{CommitMark, Evidence, HeldCommit, LastRun, Proof, Transaction, WatchedConnection},
    renewing::{entry::Ask, lease_state::RenewalState},
    server::Patience,
    time::{Backoff, Deadline, lease_millis},
    wire::{count, is_interrupted},
};

/// A `MOVED` is followed for this long: two nodes that redirect to each other agree within it. A
/// command on a key of another slot gets `MOVED` forever.
const NODES_AGREE: Duration = Duration::from_millis(250);

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

/// The leases whose locks a transaction watches: one, or all of a set.
pub(super) struct WatchedLocks<'a> {
    leases: &'a [Lease],
    name: &'static str,
    /// The names of all locks, for errors that concern no single one.
    names: Cow<'a, str>,
}

impl<'a> WatchedLocks<'a> {
    pub(super) fn of(leases: &'a [Lease], name: &'static str) -> Self {
        let names = names_of(leases);
        Self {
            leases,
            name,
            names,
        }
    }

    fn operation(&self) -> Operation<'_> {
        Operation::new(self.name, &self.names)
    }

    /// Writes the pipeline that `build` fills. Returns the commit with its results.
    pub(super) fn commit(
        &self,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<(HeldCommit<'_>, Vec<Value>)> {
        self.operation().run(|operation| {
            self.check()?;
            let commit = HeldCommit::new(operation, self.proof(), build)?;
            let results = self.send(&commit)?.unwrap_or_default();
            Ok((commit, results))
        })
    }

    /// Writes the pipeline and the mark, which is that of the first lock.
    pub(super) fn commit_once(
        &self,
        operation_id: &str,
        remember: Duration,
        build: impl FnOnce(&mut Pipeline),
    ) -> Result<Committed> {
        self.operation().run(|operation| {
            let hold = self.check()?.hold();
            check_size("operation_id", operation_id)?;
            let mark = CommitMark {
                key: hold.lock.mark(operation_id),
                millis: lease_millis("remember", remember)?,
                by: hold.owner.clone(),
            };
            let commit = HeldCommit::new(operation, self.proof(), build)?.once(mark);
            let sent = self.send(&commit)?;
            Ok(sent.map_or_else(Committed::Before, |_| Committed::Now))
        })
    }

    /// Reads, decides and writes. The inner error is that of the closure.
    pub(super) fn transaction<T>(
        &self,
        keys: &[&str],
        mut attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
    ) -> Result<Result<T>> {
        self.operation().run(|operation| {
            let first = self.check()?;
            let proof = self.proof();
            let transaction = Transaction::while_held(operation, keys, &proof);
            let mut run = |conn: &mut Connection| transaction.run(conn, &mut attempt);
            let attempted = self.send_checked(|| first.on_pooled(&mut run))?;
            Ok(operation.run(|_| attempted.map(|(value, _)| value)))
        })
    }

    /// Returns the first lease, for its server. Call it before building or sending anything.
    ///
    /// # Errors
    /// A lock is lost, this is a forked child, or the locks are from several `Locks`.
    fn check(&self) -> Result<&'a Lease> {
        let Some(first) = self.leases.first() else {
            return Err(Error::invalid("locks", "the set is empty"));
        };
        // In a forked child the state of a lease may stay locked forever.
        first.stack.process.refuse_forked_child()?;
        self.check_held()?;
        // On a cluster the server checks the slots: a slot may have moved to another shard since
        // its first lock was acquired.
        let are_beside = (self.leases.iter()).all(|lease| lease.stack.is_sibling_of(&first.stack));
        let reason = "a transaction needs all locks of the set to be from one `Locks`";
        ensure(are_beside, "locks", reason)?;
        Ok(first)
    }

    fn check_held(&self) -> Result<()> {
        (self.leases.iter()).try_for_each(|lease| lease.check_for(self.name))
    }

    fn proof(&self) -> Proof<'a> {
        Proof::of_all(self.leases.iter().map(|lease| lease.hold().proof()))
    }

    /// Sends a commit. The inner error: its mark already exists.
    fn send(&self, commit: &HeldCommit<'_>) -> Result<Result<Vec<Value>, LastRun>> {
        // The caller's closure may have forked the process.
        let first = self.check()?;
        self.send_checked(|| first.on_pooled(|conn| commit.send(conn)))
    }

    /// Sends a transaction to the server that has the locks, and records the loss if the server
    /// reports one. `send` must not return an error of a caller's closure.
    fn send_checked<T>(&self, mut send: impl FnMut() -> Result<T>) -> Result<T> {
        let mut is_repeated = false;
        loop {
            let done = self.send_tracked(&mut send);
            if let Err(Error::Pool { .. }) = &done {
                // Nothing was sent. A loss that was detected meanwhile takes precedence.
                self.check_held()?;
            }
            let Err(error @ (Error::Lost { .. } | Error::WrongKind { .. })) = &done else {
                return done;
            };
            let are_ours = self.look_for_the_lost(error, is_repeated);
            self.check_held()?;
            // If every lock is ours, a replica that is behind its master answered the read of the
            // proof: the transaction is repeated once.
            if is_repeated || !are_ours || !error.is_lost() {
                return done;
            }
            is_repeated = true;
        }
    }

    /// Sends a transaction, which counts as outstanding for each lock until it has a reply.
    fn send_tracked<T>(&self, send: impl FnOnce() -> Result<T>) -> Result<T> {
        let outstanding = || (self.leases.iter()).map(|lease| lease.lease_state().outstanding());
        // If `send` panics, the commit stays outstanding.
        outstanding().for_each(|mut it| it.commit_is_out());
        let done = send();
        if !matches!(done, Err(Error::Unknown { .. })) {
            outstanding().for_each(|mut it| it.commit_is_answered());
        }
        done
    }

    /// Asks the server about each lock that the error of a transaction may mean, and records a
    /// loss. Returns true if all are ours. The error may mean several: two locks may have the name
    /// that it gives, and a `WrongKind` names none. If a repeated transaction reports the loss
    /// again, its lease is lost, whatever the reply to the question: a call must not return `Lost`
    /// for a lease that stays held.
    fn look_for_the_lost(&self, error: &Error, is_repeated: bool) -> bool {
        let name = self.name;
        let lost_name = match error {
            Error::Lost { context, .. } => Some(&*context.lock),
            _ => None,
        };
        let is_meant = |lease: &&Lease| lost_name.is_none_or(|lost| lost == lease.name());
        let meant: Vec<_> = self.leases.iter().filter(is_meant).collect();
        let is_ours = |lease: &&&Lease| lease.ask(name, Ask::Look).is_ok();
        let are_ours = meant.iter().filter(is_ours).count() == meant.len();
        let counts = is_repeated || !are_ours;
        if let ([lost], Some(_), true) = (&*meant, lost_name, counts) {
            // The transaction has reported the loss, so it counts even if the question got no
            // reply.
            lost.not_ours(name, None);
        }
        are_ours
    }
}

/// Writes, and releases all locks in the same transaction. They are released in any case.
pub(super) fn commit_and_release(
    mut set: Leases,
    name: &'static str,
    build: impl FnOnce(&mut Pipeline),
) -> Result<()> {
    let holds = set.leases.iter().map(|lease| Arc::clone(lease.hold()));
    let holds: Vec<_> = holds.collect();
    let names = names_of(&set.leases).into_owned();
    Operation::new(name, &names).run(|operation| {
        let answer = WatchedLocks::of(&set.leases, name)
            .check()?
            .longest_answer();
        let releases = holds.iter().map(|hold| hold.giving_back_while_watched());
        let proof = Proof::of_all(holds.iter().map(|hold| hold.proof()));
        let commit = HeldCommit::new(operation, proof, build)?.releasing(releases.collect());
        // The caller's closure may have forked the process.
        set.refuse_forked_child()?;
        let answer_by = Deadline::after(answer);
        let mut leases = mem::take(&mut set.leases);
        // A renewal would change a key that the transaction watches.
        let never = Deadline::after(Duration::MAX);
        let states = leases.iter_mut().map(|lease| lease.stop_renewing(never));
        let states: Vec<RenewalState> = states.collect();
        let done = send_last(&leases, &states, &commit);
        let ends = end_all(&mut leases, states, &commit, &done, answer_by);
        let is_lost = |end: Result<()>| end.err().filter(Error::is_lost);
        match (done, ends.into_iter().find_map(is_lost)) {
            // The end of the hold has the reason of the loss. The commit's error has none, or is a
            // `WrongKind`, whose key may be a lock's.
            (Err(Error::Lost { .. } | Error::WrongKind { .. }), Some(lost)) => Err(lost),
            (done, _) => done.map(drop),
        }
    })
}

/// Sends the last commit of leases whose renewals are stopped.
fn send_last(
    leases: &[Lease],
    states: &[RenewalState],
    commit: &HeldCommit<'_>,
) -> Result<Vec<Value>> {
    for (lease, state) in leases.iter().zip(states) {
        if let RenewalState::Lost(reason) = state {
            let operation = lease.operation(commit.operation.name);
            return Err(lease.lease_state().lost_error(operation, Some(*reason)));
        }
    }
    let Some(first) = leases.first() else {
        return Ok(Vec::new());
    };
    let write = || first.on_pooled(|conn| commit.send(conn));
    let results = match write() {
        // All locks are ours, so a replica that is behind its master answered the read of the
        // proof.
        Err(Error::Lost { .. }) if leases.iter().all(Lease::is_found_ours) => write(),
        results => results,
    };
    results.map(Result::unwrap_or_default)
}

/// Ends the holds after their last commit, and releases the locks that the commit has not released.
fn end_all(
    leases: &mut [Lease],
    states: Vec<RenewalState>,
    commit: &HeldCommit<'_>,
    done: &Result<Vec<Value>>,
    answer_by: Deadline,
) -> Vec<Result<()>> {
    let was_released = match done {
        Ok(results) => {
            let levels = results.iter().skip(commit.writes.len());
            for (lease, levels) in leases.iter().zip(levels) {
                lease.note_released(count(levels).unwrap_or(0));
            }
            Ok(true)
        }
        // The watchdog's thread waits for a server that has just been silent.
        Err(error) if error.is_silence() => Err(error.clone()),
        // The only lock is lost, so there is none to release.
        Err(Error::Lost { .. }) if leases.len() == 1 => Ok(false),
        Err(_) => {
            let left = answer_by.remaining().max(GIVES_BACK_WITHIN);
            return let_go_all(leases, commit.operation.name, Deadline::after(left));
        }
    };
    let ends = leases.iter_mut().zip(states);
    let settle = |(lease, state): (&mut Lease, _)| {
        lease.settle(commit.operation.name, was_released.clone(), state)
    };
    ends.map(settle).collect()
}

impl Lease {
    fn longest_answer(&self) -> Duration {
        self.stack.server.limits().answer
    }

    /// Asks the server whether the lock is ours. May be called after the renewals were stopped.
    fn is_found_ours(&self) -> bool {
        let look = Ask::Look.of(self.hold());
        let asked = self.stack.server.ask(&look, Patience::USUAL);
        let evidence = asked.map(|asked| Evidence::of(asked.write_result()));
        matches!(evidence, Ok(Evidence::Ours(_)))
    }

    /// Sends on a connection of the pool. Sends on a second one if the first was closed before
    /// anything was written, such as by a restart of the server. If the lock has moved to another
    /// server, or is moving, retries after a pause, for one I/O time-out.
    fn on_pooled<T>(&self, mut send: impl FnMut(&mut Connection) -> Result<T>) -> Result<T> {
        let server = &self.stack.server;
        let slot_moves_until = Deadline::after(self.longest_answer());
        let nodes_agree = NODES_AGREE.min(self.longest_answer());
        // Counts from the first `MOVED` in a row. Any error before it may mean that the slot was
        // moving.
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
