//! The servers of a Redis Cluster: one for each shard, and what follows from an answer that says that a key is elsewhere.
//!
//! A [`Member`] is a shard as the locks on it know it. A call about a key that another shard has by now goes to that shard: a
//! lease stays with the keeper that has kept it, whatever becomes of its slot. [`Following`] does the same for a batch of
//! renewals. Only an acquire is told that its key has moved, since a thread waits in the queue of the shard that has the key.
//!
//! | the answer | then |
//! |---|---|
//! | `MOVED` | the map learns, and the shard that has the slot is asked: at most [`HOPS`](crate::connection::HOPS) times for a call |
//! | `ASK` | the node that is being given the slot is asked, by `ASKING` and the whole script in one write: a script that it does not know would use the `ASKING` up |
//! | `TRYAGAIN` | the keys of one lock are moved one after the other: the same again, after a pause; a renewal that can do without the second key goes at once by the first |
//! | `CLUSTERDOWN` and the like | the map is doubted; the caller has the answer |
//!
//! A node that is being given a slot is asked only after the node that has the slot has just named it: of a key that has not come yet it
//! would say "not yours".
//!
//! Locks: `of_shards` and `asking`, each for a moment. Nothing is sent while one of them is locked.

mod member;
mod renewals;

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, RwLock};
use redis::{Connection, RedisResult, Value};

use super::RedisServer;
use crate::{
    connection::{Address, Nodes, Redirect, ShardId},
    error::Result,
    exchange::Finished,
    script::Call,
    time::Deadline,
};
pub(crate) use member::Member;

/// So many connections to one node are kept for the next question.
const KEPT: usize = 4;

/// The shards of a cluster, as far as they have been used.
pub(crate) struct Servers {
    nodes: Nodes,
    of_shards: RwLock<HashMap<ShardId, Arc<RedisServer>>>,
    /// Connections beside the pools: to nodes that are being given slots, and for renewals that go elsewhere.
    asking: Mutex<HashMap<Address, Vec<Connection>>>,
}

impl Servers {
    pub(crate) fn new(nodes: &Nodes) -> Arc<Self> {
        Arc::new(Self {
            nodes: nodes.clone(),
            of_shards: RwLock::default(),
            asking: Mutex::default(),
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

    /// What an answer says of where the key is, if it says so; the map learns from it.
    fn redirect<T>(&self, answer: &RedisResult<T>) -> Option<Redirect> {
        self.nodes.redirect(answer.as_ref().err()?)
    }

    /// Asks a node that is being given the slot of this key, which the node that has the slot has just named. True: the call was sent
    /// twice, and nobody knows what came of the first.
    ///
    /// # Errors
    /// There is no connection, and nothing was sent.
    fn ask_at(
        &self,
        to: &Address,
        call: &Call,
        deadline: Deadline,
    ) -> Result<(RedisResult<Value>, bool)> {
        match self
            .kept(to)
            .map(|kept| self.ask_by(kept, to, call, deadline))
        {
            // It was closed while it lay here.
            Some(Err(error)) if error.is_connection_dropped() => {
                let second = self.ask_once_at(to, call, deadline);
                Ok(second.map_or((Err(error), false), |answer| (answer, true)))
            }
            Some(answer) => Ok((answer, false)),
            None => Ok((self.ask_once_at(to, call, deadline)?, false)),
        }
    }

    /// The same by a new connection. A call that may not be sent twice goes by no other: one that was kept may have been closed.
    fn ask_once_at(
        &self,
        to: &Address,
        call: &Call,
        deadline: Deadline,
    ) -> Result<RedisResult<Value>> {
        let opened = self.nodes.open_at(to, deadline)?;
        Ok(self.ask_by(opened, to, call, deadline))
    }

    fn ask_by(
        &self,
        mut connection: Connection,
        to: &Address,
        call: &Call,
        deadline: Deadline,
    ) -> RedisResult<Value> {
        let limit = deadline.remaining_up_to(self.nodes.limits().answer);
        connection.set_read_timeout(Some(limit))?;
        connection.set_write_timeout(Some(limit))?;
        let answer = call.ask_by_asking(&mut connection);
        if answer.as_ref().err().and_then(Finished::by_error).is_none() {
            self.keep(to, connection);
        }
        answer
    }

    fn kept(&self, to: &Address) -> Option<Connection> {
        self.asking.lock().get_mut(to).and_then(Vec::pop)
    }

    fn keep(&self, to: &Address, connection: Connection) {
        let mut asking = self.asking.lock();
        let kept = asking.entry(to.clone()).or_default();
        if kept.len() < KEPT {
            kept.push(connection);
        }
    }
}
