//! What a lock works with: the server, the keeper and the queues that its key belongs to.
//!
//! On one server all locks have the same stack. On a cluster those of one shard have: see
//! `of_shards`, so that a silent shard holds up nothing of another.

#[cfg(feature = "cluster")]
mod of_shards;

use std::{ops::Deref, sync::Arc};

use super::{lease::Lease, shared::Shared};
#[cfg(feature = "cluster")]
use crate::connection::Nodes;
use crate::{
    connection::{Limits, Process},
    error::Result,
    time::{Clock, Deadline},
};
#[cfg(feature = "cluster")]
use of_shards::OfShards;

/// A server, a keeper and queues: the same for all locks, or those of each shard.
#[derive(Clone)]
pub(crate) enum Stacks {
    One(Arc<Shared<Lease>>),
    #[cfg(feature = "cluster")]
    OfShards(Arc<OfShards>),
}

/// The stack of one key, for as long as something is asked about the key.
pub(crate) enum Stack<'a> {
    One(&'a Arc<Shared<Lease>>),
    #[cfg(feature = "cluster")]
    OfShard(Arc<Shared<Lease>>),
}

impl Stacks {
    #[cfg(feature = "cluster")]
    pub(crate) fn of_shards(nodes: &Nodes) -> Self {
        Self::OfShards(Arc::new(OfShards::new(nodes)))
    }

    /// The stack of this key. On a cluster the nodes may have to be asked first which shard has the
    /// key, until the deadline.
    ///
    /// Not in the child of a fork.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(
            unused_variables,
            clippy::unnecessary_wraps,
            reason = "one server has all keys"
        )
    )]
    pub(crate) fn of(&self, key: &str, deadline: Deadline) -> Result<Stack<'_>> {
        match self {
            Self::One(shared) => Ok(Stack::One(shared)),
            #[cfg(feature = "cluster")]
            Self::OfShards(them) => them.of(key, deadline).map(Stack::OfShard),
        }
    }

    /// Whether there can be other stacks than the one that a key has now.
    pub(crate) fn are_many(&self) -> bool {
        !matches!(self, Self::One(_))
    }

    /// All that there are.
    #[cfg(feature = "cluster")]
    pub(crate) fn all(&self) -> Vec<Arc<Shared<Lease>>> {
        match self {
            Self::One(shared) => vec![Arc::clone(shared)],
            #[cfg(feature = "cluster")]
            Self::OfShards(them) => them.all(),
        }
    }

    /// How many threads wait for the lock of this key.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        match self {
            Self::One(shared) => shared.queues.waiting(key),
            #[cfg(feature = "cluster")]
            Self::OfShards(_) => {
                let all = self.all();
                all.iter().map(|stack| stack.queues.waiting(key)).sum()
            }
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        match self {
            Self::One(shared) => shared.server.limits(),
            #[cfg(feature = "cluster")]
            Self::OfShards(them) => them.limits(),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::One(shared) => shared.clock,
            #[cfg(feature = "cluster")]
            Self::OfShards(_) => Clock::REAL,
        }
    }

    /// The process that they belong to.
    pub(crate) fn process(&self) -> Process {
        match self {
            Self::One(shared) => shared.process,
            #[cfg(feature = "cluster")]
            Self::OfShards(them) => them.process(),
        }
    }
}

impl Deref for Stack<'_> {
    type Target = Arc<Shared<Lease>>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(shared) => shared,
            #[cfg(feature = "cluster")]
            Self::OfShard(shared) => shared,
        }
    }
}
