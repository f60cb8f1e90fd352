//! Waiting for the lock.

use std::{
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Lock};

use crate::events::Event;

/// So long a signal may have to wait.
const SLICE: Duration = Duration::from_millis(250);

/// What came of it.
#[derive(Debug)]
pub(crate) enum Waited {
    Held(Lease),
    Failed(Error),
    /// A signal came first.
    Told(i32),
}

/// In slices, so that a signal is answered between two of them: nothing is under way then that could be left behind.
///
/// A server that has once answered, and is gone, may come back: it is waited for too.
pub(crate) fn acquire(lock: &Lock, wait: Duration, events: &Receiver<Event>) -> Waited {
    let started = Instant::now();
    let mut has_answered = false;
    loop {
        let left = wait.saturating_sub(started.elapsed());
        let slice = left.min(SLICE);
        let asked = Instant::now();
        let error = match lock.acquire(slice) {
            Ok(lease) => return Waited::Held(lease),
            Err(error) => error,
        };
        has_answered |= matches!(error, Error::Contended { .. });
        let rest = slice.saturating_sub(asked.elapsed());
        // An error before the time is over is one that no waiting helps.
        let helps = rest.is_zero() || has_answered && matches!(error, Error::Pool { .. });
        if slice == left || !helps {
            return Waited::Failed(error);
        }
        if let Some(signal) = signal_within(rest, events) {
            return Waited::Told(signal);
        }
    }
}

/// Waits so long for a signal. What else has happened by then is of no interest.
fn signal_within(time: Duration, events: &Receiver<Event>) -> Option<i32> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(Event::Signal(signal)) => return Some(signal),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}
