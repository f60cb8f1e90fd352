//! Why a lease was lost.

use std::fmt;

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The server says that the lock is not ours: it was deleted, taken over, or had ended there.
    TakenAway,
    /// Our clock reached the end before a renewal got through.
    Ended,
    /// It was held for as long as [`Keep::max_hold`](crate::Keep::max_hold) or
    /// [`Options::max_hold`](crate::Options::max_hold) allows.
    MaxHold,
    /// The [`Watchdog`](crate::Watchdog) was dropped, so that nobody renewed the lease.
    Unwatched,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakenAway => "it was deleted, taken over, or had ended on the server",
            Self::Ended => "its lease ended before a renewal got through",
            Self::MaxHold => "it was held for as long as is allowed",
            Self::Unwatched => "the watchdog was dropped",
        })
    }
}
