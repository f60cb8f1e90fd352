//! The servers whose master is replaced: a group with sentinels, or a shard of a Redis Cluster.

use clap::ValueEnum;

use crate::{
    common::{Cluster, Sentinels, cluster::partner, sentinels::Plan},
    picture::Picture,
};

/// The failure of the master.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum What {
    /// The master is killed.
    Crash,
    /// A planned failover replaces the master, whose connections stay open.
    Planned,
    /// The master freezes, and resumes after it was replaced.
    Freeze,
}

/// The topology of the servers.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Topology {
    /// A master, its replicas and three sentinels.
    Sentinels,
    /// Three masters with a replica each. The lock is on one of them.
    Cluster,
}

pub(crate) enum Servers {
    Watched(Sentinels),
    Sharded(Cluster),
}

impl Servers {
    /// Starts the servers. `servers` is the size of a group with sentinels.
    pub(crate) fn start(topology: Topology, servers: u8) -> anyhow::Result<Self> {
        Ok(match topology {
            Topology::Sentinels => Self::Watched(Sentinels::planned(Plan {
                servers: servers.into(),
                ..Plan::default()
            })?),
            Topology::Cluster => Self::Sharded(Cluster::start()?),
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Watched(group) => group.url(),
            Self::Sharded(cluster) => cluster.url(),
        }
    }

    /// Replaces the master that has this key.
    pub(crate) fn fail_over(
        &mut self,
        what: What,
        key: &str,
        picture: &mut Picture,
    ) -> anyhow::Result<()> {
        match self {
            Self::Watched(group) => of_the_watched(group, what, picture),
            Self::Sharded(cluster) => of_a_shard(cluster, what, key, picture),
        }
    }
}

fn of_the_watched(group: &mut Sentinels, what: What, picture: &mut Picture) -> anyhow::Result<()> {
    let before = group.master()?;
    match what {
        What::Crash => {
            group.servers[before].kill()?;
            picture.mark("the master is killed");
        }
        What::Planned => {
            picture.mark("a failover is requested");
            group.fail_over()?;
        }
        What::Freeze => {
            group.servers[before].freeze()?;
            picture.mark("the master freezes");
        }
    }
    if !matches!(what, What::Planned) {
        group.promoted_after(before)?;
    }
    picture.mark("a replica is promoted");
    group.another_is_named(before)?;
    picture.mark("a sentinel reports the new master");
    if let What::Freeze = what {
        group.servers[before].thaw()?;
        picture.mark("the old master resumes");
    }
    Ok(())
}

fn of_a_shard(
    cluster: &mut Cluster,
    what: What,
    key: &str,
    picture: &mut Picture,
) -> anyhow::Result<()> {
    let before = cluster.master_of(key)?;
    match what {
        What::Crash => {
            cluster.nodes[before].kill()?;
            picture.mark("the master of the shard is killed");
        }
        What::Planned => {
            picture.mark("a failover is requested");
            cluster.fail_over(before)?;
        }
        What::Freeze => {
            cluster.nodes[before].freeze()?;
            picture.mark("the master of the shard freezes");
        }
    }
    cluster.wait_until_master(partner(before))?;
    picture.mark("its replica is promoted");
    if let What::Freeze = what {
        cluster.nodes[before].thaw()?;
        picture.mark("the old master resumes");
    }
    Ok(())
}
