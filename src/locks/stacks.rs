//! What a lock works with: the server, the keeper and the queues that its key belongs to.

use std::{ops::Deref, sync::Arc};

use super::{lease::Lease, shared::Shared};
use crate::{
    connection::{Limits, Process},
    error::Result,
    time::{Clock, Deadline},
};

/// A server, a keeper and queues, all of them for one server.
#[derive(Clone)]
pub(crate) enum Stacks {
    One(Arc<Shared<Lease>>),
}

/// That of one key, for as long as something is asked about it.
pub(crate) enum Stack<'a> {
    One(&'a Arc<Shared<Lease>>),
}

impl Stacks {
    /// That of this key.
    #[allow(
        clippy::unnecessary_wraps,
        reason = "of several servers, the one of a key has to be found first"
    )]
    pub(crate) fn of(&self, _key: &str, _deadline: Deadline) -> Result<Stack<'_>> {
        match self {
            Self::One(shared) => Ok(Stack::One(shared)),
        }
    }

    /// All that there are.
    pub(crate) fn all(&self) -> Vec<Arc<Shared<Lease>>> {
        match self {
            Self::One(shared) => vec![Arc::clone(shared)],
        }
    }

    /// How many threads wait for the lock of this key.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        match self {
            Self::One(shared) => shared.queues.waiting(key),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        match self {
            Self::One(shared) => shared.server.limits(),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::One(shared) => shared.clock,
        }
    }

    /// The process that they belong to.
    pub(crate) fn process(&self) -> Process {
        match self {
            Self::One(shared) => shared.process,
        }
    }
}

impl Deref for Stack<'_> {
    type Target = Arc<Shared<Lease>>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(shared) => shared,
        }
    }
}
