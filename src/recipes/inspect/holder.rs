//! One who has a lock, or a writer that waits for it.

use std::time::{Duration, SystemTime};

use crate::{
    name::Owner,
    token::{FencingToken, Token},
};

/// Somebody who holds a lock, and what is known of them. Of a holder that does not use this crate
/// that is less.
#[derive(Clone, Debug)]
#[must_use]
pub struct Holder {
    pub(super) part: Part,
    pub(super) token: Option<Token>,
    pub(super) owner: Option<Owner>,
    pub(super) count: Option<u64>,
    pub(super) remaining: Option<Duration>,
    pub(super) since: Option<SystemTime>,
    pub(super) fence: Option<FencingToken>,
}

/// What a holder is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Alone,
    Reader,
    Writer,
    Waiting,
}

impl Holder {
    /// One of whom nothing is known but the part and what is left of the lease.
    pub(super) fn unknown(part: Part, remaining: Option<Duration>) -> Self {
        Self {
            part,
            token: None,
            owner: None,
            count: None,
            remaining,
            since: None,
            fence: None,
        }
    }

    /// What is left of the lease. `None`: it has no end.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Since when, by the server's clock.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.since
    }

    /// The fencing token that the holder was given.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fence
    }

    /// The proof of the hold. Whoever has it can release the lock.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Who it says it is: host, process and thread, or a text of its own.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// How often the owner of a reentrant lock has entered it.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        self.count
    }

    /// Whether it is one of the readers of a read-write lock.
    #[must_use]
    pub fn is_reader(&self) -> bool {
        self.part == Part::Reader
    }

    /// Whether it is a writer that keeps new readers out because it waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.part == Part::Waiting
    }
}
