//! Runs work under a lock: on every call, or once per period across all hosts.
//!
//! A run of `run_once` leaves a [mark](crate::recipes::LastRun) in a key of the lock. The script
//! that acquires checks the mark first, and the script that releases writes it, so the lock is
//! never free while a finished run is unmarked.

use std::time::Duration;

use super::{lease::Lease, lock::Lock};
use crate::{
    error::{Error, Operation, Result, ensure, is_unconfirmed, no_answer},
    ran::Ran,
    recipes::{Evidence, LastRun, LockKind, last_run, read_mark},
    renewing::lease_state::RenewalState,
    server::{Patience, RenewalError},
    time::{Backoff, Deadline, period_millis},
    wire::Call,
};

const RUN_ONCE: &str = "Lock::run_once";

/// The result of [`Lock::run_once`].
#[derive(Debug)]
#[must_use = "it tells whether the work was done and marked as done"]
#[non_exhaustive]
pub enum Once<T, E> {
    /// The work was already done within the period, by this run. It was not done again.
    AlreadyRun(LastRun),
    /// The work was done now. [`released`](Ran::released) is the result of marking it:
    ///
    /// - `Ok`: the work is marked, and the lock is free.
    /// - [`Error::Unknown`]: the work may be marked.
    /// - [`Error::Lost`]: the work is not marked, and another host may have started it meanwhile.
    /// - Any other error: the work is not marked, so the next run does it again.
    Ran(Ran<T>),
    /// The work failed with the error in [`value`](Ran::value). It is not marked, so the next run
    /// tries again. [`released`](Ran::released) is as after [`Lock::run`].
    Failed(Ran<E>),
}

impl<T, E: From<Error>> Once<T, E> {
    /// Converts this to a `Result`. `Ok(Some(value))`: the work was done now and is marked.
    /// `Ok(None)`: it was already done within the period.
    ///
    /// # Errors
    /// The error of the work, or that of the mark. The latter drops the value: to keep it, match
    /// [`Ran`](Once::Ran).
    pub fn done(self) -> Result<Option<T>, E> {
        match self {
            Self::AlreadyRun(_) => Ok(None),
            Self::Ran(ran) => ran.released.map(|()| Some(ran.value)).map_err(E::from),
            Self::Failed(failed) => Err(failed.value),
        }
    }
}

impl Lock {
    /// Runs a closure while the lock is held, and releases the lock on return and on panic.
    ///
    /// Waits as [`acquire`](Self::acquire) does. A loss of the lease does not stop the closure,
    /// which can check the lease.
    ///
    /// `Err` means that the closure has **not** run. If it has run, the result is [`Ran`] with its
    /// value, whatever happened to the lock meanwhile or afterwards.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # fn count_pages() -> u64 { 0 }
    /// # fn report(pages: u64) {}
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let ran = locks
    ///     .lock("report:daily")
    ///     .run(Duration::from_secs(30), |_lease| count_pages())?;
    /// report(ran.value); // it has run, once
    /// if let Err(error) = ran.released {
    ///     eprintln!("after the report: {error}"); // lost meanwhile, or maybe not free yet
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn run<T>(&self, timeout: Duration, run: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let lease = self.acquire(timeout)?;
        let value = run(&lease);
        let released = lease.release();
        Ok(Ran { value, released })
    }

    /// Runs a closure while the lock is held, unless a host has already run it within the period.
    ///
    /// Use it for a job that every host starts each night but only one should do.
    ///
    /// Waits as [`acquire`](Self::acquire) does. If another run ends successfully during the wait,
    /// the closure does not run. If the closure returns `Ok` and the lock was held until then, the
    /// release writes a mark in the same step. An `Err`, a panic or a loss leaves no mark, so the
    /// next call tries again. The period counts from the end of the last run by the server's clock,
    /// so the clocks of the hosts do not matter.
    ///
    /// For the cron line `0 3 * * *`:
    /// - **Use a period of 20 h, not 24 h.** If a run ends at 03:10, less than 24 h have passed by
    ///   03:00 of the next night, which would have no run.
    /// - **Use a `timeout` longer than the job plus a lease**, such as an hour. If the job fails on
    ///   the host that has the lock, the others still wait and one of them does it. If that host
    ///   dies, they get the lock when its lease ends. With a short timeout they have all left by
    ///   then.
    ///
    /// `Err` means that the closure has **not** run, as with [`run`](Self::run). A loss of the
    /// lease does not stop the closure, which can check the lease.
    ///
    /// Two round trips for a run on a free lock, one if the work is already done. Only for a
    /// [mutex](crate::Locks::lock). If the mark gets no reply, it is sent again until the lease
    /// ends. If the server loses its data, or evicts keys, the mark is lost too and the work is
    /// done again: make sure that this is safe.
    ///
    /// The mark is stored at `{lock:NAME}:lease:ran` for 32 days, whatever the period: the next
    /// caller may use a longer one, up to 31 days. So give a job one name, not a new one for each
    /// run. For a name per item, [`commit_once`](Lease::commit_once) keeps shorter marks.
    ///
    /// # Errors
    /// - [`Error::Contended`]: someone else held the lock for the whole wait, and is probably doing
    ///   the work.
    /// - [`Error::Invalid`]: the period is not between 1 ms and 31 days, or the lock is not a
    ///   mutex. Nothing was sent.
    /// - [`Error::WrongKind`]: the key of the lock or of the mark holds something else. The error
    ///   names that key.
    /// - All others as [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// [Once a night](crate::docs::guide#once-a-night) explains the two times.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, Once};
    ///
    /// # fn write_report(lease: &leasehold::Lease) -> anyhow::Result<u64> { Ok(0) }
    /// let (period, wait) = (Duration::from_secs(20 * 3_600), Duration::from_secs(3_600));
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// match locks.lock("report:daily").run_once(period, wait, write_report)? {
    ///     Once::AlreadyRun(run) => println!("{:?} wrote it {:?} ago", run.by(), run.ago()),
    ///     done => println!("{:?} pages", done.done()?),
    /// }
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    pub fn run_once<T, E>(
        &self,
        period: Duration,
        timeout: Duration,
        run: impl FnOnce(&Lease) -> Result<T, E>,
    ) -> Result<Once<T, E>> {
        let operation = Operation::new(RUN_ONCE, self.name());
        let is_mutex = self.kind == LockKind::Mutex;
        let reason = "run_once needs a mutex, from Locks::lock";
        let hold = ensure(is_mutex, "lock", reason)
            .and_then(|()| period_millis(period))
            .and_then(|period| Ok(self.hold()?.unless_run(period)));
        let part = self.alone();
        let wait = || hold.and_then(|hold| self.begin(hold, operation, timeout, &part));
        let lease = match self.acquire_hold(operation, wait)? {
            Ok(lease) => lease,
            Err(run) => return Ok(Once::AlreadyRun(run)),
        };
        Ok(match run(&lease) {
            Ok(value) => Once::Ran(Ran {
                value,
                released: lease.finish(),
            }),
            Err(value) => Once::Failed(Ran {
                value,
                released: lease.release(),
            }),
        })
    }

    /// Returns the last run of [`run_once`](Self::run_once) on this lock. `None`: it has not run,
    /// or not in the last 32 days.
    ///
    /// One round trip; changes nothing.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    pub fn last_run(&self) -> Result<Option<LastRun>> {
        Operation::new("Lock::last_run", self.name()).run(|operation| {
            let lock = self.lock_name()?;
            let answer = self.ask(&lock, last_run)?;
            answer
                .and_then(|answer| read_mark(&answer))
                .map_err(|error| operation.failed(error))
        })
    }
}

impl Lease {
    /// Marks the work as done and releases the lock, in one step. Does not hand the lock over,
    /// since the next holder must see the mark.
    fn finish(mut self) -> Result<()> {
        self.stack.process.refuse_forked_child()?;
        // Zero for a lost lease, which returns `Lost` even if no connection is available.
        let deadline = self.stack.clock.after(self.remaining());
        let state = self.stop_renewing(Deadline::after(Duration::MAX));
        let finished = match (self.hold().finishing(), state) {
            (Some(call), RenewalState::Held | RenewalState::Unknown) => {
                self.send_until(&call, deadline)
            }
            _ => self.send_release(deadline),
        };
        if matches!(finished, Err(Error::WrongKind { .. })) {
            // The key of the mark holds something else. The lock is still ours.
            let was_released = self.send_release(deadline);
            let _ = self.settle(RUN_ONCE, was_released, state);
            return finished.map(drop);
        }
        self.settle(RUN_ONCE, finished, state)
    }

    /// Repeats the call until a conclusive reply or the deadline. Returns false if the lock was no
    /// longer ours.
    fn send_until(&self, call: &Call, deadline: Deadline) -> Result<bool> {
        let operation = self.operation(RUN_ONCE);
        let mut pauses = Backoff::new();
        let (mut unknown, mut refused) = (None, None);
        loop {
            let failure = match self.stack.server.ask(call, Patience::until(deadline)) {
                Err(unsent) => RenewalError::Unsent(unsent),
                Ok(reply) => {
                    let again = reply.again;
                    match Evidence::of(reply.write_result()) {
                        Evidence::Ours(_) => return Ok(true),
                        Evidence::NotOurs => return Ok(false),
                        // An earlier call may have marked the run and released the lock.
                        Evidence::AnotherKind(_) if again || unknown.is_some() => {
                            let unanswered = || operation.unknown(None, no_answer());
                            return Err(unknown.unwrap_or_else(unanswered));
                        }
                        Evidence::AnotherKind(found) => {
                            self.failed(RenewalError::Sent(found));
                            return Ok(false);
                        }
                        Evidence::NotKnown(error) => RenewalError::Sent(error),
                    }
                }
            };
            let error = match &failure {
                // A failover may lose the mark. The next attempt waits for the replicas again.
                RenewalError::Sent(error) if is_unconfirmed(error) => {
                    operation.unknown(None, error.clone())
                }
                failure => failure.error(operation),
            };
            self.failed(failure);
            if let Error::Redis { source, .. } = &error {
                refused = Some(source.clone());
            }
            let is_unknown = matches!(error, Error::Unknown { .. });
            let goes_on = is_unknown || matches!(error, Error::Pool { .. }) || error.may_pass();
            if is_unknown {
                unknown = Some(error.clone());
            }
            if !goes_on || !pauses.pause(deadline) {
                return Err(match (unknown, refused) {
                    // The deadline cuts the last attempt short, so the refusal before it says more.
                    (Some(_), Some(refusal)) => operation.unknown(None, refusal),
                    (Some(unknown), None) => unknown,
                    (None, _) => error,
                });
            }
        }
    }
}
