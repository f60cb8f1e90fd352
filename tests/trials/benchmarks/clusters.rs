//! `Lock` on a Redis Cluster of three shards, against one server.

use std::{thread, time::Duration};

use leasehold::Locks;
use redis::Connection;

use crate::{
    common::{Cluster, LONG, Server},
    measure::{Effort, compare},
    show,
};

const SHARDS: usize = 3;

/// The single server has no replicas either, and keeps no backlog for them.
fn without_replicas(cluster: &mut Cluster) -> anyhow::Result<()> {
    let replicas: Vec<_> = (SHARDS..2 * SHARDS)
        .map(|at| cluster.id(at).to_owned())
        .collect();
    for replica in &mut cluster.nodes[SHARDS..] {
        replica.kill()?;
    }
    for master in &cluster.nodes[..SHARDS] {
        let mut conn = master.connection()?;
        let mut backlog = redis::cmd("CONFIG");
        backlog.arg("SET").arg("repl-backlog-ttl").arg(1);
        backlog.exec(&mut conn)?;
        for replica in &replicas {
            redis::cmd("CLUSTER")
                .arg("FORGET")
                .arg(replica)
                .exec(&mut conn)?;
        }
    }
    thread::sleep(Duration::from_secs(3));
    Ok(())
}

/// Measures a guard on a free lock with one thread and with eight, whose locks are spread over all
/// shards.
pub(crate) fn free(
    server: &Server,
    connections: &mut [Connection],
    effort: Effort,
) -> anyhow::Result<()> {
    let mut cluster = Cluster::start()?;
    let names = (0..connections.len())
        .map(|thread| cluster.tag(thread % SHARDS, &format!("benchmark-{thread}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    without_replicas(&mut cluster)?;
    let sides = [
        Locks::connect(&cluster.url())?,
        Locks::connect(&server.url())?,
    ];
    let [on_shards, on_one] = sides.map(|locks| {
        let locks: Vec<_> = names.iter().map(|name| locks.lock(name)).collect();
        move |_: &mut Connection, thread: usize| Ok(locks[thread].acquire(LONG)?.release()?)
    });
    for threads in [1, 8] {
        let compared = compare(&mut connections[..threads], effort, &on_shards, &on_one)?;
        show(
            &format!("guard, 3 shards / one server, {threads} thread(s)"),
            &compared,
        );
    }
    Ok(())
}
