//! The keepers of a watchdog: one, or on a cluster one for each shard.
//!
//! Locks: `started`, for a moment, and while a keeper is started, which takes no connection.

#[cfg(feature = "cluster")]
use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "cluster")]
use parking_lot::Mutex;

use crate::{
    connection::Pool, error::Result, renewing::keeper::Keeper, server::RenewalsConnection,
    time::Clock,
};
#[cfg(feature = "cluster")]
use crate::{
    connection::{Nodes, ShardId},
    server::Servers,
    time::Deadline,
};

/// Each has a thread and a connection of its own, so that a silent shard delays nothing of another.
pub(super) enum Keepers {
    One(Arc<Keeper>),
    #[cfg(feature = "cluster")]
    OfShards(KeepersOfShards),
}

impl Keepers {
    pub(super) fn on(pool: &Pool) -> Result<Self> {
        pool.refuse_forked_child()?;
        let connector = pool.connector();
        let limits = connector.limits();
        let renewals = Box::new(RenewalsConnection::untracked(connector));
        let keeper = Keeper::start(renewals, limits, Clock::REAL)?;
        Ok(Self::One(keeper))
    }

    #[cfg(feature = "cluster")]
    pub(super) fn on_nodes(nodes: &Nodes) -> Self {
        Self::OfShards(KeepersOfShards {
            servers: Servers::new(nodes),
            started: Mutex::default(),
        })
    }

    /// The keeper of this key. On a cluster the nodes may have to be asked first which shard has
    /// the key.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(unused_variables, reason = "one server has all keys")
    )]
    pub(super) fn of(&self, key: &str) -> Result<Arc<Keeper>> {
        match self {
            Self::One(keeper) => {
                keeper.process.refuse_forked_child()?;
                Ok(Arc::clone(keeper))
            }
            #[cfg(feature = "cluster")]
            Self::OfShards(them) => them.of(key),
        }
    }

    /// All that there are: of a cluster's none in the child of a fork, where the list may be locked
    /// for ever.
    pub(super) fn all(&self) -> Vec<Arc<Keeper>> {
        match self {
            Self::One(keeper) => vec![Arc::clone(keeper)],
            #[cfg(feature = "cluster")]
            Self::OfShards(them) if them.servers.nodes().refuse_forked_child().is_err() => {
                Vec::new()
            }
            #[cfg(feature = "cluster")]
            Self::OfShards(them) => them.started.lock().values().cloned().collect(),
        }
    }
}

/// The keepers of the shards on which a lock has been kept.
#[cfg(feature = "cluster")]
pub(super) struct KeepersOfShards {
    servers: Arc<Servers>,
    started: Mutex<HashMap<ShardId, Arc<Keeper>>>,
}

#[cfg(feature = "cluster")]
impl KeepersOfShards {
    fn of(&self, key: &str) -> Result<Arc<Keeper>> {
        let nodes = self.servers.nodes();
        nodes.refuse_forked_child()?;
        let limits = nodes.limits();
        let (shard, pool) = nodes.pool_for(key, Deadline::after(limits.connect))?;
        let mut started = self.started.lock();
        if let Some(keeper) = started.get(&shard) {
            return Ok(Arc::clone(keeper));
        }
        let renewals = self.servers.untracked_renewals(shard, &pool);
        let keeper = Keeper::start(renewals, limits, Clock::REAL)?;
        started.insert(shard, Arc::clone(&keeper));
        Ok(keeper)
    }
}
