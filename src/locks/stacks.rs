//! Maps a key to its stack. On one server all keys share one stack. On a cluster each shard has its
//! own, created at the first use of the shard.

use std::{fmt, sync::Arc};

use super::{
    lease::Lease,
    stack::{Siblings, Stack},
};
#[cfg(feature = "cluster")]
use crate::cluster::Nodes;
use crate::{
    error::Result,
    name::LockName,
    pool::{Limits, PooledConnection, Process},
    probe::Probe,
    recipes::EndedHolds,
    server::{PerServer, Server},
    time::Clock,
};

/// The stacks of a `Locks`, and the values that they share.
#[derive(Clone)]
pub(crate) struct Stacks {
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    /// The process that created them.
    pub(crate) process: Process,
    /// The holds of reentrant locks that have ended.
    pub(crate) ended: Arc<EndedHolds>,
    pub(crate) per_server: PerServer<Arc<Stack<Lease>>>,
}

impl Stacks {
    /// Creates the stack of this server or stand-in.
    pub(crate) fn of_server(server: Arc<dyn Server>) -> Result<Self> {
        let stack = Stack::start(server, &Siblings::default())?;
        Ok(Self {
            limits: stack.server.limits(),
            clock: stack.clock,
            process: stack.process,
            ended: Arc::default(),
            per_server: PerServer::One(stack),
        })
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_shards(nodes: &Nodes) -> Self {
        let siblings = Siblings::default();
        Self {
            limits: nodes.limits(),
            clock: Clock::REAL,
            process: nodes.process(),
            ended: Arc::default(),
            per_server: PerServer::of_shards(nodes, move |servers, shard| {
                Stack::start(Arc::new(servers.member(shard)?), &siblings)
            }),
        }
    }

    /// Checks what the servers offer, with the keys of a lock that no one else uses.
    pub(crate) fn probe(&self, lock: &LockName) -> Result<Probe> {
        match &self.per_server {
            PerServer::One(stack) => match stack.server.connector() {
                Some(connector) => Probe::of_server(&connector, lock),
                None => Ok(Probe::default()),
            },
            #[cfg(feature = "cluster")]
            PerServer::Shards(shards) => Probe::of_cluster(shards.nodes(), lock),
        }
    }

    /// Lends a connection to each server, or returns the error for that server.
    pub(crate) fn lend_each(&self) -> Result<Vec<Result<PooledConnection>>> {
        match &self.per_server {
            PerServer::One(stack) => Ok(vec![Ok(stack.server.lend("")?)]),
            #[cfg(feature = "cluster")]
            PerServer::Shards(shards) => shards.nodes().lend_each(),
        }
    }

    /// Returns the number of threads that wait for the lock of this key.
    pub(crate) fn waiting(&self, key: &str) -> usize {
        let waiting = |stack: &Arc<Stack<Lease>>| stack.queues.waiting(key);
        self.per_server.all().iter().map(waiting).sum()
    }
}

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stacks").finish_non_exhaustive()
    }
}
