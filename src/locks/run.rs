//! Work that is done while a lock is held, each time or once in a period on whichever host.
//!
//! A run that is done once in a period leaves a [mark](crate::recipes::once) beside the lock. The
//! script that acquires looks at it first, and the script that releases writes it, so that nobody
//! finds the lock free and the run unmarked.

use std::time::Duration;

use super::{lease::Lease, lock::Lock};
use crate::{
    error::{Error, Operation, Result, ensure, is_unconfirmed},
    recipes::{
        hold::LockKind,
        once::{LastRun, last_run, understood},
        ran::Ran,
    },
    renewing::lease_state::RenewalState,
    server::Patience,
    time::{Backoff, Deadline, period_millis},
    wire::{Call, yes_or_no},
};

const RUN_ONCE: &str = "Lock::run_once";

/// The result of work that is to be done once in a period. See [`Lock::run_once`].
#[derive(Debug)]
#[must_use = "it says whether the work was done, and whether that is known to all"]
#[non_exhaustive]
pub enum Once<T, E> {
    /// It has been done within the period, by whom this says, and was not done again.
    AlreadyRun(LastRun),
    /// It was done, and [`released`](Ran::released) says whether that is marked, so that nobody
    /// does it again:
    ///
    /// - `Ok`: it is, and the lock is free.
    /// - [`Error::Unknown`]: it may be.
    /// - [`Error::Lost`]: it is not, and somebody else may have begun meanwhile.
    /// - Any other error: it is not. The next one does the work again.
    Ran(Ran<T>),
    /// It was begun and has failed: [`value`](Ran::value) is its error. It is not marked, and the
    /// next one tries again. [`released`](Ran::released) is as after [`Lock::run`].
    Failed(Ran<E>),
}

impl<T, E: From<Error>> Once<T, E> {
    /// `Ok(Some(value))`: it was done now, and is marked. `Ok(None)`: it has been done within the
    /// period.
    ///
    /// # Errors
    /// The error of the work, or that of the mark. Then the value is dropped: where it is wanted
    /// all the same, take it from [`Ran`](Once::Ran).
    pub fn done(self) -> Result<Option<T>, E> {
        match self {
            Self::AlreadyRun(_) => Ok(None),
            Self::Ran(ran) => ran.released.map(|()| Some(ran.value)).map_err(E::from),
            Self::Failed(failed) => Err(failed.value),
        }
    }
}

impl Lock {
    /// Runs something while the lock is held, and releases it on return and on panic.
    ///
    /// Waits as [`acquire`](Self::acquire) does. What runs is not stopped when the lease is lost:
    /// it may ask the lease.
    ///
    /// `Err` means that it has **not** run, and may be run later. When it has run the answer is
    /// [`Ran`], with its value, whatever happened to the lock meanwhile or afterwards.
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
    ///     .run(Duration::from_secs(5), |_lease| count_pages())?;
    /// report(ran.value); // it has run, once
    /// if let Err(error) = ran.released {
    ///     eprintln!("after the report: {error}"); // lost meanwhile, or perhaps not free yet
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn run<T>(&self, timeout: Duration, run: impl FnOnce(&Lease) -> T) -> Result<Ran<T>> {
        let lease = self.acquire(timeout)?;
        let value = run(&lease);
        let released = lease.release();
        Ok(Ran { value, released })
    }

    /// Runs something while the lock is held, unless it has been run within the period on any host:
    /// for a job that every host starts at night and one is to do.
    ///
    /// Waits as [`acquire`](Self::acquire) does. When another run ends within the wait, this one is
    /// not begun. Of a run that has returned `Ok`, with the lock held until then, a mark is written
    /// in the same step that releases the lock, so that nobody finds the one without the other;
    /// after an `Err`, a panic or a loss there is none, and the next one tries again. The period
    /// counts from the end of the last run, by the server's clock: those of the hosts make no
    /// difference. Let it be a little shorter than the time between two starts, `20h` for a job of
    /// every night.
    ///
    /// `Err` means that it has **not** run, as of [`run`](Self::run). The work is not stopped when
    /// the lease is lost: it may ask the lease.
    ///
    /// Two round trips when it is run on a free lock, one when it has been run. Only for a
    /// [mutex](crate::Locks::lock). When no answer comes to the mark, it is sent again until the
    /// lease would have ended. The mark stays for twice the period, beside the lock, at
    /// `{lock:NAME}:lease:ran`, and for at least as long as the mark before it: after a run by hand
    /// with a period of a second, a job of every night still finds its mark. A data loss on the
    /// server takes the mark as it does the lock, and then the work is done again: it should bear
    /// that.
    ///
    /// # Errors
    /// - [`Error::Contended`]: somebody else had the lock all the time; probably it is being run.
    /// - [`Error::Invalid`]: the period is not between 1 ms and ten years, or the lock is no mutex.
    ///   Nothing was sent.
    /// - [`Error::WrongKind`]: also if the mark's key holds something else. The error names that
    ///   key.
    /// - otherwise as [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Locks, Once};
    ///
    /// # fn write_report(lease: &leasehold::Lease) -> anyhow::Result<u64> { Ok(0) }
    /// let (period, wait) = (Duration::from_secs(20 * 3_600), Duration::from_secs(5));
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// match locks.lock("report:daily").run_once(period, wait, write_report)? {
    ///     Once::AlreadyRun(run) => println!("{:?} has written it {:?} ago", run.by(), run.ago()),
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
        let reason = "work that is done once takes the lock of Locks::lock";
        let hold = ensure(is_mutex, "lock", reason)
            .and_then(|()| period_millis(period))
            .and_then(|period| Ok(self.hold()?.unless_run(period)));
        let lease = match self.acquire_hold(operation, hold, timeout)? {
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

    /// Who did the work of this lock last by [`run_once`](Self::run_once), and when. `None`:
    /// nobody, or so long ago that the mark is gone, which stays for twice the longest period.
    ///
    /// One round trip; changes nothing.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    pub fn last_run(&self) -> Result<Option<LastRun>> {
        let operation = Operation::new("Lock::last_run", self.name());
        let lock = self.lock_name()?;
        let answer = self.ask(&lock, last_run)?;
        answer
            .and_then(|answer| understood(&answer))
            .map_err(|error| operation.failed(error))
    }
}

impl Lease {
    /// Marks that the work has been done, and gives the lock back, in one step. The next one has to
    /// see the mark, so that the lock is not handed over.
    fn finish(mut self) -> Result<()> {
        // A lost lease is told as such, also where no connection is left to give it back by.
        self.check_here(RUN_ONCE)?;
        let deadline = self.stack.clock.after(self.remaining());
        let state = self.stop_renewing(Deadline::after(Duration::MAX));
        let finished = match (self.hold().finishing(), state) {
            (Some(call), RenewalState::Held | RenewalState::Unknown) => {
                self.send_until(&call, deadline)
            }
            _ => self.give_back(deadline),
        };
        if matches!(finished, Err(Error::WrongKind { .. })) {
            // The mark's key holds something else: the lock is ours all the same.
            let given_back = self.give_back(deadline);
            let _ = self.settle(RUN_ONCE, given_back, state);
            return finished.map(drop);
        }
        self.settle(RUN_ONCE, finished, state)
    }

    /// Sends it again while no answer comes that settles it. False: the lock was not ours any more.
    fn send_until(&self, call: &Call, deadline: Deadline) -> Result<bool> {
        let operation = self.operation(RUN_ONCE);
        let mut pauses = Backoff::new();
        let mut unknown = None;
        loop {
            let answer = self.stack.server.ask(call, Patience::until(deadline));
            let is_marked = answer.and_then(|reply| {
                let answer = reply.of_both().and_then(|answer| yes_or_no(&answer));
                answer.map_err(|error| {
                    if is_unconfirmed(&error) {
                        // A failover may take the mark with it: sent again, it waits for the
                        // replicas again.
                        return operation.unknown(None, error);
                    }
                    operation.unanswered(None, error)
                })
            });
            let Err(error) = is_marked else {
                return is_marked;
            };
            let is_unknown = matches!(error, Error::Unknown { .. });
            let goes_on = is_unknown || matches!(error, Error::Pool { .. }) || error.may_pass();
            if is_unknown {
                unknown = Some(error.clone());
            }
            if !goes_on || !pauses.pause(deadline) {
                return Err(unknown.unwrap_or(error));
            }
        }
    }
}
