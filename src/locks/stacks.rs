//! Maps a key to its stack. On one server all keys share one stack. On a cluster each shard has its
//! own, created at the first use of the shard, so that a silent shard does not delay another.
//!
//! Locks: `in_use`, briefly, and while a stack is created, which opens no connection.

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

/// The stacks of a `Locks`, and the values that they share.
#[derive(Clone)]
pub(crate) struct Stacks {
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    /// The process that created them.
    pub(crate) process: Process,
    topology: Topology,
}

/// One server, or the shards of a cluster.
#[derive(Clone)]
enum Topology {
    OneServer(Arc<Stack<Lease>>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Shards>),
}

/// The shards of a cluster, with a stack for each that has been used.
#[cfg(feature = "cluster")]
struct Shards {
    servers: Arc<Servers>,
    in_use: RwLock<HashMap<ShardId, Arc<Stack<Lease>>>>,
    siblings: Siblings<Lease>,
}

impl Stacks {
    /// Creates the stack of this server, which may be a stand-in.
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

    /// Returns the stack of this key. On a cluster this may ask the nodes for the shard of the key,
    /// until the deadline.
    ///
    /// Must not be called in a forked child.
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

    /// Returns true if a key can move to another stack.
    pub(crate) fn are_many(&self) -> bool {
        !matches!(self.topology, Topology::OneServer(_))
    }

    /// Returns all stacks that are in use.
    pub(crate) fn all(&self) -> Vec<Arc<Stack<Lease>>> {
        match &self.topology {
            Topology::OneServer(stack) => vec![Arc::clone(stack)],
            #[cfg(feature = "cluster")]
            Topology::Cluster(shards) => shards.in_use.read().values().cloned().collect(),
        }
    }

    /// Returns the number of threads that wait for the lock of this key.
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
