//! One lock, before it is held, and who has it.

use std::{sync::Arc, time::Duration};

use redis::{RedisResult, Value};

use super::{
    acquire::acquire,
    lease::Lease,
    options::{Options, Settings},
    stack::Stack,
    stacks::Stacks,
};
use crate::{
    error::{Error, Operation, Result},
    event::AcquireFailed,
    name::{LockName, Owner},
    recipes::{
        hold::{Hold, LockKind},
        inspect::{Found, Holder, force_releasing, inspecting, understood, understood_taken},
        once::LastRun,
    },
    server::Patience,
    time::Deadline,
    token::Token,
    waiting::PastHold,
    wire::Call,
};

/// One lock, of whatever kind: to be acquired as often as you like, by any thread.
///
/// Making it sends nothing. A name that cannot be a lock's is an error of whatever is done with it
/// first.
#[derive(Clone, Debug)]
#[must_use]
pub struct Lock {
    stacks: Stacks,
    settings: Settings,
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

    /// This lock, held by these options; what they do not name stays as it was.
    pub fn with(mut self, options: Options) -> Self {
        self.settings = self.settings.changed_by(options);
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the lock, waiting up to `timeout` for it.
    ///
    /// Threads of this process that want the same lock are served first in, first out, and only the
    /// first of them asks the server, when it says that something has happened to the lock. A
    /// thread that waits has no connection of the pool. There is always one try, even for a wait of
    /// nothing; `Duration::MAX` waits for ever.
    ///
    /// A failure that may pass does not end a wait: a server that is not there yet, restarts, is
    /// silent, or refuses for now (`LOADING`, `OOM` and their like). The last failure is the answer
    /// at the deadline, and not `Contended`. A wait of nothing answers at once.
    ///
    /// A lock without an end, such as the book's `acquire_lock` takes, is waited for until somebody
    /// deletes it: look with [`inspect`](Self::inspect).
    ///
    /// Give back a connection that your thread has borrowed from the same [`Pool`](crate::Pool)
    /// before you ask: where all are lent to threads that ask for locks, none of them gets the one
    /// that it takes.
    ///
    /// One round trip on a free lock. The wait ends at `timeout`, at most one I/O time-out of the
    /// pool later while the server is silent.
    ///
    /// # Errors
    /// - [`Error::Contended`](crate::Error::Contended): somebody else was seen to have it.
    /// - [`Error::Invalid`](crate::Error::Invalid): the name, an option, or a URL that leads to
    ///   another kind of server. Nobody waits for that to change, nor for the right password.
    /// - [`Error::Unknown`](crate::Error::Unknown): no answer came, so it may be ours. It is given
    ///   back as soon as the server answers, however late the server executes it.
    /// - [`Error::Pool`](crate::Error::Pool), [`Error::TooOld`](crate::Error::TooOld): no
    ///   connection.
    /// - [`Error::WrongKind`](crate::Error::WrongKind): the key is no lock of this kind.
    /// - [`Error::Redis`](crate::Error::Redis): the server refused.
    /// - [`Error::TooFewReplicas`](crate::Error::TooFewReplicas): with [`Options::replicas`].
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{Error, Locks};
    ///
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.lock("report:daily");
    /// match lock.acquire(Duration::from_secs(5)) {
    ///     Ok(lease) => {
    ///         // the work
    ///         lease.release()?;
    ///     }
    ///     Err(Error::Contended { .. }) => println!("somebody else is at it"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn acquire(&self, timeout: Duration) -> Result<Lease> {
        let operation = Operation::new("Lock::acquire", &self.name);
        self.acquire_as(operation, timeout)
    }

    /// Takes the lock if it is free. `Ok(None)`: somebody else has it.
    ///
    /// One round trip. Does not stand in the queue, so that it may be faster than those who do.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), except `Contended`, and at once.
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
    pub fn try_acquire(&self) -> Result<Option<Lease>> {
        let operation = Operation::new("Lock::try_acquire", &self.name);
        match self.acquire_as(operation, Duration::ZERO) {
            Err(Error::Contended { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Who has the lock, since when and for how long still, and how many threads of this process
    /// wait for it.
    ///
    /// One round trip; changes nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid), [`Error::Pool`](crate::Error::Pool) and
    /// [`Error::Redis`](crate::Error::Redis), as [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// let seen = locks.lock("report:daily").inspect()?;
    /// for holder in seen.holders() {
    ///     println!("{:?}, for another {:?}", holder.owner(), holder.remaining());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn inspect(&self) -> Result<Inspection> {
        let lock = self.lock_name()?;
        let operation = Operation::new("Lock::inspect", &self.name);
        let answer = self.ask(&lock, inspecting)?;
        let found = answer.and_then(understood);
        found
            .map(|found| Inspection::new(found, self.stacks.waiting(lock.key())))
            .map_err(|error| operation.failed(error))
    }

    /// Takes the lock away from whoever has it, all readers included, and tells what it took: for
    /// operators.
    ///
    /// It tells of the holders at the moment at which the lock was taken away, in one step on the
    /// server: of nobody, if it was free. It is sent once only, since a second one could
    /// take the lock from the next holder.
    ///
    /// A holder that this crate keeps is told, where the server tells of changes, but may write
    /// until it knows: a fencing token stops that. Two round trips: the first proves the
    /// connection, since this may not be sent twice.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect), and
    /// - [`Error::Unknown`](crate::Error::Unknown): no answer came, so that it may have been taken
    ///   away: look with `inspect`.
    /// - [`Error::WrongKind`](crate::Error::WrongKind): what stands there is no lock of any kind,
    ///   and was left as it is.
    ///
    /// # Examples
    /// ```no_run
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// for holder in locks.lock("report:daily").force_release()?.holders() {
    ///     println!("taken from {:?}, who had it since {:?}", holder.owner(), holder.since());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn force_release(&self) -> Result<Inspection> {
        let lock = self.lock_name()?;
        let operation = Operation::new("Lock::force_release", &self.name);
        let stack = self.stack(&lock)?;
        let answer = stack.server.ask_once(&force_releasing(&lock))?;
        // Whoever had it has lost it, and the next in the queue asks at once.
        let taken = PastHold {
            since: stack.clock.now(),
            stood_in_queue: true,
        };
        stack.released(lock.key(), &taken);
        let (taken, found) = answer
            .and_then(understood_taken)
            .map_err(|error| operation.unanswered(None, error))?;
        let found = Inspection::new(found, self.stacks.waiting(lock.key()));
        if found.is_held() && !taken {
            return Err(operation.wrong_kind("something that is no lock"));
        }
        Ok(found)
    }

    /// Asks about this lock.
    pub(super) fn ask(
        &self,
        lock: &LockName,
        call: impl FnOnce(&LockName) -> Call,
    ) -> Result<RedisResult<Value>> {
        let stack = self.stack(lock)?;
        Ok(stack.server.ask(&call(lock), Patience::USUAL)?.answer)
    }

    /// To be asked for before a call is made: in the child of a fork its script may be in the
    /// making for ever.
    fn stack(&self, lock: &LockName) -> Result<Arc<Stack<Lease>>> {
        self.stacks.process.refuse_forked_child()?;
        let longest = self.stacks.limits.connect;
        self.stacks.of(lock.key(), Deadline::after(longest))
    }

    fn acquire_as(&self, operation: Operation<'_>, timeout: Duration) -> Result<Lease> {
        match self.acquire_hold(operation, self.hold(), timeout) {
            Ok(acquired) => acquired.map_err(|_| operation.contended()),
            Err(error) => Err(self.naming_what_is_there(operation, error)),
        }
    }

    /// Whoever finds no lock of the kind is told what is there: one round trip more.
    fn naming_what_is_there(&self, operation: Operation<'_>, error: Error) -> Error {
        let Error::WrongKind { found, .. } = &error else {
            return error;
        };
        let look = self
            .lock_name()
            .and_then(|lock| self.ask(&lock, inspecting));
        let seen = look.map(|answer| answer.and_then(understood));
        let Ok(Ok((kind, _))) = seen else {
            return error;
        };
        let what = match kind {
            Found::Nothing => return error,
            Found::Token => "a mutex, or another lock by `SET NX`",
            Found::Owner => "a reentrant lock",
            Found::ReadersOrWriter => "a read-write lock",
            Found::Foreign => "no lock of any kind",
        };
        operation.wrong_kind(format!("{what} ({found})"))
    }

    /// The way of all acquires. The inner error: the work has been done within the period. The
    /// hooks are told of whatever ends a wait: of a failure here.
    pub(super) fn acquire_hold(
        &self,
        operation: Operation<'_>,
        hold: Result<Hold>,
        timeout: Duration,
    ) -> Result<Result<Lease, LastRun>> {
        let clock = self.stacks.clock;
        let started = clock.now();
        let waited =
            hold.and_then(|hold| acquire(operation, &self.stacks, &self.settings, hold, timeout));
        // In the child of a fork a hook may wait for ever for what another thread had locked.
        if let (Err(error), Some(events)) = (&waited, &self.settings.events)
            && !matches!(error, Error::Forked | Error::Contended { .. })
        {
            events.failed(|events, in_a_row| {
                let waited = clock.since(started);
                events.failed(&AcquireFailed::new(self.name(), waited, error, in_a_row));
            });
        }
        waited
    }

    /// A new hold, with a token of its own.
    ///
    /// Refused in the child of a fork: there the queues may be locked for ever, and an owner's text
    /// or a script that another thread was making is never ready.
    pub(super) fn hold(&self) -> Result<Hold> {
        let lock = self.lock_name()?;
        self.stacks.process.refuse_forked_child()?;
        let token = Token::random_in(self.stacks.process.id());
        Ok(Hold::new(self.kind, lock, token, self.owner()))
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

/// A lock as the server knew it at one moment; by now it may be otherwise. See
/// [`Lock::inspect`](crate::Lock::inspect).
#[derive(Clone, Debug)]
#[must_use]
pub struct Inspection {
    found: Found,
    holders: Vec<Holder>,
    waiting_writers: usize,
    waiting_here: usize,
}

impl Inspection {
    pub(crate) fn new((found, holders): (Found, Vec<Holder>), waiting_here: usize) -> Self {
        let (waiting, holders): (Vec<_>, Vec<_>) =
            holders.into_iter().partition(Holder::is_waiting);
        Self {
            found,
            holders,
            waiting_writers: waiting.len(),
            waiting_here,
        }
    }

    /// True if anybody has it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Those who have it: one, or any number of readers.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// True if the key is no lock of any kind that this crate knows.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.found == Found::Foreign
    }

    /// The number of writers, of any process, that wait and so keep new readers out.
    #[must_use]
    pub fn waiting_writers(&self) -> usize {
        self.waiting_writers
    }

    /// The number of threads of this process that wait for it, by this [`Locks`](crate::Locks).
    #[must_use]
    pub fn waiting_here(&self) -> usize {
        self.waiting_here
    }
}
