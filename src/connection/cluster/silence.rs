//! Whether the master of a shard was silent, and for how long that counts.
//!
//! A master that was halted or cut off does not know, when it answers again, what has become of it meanwhile: the others may have given
//! its slots to a replica. It hears of that from them within moments.

use std::time::{Duration, Instant};

/// A master that has answered for so long, each time that it was asked, has had the time to hear from the others.
pub(super) const BACK: Duration = Duration::from_secs(2);

/// The silence of a master, which goes on until it has answered for [`BACK`], or a connection to it was opened.
#[derive(Default)]
pub(super) struct Silence {
    is_on: bool,
    /// While it is on: since when the master has answered each time that it was asked, and has reached most of the others.
    answers_since: Option<Instant>,
}

impl Silence {
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The master has missed a question who serves what, or no connection could be opened to it.
    pub(super) fn begin(&mut self) {
        (self.is_on, self.answers_since) = (true, None);
    }

    /// The master has answered who serves what.
    pub(super) fn answered(&mut self, is_cut_off: bool, now: Instant) {
        if !self.is_on {
            return;
        }
        if is_cut_off {
            self.answers_since = None;
        } else if now - *self.answers_since.get_or_insert(now) >= BACK {
            self.end();
        }
    }

    /// A connection to it was opened, and it says that it is a master.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}
