//! Disturbed nodes while locks are requested: two name each other, or one closes its connections
//! while the others are silent.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lock, Locks, Options};

use super::connect;
use crate::{
    LEASE,
    common::{Cluster, LONG, MS, Resharding, SLACK, server::Server},
    history::{SECOND, Stopping},
};

fn lock(locks: &Locks, tag: &str, n: usize) -> Lock {
    locks.lock(&format!("a{n}{{{tag}}}"))
}

/// The slot is closed at its source first: until it is closed at the target too, each of the two
/// names the other.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn holders_calls_succeed_while_two_nodes_redirect_to_each_other_briefly() {
    let cluster = Cluster::planned(15 * SECOND, false).unwrap();
    let locks = connect(&cluster);
    let tag = cluster.tag(0, "closed").unwrap();
    let slot = cluster.slot_of(&tag).unwrap();
    let [first, second] = [0, 1].map(|n| lock(&locks, &tag, n).acquire(LONG).unwrap());
    // These would spread the news to all nodes.
    for at in [4, 5] {
        cluster.nodes[at].freeze().unwrap();
    }
    let mut moves = Resharding::new(&cluster, 0, 1).unwrap();
    moves.open(&[slot]).unwrap();
    moves.move_keys(slot).unwrap();
    let close = |at: usize| {
        let mut close = redis::cmd("CLUSTER");
        close.arg("SETSLOT").arg(slot);
        close.arg("NODE").arg(cluster.id(1));
        close
            .exec(&mut cluster.nodes[at].connection().unwrap())
            .unwrap();
    };
    close(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(60 * MS);
            close(1);
        });
        first.verify().unwrap();
        first.renew(LEASE).unwrap();
        first.release().unwrap();
        second
            .commit_and_release(|pipe| _ = pipe.set(format!("x{{{tag}}}"), 1))
            .unwrap();
    });
    for at in [4, 5] {
        cluster.nodes[at].thaw().unwrap();
    }
}

/// As a firewall would.
fn close_all_connections(node: &Server) {
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let _: u64 = kill.query(&mut node.connection().unwrap()).unwrap();
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn silent_shards_do_not_delay_another_whose_connections_break() {
    const SILENT: [usize; 4] = [1, 2, 4, 5];
    let cluster = Cluster::planned(60 * SECOND, false).unwrap();
    let locks = connect(&cluster).with(Options::new().lease(30 * SECOND));
    let tags = [0, 1, 2].map(|at| cluster.tag(at, "well").unwrap());
    for tag in &tags {
        drop(lock(&locks, tag, 0).acquire(LONG).unwrap());
    }
    for at in SILENT {
        cluster.nodes[at].freeze().unwrap();
    }
    let stop = AtomicBool::new(false);
    let mut slowest = Duration::ZERO;
    thread::scope(|scope| {
        let stopping = Stopping(&stop);
        for n in 0..6 {
            let (lock, stop) = (lock(&locks, &tags[1 + n % 2], n), &stop);
            scope.spawn(move || {
                while !stop.load(SeqCst) {
                    let _ = lock.acquire(300 * MS);
                }
            });
        }
        for round in 0..16 {
            if round % 2 == 0 {
                close_all_connections(&cluster.nodes[0]);
            }
            let asked = Instant::now();
            let lease = lock(&locks, &tags[0], round).acquire(LONG).unwrap();
            lease.release().unwrap();
            slowest = slowest.max(asked.elapsed());
            thread::sleep(400 * MS);
        }
        drop(stopping);
    });
    for at in SILENT {
        cluster.nodes[at].thaw().unwrap();
    }
    println!("slowest {slowest:?}");
    assert!(slowest < SLACK, "{slowest:?}");
}
