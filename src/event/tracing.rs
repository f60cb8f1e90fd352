//! Sends the events of locks as events and spans of the crate `tracing`.

use std::{cell::RefCell, collections::HashMap};

use parking_lot::Mutex;
use tracing::{Span, debug, debug_span, error, info, span::EnteredSpan, trace, warn};

use super::{
    AcquireFailed, Acquired, AlreadyRun, Contended, Events, HoldEnd, Lost, Released, RenewalFailed,
    Renewed, Retrying, Waiting,
};
use crate::{error::Error, token::FencingToken};

const TARGET: &str = "leasehold";

thread_local! {
    /// The waits of this thread. More than one if a hook or a login function acquires a lock during
    /// a wait.
    static WAITS: RefCell<Vec<WaitSpan>> = const { RefCell::new(Vec::new()) };
}

struct WaitSpan {
    _span: EnteredSpan,
    /// The attempts that have failed.
    failures: u32,
}

/// Sends the events of locks to the crate `tracing`, with the feature `tracing`.
///
/// Filter by the target `leasehold`. Every event has the field `lock`; no event has a token.
///
/// | level | event, with its fields |
/// |---|---|
/// | error | `lost`: `reason` |
/// | warn | `not acquired`: `error`, `waited`, `in_a_row` |
/// | warn | `failed, waiting`: `error`, `waited`, `failures` of this wait |
/// | warn | `not renewed, trying again`: `error`, `in_a_row` |
/// | warn | `ended`, where a hold did not end by its release: `held`, `end` |
/// | info | `busy, given up`: `waited`, `attempts` |
/// | debug | `acquired`: `fence`, `waited`, `attempts` |
/// | debug | `released`, `detached`: `held` |
/// | debug | `already run`, `cancelled`: `waited` |
/// | trace | `busy, waiting`: `waited`; `renewed`: `remaining` |
///
/// `error` is the error with all its causes, on one line. While the server is down, every attempt
/// and every renewal fails. Only the first, the second, the fourth, the eighth such failure and so
/// on are sent, as counted in `failures` and [`in_a_row`](AcquireFailed::in_a_row).
///
/// Spans have the level debug and the field `lock`:
///
/// - `wait` is open, and is the current span of its thread, while a call acquires.
/// - `hold` is open while the lock is held, as a child of the span in which it was acquired. It is
///   not the current span, since a lease can move to another thread. It contains the events of the
///   hold, including those of the watchdog's threads. If the span is disabled, they are in the span
///   of the acquire.
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
///
/// use leasehold::{Locks, Options, TracingEvents};
///
/// let events = Options::new().events(Arc::new(TracingEvents::new()));
/// let locks = Locks::connect("redis://127.0.0.1/")?.with(events);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TracingEvents {
    /// The spans of the holds, by their numbers.
    holds: Mutex<HashMap<u64, Span>>,
}

impl TracingEvents {
    /// Creates the hooks, for [`Options::events`](crate::Options::events).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the span in which events of this hold are sent.
    fn span_of(&self, hold: u64) -> Span {
        let span = self.holds.lock().get(&hold).cloned();
        span.unwrap_or_else(Span::none)
    }
}

impl Events for TracingEvents {
    fn waiting(&self, waiting: &Waiting<'_>) {
        let span = debug_span!(target: TARGET, "wait", lock = waiting.lock()).entered();
        let wait = WaitSpan {
            _span: span,
            failures: 0,
        };
        let _ = WAITS.try_with(|waits| waits.borrow_mut().push(wait));
    }

    fn retrying(&self, retrying: &Retrying<'_>) {
        let (lock, waited) = (retrying.lock(), retrying.waited());
        let Some(error) = retrying.error() else {
            trace!(target: TARGET, lock, ?waited, "busy, waiting");
            return;
        };
        let failures = count_failure();
        if failures.is_power_of_two() {
            let error = with_causes(error);
            warn!(target: TARGET, lock, error, ?waited, failures, "failed, waiting");
        }
    }

    fn acquired(&self, acquired: &Acquired<'_>) {
        let wait = take_wait();
        let lock = acquired.lock();
        let fence = acquired.fencing_token().map(FencingToken::get);
        let (waited, attempts) = (acquired.waited(), acquired.attempts());
        debug!(target: TARGET, lock, fence, ?waited, attempts, "acquired");
        drop(wait);
        let mut span = debug_span!(target: TARGET, "hold", lock);
        if span.is_disabled() {
            span = Span::current();
        }
        self.holds.lock().insert(acquired.hold(), span);
    }

    fn contended(&self, contended: &Contended<'_>) {
        let _wait = take_wait();
        let (lock, waited) = (contended.lock(), contended.waited());
        let attempts = contended.attempts();
        info!(target: TARGET, lock, ?waited, attempts, "busy, given up");
    }

    fn already_run(&self, run: &AlreadyRun<'_>) {
        let _wait = take_wait();
        debug!(target: TARGET, lock = run.lock(), waited = ?run.waited(), "already run");
    }

    fn failed(&self, failed: &AcquireFailed<'_>) {
        let _wait = take_wait();
        let (lock, waited, in_a_row) = (failed.lock(), failed.waited(), failed.in_a_row());
        if let Error::Cancelled { .. } = failed.error() {
            debug!(target: TARGET, lock, ?waited, "cancelled");
        } else if in_a_row.is_power_of_two() {
            let error = with_causes(failed.error());
            warn!(target: TARGET, lock, error, ?waited, in_a_row, "not acquired");
        }
    }

    fn released(&self, released: &Released<'_>) {
        let span = self.holds.lock().remove(&released.hold());
        let span = span.unwrap_or_else(Span::none);
        let _entered = span.enter();
        let (lock, held) = (released.lock(), released.held());
        match released.end() {
            HoldEnd::Released => debug!(target: TARGET, lock, ?held, "released"),
            HoldEnd::Detached => debug!(target: TARGET, lock, ?held, "detached"),
            end => warn!(target: TARGET, lock, ?held, ?end, "ended"),
        }
    }

    fn renewed(&self, renewed: &Renewed<'_>) {
        let (lock, remaining) = (renewed.lock(), renewed.remaining());
        let span = self.span_of(renewed.hold());
        span.in_scope(|| trace!(target: TARGET, lock, ?remaining, "renewed"));
    }

    fn renewal_failed(&self, failed: &RenewalFailed<'_>) {
        let (lock, in_a_row) = (failed.lock(), failed.in_a_row());
        if in_a_row.is_power_of_two() {
            let error = with_causes(failed.error());
            let span = self.span_of(failed.hold());
            let _entered = span.enter();
            warn!(target: TARGET, lock, error, in_a_row, "not renewed, trying again");
        }
    }

    fn lost(&self, lost: &Lost<'_>) {
        let (lock, reason) = (lost.lock(), lost.reason());
        let span = self.span_of(lost.hold());
        span.in_scope(|| error!(target: TARGET, lock, %reason, "lost"));
    }
}

/// Counts a failed attempt of the wait on this thread.
fn count_failure() -> u32 {
    let count = |waits: &RefCell<Vec<WaitSpan>>| {
        let mut waits = waits.borrow_mut();
        let wait = waits.last_mut()?;
        wait.failures = wait.failures.saturating_add(1);
        Some(wait.failures)
    };
    WAITS.try_with(count).ok().flatten().unwrap_or(1)
}

/// Takes the wait that ends on this thread. Its span closes when it is dropped, even if the
/// subscriber panics.
fn take_wait() -> Option<WaitSpan> {
    let wait = WAITS.try_with(|waits| waits.borrow_mut().pop());
    wait.ok().flatten()
}

/// Returns the error and its causes on one line, since most subscribers omit the causes of a field.
fn with_causes(error: &Error) -> String {
    let causes: Vec<_> = anyhow::Chain::new(error).map(ToString::to_string).collect();
    causes.join(": ")
}
