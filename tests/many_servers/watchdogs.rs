//! A watchdog on a cluster: locks of every shard stay renewed, whatever happens to one shard.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, LostReason, Nodes, Owner, Pool, Renewal, Token, Watchdog, acquire_lock_with_timeout,
    recipes::{Hold, reentrant},
    release_lock,
};

use crate::common::{Cluster, MS, SLACK, cluster::shared, sentinels::in_step, wait::comes_true};

const LEASE: Duration = Duration::from_millis(1_500);

fn kept(nodes: &Nodes, watchdog: &Watchdog, name: &str, lease: Duration) -> (Token, Renewal) {
    let acquire = |conn: &mut redis::Connection| acquire_lock_with_timeout(conn, name, MS, lease);
    let token = nodes.run(name, acquire).unwrap().unwrap();
    let renewal = watchdog
        .keep(&Hold::mutex(name, &token).unwrap(), lease)
        .unwrap();
    (token, renewal)
}

/// A separate name for each shard of the shared cluster.
fn names(cluster: &Cluster, begins: &str) -> [String; 3] {
    [0, 1, 2].map(|master| format!("{{{}}}", cluster.tag(master, begins).unwrap()))
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn each_shards_lock_is_renewed_until_stopped() {
    let cluster = shared();
    let nodes = Nodes::connect(&cluster.url()).unwrap();
    let watchdog = Watchdog::on_nodes(&nodes);
    let names = names(&cluster, "dog");
    let leases = names
        .each_ref()
        .map(|name| kept(&nodes, &watchdog, name, LEASE));
    thread::sleep(2 * LEASE);
    for (name, (token, renewal)) in names.iter().zip(leases) {
        assert!(renewal.is_held(), "{renewal:?}");
        renewal.stop();
        assert!(
            nodes
                .run(name, |conn| release_lock(conn, name, &token))
                .unwrap()
        );
    }
    // Of any kind, except another holder's.
    let (owner, token) = (Owner::current_thread(), Token::random());
    let strange = Hold::mutex(&names[0], &token).unwrap();
    let refused = watchdog.keep(&strange, LEASE).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Lost {
                reason: Some(LostReason::TakenAway),
                ..
            }
        ),
        "{refused:?}"
    );
    let name = &names[1];
    let entered = nodes.run(name, |conn| {
        reentrant::try_acquire(conn, name, &owner, &token, LEASE)
    });
    assert!(entered.unwrap().is_some());
    let hold = Hold::reentrant(name, &owner, &token).unwrap();
    let renewal = watchdog.keep(&hold, LEASE).unwrap();
    assert!(renewal.is_held() && format!("{watchdog:?}").contains("leases: 1"));
}

/// Each shard has a thread of its own for callbacks, and none of these returns.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_drop_waits_for_the_threads_of_all_shards_at_once() {
    let cluster = shared();
    let answer = 1_000 * MS;
    let settings = Pool::builder().io_timeout(answer);
    let nodes = settings.connect_nodes(&cluster.url()).unwrap();
    let watchdog = Watchdog::on_nodes(&nodes);
    let names = names(&cluster, "drop");
    let held = names
        .each_ref()
        .map(|name| kept(&nodes, &watchdog, name, 9_000 * MS));
    let (ends, end) = mpsc::channel::<()>();
    let end = Arc::new(Mutex::new(end));
    for (_, renewal) in &held {
        let end = Arc::clone(&end);
        let waits = move |_| _ = end.lock().unwrap().recv();
        renewal.lost().notify(waits).unwrap();
    }
    let asked = Instant::now();
    drop(watchdog);
    let took = asked.elapsed();
    drop(ends);
    assert!(took >= answer && took < answer + SLACK, "{took:?}");
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_lock_survives_failovers_and_a_silent_shard_delays_no_other() {
    let mut cluster = Cluster::start().unwrap();
    let nodes = Pool::builder()
        .io_timeout(500 * MS)
        .connect_nodes(&cluster.url())
        .unwrap();
    let watchdog = Watchdog::on_nodes(&nodes);
    let names = names(&cluster, "dog");
    // Longer than a crash, which takes over a second to be noticed.
    let long = 9_000 * MS;
    let held = names
        .each_ref()
        .map(|name| kept(&nodes, &watchdog, name, long));
    // A replica may not have all of its master's data yet.
    for node in &cluster.nodes[..2] {
        let mut conn = node.connection().unwrap();
        assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
    }
    cluster.fail_over(0).unwrap();
    cluster.nodes[1].kill().unwrap();
    cluster.wait_until_master(4).unwrap();
    let asked = Instant::now();
    for (token, renewal) in &held[..2] {
        let renewed = comes_true(|| renewal.remaining() > long * 9 / 10);
        assert!(renewed, "{renewal:?} {token:?}");
    }
    assert!(asked.elapsed() < long / 2 + SLACK);

    // Shorter than the nodes need to notice: after that none of them serves anything until a
    // replica has taken over.
    let short = 900 * MS;
    let (_, kept_meanwhile) = kept(&nodes, &watchdog, &format!("{}short", names[2]), short);
    cluster.nodes[3].freeze().unwrap();
    let frozen = Instant::now();
    let mut shortest = short;
    while frozen.elapsed() < 800 * MS {
        shortest = shortest.min(kept_meanwhile.remaining());
        thread::sleep(10 * MS);
    }
    cluster.nodes[3].thaw().unwrap();
    assert!(shortest > short / 4, "{shortest:?}");
    for (name, (token, renewal)) in names.iter().zip(held) {
        assert!(renewal.is_held());
        renewal.stop();
        assert!(
            nodes
                .run(name, |conn| release_lock(conn, name, &token))
                .unwrap()
        );
    }
}
