//! `Lock`, which acquires a lock of any kind.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{RedisResult, Value};

use super::{
    acquire::{Wait, begin},
    lease::Lease,
    set_wait::SetWait,
    stack::Stack,
    stacks::Stacks,
};
use crate::{
    error::{Error, Operation, Result, ensure},
    event::{AcquireFailed, Waiting},
    name::{LockName, Owner},
    options::{Options, settings::Settings},
    recipes::{Found, Hold, LastRun, LockKind, inspecting, read_inspection},
    server::Patience,
    time::Deadline,
    token::Token,
    wire::Call,
};

/// One lock of any kind, which any thread can acquire any number of times.
///
/// Creating it sends nothing. An invalid name is an error on first use.
#[derive(Clone, Debug)]
#[must_use]
pub struct Lock {
    pub(super) stacks: Stacks,
    pub(super) settings: Settings,
    pub(super) kind: LockKind,
    name: String,
}

impl Lock {
    pub(crate) fn new(stacks: &Stacks, settings: &Settings, kind: LockKind, name: &str) -> Self {
        Self {
            stacks: stacks.clone(),
            settings: settings.clone(),
            kind,
            name: name.to_owned(),
        }
    }

    /// Returns this lock with these options. Options that are not set keep their values. `self`
    /// does not change.
    pub fn with(&self, options: Options) -> Self {
        let mut changed = self.clone();
        changed.settings = changed.settings.changed_by(options);
        changed
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Acquires the lock, waiting up to `timeout`.
    ///
    /// Threads of this process that wait for the same lock are served first in, first out. Only the
    /// first asks the server, when the server reports a change of the lock. If several permits are
    /// free, or readers may enter, several threads ask at once, and the server may grant them in
    /// any order. A waiting thread uses no connection of the pool. `acquire` always makes one
    /// attempt, even with a zero `timeout`; `Duration::MAX` waits forever. A `timeout` longer than
    /// the lease outlasts a holder that has died.
    ///
    /// A temporary failure does not end the wait: the server is down, restarting or silent, or
    /// refuses for now (`LOADING`, `OOM` and the like). At the deadline the last such failure is
    /// returned instead of `Contended`. With a zero `timeout` it is returned at once.
    ///
    /// A lock without a TTL, such as one acquired by the book's `acquire_lock`, stays until it is
    /// deleted: check with [`inspect`](Self::inspect).
    ///
    /// First return any connection that your thread has borrowed from the same
    /// [`Pool`](crate::Pool). If threads that acquire locks have borrowed all of them, none gets
    /// the second connection that it needs.
    ///
    /// One round trip on a free lock. The wait ends at `timeout`, or up to one I/O time-out of the
    /// pool later if the server is silent.
    ///
    /// # Errors
    /// - [`Error::Contended`](crate::Error::Contended): someone else held the lock.
    /// - [`Error::Invalid`](crate::Error::Invalid): the name or an option is invalid, or the URL is
    ///   for another kind of server. This error, like a wrong password, ends the wait at once.
    /// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so the lock may be ours. It is
    ///   released as soon as the server replies, however late the server executes the attempt.
    /// - [`Error::Pool`](crate::Error::Pool): no connection.
    /// - [`Error::TooOld`](crate::Error::TooOld): the server is older than Redis 6.2 or Valkey 7.2.
    /// - [`Error::WrongKind`](crate::Error::WrongKind): the key does not hold a lock of this kind.
    /// - [`Error::Redis`](crate::Error::Redis): the server refused.
    /// - [`Error::TooFewReplicas`](crate::Error::TooFewReplicas): too few replicas confirmed the
    ///   lock; see [`Options::replicas`].
    /// - [`Error::Cancelled`](crate::Error::Cancelled): see [`Options::cancel`].
    /// - [`Error::Forked`](crate::Error::Forked): this is a forked child. Nothing was sent.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Error, Locks};
    ///
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.lock("report:daily");
    /// match lock.acquire(Duration::from_secs(30)) {
    ///     Ok(lease) => {
    ///         // the work
    ///         lease.release()?;
    ///     }
    ///     Err(Error::Contended { .. }) => println!("someone else holds it"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "lock")]
    pub fn acquire(&self, timeout: Duration) -> Result<Lease> {
        let operation = Operation::new("Lock::acquire", &self.name);
        let part = self.alone();
        let waited = self.acquire_hold(operation, || {
            self.begin(self.hold()?, operation, timeout, &part)
        });
        self.or_contended(operation, waited)
    }

    /// Acquires the lock if it is free. `Ok(None)`: someone else holds it.
    ///
    /// One round trip. It does not join the queue, so it may overtake waiting threads.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), except `Contended`.
    ///
    /// # Examples
    /// ```no_run
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.lock("report:daily");
    /// if let Some(lease) = lock.try_acquire()? {
    ///     // the work
    ///     lease.release()?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> Result<Option<Lease>> {
        let operation = Operation::new("Lock::try_acquire", &self.name);
        let part = self.alone();
        let waited = self.acquire_hold(operation, || {
            self.begin(self.hold()?, operation, Duration::ZERO, &part)
        });
        match self.or_contended(operation, waited) {
            Err(Error::Contended { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Sends a call about this lock, and returns the reply.
    pub(super) fn ask(
        &self,
        lock: &LockName,
        call: impl FnOnce(&LockName) -> Call,
    ) -> Result<RedisResult<Value>> {
        let stack = self.stack(lock)?;
        Ok(stack.server.ask(&call(lock), Patience::USUAL)?.answer)
    }

    /// Returns the stack of the lock. Call this before building a call: it refuses a forked child,
    /// in which building a script may block forever.
    pub(super) fn stack(&self, lock: &LockName) -> Result<Arc<Stack<Lease>>> {
        self.stacks.process.refuse_forked_child()?;
        let longest = self.stacks.limits.connect;
        self.stacks
            .per_server
            .of(lock.key(), Deadline::after(longest))
    }

    /// Returns the key, even if the name is invalid.
    pub(super) fn key(&self) -> String {
        [&*self.settings.prefix, &self.name].concat()
    }

    /// Returns the current time, and the deadline after this wait.
    pub(super) fn now_and_after(&self, timeout: Duration) -> (Instant, Deadline) {
        let clock = self.stacks.clock;
        (clock.now(), clock.after(timeout))
    }

    /// Returns the longest wait for a reply.
    pub(super) fn longest_answer(&self) -> Duration {
        self.stacks.limits.answer
    }

    /// Refuses an invalid name or option. Sends nothing.
    pub(super) fn check(&self) -> Result<()> {
        self.hold()?;
        self.settings.checked()?;
        self.settings.check_wait(self.stacks.limits.answer)
    }

    /// A wait for this lock alone.
    pub(super) fn alone(&self) -> SetWait<'static> {
        SetWait::new(None, self.stacks.clock.now())
    }

    /// Prepares a wait for this lock.
    pub(super) fn begin<'a>(
        &'a self,
        hold: Hold,
        operation: Operation<'a>,
        timeout: Duration,
        part: &'a SetWait<'a>,
    ) -> Result<Wait<'a>> {
        begin(operation, &self.stacks, &self.settings, hold, timeout, part)
    }

    /// Converts the result of [`acquire_hold`](Self::acquire_hold). Only `run_once` can find its
    /// work already done.
    pub(super) fn or_contended(
        &self,
        operation: Operation<'_>,
        waited: Result<Result<Lease, LastRun>>,
    ) -> Result<Lease> {
        match waited {
            Ok(acquired) => acquired.map_err(|_| operation.contended()),
            Err(error) => Err(self.with_found_kind(operation, error)),
        }
    }

    /// Adds to a `WrongKind` error a description of what the key holds. One more round trip.
    pub(super) fn with_found_kind(&self, operation: Operation<'_>, error: Error) -> Error {
        let Error::WrongKind { found, .. } = &error else {
            return error;
        };
        let look = self
            .lock_name()
            .and_then(|lock| self.ask(&lock, inspecting));
        let seen = look.map(|answer| answer.and_then(read_inspection));
        let Ok(Ok((kind, _))) = seen else {
            return error;
        };
        let what = match kind {
            Found::Nothing => return error,
            Found::Token => "a mutex, or another lock by `SET NX`",
            Found::Owner => "a reentrant lock",
            Found::ReadersOrWriter => "a read-write lock",
            Found::Permits => "a semaphore",
            Found::Foreign => "something that is not a lock",
        };
        operation.wrong_kind(format!("{what} ({found})"))
    }

    /// Acquires a hold, for all public functions. The inner error: the work of `run_once` was
    /// already done within the period. The [`Wait`] reports any outcome but a failure.
    pub(super) fn acquire_hold<'a>(
        &self,
        operation: Operation<'_>,
        wait: impl FnOnce() -> Result<Wait<'a>>,
    ) -> Result<Result<Lease, LastRun>> {
        self.reporting(operation, || {
            let mut wait = wait()?;
            let acquired = wait.acquire();
            wait.end(acquired)
        })
    }

    /// Reports the start and a failure of this acquire to the hooks.
    pub(super) fn reporting<T>(
        &self,
        operation: Operation<'_>,
        acquire: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let clock = self.stacks.clock;
        let started = clock.now();
        // In a forked child a hook may block forever on a mutex that another thread held.
        let is_forked_child = self.stacks.process.is_forked_child();
        let events = (self.settings.events.as_ref()).filter(|_| !is_forked_child);
        if let Some(events) = events {
            events.tell(|events| events.waiting(&Waiting::new(self.name())));
        }
        let acquired = operation.run(|_| acquire());
        if let (Err(error), Some(events)) = (&acquired, events)
            && !matches!(error, Error::Contended { .. })
        {
            events.failed(error, |events, in_a_row| {
                let waited = clock.since(started);
                events.failed(&AcquireFailed::new(self.name(), waited, error, in_a_row));
            });
        }
        acquired
    }

    /// Creates a hold with a new token.
    ///
    /// Refuses a forked child: there the queues may stay locked forever, and an owner's text or a
    /// script that another thread was building is never completed.
    pub(super) fn hold(&self) -> Result<Hold> {
        let lock = self.lock_name()?;
        self.stacks.process.refuse_forked_child()?;
        let token = Token::random();
        let hold = Hold::new(self.kind, lock, token, self.owner()).noting(&self.stacks.ended);
        let Some(permits) = self.kind.permits() else {
            return Ok(hold);
        };
        let reason = "a semaphore cannot be handed over: its holders have no order";
        ensure(!self.settings.hands_over(), "hand_over", reason)?;
        hold.among(permits)
    }

    pub(super) fn lock_name(&self) -> Result<LockName> {
        LockName::prefixed(&self.settings.prefix, &self.name)
    }

    fn owner(&self) -> Owner {
        match (&self.settings.owner, self.kind) {
            (Some(owner), _) => owner.clone(),
            (None, LockKind::Reentrant) => Owner::current_thread(),
            (None, _) => Owner::described_in(self.stacks.process.id()),
        }
    }
}
