//! Who has a lock: what an operator sees.

use std::time::{Duration, SystemTime};

use crate::{
    name::Owner,
    recipes::inspect::{Found, Known, Part},
    token::{FencingToken, Token},
};

/// A lock as the server knew it at one moment; by now it may be otherwise. See [`Lock::inspect`](crate::Lock::inspect).
#[derive(Clone, Debug)]
#[must_use]
pub struct Inspection {
    found: Found,
    holders: Vec<Holder>,
    waiting_writers: usize,
    waiting_here: usize,
}

/// Somebody who holds a lock, and what is known of them. Of a holder that does not use this crate that is less.
#[derive(Clone, Debug)]
#[must_use]
pub struct Holder(Known);

impl Inspection {
    pub(crate) fn new((found, known): (Found, Vec<Known>), waiting_here: usize) -> Self {
        let (waiting, holders): (Vec<_>, Vec<_>) = known
            .into_iter()
            .partition(|known| known.side == Part::Waiting);
        Self {
            found,
            holders: holders.into_iter().map(Holder).collect(),
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

impl Holder {
    /// What is left of the lease. `None`: it has no end.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.0.remaining
    }

    /// Since when, by the server's clock.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.0.since
    }

    /// The fencing token that the holder was given.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.0.fence
    }

    /// The proof of the hold. Whoever has it can release the lock.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.0.token.as_ref()
    }

    /// Who it says it is: host, process and thread, or a text of its own.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.0.owner.as_ref()
    }

    /// How often the owner of a reentrant lock has entered it.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        self.0.count
    }

    /// Whether it is one of the readers of a read-write lock.
    #[must_use]
    pub fn is_reader(&self) -> bool {
        self.0.side == Part::Reader
    }
}
