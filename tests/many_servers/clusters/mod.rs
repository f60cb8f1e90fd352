//! Locks of all kinds on a Redis Cluster: on every shard, and while shards fail over, move or are
//! silent.

mod attacks;
mod disturbed;
mod failovers;
mod holes;
mod minority;
mod moving;
mod sets;
mod silent;
mod undisturbed;

use leasehold::{Lock, Locks, Nodes, Pool};

use crate::common::{Cluster, LONG};

/// A lock of each kind, all of them on one shard.
fn kinds(locks: &Locks, tag: &str) -> [Lock; 5] {
    [
        locks.lock(&format!("mutex{{{tag}}}")),
        locks.reentrant(&format!("reentrant{{{tag}}}")),
        locks.read(&format!("read{{{tag}}}")),
        locks.write(&format!("write{{{tag}}}")),
        locks.semaphore(&format!("semaphore{{{tag}}}"), 1),
    ]
}

/// A mutex of this name.
fn mutex(locks: &Locks, tag: &str) -> Lock {
    locks.lock(&format!("a{{{tag}}}"))
}

/// Its key.
fn key(tag: &str) -> String {
    format!("lock:a{{{tag}}}")
}

/// Like a separate process.
fn connect(cluster: &Cluster) -> Locks {
    Locks::on_nodes(&Nodes::connect(&cluster.url()).unwrap())
}

/// The same for calls that must not time out: a node that writes its configuration to a busy disk
/// is silent meanwhile.
fn patient(cluster: &Cluster) -> Locks {
    Locks::on_nodes(&patient_nodes(cluster))
}

pub(crate) fn patient_nodes(cluster: &Cluster) -> Nodes {
    let builder = Pool::builder().get_timeout(LONG).io_timeout(LONG);
    let nodes = builder.connect_timeout(LONG).connect_nodes(&cluster.url());
    nodes.unwrap()
}
