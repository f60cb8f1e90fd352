//! The stacks of the shards of a cluster: each is made when a key of the shard is first used.
//!
//! Locks: `in_use`, for a moment, and while a stack is made, which takes no connection.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

use crate::{
    connection::{Limits, Nodes, Process, ShardId},
    error::Result,
    locks::{
        lease::Lease,
        shared::{Shared, Siblings},
    },
    server::Servers,
    time::Deadline,
};

/// Those of the shards of a cluster that have been used.
pub(crate) struct OfShards {
    servers: Arc<Servers>,
    in_use: RwLock<HashMap<ShardId, Arc<Shared<Lease>>>>,
    siblings: Siblings<Lease>,
    process: Process,
}

impl OfShards {
    pub(super) fn new(nodes: &Nodes) -> Self {
        Self {
            servers: Servers::new(nodes),
            in_use: RwLock::default(),
            siblings: Siblings::default(),
            process: nodes.process(),
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Shared<Lease>>> {
        self.in_use.read().values().cloned().collect()
    }

    pub(super) fn limits(&self) -> Limits {
        self.servers.nodes().limits()
    }

    pub(super) fn process(&self) -> Process {
        self.process
    }

    pub(super) fn of(&self, key: &str, deadline: Deadline) -> Result<Arc<Shared<Lease>>> {
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
