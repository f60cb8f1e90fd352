//! Waiting for the lock.

use std::{
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Lock};

use crate::run::Event;

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
pub(crate) fn acquire(lock: &Lock, wait: Duration, events: &Receiver<Event>) -> Waited {
    let started = Instant::now();
    loop {
        let left = wait.saturating_sub(started.elapsed());
        let slice = left.min(SLICE);
        let asked = Instant::now();
        match lock.acquire(slice) {
            Ok(lease) => return Waited::Held(lease),
            // An error before the time is over is one that no waiting helps.
            Err(error) if slice == left || asked.elapsed() < slice => return Waited::Failed(error),
            Err(_) => {}
        }
        let signal = |event| match event {
            Event::Signal(signal) => Some(signal),
            _ => None,
        };
        if let Some(signal) = events.try_iter().find_map(signal) {
            return Waited::Told(signal);
        }
    }
}
