//! Nodes that are frozen, dead or cut off: no call exceeds its time limit, and calls to other
//! shards do not wait.

use std::{
    sync::Mutex,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Nodes, Pool, acquire_lock_with_timeout, recipes::Hold, release_lock};

use crate::common::{Cluster, MS, SLACK, hold::comes_true};

const GET: Duration = Duration::from_millis(800);
const IO: Duration = Duration::from_millis(400);
const LEASE: Duration = Duration::from_secs(5);

/// Acquires and releases locks of one shard until stopped. Returns the longest call and the number
/// of grants.
fn work(nodes: &Nodes, tag: &str, over: &AtomicBool) -> (Duration, usize) {
    let (mut longest, mut granted) = (Duration::ZERO, 0);
    let mut n = 0;
    while !over.load(SeqCst) {
        n += 1;
        let name = &format!("{{{tag}}}{n}");
        let asked = Instant::now();
        let token = nodes.run(name, |conn| {
            acquire_lock_with_timeout(conn, name, MS, LEASE)
        });
        longest = longest.max(asked.elapsed());
        if let Ok(Some(token)) = token {
            granted += 1;
            let asked = Instant::now();
            let _ = nodes.run(name, |conn| release_lock(conn, name, &token));
            longest = longest.max(asked.elapsed());
        }
    }
    (longest, granted)
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn calls_stay_within_their_deadline_while_masters_are_frozen_or_killed() {
    let mut cluster = Cluster::start().unwrap();
    let builder = Pool::builder().get_timeout(GET).io_timeout(IO).max_size(4);
    let nodes = builder.connect_nodes(&cluster.url()).unwrap();
    let tags = [0, 1, 2].map(|master| cluster.tag(master, "silent").unwrap());
    let (over, results) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for (shard, tag) in tags.iter().enumerate() {
            let (nodes, over, results) = (&nodes, &over, &results);
            scope.spawn(move || {
                let done = work(nodes, tag, over);
                results.lock().unwrap().push((shard, done));
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            thread::sleep(200 * MS);
            // Shorter than the nodes notice: the other shards continue.
            cluster.nodes[0].freeze().unwrap();
            thread::sleep(700 * MS);
            cluster.nodes[0].thaw().unwrap();
            cluster.nodes[1].kill().unwrap();
            cluster.wait_until_master(4).unwrap();
            thread::sleep(300 * MS);
            cluster.nodes[2].freeze().unwrap();
            cluster.wait_until_master(5).unwrap();
            thread::sleep(1_500 * MS);
            cluster.nodes[2].thaw().unwrap();
        }));
        over.store(true, SeqCst);
        outcome.unwrap();
    });
    for (shard, (longest, granted)) in results.into_inner().unwrap() {
        println!("shard {shard}: {granted} granted, the longest call took {longest:?}");
        assert!(longest < GET + IO + SLACK, "shard {shard}: {longest:?}");
        assert!(granted > 20, "shard {shard}: {granted}");
    }
    // All shards are back, with new masters.
    for (tag, master) in tags.iter().zip([0, 4, 5]) {
        let name = &format!("{{{tag}}}after");
        let token = nodes.run(name, |conn| {
            acquire_lock_with_timeout(conn, name, MS, LEASE)
        });
        assert!(token.unwrap().is_some());
        assert_eq!(cluster.master_of(&format!("lock:{name}")).unwrap(), master);
    }
}

/// A plain function sends its command once. A master that was silent for long may grant it although
/// it was replaced. With a required replica the call is refused, because the returning master has
/// none.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_required_replica_refuses_a_silent_masters_grant_to_a_plain_function() {
    let cluster = Cluster::planned(Duration::from_millis(500), false).unwrap();
    let tag = cluster.tag(0, "late").unwrap();
    let name = &format!("{{{tag}}}");
    let patient = Pool::builder().io_timeout(Duration::from_secs(30));
    let patient = patient.connect_nodes(&cluster.url()).unwrap();
    let mut conn = patient.get_for(name).unwrap();
    let lease = Duration::from_mins(1);
    cluster.nodes[0].freeze().unwrap();
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let token = acquire_lock_with_timeout(&mut conn, name, MS, lease)?;
            let token = token.unwrap();
            let hold = Hold::mutex(name, &token)?;
            Ok::<_, Error>(hold.confirm_by_replicas(&mut conn, 1, 100 * MS))
        });
        cluster.wait_until_master(3).unwrap();
        let others = Nodes::connect(&cluster.url()).unwrap();
        let acquire =
            |conn: &mut redis::Connection| acquire_lock_with_timeout(conn, name, MS, lease);
        let granted = comes_true(|| matches!(others.run(name, acquire), Ok(Some(_))));
        cluster.nodes[0].thaw().unwrap();
        assert!(granted);
        let confirmed = late.join().unwrap();
        println!("{confirmed:?}");
        assert!(!matches!(confirmed, Ok(Ok(()))), "two hold the lock");
    });
}
