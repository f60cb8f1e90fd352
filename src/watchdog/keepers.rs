//! The keepers of a watchdog: one, or on a cluster one for each shard.
//!
//! Locks: `of_shards`, for a moment, and while a keeper is started, which takes no connection.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    connection::{Nodes, Pool, ShardId},
    error::Result,
    renewing::keeper::Keeper,
    server::{RenewalsConnection, Servers},
    time::{Clock, Deadline},
};

/// Each has a thread and a connection of its own, so that a shard which is silent delays nothing of another.
pub(super) enum Keepers {
    One(Arc<Keeper>),
    OfShards {
        servers: Arc<Servers>,
        of_shards: Mutex<HashMap<ShardId, Arc<Keeper>>>,
    },
}

impl Keepers {
    pub(super) fn on(pool: &Pool) -> Result<Self> {
        pool.refuse_a_copy()?;
        let connector = pool.connector();
        let limits = connector.limits();
        let renewals = Box::new(RenewalsConnection::untracked(connector));
        let keeper = Keeper::start(renewals, limits, false, Clock::REAL)?;
        Ok(Self::One(keeper))
    }

    pub(super) fn on_nodes(nodes: &Nodes) -> Self {
        Self::OfShards {
            servers: Servers::new(nodes),
            of_shards: Mutex::default(),
        }
    }

    /// The keeper of this key. On a cluster the nodes may have to be asked first which shard has the key.
    pub(super) fn of(&self, key: &str) -> Result<Arc<Keeper>> {
        let (servers, of_shards) = match self {
            Self::One(keeper) => {
                keeper.refuse_a_copy()?;
                return Ok(Arc::clone(keeper));
            }
            Self::OfShards { servers, of_shards } => (servers, of_shards),
        };
        let nodes = servers.nodes();
        nodes.refuse_a_copy()?;
        let limits = nodes.limits();
        let (shard, pool) = nodes.pool_for(key, Deadline::after(limits.connect))?;
        let mut of_shards = of_shards.lock();
        if let Some(keeper) = of_shards.get(&shard) {
            return Ok(Arc::clone(keeper));
        }
        let renewals = servers.untracked_renewals(shard, &pool);
        let keeper = Keeper::start(renewals, limits, false, Clock::REAL)?;
        of_shards.insert(shard, Arc::clone(&keeper));
        Ok(keeper)
    }

    /// All that there are: of a cluster's none in the child of a fork, where the list may be locked for ever.
    pub(super) fn all(&self) -> Vec<Arc<Keeper>> {
        match self {
            Self::One(keeper) => vec![Arc::clone(keeper)],
            Self::OfShards { servers, .. } if servers.nodes().refuse_a_copy().is_err() => {
                Vec::new()
            }
            Self::OfShards { of_shards, .. } => of_shards.lock().values().cloned().collect(),
        }
    }
}
