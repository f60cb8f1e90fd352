//! Detects that the machine stood still: a thread that only sleeps woke up late.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    checks::Span,
    clock::{Nanos, millis, now},
};

const BEAT: Duration = Duration::from_millis(5);
/// The delay that any thread may have on a busy machine.
const USUAL: Nanos = millis(25);

#[derive(Debug)]
pub(crate) struct Stalls {
    seen: Arc<Mutex<Vec<Span>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stalls {
    pub(crate) fn watch() -> Self {
        let (seen, stop) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let (into, until) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut last = now();
            while !until.load(Ordering::Relaxed) {
                thread::sleep(BEAT);
                let at = now();
                if at - last > USUAL {
                    into.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(Span { from: last, to: at });
                }
                last = at;
            }
        });
        Self {
            seen,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn seen(&self) -> Vec<Span> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
