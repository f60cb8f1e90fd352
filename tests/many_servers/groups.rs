//! The server groups that the tests start obey their options.

use std::time::Duration;

use leasehold::{Token, recipes::mutex};
use redis::{Commands, Connection};

use crate::common::{
    Cluster, LONG, Sentinels,
    hold::comes_true,
    sentinels::{Plan, in_step},
};

fn take(conn: &mut Connection, name: &str) {
    let granted = mutex::try_acquire(conn, name, &Token::random(), mutex::End::After(LONG));
    assert!(granted.unwrap().is_some());
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn sentinels_fail_over_on_request() {
    let group = Sentinels::start().unwrap();
    assert_eq!(group.master().unwrap(), 0);
    take(&mut group.servers[0].connection().unwrap(), "a");
    let promoted = group.fail_over().unwrap();
    assert_eq!(promoted, 1);
    group.wait_until_known(1).unwrap();
    let mut conn = group.servers[1].connection().unwrap();
    assert!(conn.exists::<_, bool>("lock:a").unwrap());
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_lock_on_no_replica_is_lost_with_its_master() {
    let plan = Plan {
        gated: true,
        ..Plan::default()
    };
    let mut group = Sentinels::planned(plan).unwrap();
    let mut master = group.servers[0].connection().unwrap();
    take(&mut master, "kept");
    assert!(comes_true(|| in_step(&mut master).unwrap() == 1));
    group.gates[0].shut_for_replicas();
    take(&mut master, "lost");
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    let mut conn = group.servers[1].connection().unwrap();
    assert!(conn.exists::<_, bool>("lock:kept").unwrap());
    assert!(!conn.exists::<_, bool>("lock:lost").unwrap());
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_cluster_fails_over_on_request_and_when_a_master_dies() {
    let mut cluster = Cluster::planned(Duration::from_millis(500), true).unwrap();
    assert_eq!(cluster.master_of("lock:a").unwrap(), 1);
    take(&mut cluster.nodes[1].connection().unwrap(), "a");
    assert_eq!(cluster.fail_over(1).unwrap(), 4);
    let mut conn = cluster.nodes[4].connection().unwrap();
    assert!(conn.exists::<_, bool>("lock:a").unwrap());
    cluster.wait_until_whole().unwrap();
    assert_eq!(cluster.master_of("lock:a").unwrap(), 4);
    cluster.nodes[4].kill().unwrap();
    cluster.wait_until_master(1).unwrap();
}
