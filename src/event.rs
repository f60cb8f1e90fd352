//! Hooks: what happens to locks, for metrics and logs.

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

/// Is told of what happens to locks, so that any library for metrics or logs plugs in. A method
/// that you do not write does nothing. See [`Options::events`](crate::Options::events).
///
/// Each outcome calls one hook, once:
///
/// | outcome | hook |
/// |---|---|
/// | a lock is granted, or handed over by another thread | [`acquired`](Self::acquired) |
/// | somebody else had the lock for the whole wait | [`contended`](Self::contended) |
/// | `run_once` finds that the work has been done | [`already_run`](Self::already_run) |
/// | any other error of an acquire: of the server, an argument, a cancel | [`failed`](Self::failed) |
/// | the watchdog renews a lease | [`renewed`](Self::renewed) |
/// | a renewal by the watchdog fails | [`renewal_failed`](Self::renewal_failed) |
/// | a lease is lost, whoever finds it: the watchdog, our clock, a call | [`lost`](Self::lost) |
/// | a hold ends: a release, a drop, a `detach`, a panic | [`released`](Self::released) |
///
/// Whatever takes a lock is an acquire here: [`acquire`](crate::Lock::acquire),
/// [`try_acquire`](crate::Lock::try_acquire), [`run`](crate::Lock::run) and
/// [`run_once`](crate::Lock::run_once). One `released` follows each `acquired`, and one `lost` as
/// well if the lease was lost. In the child of a fork no hook is called. A lease that is forgotten
/// (`mem::forget`) calls no `released`.
///
/// A hook has to be quick. `renewed` and `renewal_failed` run on the watchdog's thread, where all
/// renewals wait for them. `lost` runs on the thread of the callbacks, or on the thread that ends
/// the hold if that finds the loss first. All others run on the thread that has called. A panic in
/// a hook has no effect. No hook learns a token.
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
    /// A lock is granted, or handed over.
    fn acquired(&self, _acquired: &Acquired<'_>) {}
    /// Somebody else had it for the whole wait.
    fn contended(&self, _contended: &Contended<'_>) {}
    /// `run_once` finds that the work has been done within the period.
    fn already_run(&self, _run: &AlreadyRun<'_>) {}
    /// An acquire failed otherwise: the caller gets this error.
    ///
    /// While the server is away each acquire fails. A log stays short if it takes the first failure
    /// of a row, the second, the fourth, and so on:
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
    /// A hold has ended.
    fn released(&self, _released: &Released<'_>) {}
    /// The watchdog has renewed a lease.
    fn renewed(&self, _renewed: &Renewed<'_>) {}
    /// A renewal got no answer, or was refused. It is tried again until the lease ends.
    fn renewal_failed(&self, _failed: &RenewalFailed<'_>) {}
    /// A lease is lost: told as soon as this process knows.
    fn lost(&self, _lost: &Lost<'_>) {}
}

/// The end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldEnd {
    /// The lock was ours until it was released or handed over.
    Released,
    /// The lease was lost before.
    Lost(LostReason),
    /// The lock is left to another process, by [`Lease::detach`](crate::Lease::detach).
    Detached,
    /// The release failed, so that the lock may not be free yet. The watchdog's thread tries again.
    Unknown,
}

/// The hooks of some options. Counts their failures in a row.
#[derive(Debug)]
pub(crate) struct EventSink {
    events: Arc<dyn Events>,
    failures: AtomicU32,
}

impl EventSink {
    pub(crate) fn new(events: Arc<dyn Events>) -> Arc<Self> {
        Arc::new(Self {
            events,
            failures: AtomicU32::new(0),
        })
    }

    /// Calls a hook. Nothing may be locked.
    pub(crate) fn tell(&self, call: impl FnOnce(&dyn Events)) {
        shielded(|| call(&*self.events));
    }

    /// Calls a hook after an answer of the server: the next failure is the first of a row.
    pub(crate) fn answered(&self, call: impl FnOnce(&dyn Events)) {
        self.failures.store(0, Ordering::Relaxed);
        self.tell(call);
    }

    /// Calls a hook of a failure, with the number of failures in a row.
    pub(crate) fn failed(&self, call: impl FnOnce(&dyn Events, u32)) {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        let in_a_row = before.saturating_add(1);
        self.tell(|events| call(events, in_a_row));
    }
}

/// Runs a user's code on a thread that must go on. `None`: it panicked.
pub(crate) fn shielded<T>(run: impl FnOnce() -> T) -> Option<T> {
    let dropped = |payload| catch_unwind(AssertUnwindSafe(|| drop(payload)));
    // The payload is the user's as well, and may panic when it is dropped. Then it is leaked.
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

            /// The name of the lock.
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
    /// See [`Events::acquired`].
    Acquired {
        /// The time that was waited for it.
        waited: Duration,
        /// The number of times that the server was asked.
        attempts: u32,
        /// The number that the holder hands to the resource. A reader has none.
        fencing_token: Option<FencingToken>,
    }
    /// See [`Events::contended`].
    Contended {
        /// The time that was waited for it.
        waited: Duration,
        /// The number of times that the server was asked; 0 for those who stood in line behind
        /// others.
        attempts: u32,
    }
    /// See [`Events::already_run`].
    AlreadyRun {
        /// The time that was waited for the lock.
        waited: Duration,
    }
    /// See [`Events::failed`].
    AcquireFailed {
        /// The time that was waited for it.
        waited: Duration,
        /// The error. Its causes are its [`source`](std::error::Error::source), and that one's.
        error: &'a Error,
        /// The number of acquires and renewals with these options that have failed in a row,
        /// whatever the lock, this one included. An acquire that is answered by the server, or a
        /// renewal, ends the row.
        in_a_row: u32,
    }
    /// See [`Events::released`].
    Released {
        /// The time for which it was held.
        held: Duration,
        /// The way in which it ended.
        end: HoldEnd,
    }
    /// See [`Events::renewed`].
    Renewed {
        /// The time that is left of the lease now.
        remaining: Duration,
    }
    /// See [`Events::renewal_failed`].
    RenewalFailed {
        /// The error. Its causes are its [`source`](std::error::Error::source), and that one's.
        error: &'a Error,
        /// Counted with the acquires: see [`AcquireFailed::in_a_row`].
        in_a_row: u32,
    }
    /// See [`Events::lost`].
    Lost {
        /// The reason.
        reason: LostReason,
    }
}

impl fmt::Debug for dyn Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
