//! The servers of a Redis Cluster: one for each shard. Calls follow a key that is on another shard.
//!
//! A [`Member`] is a shard, as the locks on it see it. A call about a key that has moved goes to
//! the shard that has it: a lease stays with its keeper, wherever its slot goes.
//! [`Following`](renewals::Following) does this for batches of renewals. Only an acquire gets the
//! refusal itself, since its thread has to wait in the queue of the shard that has the key.
//!
//! By the reply:
//! - **`MOVED`**: the map learns of the move, and the shard that has the slot is asked, at most
//!   [`HOPS`](crate::pool::HOPS) times for a call.
//! - **`ASK`, `TRYAGAIN`**: the slot is being moved. The call is resent after a pause, for at most
//!   one I/O time-out.
//! - **`CLUSTERDOWN` and similar**: the map is in doubt, and the caller gets the error.
//!
//! Locks: `of_shards`, for a moment, and `pools` of [`Nodes`] within it. Nothing is sent meanwhile.

mod member;
mod renewals;

use std::sync::Arc;

use redis::RedisResult;

use super::RedisServer;
use crate::{
    cluster::{Nodes, PerShard, Redirect, ShardId},
    error::Result,
};
pub(crate) use member::Member;

/// The shards of a cluster that have been used.
pub(crate) struct Servers {
    nodes: Nodes,
    of_shards: PerShard<Arc<RedisServer>>,
}

impl Servers {
    pub(crate) fn new(nodes: &Nodes) -> Arc<Self> {
        Arc::new(Self {
            nodes: nodes.clone(),
            of_shards: PerShard::default(),
        })
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// A shard, as the locks on it see it.
    pub(crate) fn member(self: &Arc<Self>, id: ShardId) -> Result<Member> {
        Ok(Member::new(self, id, self.server(id)?))
    }

    fn server(&self, id: ShardId) -> Result<Arc<RedisServer>> {
        let make = || Ok(Arc::new(RedisServer::new(&self.nodes.pool_of(id)?)));
        self.of_shards.get_or_make(id, make)
    }

    /// Enters a redirect in the map. `None`: the reply is not one.
    fn redirect<T>(&self, answer: &RedisResult<T>) -> Option<Redirect> {
        self.nodes.redirect(answer.as_ref().err()?)
    }
}
