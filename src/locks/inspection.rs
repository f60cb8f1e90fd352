//! For operators: `Lock::inspect`, `Lock::force_release` and `Inspection`. They wait only for the
//! server, and lock only the queues, briefly.

use super::lock::Lock;
use crate::{
    error::{Operation, Result},
    name::LockName,
    recipes::{Found, Holder, force_releasing, inspecting, read_forced_release, read_inspection},
    waiting::PastHold,
};

impl Lock {
    /// Returns the holders of the lock, the times of their holds, and the number of threads of this
    /// process that wait for it.
    ///
    /// One round trip; changes nothing.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the name or an option is invalid.
    /// - [`Error::Pool`](crate::Error::Pool): no connection.
    /// - [`Error::Redis`](crate::Error::Redis): the server refused, or did not reply.
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
        Operation::new("Lock::inspect", self.name()).run(|operation| {
            let lock = self.lock_name()?;
            let answer = self.ask(&lock, inspecting)?;
            let found = answer.and_then(read_inspection);
            found
                .map(|found| self.inspection(found, &lock))
                .map_err(|error| operation.failed(error))
        })
    }

    /// Takes the lock away from all its holders, including readers, and returns them. For
    /// operators.
    ///
    /// The server removes and returns the holders in one step. If the lock was free, it returns
    /// none.
    ///
    /// A holder that uses this crate is notified, if its server sends notifications, but may write
    /// until then: a fencing token prevents that. Two round trips. The first proves that the
    /// connection works: the command is never sent twice, since the second could take the lock from
    /// the next holder.
    ///
    /// # Errors
    /// - All those of [`inspect`](Self::inspect).
    /// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so the lock may have been
    ///   released: check with `inspect`.
    /// - [`Error::WrongKind`](crate::Error::WrongKind): the key does not hold a lock of any kind.
    ///   It was not changed.
    ///
    /// # Examples
    /// ```no_run
    /// let locks = leasehold::Locks::connect("redis://127.0.0.1/")?;
    /// for holder in locks.lock("report:daily").force_release()?.holders() {
    ///     println!("taken from {:?}, who held it since {:?}", holder.owner(), holder.since());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[doc(alias = "force_unlock")]
    pub fn force_release(&self) -> Result<Inspection> {
        Operation::new("Lock::force_release", self.name()).run(|operation| {
            let lock = self.lock_name()?;
            let stack = self.stack(&lock)?;
            let answer = stack.server.ask_once(&force_releasing(&lock))?;
            // The previous holder has lost the lock, so the next thread in the queue asks at once.
            let taken = PastHold {
                since: stack.clock.now(),
                stood_in_queue: true,
            };
            stack.queues.released(lock.key(), &taken);
            let (taken, found) = answer
                .and_then(read_forced_release)
                .map_err(|error| operation.unanswered(None, error))?;
            let found = self.inspection(found, &lock);
            if found.is_held() && !taken {
                return Err(operation.wrong_kind("something that is not a lock"));
            }
            Ok(found)
        })
    }

    fn inspection(&self, found: (Found, Vec<Holder>), lock: &LockName) -> Inspection {
        let waiting_here = self.stacks.waiting(lock.key());
        Inspection::new(found, waiting_here, self.kind.permits())
    }
}

/// The state of a lock on the server at one moment, which may have changed since. See
/// [`Lock::inspect`](crate::Lock::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Inspection {
    found: Found,
    holders: Vec<Holder>,
    waiting_writers: usize,
    waiting_here: usize,
    permits: Option<u32>,
}

impl Inspection {
    pub(crate) fn new(
        (found, holders): (Found, Vec<Holder>),
        waiting_here: usize,
        permits: Option<u32>,
    ) -> Self {
        let (waiting, holders): (Vec<_>, Vec<_>) =
            holders.into_iter().partition(Holder::is_waiting);
        Self {
            found,
            holders,
            waiting_writers: waiting.len(),
            waiting_here,
            permits,
        }
    }

    /// Returns true if the lock is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Returns the holders: one, or any number of readers or of holders of a semaphore.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Returns the number of free permits, out of the number that this
    /// [`semaphore`](crate::Locks::semaphore) was created with. `None`: this lock is not a
    /// semaphore, or its key holds another kind of lock.
    ///
    /// Other callers may use another number: see [`Holder::permits`](crate::Holder::permits).
    #[must_use]
    pub fn free_permits(&self) -> Option<u32> {
        let held = u32::try_from(self.holders.len()).unwrap_or(u32::MAX);
        let is_open = self.is_semaphore() || self.found == Found::Nothing;
        let permits = self.permits.filter(|_| is_open);
        permits.map(|permits| permits.saturating_sub(held))
    }

    /// Returns true if the key holds the permits of a semaphore, whatever the kind of this lock.
    #[must_use]
    pub fn is_semaphore(&self) -> bool {
        self.found == Found::Permits
    }

    /// Returns true if the key holds a value that is not a lock of this crate.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.found == Found::Foreign
    }

    /// Returns the number of waiting writers, of all processes. They block new readers.
    #[must_use]
    pub fn waiting_writers(&self) -> usize {
        self.waiting_writers
    }

    /// Returns the number of threads of this process that wait for the lock through this
    /// [`Locks`](crate::Locks).
    #[must_use]
    pub fn waiting_here(&self) -> usize {
        self.waiting_here
    }
}
