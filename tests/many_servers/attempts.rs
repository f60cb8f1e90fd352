//! How many attempts an acquire has made.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use leasehold::{Events, event::Acquired};

/// Told of each acquire.
#[derive(Default)]
pub(crate) struct Attempts(AtomicU32);

impl Attempts {
    /// With what `Options::events` is given.
    pub(crate) fn counted() -> (Arc<Self>, Arc<dyn Events>) {
        let attempts = Arc::new(Self::default());
        let events: Arc<dyn Events> = attempts.clone();
        (attempts, events)
    }

    /// The most that one acquire has made.
    pub(crate) fn at_most(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Events for Attempts {
    fn acquired(&self, acquired: &Acquired<'_>) {
        self.0.fetch_max(acquired.attempts(), Ordering::SeqCst);
    }
}
