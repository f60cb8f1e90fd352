//! Slots without a master: their locks are refused with the reason, and the others are not
//! affected.

use std::time::{Duration, Instant};

use leasehold::{Error, Locks, Nodes, Result, acquire_lock_with_timeout};
use redis::Connection;

use super::{connect, mutex};
use crate::common::{Cluster, LONG, MS, SLACK, Server};

/// The time limit of a call.
const LIMIT: Duration = Duration::from_secs(1);

fn each_node(cluster: &Cluster, does: impl Fn(&mut Connection)) {
    for node in &cluster.nodes {
        does(&mut node.connection().unwrap());
    }
}

/// Makes every node forget the owner of these slots.
fn make_a_hole(cluster: &Cluster, slots: &[u16]) {
    each_node(cluster, |conn| {
        for slot in slots {
            // A node that another has already told returns an error.
            let _ = redis::cmd("CLUSTER").arg("DELSLOTS").arg(*slot).exec(conn);
        }
    });
}

/// On every running node.
pub(super) fn cover_only_what_is_there(cluster: &Cluster, how: &str) {
    let conns = cluster.nodes.iter().map(Server::connection);
    for mut conn in conns.flatten() {
        let mut set = redis::cmd("CONFIG");
        set.arg(&["SET", "cluster-require-full-coverage", how]);
        set.exec(&mut conn).unwrap();
    }
}

/// The error of an acquire, which fails in time.
fn why_not(locks: &Locks, tag: &str) -> Error {
    let asked = Instant::now();
    let error = mutex(locks, tag).acquire(LIMIT).unwrap_err();
    assert!(asked.elapsed() < LIMIT + SLACK, "{:?}", asked.elapsed());
    error
}

fn plain(nodes: &Nodes, tag: &str) -> Result<bool> {
    let name = format!("plain{{{tag}}}");
    let token = nodes.run(&name, |conn| {
        acquire_lock_with_timeout(conn, &name, MS, LIMIT)
    })?;
    Ok(token.is_some())
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn locks_in_unserved_slots_are_refused_and_the_others_work() {
    let cluster = Cluster::start().unwrap();
    let before = connect(&cluster);
    let (here, hole) = (
        cluster.tag(0, "here").unwrap(),
        cluster.tag(0, "hole").unwrap(),
    );
    let slot = cluster.slot_of(&hole).unwrap();
    let held = mutex(&before, &hole).acquire(LONG).unwrap();
    cover_only_what_is_there(&cluster, "no");
    make_a_hole(&cluster, &[slot]);

    // A new client gets a map with a hole.
    let (nodes, after) = (Nodes::connect(&cluster.url()).unwrap(), connect(&cluster));
    for master in 0..3 {
        let tag = cluster.tag(master, "here").unwrap();
        mutex(&after, &tag)
            .acquire(LONG)
            .unwrap()
            .release()
            .unwrap();
        assert!(plain(&nodes, &tag).unwrap());
    }
    let named = format!("no node of the cluster serves the slot {slot} of `lock:");
    for error in [why_not(&after, &hole), plain(&nodes, &hole).unwrap_err()] {
        let said = matches!(&error, Error::Pool { reason, .. } if reason.starts_with(&named));
        assert!(said, "{error:?}");
    }
    // A client with the old map is told by the node that had the slot, unless its lease was checked
    // since: then it has the new map.
    let error = why_not(&before, &hole);
    let said = match &error {
        Error::Redis { source, .. } => source.code() == Some("CLUSTERDOWN"),
        Error::Pool { reason, .. } => reason.starts_with(&named),
        _ => false,
    };
    assert!(said, "{error:?}");
    mutex(&before, &here)
        .acquire(LONG)
        .unwrap()
        .release()
        .unwrap();

    // One master takes the slot, and both clients find it. The lock held in it was lost with the
    // slot.
    let mut owner = cluster.nodes[1].connection().unwrap();
    redis::cmd("CLUSTER")
        .arg("ADDSLOTS")
        .arg(slot)
        .exec(&mut owner)
        .unwrap();
    cluster.wait_until_whole().unwrap();
    for locks in [&before, &after] {
        mutex(locks, &hole)
            .acquire(LONG)
            .unwrap()
            .release()
            .unwrap();
    }
    assert!(matches!(held.release(), Err(Error::Lost { .. })));
}

/// Like nodes that require all slots to be served, while the cluster is being set up.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_cluster_with_full_coverage_is_down_until_all_slots_are_served() {
    let cluster = Cluster::start().unwrap();
    let (here, hole) = (
        cluster.tag(1, "here").unwrap(),
        cluster.tag(0, "hole").unwrap(),
    );
    let slot = cluster.slot_of(&hole).unwrap();
    make_a_hole(&cluster, &[slot]);
    let (nodes, locks) = (Nodes::connect(&cluster.url()).unwrap(), connect(&cluster));
    for error in [why_not(&locks, &here), plain(&nodes, &here).unwrap_err()] {
        let down =
            matches!(&error, Error::Redis { source, .. } if source.code() == Some("CLUSTERDOWN"));
        assert!(down, "{error:?}");
    }
    let mut owner = cluster.nodes[0].connection().unwrap();
    redis::cmd("CLUSTER")
        .arg("ADDSLOTS")
        .arg(slot)
        .exec(&mut owner)
        .unwrap();
    mutex(&locks, &here)
        .acquire(LONG)
        .unwrap()
        .release()
        .unwrap();
    cluster.wait_until_whole().unwrap();
    mutex(&locks, &hole)
        .acquire(LONG)
        .unwrap()
        .release()
        .unwrap();
}
