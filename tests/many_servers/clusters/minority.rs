//! A node that is cut off from the others but reachable by clients does not keep clients from the
//! cluster.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Locks, Nodes};
use redis::Commands;

use super::{key, mutex};
use crate::{
    common::{
        Cluster, LONG, MS, SLACK,
        cluster::Layout,
        hold::comes_true,
        sentinels::in_step,
        server::{Server, signal},
    },
    history::Stopping,
};

/// The limit for elections, which run every four seconds.
const LIMIT: Duration = Duration::from_secs(30);

fn said(node: &Server, what: &str) -> String {
    let mut conn = node.connection().unwrap();
    redis::cmd("CLUSTER").arg(what).query(&mut conn).unwrap()
}

/// The epoch that a node has learned or counted.
fn epoch(node: &Server) -> u64 {
    let info = said(node, "INFO");
    let mut lines = info.lines();
    let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    epoch.unwrap().trim().parse().unwrap()
}

/// The first shard has two replicas. One is cut off when its master dies. Its elections get no
/// votes, so its epoch passes that of the others, where the second replica has become the master.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_client_that_asks_an_isolated_replica_first_finds_the_majoritys_master() {
    let cluster = Cluster::laid_out(Layout {
        node_timeout: Duration::from_millis(500),
        gated: false,
        bus_gated: true,
        settings: &[],
    });
    let cluster = cluster.unwrap();
    let [master, cut_off, other] = [0, 3, 4].map(|at| &cluster.nodes[at]);
    let mut conn = other.connection().unwrap();
    let replicate = redis::cmd("CLUSTER")
        .arg(&["REPLICATE", cluster.id(0)])
        .clone();
    replicate.exec(&mut conn).unwrap();
    let mut conn = master.connection().unwrap();
    assert!(comes_true(|| in_step(&mut conn).unwrap() == 2));
    cluster.wait_until_whole().unwrap();
    let tag = cluster.tag(0, "found").unwrap();
    signal(master.process(), "KILL").unwrap();
    // It knows that its master is dead, and has half a second until its first election.
    let dead = |line: &str| line.starts_with(cluster.id(0)) && line.contains("master,fail ");
    let began = Instant::now();
    while !said(cut_off, "NODES").lines().any(dead) {
        assert!(began.elapsed() < LIMIT);
        thread::sleep(MS);
    }
    cluster.cut_off(3);
    cluster.wait_until_master(4).unwrap();
    while epoch(cut_off) <= epoch(other) {
        assert!(began.elapsed() < LIMIT);
        thread::sleep(50 * MS);
    }
    let ports = [cut_off.port(), cluster.nodes[1].port()];
    let url = format!(
        "redis+cluster://127.0.0.1:{},127.0.0.1:{}",
        ports[0], ports[1]
    );
    let locks = Locks::on_nodes(&Nodes::connect(&url).unwrap());
    mutex(&locks, &tag)
        .acquire(LONG)
        .unwrap()
        .release()
        .unwrap();
    assert!(!cut_off.is_master());
    assert_eq!(cluster.master_of(&key(&tag)).unwrap(), 4);
}

/// As a firewall would, until stopped.
fn close_connections(node: &Server, stop: &AtomicBool) {
    let mut conn = node.connection().unwrap();
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    while !stop.load(Ordering::SeqCst) {
        let _ = kill.query::<u64>(&mut conn);
        thread::sleep(20 * MS);
    }
}

/// It accepts each new connection, but does not know of its shard's failover.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_client_that_reconnects_to_an_isolated_master_finds_its_successor() {
    let cluster = Cluster::laid_out(Layout {
        node_timeout: Duration::from_millis(500),
        gated: true,
        bus_gated: true,
        settings: &[],
    });
    let cluster = cluster.unwrap();
    let locks = Locks::on_nodes(&Nodes::connect(&cluster.url()).unwrap());
    let tag = cluster.tag(0, "cut").unwrap();
    drop(mutex(&locks, &tag).acquire(LONG).unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        scope.spawn(|| close_connections(&cluster.nodes[0], &stop));
        for n in 0..3 {
            let lock = locks.lock(&format!("{n}{{{tag}}}"));
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    drop(lock.acquire(LONG));
                    thread::sleep(5 * MS);
                }
            });
        }
        cluster.cut_off(0);
        cluster.wait_until_master(3).unwrap();
        let promoted = Instant::now();
        let mut conn = cluster.nodes[3].connection().unwrap();
        let is_granted_there = || {
            let _lease = mutex(&locks, &tag).acquire(LONG);
            conn.exists(key(&tag)).unwrap()
        };
        assert!(comes_true(is_granted_there));
        let took = promoted.elapsed();
        assert!(took < 1_000 * MS + SLACK, "{took:?}");
    });
    cluster.open_gates();
}
