//! Reports the progress of a wait for the lock, with `--verbose`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lock, Locks};
use parking_lot::Mutex;

use crate::{
    arguments::Arguments,
    speaking::{busy::Busy, messages, repeats::Repeats, speaker::Speaker},
};

/// Called by the thread that waits, so it must not block.
pub(crate) struct WaitLog {
    speaker: Speaker,
    permits: Option<u32>,
    /// Locks for questions about the holder: they report no event.
    locks: Option<Locks>,
    /// `None` if the wait is too long for an `Instant`.
    until: Option<Instant>,
    repeats: Mutex<Repeats>,
    /// The number of locks acquired so far.
    acquired: AtomicUsize,
}

impl WaitLog {
    pub(crate) fn new(arguments: &Arguments, speaker: &Speaker) -> Arc<Self> {
        Arc::new(Self {
            speaker: speaker.clone(),
            permits: arguments.permits,
            locks: arguments.locks().ok(),
            until: Instant::now().checked_add(arguments.wait),
            repeats: Mutex::default(),
            acquired: AtomicUsize::new(0),
        })
    }

    /// The server did not answer, or refused the attempt.
    pub(crate) fn failed(&self, why: &str) {
        if self.is_due(why) {
            self.speaker.say(&messages::retrying(why, self.left()));
        }
    }

    /// Someone else holds the lock. Another thread asks the server who.
    pub(crate) fn refused(self: &Arc<Self>, name: &str) {
        let lock = (self.locks.as_ref()).map(|locks| match self.permits {
            None => locks.lock(name),
            Some(permits) => locks.semaphore(name, permits),
        });
        if let (Some(lock), true) = (lock, self.is_due(name)) {
            let (log, acquired) = (Arc::clone(self), self.acquired.load(Ordering::Relaxed));
            // Without the thread the line is left out.
            let _ = thread::Builder::new().spawn(move || log.name_the_holder(&lock, acquired));
        }
    }

    fn name_the_holder(&self, lock: &Lock, acquired: usize) {
        let busy = Busy::with(lock, self.permits);
        let left = self.left();
        // If a lock was acquired meanwhile, the holder may be this lockrun.
        if self.acquired.load(Ordering::Relaxed) == acquired && left != Some(Duration::ZERO) {
            self.speaker.say(&messages::waiting(&busy, left));
        }
    }

    pub(crate) fn acquired(&self) {
        self.acquired.fetch_add(1, Ordering::Relaxed);
    }

    fn is_due(&self, text: &str) -> bool {
        // After the last attempt nothing is retried, so nothing is reported.
        self.left() != Some(Duration::ZERO) && self.repeats.lock().is_due(text, Instant::now())
    }

    fn left(&self) -> Option<Duration> {
        let until = self.until?;
        Some(until.saturating_duration_since(Instant::now()))
    }
}
