//! A stand-in's clock, which a test moves ahead of the machine's.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::Clock;

/// A clock is moved no further than this: a hundred years.
const FURTHEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How far ahead, in nanoseconds; `None` of the machine's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead(Option<&'static AtomicU64>);

impl Ahead {
    pub(super) const NONE: Self = Self(None);

    pub(super) fn get(self) -> Duration {
        let nanos = self.0.map_or(0, |nanos| nanos.load(Ordering::SeqCst));
        Duration::from_nanos(nanos)
    }
}

impl Clock {
    /// A clock that can be moved. It costs eight bytes that are never given back, for the sake of
    /// all others, which can be copied.
    pub(crate) fn movable() -> Self {
        let ahead = Ahead(Some(Box::leak(Box::default())));
        Self { ahead }
    }

    /// Threads that sleep until a moment have to be woken afterwards.
    pub(crate) fn advance(self, by: Duration) {
        if let Ahead(Some(nanos_ahead)) = self.ahead {
            let ahead = (self.ahead.get().saturating_add(by)).min(FURTHEST);
            let nanos = u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX);
            nanos_ahead.fetch_max(nanos, Ordering::SeqCst);
        }
    }
}
