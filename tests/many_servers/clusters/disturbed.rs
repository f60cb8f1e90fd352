//! A node that closes its connections while the others are silent.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lock, Locks, Options};

use super::connect;
use crate::{
    common::{Cluster, LONG, MS, SLACK, server::Server},
    history::{SECOND, Stopping},
};

fn lock(locks: &Locks, tag: &str, n: usize) -> Lock {
    locks.lock(&format!("a{n}{{{tag}}}"))
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
