//! Hooks that report events of locks, for metrics and logs.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::{
    error::{Error, LostReason},
    token::FencingToken,
};

#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "tracing")]
pub use self::tracing::TracingEvents;

/// Receives the events of locks. Implement it to feed any metrics or logging library.
///
/// Methods that you do not implement do nothing. Set it with
/// [`Options::events`](crate::Options::events). For logs, the feature `tracing` adds
/// `TracingEvents`.
///
/// Each event calls one hook, once:
///
/// - An acquire starts: [`waiting`](Self::waiting).
/// - An attempt did not get the lock, and the wait continues: [`retrying`](Self::retrying).
/// - A lock is granted, or handed over by another thread: [`acquired`](Self::acquired).
/// - Someone else held the lock for the whole wait: [`contended`](Self::contended).
/// - `run_once` finds the work already done: [`already_run`](Self::already_run).
/// - An acquire fails with any other error: [`failed`](Self::failed).
/// - The watchdog renews a lease: [`renewed`](Self::renewed).
/// - A renewal by the watchdog fails: [`renewal_failed`](Self::renewal_failed).
/// - The watchdog, our clock or a call detects the loss of a lease: [`lost`](Self::lost).
/// - A hold ends by a release, a drop, a `detach` or a panic: [`released`](Self::released).
///
/// These calls are acquires: [`acquire`](crate::Lock::acquire),
/// [`try_acquire`](crate::Lock::try_acquire), [`run`](crate::Lock::run) and
/// [`run_once`](crate::Lock::run_once), and a [`LockSet`](crate::LockSet) makes one for each of its
/// locks. One `acquired`, `contended`, `already_run` or `failed` follows each `waiting`, on the
/// same thread, so a gauge of waits is exact. One `released` follows each `acquired`, and also one
/// `lost` if the lease was lost. A forked child calls no hook. A forgotten lease (`mem::forget`)
/// calls no `released`.
///
/// A hook must be quick. `renewed` and `renewal_failed` run on the watchdog's thread and delay all
/// renewals. `lost` runs on the callback thread, or on the thread that ends the hold if that one
/// detects the loss first. All others run on the caller's thread. A panic in a hook has no effect.
/// No hook receives a token.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Default)]
/// struct Losses(AtomicU64);
///
/// impl leasehold::Events for Losses {
///     fn lost(&self, _lost: &leasehold::event::Lost<'_>) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
/// ```
pub trait Events: Send + Sync + 'static {
    /// An acquire starts, including one that finds the lock free, does not wait or fails at once.
    /// A set reports each of its locks in its turn, after the first attempts for all of them.
    fn waiting(&self, _waiting: &Waiting<'_>) {}
    /// An attempt did not get the lock, and the wait continues.
    ///
    /// Called for each attempt of the thread that asks the server: the first in its queue.
    fn retrying(&self, _retrying: &Retrying<'_>) {}
    /// A lock is granted, or handed over by another thread.
    fn acquired(&self, _acquired: &Acquired<'_>) {}
    /// Someone else held the lock for the whole wait.
    fn contended(&self, _contended: &Contended<'_>) {}
    /// `run_once` finds the work already done within the period.
    fn already_run(&self, _run: &AlreadyRun<'_>) {}
    /// An acquire fails with any other error, which is also returned to the caller.
    ///
    /// While the server is down every acquire fails. To keep a log short, record the first failure
    /// in a row, the second, the fourth, and so on:
    ///
    /// ```
    /// # struct Log;
    /// impl leasehold::Events for Log {
    ///     fn failed(&self, failed: &leasehold::event::AcquireFailed<'_>) {
    ///         if failed.in_a_row().is_power_of_two() {
    ///             let error = anyhow::Error::new(failed.error().clone());
    ///             eprintln!("{}, {} in a row: {error:#}", failed.lock(), failed.in_a_row());
    ///         }
    ///     }
    /// }
    /// ```
    fn failed(&self, _failed: &AcquireFailed<'_>) {}
    /// A hold ends.
    fn released(&self, _released: &Released<'_>) {}
    /// The watchdog renews a lease.
    fn renewed(&self, _renewed: &Renewed<'_>) {}
    /// A renewal got no reply, or was refused. It is retried until the lease ends.
    fn renewal_failed(&self, _failed: &RenewalFailed<'_>) {}
    /// A lease is lost. Called as soon as this process detects it.
    fn lost(&self, _lost: &Lost<'_>) {}
}

/// The end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldEnd {
    /// The lock was held until it was released or handed over.
    Released,
    /// The lease was lost before the hold ended.
    Lost(LostReason),
    /// [`Lease::detach`](crate::Lease::detach) passed the lock to another process.
    Detached,
    /// The release failed, so the lock may not be free yet. The watchdog's thread retries it.
    Unknown,
}

impl fmt::Display for HoldEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released"),
            Self::Lost(reason) => write!(f, "lost: {reason}"),
            Self::Detached => f.write_str("detached"),
            Self::Unknown => f.write_str("unknown: the release failed"),
        }
    }
}

/// One caller's hooks, with their count of failures in a row.
#[derive(Debug)]
pub(crate) struct Hooks {
    events: Arc<dyn Events>,
    failures: AtomicU32,
}

impl Hooks {
    pub(crate) fn new(events: Arc<dyn Events>) -> Arc<Self> {
        Arc::new(Self {
            events,
            failures: AtomicU32::new(0),
        })
    }
}

/// All hooks of a lock, in the order in which they were given.
#[derive(Debug)]
pub(crate) struct EventSink {
    hooks: Vec<Arc<Hooks>>,
}

impl EventSink {
    pub(crate) fn after(earlier: Option<&Self>, hooks: Arc<Hooks>) -> Arc<Self> {
        let mut all = earlier.map_or_else(Vec::new, |earlier| earlier.hooks.clone());
        all.push(hooks);
        Arc::new(Self { hooks: all })
    }

    /// Calls a hook. The caller must hold no mutex.
    pub(crate) fn tell(&self, call: impl Fn(&dyn Events)) {
        for hooks in &self.hooks {
            shielded(|| call(&*hooks.events));
        }
    }

    /// Calls a hook after a reply of the server, which resets the count of failures.
    pub(crate) fn answered(&self, call: impl Fn(&dyn Events)) {
        for hooks in &self.hooks {
            hooks.failures.store(0, Ordering::Relaxed);
        }
        self.tell(call);
    }

    /// Calls a hook for a failure, with the number of failures in a row.
    pub(crate) fn failed(&self, error: &Error, call: impl Fn(&dyn Events, u32)) {
        // A wait that its caller cancelled, or that its set called off, says nothing about the
        // server.
        let is_called_off = matches!(error, Error::Cancelled { .. } | Error::Lost { .. });
        let counted = u32::from(!is_called_off);
        for hooks in &self.hooks {
            let before = hooks.failures.fetch_add(counted, Ordering::Relaxed);
            let in_a_row = before.saturating_add(1) * counted;
            shielded(|| call(&*hooks.events, in_a_row));
        }
    }
}

/// Runs a user's code on a thread that must survive its panics. `None`: it panicked.
pub(crate) fn shielded<T>(run: impl FnOnce() -> T) -> Option<T> {
    let dropped = |payload| catch_unwind(AssertUnwindSafe(|| drop(payload)));
    // Dropping the payload also runs the user's code and may panic. Then the payload is leaked.
    let caught = catch_unwind(AssertUnwindSafe(run));
    caught
        .map_err(|payload| dropped(payload).unwrap_or_else(mem::forget))
        .ok()
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'a> {
            lock: &'a str,
            $($field: $type,)*
        }

        impl<'a> $name<'a> {
            pub(crate) fn new(lock: &'a str, $($field: $type),*) -> Self {
                Self { lock, $($field),* }
            }

            /// Returns the name of the lock.
            #[must_use]
            pub fn lock(&self) -> &'a str {
                self.lock
            }

            $($(#[$field_doc])*
            #[must_use]
            pub fn $field(&self) -> $type {
                self.$field
            })*
        })*
    };
}

events! {
    /// See [`Events::waiting`].
    Waiting {}
    /// See [`Events::retrying`].
    Retrying {
        /// Returns the time that the call has waited so far.
        waited: Duration,
        /// Returns why the attempt failed. `None`: someone else holds the lock, or the lease was
        /// over when the reply came.
        error: Option<&'a Error>,
    }
    /// See [`Events::acquired`].
    Acquired {
        /// Returns the number of this hold, from 1. It is unique within the process, and the same
        /// in all events of the hold.
        hold: u64,
        /// Returns the time that the call waited.
        waited: Duration,
        /// Returns the number of attempts sent to the server.
        attempts: u32,
        /// Returns the number that the holder passes to the resource; `None` as for
        /// [`Lease::fencing_token`](crate::Lease::fencing_token).
        fencing_token: Option<FencingToken>,
    }
    /// See [`Events::contended`].
    Contended {
        /// Returns the time that the call waited.
        waited: Duration,
        /// Returns the number of attempts sent to the server; 0 if this thread never reached the
        /// head of its queue.
        attempts: u32,
    }
    /// See [`Events::already_run`].
    AlreadyRun {
        /// Returns the time that the call waited for the lock.
        waited: Duration,
    }
    /// See [`Events::failed`].
    AcquireFailed {
        /// Returns the time that the call waited.
        waited: Duration,
        /// Returns the error. Its [`source`](std::error::Error::source) chain has the causes.
        error: &'a Error,
        /// Returns the number of failures in a row, including this one, among the acquires and
        /// renewals of all locks with these options. A renewal resets it, and so does an acquire
        /// that gets the lock, finds it held or finds its work done. 0 for [`Error::Cancelled`],
        /// which does not count.
        in_a_row: u32,
    }
    /// See [`Events::released`].
    Released {
        /// Returns the number of the hold: see [`Acquired::hold`].
        hold: u64,
        /// Returns the time that the lock was held.
        held: Duration,
        /// Returns how the hold ended.
        end: HoldEnd,
    }
    /// See [`Events::renewed`].
    Renewed {
        /// Returns the number of the hold: see [`Acquired::hold`].
        hold: u64,
        /// Returns the time left of the lease now.
        remaining: Duration,
    }
    /// See [`Events::renewal_failed`].
    RenewalFailed {
        /// Returns the number of the hold: see [`Acquired::hold`].
        hold: u64,
        /// Returns the error. Its [`source`](std::error::Error::source) chain has the causes.
        error: &'a Error,
        /// Returns the number of failures in a row, renewals and acquires together: see
        /// [`AcquireFailed::in_a_row`].
        in_a_row: u32,
    }
    /// See [`Events::lost`].
    Lost {
        /// Returns the number of the hold: see [`Acquired::hold`].
        hold: u64,
        /// Returns why the lease was lost.
        reason: LostReason,
    }
}

impl fmt::Debug for dyn Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
