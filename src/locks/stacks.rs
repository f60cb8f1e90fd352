//! The stack that a key belongs to: on one server all keys have the same; on a cluster each shard
//! has its own, made when a key of the shard is first used, so that a silent shard holds up nothing
//! of another.
//!
//! Locks: `in_use`, for a moment, and while a stack is made, which takes no connection.

#[cfg(feature = "cluster")]
use std::collections::HashMap;
use std::{fmt, sync::Arc};

#[cfg(feature = "cluster")]
use parking_lot::RwLock;

use super::{
    lease::Lease,
    stack::{Siblings, Stack},
};
#[cfg(feature = "cluster")]
use crate::{
    cluster::{Nodes, ShardId},
    server::Servers,
};
use crate::{
    error::Result,
    pool::{Limits, Process},
    server::Server,
    time::{Clock, Deadline},
};

/// The stacks of a `Locks`, and what is the same for all of them.
#[derive(Clone)]
pub(crate) struct Stacks {
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    /// The process that they belong to.
    pub(crate) process: Process,
    topology: Topology,
}

/// Where the keys are.
#[derive(Clone)]
enum Topology {
    OneServer(Arc<Stack<Lease>>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Shards>),
}

/// The shards of a cluster that have been used.
#[cfg(feature = "cluster")]
struct Shards {
    servers: Arc<Servers>,
    in_use: RwLock<HashMap<ShardId, Arc<Stack<Lease>>>>,
    siblings: Siblings<Lease>,
}

impl Stacks {
    /// The stack of this server, real or not.
    pub(crate) fn of_server(server: Arc<dyn Server>) -> Result<Self> {
        let stack = Stack::start(server, &Siblings::default())?;
        Ok(Self {
            limits: stack.server.limits(),
            clock: stack.clock,
            process: stack.process,
            topology: Topology::OneServer(stack),
        })
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_shards(nodes: &Nodes) -> Self {
        let shards = Shards {
            servers: Servers::new(nodes),
            in_use: RwLock::default(),
            siblings: Siblings::default(),
        };
        Self {
            limits: nodes.limits(),
            clock: Clock::REAL,
            process: nodes.process(),
            topology: Topology::Cluster(Arc::new(shards)),
        }
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
    pub(crate) fn of(&self, key: &str, deadline: Deadline) -> Result<Arc<Stack<Lease>>> {
        match &self.topology {
            Topology::OneServer(stack) => Ok(Arc::clone(stack)),
            #[cfg(feature = "cluster")]
            Topology::Cluster(shards) => shards.stack_of(key, deadline),
        }
    }

    /// True where a key can move to another stack.
    pub(crate) fn are_many(&self) -> bool {
        !matches!(self.topology, Topology::OneServer(_))
    }

    /// All that are in use.
    pub(crate) fn all(&self) -> Vec<Arc<Stack<Lease>>> {
        match &self.topology {
            Topology::OneServer(stack) => vec![Arc::clone(stack)],
            #[cfg(feature = "cluster")]
            Topology::Cluster(shards) => shards.in_use.read().values().cloned().collect(),
        }
    }

    /// The number of threads that wait for the lock of this key.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        let waiting = |stack: &Arc<Stack<Lease>>| stack.queues.waiting(key);
        self.all().iter().map(waiting).sum()
    }
}

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stacks").finish_non_exhaustive()
    }
}

#[cfg(feature = "cluster")]
impl Shards {
    fn stack_of(&self, key: &str, deadline: Deadline) -> Result<Arc<Stack<Lease>>> {
        let id = self.servers.nodes().shard_for(key, deadline)?;
        if let Some(stack) = self.in_use.read().get(&id) {
            return Ok(Arc::clone(stack));
        }
        let mut in_use = self.in_use.write();
        if let Some(stack) = in_use.get(&id) {
            return Ok(Arc::clone(stack));
        }
        let stack = Stack::start(Arc::new(self.servers.member(id)?), &self.siblings)?;
        in_use.insert(id, Arc::clone(&stack));
        Ok(stack)
    }
}
