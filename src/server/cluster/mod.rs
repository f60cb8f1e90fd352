//! The servers of a Redis Cluster: one for each shard, and where a call goes when its key is on
//! another shard.
//!
//! A [`Member`] is a shard as the locks on it know it. A call about a key that another shard has by
//! now goes to that shard: a lease stays with the keeper that has kept it, wherever its slot goes.
//! [`Following`](renewals::Following) does the same for a batch of renewals. Only an acquire is
//! told that its key has moved, since its thread waits in the queue of the shard that has the key.
//!
//! | the answer | then |
//! |---|---|
//! | `MOVED` | the map learns, and the shard that has the slot is asked: for a call at most [`HOPS`](crate::pool::HOPS) times |
//! | `ASK`, `TRYAGAIN` | the slot is on its way: the call is sent again after a pause, for at most one I/O time-out |
//! | `CLUSTERDOWN` and the like | the map is doubted; the caller gets the answer |
//!
//! Locks: `of_shards`, for a moment. Nothing is sent while it is locked.

mod member;
mod renewals;

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;
use redis::RedisResult;

use super::RedisServer;
use crate::{
    cluster::{Nodes, Redirect, ShardId},
    error::Result,
};
pub(crate) use member::Member;

/// The shards of a cluster, as far as they have been used.
pub(crate) struct Servers {
    nodes: Nodes,
    of_shards: RwLock<HashMap<ShardId, Arc<RedisServer>>>,
}

impl Servers {
    pub(crate) fn new(nodes: &Nodes) -> Arc<Self> {
        Arc::new(Self {
            nodes: nodes.clone(),
            of_shards: RwLock::default(),
        })
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// A shard, as the locks on it know it.
    pub(crate) fn member(self: &Arc<Self>, id: ShardId) -> Result<Member> {
        Ok(Member::new(self, id, self.server(id)?))
    }

    fn server(&self, id: ShardId) -> Result<Arc<RedisServer>> {
        if let Some(server) = self.of_shards.read().get(&id) {
            return Ok(Arc::clone(server));
        }
        let pool = self.nodes.pool_of(id)?;
        let mut of_shards = self.of_shards.write();
        let server = of_shards.entry(id);
        let server = server.or_insert_with(|| Arc::new(RedisServer::new(&pool)));
        Ok(Arc::clone(server))
    }

    /// Where an answer says that the key is, if it says so; the map learns from it.
    fn redirect<T>(&self, answer: &RedisResult<T>) -> Option<Redirect> {
        self.nodes.redirect(answer.as_ref().err()?)
    }
}
