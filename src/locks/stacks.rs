//! What a lock works with: the server, the keeper and the queues that its key belongs to.
//!
//! On one server all locks have the same. On a cluster those of one shard have: they are made when a key of the shard is first
//! used, so that a shard that is down, or silent, holds up nothing of another.
//!
//! Locks: `in_use`, for a moment, and while those of a shard are made, which takes no connection.

use std::{collections::HashMap, ops::Deref, sync::Arc};

use parking_lot::RwLock;

use super::{
    lease::Lease,
    shared::{Shared, Siblings},
};
use crate::{
    connection::{Limits, Nodes, Process, ShardId},
    error::Result,
    server::Servers,
    time::{Clock, Deadline},
};

/// A server, a keeper and queues: the same for all locks, or those of each shard.
#[derive(Clone)]
pub(crate) enum Stacks {
    One(Arc<Shared<Lease>>),
    OfShards(Arc<OfShards>),
}

/// Those of the shards of a cluster that have been used.
pub(crate) struct OfShards {
    servers: Arc<Servers>,
    in_use: RwLock<HashMap<ShardId, Arc<Shared<Lease>>>>,
    siblings: Siblings<Lease>,
    process: Process,
}

/// The stack of one key, for as long as something is asked about the key.
pub(crate) enum Stack<'a> {
    One(&'a Arc<Shared<Lease>>),
    OfShard(Arc<Shared<Lease>>),
}

impl Stacks {
    pub(crate) fn of_shards(nodes: &Nodes) -> Self {
        Self::OfShards(Arc::new(OfShards {
            servers: Servers::new(nodes),
            in_use: RwLock::default(),
            siblings: Siblings::default(),
            process: nodes.process(),
        }))
    }

    /// The stack of this key. On a cluster the nodes may have to be asked first which shard has the key, until the deadline.
    ///
    /// Not in the child of a fork.
    pub(crate) fn of(&self, key: &str, deadline: Deadline) -> Result<Stack<'_>> {
        match self {
            Self::One(shared) => Ok(Stack::One(shared)),
            Self::OfShards(them) => them.of(key, deadline).map(Stack::OfShard),
        }
    }

    /// Whether there can be other stacks than the one that a key has now.
    pub(crate) fn are_many(&self) -> bool {
        matches!(self, Self::OfShards(_))
    }

    /// All that there are.
    pub(crate) fn all(&self) -> Vec<Arc<Shared<Lease>>> {
        match self {
            Self::One(shared) => vec![Arc::clone(shared)],
            Self::OfShards(them) => them.in_use.read().values().cloned().collect(),
        }
    }

    /// How many threads wait for the lock of this key.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        match self {
            Self::One(shared) => shared.queues.waiting(key),
            Self::OfShards(_) => {
                let all = self.all();
                all.iter().map(|stack| stack.queues.waiting(key)).sum()
            }
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        match self {
            Self::One(shared) => shared.server.limits(),
            Self::OfShards(them) => them.servers.nodes().limits(),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::One(shared) => shared.clock,
            Self::OfShards(_) => Clock::REAL,
        }
    }

    /// The process that they belong to.
    pub(crate) fn process(&self) -> Process {
        match self {
            Self::One(shared) => shared.process,
            Self::OfShards(them) => them.process,
        }
    }
}

impl OfShards {
    fn of(&self, key: &str, deadline: Deadline) -> Result<Arc<Shared<Lease>>> {
        let id = self.servers.nodes().shard_for(key, deadline)?;
        if let Some(shared) = self.in_use.read().get(&id) {
            return Ok(Arc::clone(shared));
        }
        let mut in_use = self.in_use.write();
        if let Some(shared) = in_use.get(&id) {
            return Ok(Arc::clone(shared));
        }
        let server = Arc::new(self.servers.member(id)?);
        let shared = Shared::start(server, Some(Arc::clone(&self.siblings)))?;
        in_use.insert(id, Arc::clone(&shared));
        Ok(shared)
    }
}

impl Deref for Stack<'_> {
    type Target = Arc<Shared<Lease>>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(shared) => shared,
            Self::OfShard(shared) => shared,
        }
    }
}
