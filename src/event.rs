//! Hooks: what happens to locks, for metrics and logs.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::error::LostReason;
use crate::{error::Error, token::FencingToken};

/// Is told of what happens to locks, so that any library for metrics or logs plugs in. A method that you do not write does
/// nothing. See [`Options::events`](crate::Options::events).
///
/// They have to be quick: [`acquired`](Self::acquired), [`contended`](Self::contended) and [`released`](Self::released) run on
/// the thread that has called, [`renewed`](Self::renewed) and [`renewal_failed`](Self::renewal_failed) on the watchdog's, where all
/// renewals wait for them, and [`lost`](Self::lost) on the thread of the callbacks. A panic in one has no effect. None of them learns a token.
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
    /// A lock is ours.
    fn acquired(&self, _acquired: &Acquired<'_>) {}
    /// Somebody else had it for the whole wait.
    fn contended(&self, _contended: &Contended<'_>) {}
    /// A guard was released or dropped, whether the lock was still ours or not.
    fn released(&self, _released: &Released<'_>) {}
    /// A lease was renewed.
    fn renewed(&self, _renewed: &Renewed<'_>) {}
    /// A renewal got no answer, or was refused. It is tried again until the lease ends.
    fn renewal_failed(&self, _failed: &RenewalFailed<'_>) {}
    /// A lease was lost before it was released. Told once, as soon as the watchdog knows.
    fn lost(&self, _lost: &Lost<'_>) {}
}

/// Calls a hook, if there is one.
pub(crate) fn emit(events: Option<&Arc<dyn Events>>, call: impl FnOnce(&dyn Events)) {
    if let Some(events) = events {
        shielded(|| call(&**events));
    }
}

/// Runs what a user has written on a thread that must go on. `None`: it panicked.
pub(crate) fn shielded<T>(run: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => return Some(done),
        Err(payload) => payload,
    };
    // What it panicked with is the user's as well, and may panic when it is dropped. What that panics with is leaked.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(again);
    }
    None
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
        /// How long it was waited for.
        waited: Duration,
        /// How often the server was asked.
        attempts: u32,
        /// What the holder hands to the resource. A reader has none.
        fencing_token: Option<FencingToken>,
    }
    /// See [`Events::contended`].
    Contended {
        /// How long it was waited for.
        waited: Duration,
        /// How often the server was asked; never, by those who stood in line behind others.
        attempts: u32,
    }
    /// See [`Events::released`].
    Released {
        /// For how long it was held.
        held: Duration,
    }
    /// See [`Events::renewed`].
    Renewed {
        /// What is left of the lease now.
        remaining: Duration,
    }
    /// See [`Events::renewal_failed`].
    RenewalFailed {
        /// Why.
        error: &'a Error,
    }
    /// See [`Events::lost`].
    Lost {
        /// Why.
        reason: LostReason,
    }
}

impl fmt::Debug for dyn Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
