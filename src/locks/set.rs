//! `LockSet`, which acquires several locks, all or none, and its guard `Leases`.
//!
//! A set sends the first attempts for its locks together, in one write to each server, up to the
//! first lock that must wait in its queue or for replicas, and judges the replies in the order of
//! the keys. If a lock is not free, the set releases the locks that were granted behind it, waits
//! for it, and then asks for the rest together again. So a set that waits holds only locks with
//! smaller keys than the one it waits for, and sets cannot deadlock: the holder of the greatest key
//! that any set waits for does not wait itself. The leases that are already held renew themselves
//! meanwhile, and the loss of one ends the wait. If a lock is not acquired, [`let_go_all`] releases
//! the others, as it does when the guard is released or dropped.

use std::{borrow::Cow, mem, slice, sync::Arc, time::Duration};

use super::{
    acquire::{Wait, ask_together_first},
    lease::Lease,
    lock::Lock,
    release::{ask_together, let_go_all},
    set_wait::SetWait,
    stack::Stack,
};
use crate::{
    error::{Error, Operation, Result},
    options::Options,
    renewing::{entry::Ask, signal::LostSignal},
    server::{Patience, Reply},
    time::Deadline,
    token::FencingToken,
    wire::Call,
};

const RELEASE: &str = "Leases::release";

/// Several locks of any kind, which any thread can acquire together.
///
/// [`Locks::all_of`](crate::Locks::all_of) makes a set of mutexes, [`of`](Self::of) one of any
/// locks. Creating it sends nothing. An invalid set is an error on first use.
///
/// # Guarantees
/// - All locks are held, or none.
/// - Threads that acquire locks only through sets, one set at a time, never deadlock.
///
/// It does not guarantee an order among sets and single acquires of the same lock: a set waits for
/// one busy lock after the other, so it may wait longer than others.
#[derive(Clone, Debug)]
#[must_use]
pub struct LockSet {
    /// In the order of their keys.
    locks: Vec<Lock>,
}

impl LockSet {
    /// Creates a set of these locks, given in any order.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{LockSet, Locks};
    ///
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let set = LockSet::of([locks.lock("order:4711"), locks.read("prices")]);
    /// let leases = set.acquire(Duration::from_secs(30))?;
    /// leases.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn of(locks: impl IntoIterator<Item = Lock>) -> Self {
        let mut locks: Vec<Lock> = locks.into_iter().collect();
        locks.sort_by_key(Lock::key);
        Self { locks }
    }

    /// Returns this set with these options for each of its locks. Options that are not set keep
    /// their values. `self` does not change.
    #[allow(clippy::needless_pass_by_value, reason = "as for Lock::with")]
    pub fn with(&self, options: Options) -> Self {
        // A prefix may change the order.
        Self::of(self.locks.iter().map(|lock| lock.with(options.clone())))
    }

    /// Acquires all locks, in the order of their keys, waiting up to `timeout` in all.
    ///
    /// One round trip if all are free; on a cluster one to each shard, all at once. If a lock is
    /// not free, the set releases those that were granted behind it, in one more round trip, and
    /// waits for it as [`Lock::acquire`] does; then it asks for the rest together. The locks that
    /// are already held renew themselves meanwhile. A lock with [`Options::replicas`] is asked for
    /// alone. Once `timeout` has passed, no other lock is asked for, even if it is free, and the
    /// result is [`Error::Contended`] for the next one. With a zero `timeout` each lock is asked
    /// for once.
    ///
    /// If one is not acquired, or one that is held is lost, the wait ends, and the others are
    /// released before the call returns, in one round trip. If the server is silent, the call
    /// returns one I/O time-out after `timeout` or the cancel, and the watchdog's thread releases
    /// the rest as soon as the server answers.
    ///
    /// # Errors
    /// - As [`Lock::acquire`]. The error names the lock that was not acquired.
    /// - [`Error::Invalid`]: the set is empty, two of its locks have the same key, or a name or an
    ///   option is invalid. Nothing was sent.
    /// - [`Error::Lost`]: a lock was lost while the set waited for another, and the error names the
    ///   lost one. The wait ended at once. No lock is held.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let set = locks.all_of(["account:4711", "account:4712"]);
    /// let leases = set.acquire(Duration::from_secs(30))?;
    /// // move the money
    /// leases.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "lock")]
    pub fn acquire(&self, timeout: Duration) -> Result<Leases> {
        self.acquire_as("LockSet::acquire", timeout)
    }

    /// Acquires all locks if all are free. `Ok(None)`: someone else holds one of them.
    ///
    /// One round trip, and one more to release the free locks if another was not free. On a cluster
    /// two sets of the same locks, tried at the same moment, may both get `None`: each shard
    /// answers by itself.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), except `Contended`.
    ///
    /// # Examples
    /// ```no_run
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// if let Some(leases) = locks.all_of(["account:4711", "account:4712"]).try_acquire()? {
    ///     leases.release()?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> Result<Option<Leases>> {
        match self.acquire_as("LockSet::try_acquire", Duration::ZERO) {
            Err(Error::Contended { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Returns the lock with the smallest key.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the set is empty, or two of its locks have the same key.
    fn first(&self) -> Result<&Lock> {
        let is_twice = |pair: &[Lock]| pair[0].key() == pair[1].key();
        if let Some(pair) = self.locks.windows(2).find(|pair| is_twice(pair)) {
            let reason = format!("`{}` appears twice", pair[0].name());
            return Err(Error::invalid("locks", reason));
        }
        let empty = || Error::invalid("locks", "the set is empty");
        self.locks.first().ok_or_else(empty)
    }

    fn acquire_as(&self, name: &'static str, timeout: Duration) -> Result<Leases> {
        let names: Vec<&str> = self.locks.iter().map(Lock::name).collect();
        let first = Operation::new(name, &names.join(", ")).run(|_| self.first())?;
        let operation = |lock| Operation::new(name, Lock::name(lock));
        (self.locks.iter()).try_for_each(|lock| operation(lock).run(|_| lock.check()))?;
        let (since, deadline) = first.now_and_after(timeout);
        let mut held = Leases {
            leases: Vec::with_capacity(self.locks.len()),
        };
        let handles = Arc::default();
        while let Some(rest @ [next, ..]) = self.locks.get(held.leases.len()..) {
            // An attempt may wait for one I/O time-out, so none begins after the time limit.
            let mut part = SetWait::new(Some(&handles), since);
            part.is_over = !timeout.is_zero() && !held.leases.is_empty() && deadline.has_passed();
            let granted = held.extend(name, rest, deadline, &part);
            // A lock may have been lost just before the last one was granted.
            let is_last = held.leases.len() == self.locks.len();
            let checked = match granted {
                Ok(()) if is_last => held.check_for(name),
                granted => granted,
            };
            if let Err(error) = checked {
                held.let_go(part.releases_by(deadline, next.longest_answer()));
                return Err(error);
            }
        }
        Ok(held)
    }
}

/// The guard of the held locks of a [`LockSet`], until they are released or dropped. It is `Send`.
///
/// Dropping it releases all in one round trip, as the drop of a [`Lease`] does, within the longest
/// [`Options::drop_timeout`] of its locks.
#[derive(Debug)]
#[must_use = "dropping it releases the locks at once"]
#[doc(alias = "guard")]
pub struct Leases {
    pub(super) leases: Vec<Lease>,
}

impl Leases {
    /// Acquires one or more of these locks, in order. Asks for them in one write, up to the first
    /// that must wait in its queue or for replicas. At the first that is not free, releases those
    /// that were granted behind it, in one write, and then waits for it.
    ///
    /// # Errors
    /// The reason why a lock was not acquired. Those that were granted behind it are held, to be
    /// released with the others.
    fn extend(
        &mut self,
        name: &'static str,
        locks: &[Lock],
        deadline: Deadline,
        part: &SetWait<'_>,
    ) -> Result<()> {
        let operation = |lock| Operation::new(name, Lock::name(lock));
        let timeout = deadline.remaining();
        let mut waits = Vec::new();
        for lock in locks {
            let hold = lock.hold();
            waits.push(hold.and_then(|hold| lock.begin(hold, operation(lock), timeout, part)));
            if !waits
                .last()
                .is_some_and(|wait| wait.as_ref().is_ok_and(Wait::asks_at_once))
            {
                break;
            }
        }
        let at_once = waits
            .iter_mut()
            .flatten()
            .filter(|wait| wait.asks_at_once());
        let mut at_once: Vec<_> = at_once.collect();
        if at_once.len() > 1 {
            ask_together_first(&mut at_once);
        }
        let mut waits = waits.into_iter();
        for lock in locks {
            let Some(wait) = waits.next() else {
                break;
            };
            if !wait.as_ref().is_ok_and(Wait::is_granted) {
                let behind = waits.by_ref().flatten();
                let mut behind: Vec<_> = behind.filter_map(Wait::declined).collect();
                let by = part.releases_by(deadline, lock.longest_answer());
                let_go_all(&mut behind, name, by);
            }
            let waited = lock.acquire_hold(operation(lock), || wait);
            match lock.or_contended(operation(lock), waited) {
                Ok(lease) => {
                    part.now_holds(lease.handle.clone());
                    self.leases.push(lease);
                }
                Err(error) => {
                    self.leases
                        .extend(waits.flatten().filter_map(Wait::declined));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the leases in the order of their keys. The length of the iterator is their number.
    pub fn iter(&self) -> slice::Iter<'_, Lease> {
        self.leases.iter()
    }

    /// Returns the lease of the lock with this name or key.
    ///
    /// `None`: the set has no such lock, or several of this name with different
    /// [prefixes](Options::prefix). Then use the key: the prefix and the name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Lease> {
        let mut named = self.leases.iter().filter(|lease| lease.name() == name);
        match (named.next(), named.next()) {
            (Some(lease), None) => Some(lease),
            _ => (self.leases.iter()).find(|lease| lease.hold().lock.key() == name),
        }
    }

    /// Returns the [fencing token](Lease::fencing_token) of the lock with this name or key. `None`:
    /// it has none, or [`get`](Self::get) does not find the lock.
    #[must_use]
    pub fn fencing_token(&self, name: &str) -> Option<FencingToken> {
        self.get(name)?.fencing_token()
    }

    /// Returns true while all locks are held. Sends nothing.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.leases.iter().all(Lease::is_held)
    }

    /// Returns the time left of the lease that ends first, by our clock; zero once one is lost.
    #[must_use]
    #[doc(alias = "ttl")]
    pub fn remaining(&self) -> Duration {
        let remaining = self.leases.iter().map(Lease::remaining);
        remaining.min().unwrap_or_default()
    }

    /// Returns [`is_held`](Self::is_held) as a `Result`, for `?`. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Lost`]: a lock was lost. Names the first one, with the reason.
    pub fn check(&self) -> Result<()> {
        self.check_for("Leases::check")
    }

    pub(super) fn check_for(&self, name: &'static str) -> Result<()> {
        (self.leases.iter()).try_for_each(|lease| lease.check_for(name))
    }

    /// Returns a signal that is raised as soon as any of the locks is lost.
    #[must_use]
    #[doc(alias = "on_lost")]
    pub fn lost(&self) -> LostSignal {
        LostSignal::of_any(self.leases.iter().map(|lease| lease.handle.clone()))
    }

    /// Asks the server whether all locks are still ours.
    ///
    /// One round trip; on a cluster one to each shard, all at once.
    ///
    /// # Errors
    /// As [`Lease::verify`], for the first lock that is not ours or about which no answer came.
    pub fn verify(&self) -> Result<()> {
        self.ask_all("Leases::verify", |_| Ok(Ask::Look))
    }

    /// Extends all leases to end this long from now, 1 ms to 24 h, as [`Lease::renew`] does.
    ///
    /// One round trip, as [`verify`](Self::verify); one for each lock if one of them has
    /// [`Options::replicas`].
    ///
    /// # Errors
    /// As [`Lease::renew`], for the first lease that was not extended. The others were.
    #[doc(alias = "extend")]
    #[doc(alias = "refresh")]
    pub fn renew(&self, lease: Duration) -> Result<()> {
        self.ask_all("Leases::renew", |it| it.extension(lease))
    }

    /// Asks about all locks in one write to each server, unless a renewal waits for replicas.
    fn ask_all(&self, name: &'static str, ask: impl FnMut(&Lease) -> Result<Ask>) -> Result<()> {
        self.run(name, || {
            self.refuse_forked_child()?;
            self.check_for(name)?;
            let asks: Vec<Ask> = self.leases.iter().map(ask).collect::<Result<_>>()?;
            let of_each = || self.leases.iter().zip(&asks);
            let call =
                |(lease, ask): (&Lease, &Ask)| (Arc::clone(&lease.stack), ask.of(lease.hold()));
            let calls: Vec<_> = of_each().map(call).collect();
            let waits =
                |(lease, ask): (&Lease, &Ask)| ask.is_renewal() && lease.hold().replicas.is_some();
            let replies: Vec<Result<Reply>> = if of_each().any(waits) {
                let alone = |(stack, call): &(Arc<Stack<Lease>>, Call)| {
                    stack.server.ask(call, Patience::USUAL)
                };
                calls.iter().map(alone).collect()
            } else {
                ask_together(&calls, Patience::USUAL).collect()
            };
            // Every reply is judged, even after one that reports a loss.
            let mut judged = Ok(());
            for ((lease, ask), reply) in of_each().zip(replies) {
                let sent = lease.judge(name, *ask, reply);
                let confirmed = sent.and_then(|sent| lease.confirmed(name, *ask, sent));
                judged = judged.and(confirmed);
            }
            judged
        })
    }

    /// Releases all locks, in one round trip; on a cluster in one for each shard, all at once.
    ///
    /// A release that fails does not prevent the others.
    ///
    /// # Errors
    /// - [`Error::Lost`]: names all locks that were lost earlier, and the reason of the first. The
    ///   others were released, or are being released.
    /// - All others as [`Lease::release`], for the first lock whose release failed.
    ///
    /// # Examples
    /// ```no_run
    /// # let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// if let Some(leases) = locks.all_of(["account:1", "account:2"]).try_acquire()? {
    ///     leases.release()?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "unlock")]
    pub fn release(mut self) -> Result<()> {
        self.run(RELEASE, || self.refuse_forked_child())?;
        let (mut lost, mut failed) = (Vec::new(), Ok(()));
        for (name, released) in self.let_go(Deadline::after(Duration::MAX)) {
            match released {
                Err(Error::Lost { reason, source, .. }) => lost.push((name, reason, source)),
                released => failed = failed.and(released),
            }
        }
        let Some((_, reason, source)) = lost.first() else {
            return failed;
        };
        let names: Vec<&str> = lost.iter().map(|(name, ..)| &**name).collect();
        Err(Error::Lost {
            context: Operation::new(RELEASE, &names.join(", ")).context(),
            reason: *reason,
            source: source.clone(),
        })
    }

    /// Runs a function of the whole set. An error that concerns no single lock names all of them.
    fn run<T>(&self, name: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        run().map_err(|error| Operation::new(name, &names_of(&self.leases)).named(error))
    }

    pub(super) fn refuse_forked_child(&self) -> Result<()> {
        let of_this_process = |lease: &Lease| lease.stack.process.refuse_forked_child();
        self.leases.iter().try_for_each(of_this_process)
    }

    /// Releases all locks by the deadline, or leaves them to the watchdog's thread. Returns the
    /// results with the names. Must not be called in a forked child.
    fn let_go(&mut self, by: Deadline) -> Vec<(String, Result<()>)> {
        let mut leases = mem::take(&mut self.leases);
        let released = let_go_all(&mut leases, RELEASE, by);
        let names = leases.iter().map(|lease| lease.name().to_owned());
        names.zip(released).collect()
    }
}

/// The names of all locks of a set, for the context of an error: `a, b`.
pub(super) fn names_of(leases: &[Lease]) -> Cow<'_, str> {
    if let [lease] = leases {
        return Cow::Borrowed(lease.name());
    }
    let names: Vec<&str> = leases.iter().map(Lease::name).collect();
    Cow::Owned(names.join(", "))
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        if !self.leases.iter().any(Lease::is_forked_child) {
            let longest = self.leases.iter().map(|lease| lease.drop_timeout).max();
            self.let_go(Deadline::after(longest.unwrap_or_default()));
        }
    }
}
