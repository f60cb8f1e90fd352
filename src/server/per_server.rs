//! One value for the only server, or one for each shard of a cluster, made at the first use of the
//! shard: a silent shard does not delay another.
//!
//! Locks: the values of the shards, briefly, and while a value is made, which opens no connection.

#[cfg(feature = "cluster")]
use std::sync::Arc;

#[cfg(feature = "cluster")]
use super::Servers;
#[cfg(feature = "cluster")]
use crate::cluster::{Nodes, PerShard, ShardId};
use crate::{error::Result, time::Deadline};

/// The value of each server.
#[derive(Clone)]
pub(crate) enum PerServer<T> {
    One(T),
    #[cfg(feature = "cluster")]
    Shards(Arc<Shards<T>>),
}

/// The shards of a cluster, with a value for each that has been used.
#[cfg(feature = "cluster")]
pub(crate) struct Shards<T> {
    servers: Arc<Servers>,
    values: PerShard<T>,
    make: Box<MakeForShard<T>>,
}

#[cfg(feature = "cluster")]
type MakeForShard<T> = dyn Fn(&Arc<Servers>, ShardId) -> Result<T> + Send + Sync;

impl<T: Clone> PerServer<T> {
    #[cfg(feature = "cluster")]
    pub(crate) fn of_shards(
        nodes: &Nodes,
        make: impl Fn(&Arc<Servers>, ShardId) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self::Shards(Arc::new(Shards {
            servers: Servers::new(nodes),
            values: PerShard::default(),
            make: Box::new(make),
        }))
    }

    /// Returns the value of the server that has this key. On a cluster this may ask the nodes for
    /// the shard of the key, until the deadline.
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
    pub(crate) fn of(&self, key: &str, deadline: Deadline) -> Result<T> {
        match self {
            Self::One(value) => Ok(value.clone()),
            #[cfg(feature = "cluster")]
            Self::Shards(shards) => {
                let shard = shards.servers.nodes().shard_for(key, deadline)?;
                let make = || (shards.make)(&shards.servers, shard);
                shards.values.get_or_make(shard, make)
            }
        }
    }

    /// Returns the values of all servers that have been used.
    pub(crate) fn all(&self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value.clone()],
            #[cfg(feature = "cluster")]
            Self::Shards(shards) => shards.values.all(),
        }
    }
}
