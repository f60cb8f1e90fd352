//! Who has a lock: what an operator sees.

use crate::recipes::inspect::{Found, Holder};

/// A lock as the server knew it at one moment; by now it may be otherwise. See
/// [`Lock::inspect`](crate::Lock::inspect).
#[derive(Clone, Debug)]
#[must_use]
pub struct Inspection {
    found: Found,
    holders: Vec<Holder>,
    waiting_writers: usize,
    waiting_here: usize,
}

impl Inspection {
    pub(crate) fn new((found, holders): (Found, Vec<Holder>), waiting_here: usize) -> Self {
        let (waiting, holders): (Vec<_>, Vec<_>) =
            holders.into_iter().partition(Holder::is_waiting);
        Self {
            found,
            holders,
            waiting_writers: waiting.len(),
            waiting_here,
        }
    }

    /// Whether anybody has it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Those who have it: one, or any number of readers.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Whether the key is no lock of any kind that this crate knows.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.found == Found::Foreign
    }

    /// How many writers of any process keep new readers out because they wait.
    #[must_use]
    pub fn waiting_writers(&self) -> usize {
        self.waiting_writers
    }

    /// How many threads of this process wait for it, by this [`Locks`](crate::Locks).
    #[must_use]
    pub fn waiting_here(&self) -> usize {
        self.waiting_here
    }
}
