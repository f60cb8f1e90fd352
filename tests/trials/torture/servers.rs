//! The servers of a round: one server, a group with sentinels, or a cluster.

use std::time::Duration;

use anyhow::{Context, bail};

use crate::{
    common::{Cluster, Sentinels, Server, cluster::Layout, sentinels::Plan},
    options::Topology,
};

/// The silence after which one of several servers is considered down.
pub(crate) const DOWN_AFTER: Duration = Duration::from_secs(1);

/// Keeps every write in the log, as commands.
const SETTINGS: &[&str] = &[
    "--appendonly",
    "yes",
    "--appendfsync",
    "no",
    "--auto-aof-rewrite-percentage",
    "0",
    "--aof-disable-auto-gc",
    "yes",
    "--aof-use-rdb-preamble",
    "no",
];

pub(crate) enum Servers {
    One(Server),
    Watched(Sentinels),
    Sharded(Cluster),
}

impl Servers {
    /// Starts several servers. `replicas`: those of the master with sentinels; in a cluster each
    /// master has one.
    pub(crate) fn several(topology: Topology, replicas: usize) -> anyhow::Result<Self> {
        Ok(match topology {
            Topology::One => bail!("a single server is not several"),
            Topology::Sentinel => {
                let group = Sentinels::planned(Plan {
                    servers: 1 + replicas,
                    gated: true,
                    down_after: DOWN_AFTER,
                    settings: SETTINGS,
                    ..Plan::default()
                })?;
                group.look_often()?;
                Self::Watched(group)
            }
            Topology::Cluster => Self::Sharded(Cluster::laid_out(Layout {
                node_timeout: DOWN_AFTER,
                gated: true,
                bus_gated: true,
                settings: SETTINGS,
            })?),
        })
    }

    /// Returns the URL for the workers.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Watched(group) => group.url(),
            Self::Sharded(cluster) => cluster.url(),
        }
    }

    pub(crate) fn all(&self) -> Vec<&Server> {
        match self {
            Self::One(server) => vec![server],
            Self::Watched(group) => group.servers.iter().collect(),
            Self::Sharded(cluster) => cluster.nodes.iter().collect(),
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.all().into_iter().map(Server::url).collect()
    }

    /// Returns the URL of each of several servers, as clients reach it.
    pub(crate) fn gates(&self) -> Vec<String> {
        let announced = |at: usize| match self {
            Self::One(server) => server.port(),
            Self::Watched(group) => group.announced(at),
            Self::Sharded(cluster) => cluster.announced(at),
        };
        let all = 0..self.all().len();
        all.map(|at| format!("redis://127.0.0.1:{}/", announced(at)))
            .collect()
    }

    /// Returns the number of replicas of each master.
    pub(crate) fn replicas(&self) -> u32 {
        match self {
            Self::One(_) => 0,
            Self::Watched(group) => u32::try_from(group.servers.len() - 1).unwrap_or(0),
            Self::Sharded(_) => 1,
        }
    }

    /// Returns the server that has a key.
    pub(crate) fn master_of(&self, key: &str) -> anyhow::Result<&Server> {
        let at = match self {
            Self::One(server) => return Ok(server),
            Self::Watched(group) => group.master()?,
            Self::Sharded(cluster) => cluster.master_of(key)?,
        };
        self.all().get(at).copied().context("no such server")
    }

    /// Returns the servers that have keys of their own.
    pub(crate) fn masters(&self) -> Vec<&Server> {
        let masters = self.all().into_iter();
        masters.filter(|server| server.is_master()).collect()
    }
}
