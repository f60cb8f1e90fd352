//! The plain functions with `Nodes::run` while a slot moves. Torture has storms of them, with
//! failovers too.

use std::time::Duration;

use leasehold::{Error, Nodes, Pool, Token, release_lock, transaction_with_lock, with_lock};
use redis::Commands;

use crate::common::{Cluster, LONG, Resharding, cluster::shared};

const LEASE: Duration = Duration::from_secs(30);
/// The wait of a function for a lock that is held.
const WAIT: Duration = Duration::from_millis(20);

/// Calls that must not time out.
fn patient(cluster: &Cluster) -> Nodes {
    let builder = Pool::builder().get_timeout(LONG).io_timeout(LONG);
    let builder = builder.connect_timeout(LONG);
    builder.connect_nodes(&cluster.url()).unwrap()
}

/// It cannot be released on the node where it was acquired.
#[test]
fn a_lock_that_moves_during_a_transaction_is_reported_with_its_token() {
    let cluster = shared();
    let tag = cluster.tag(1, "away").unwrap();
    let slot = [cluster.slot_of(&tag).unwrap()];
    let nodes = patient(&cluster);
    let [lock, count] = &["lock", "count"].map(|name| format!("{{{tag}}}:{name}"));
    let outcome = nodes.run(lock, |conn| {
        transaction_with_lock(conn, lock, WAIT, LEASE, &[], |conn, pipe| {
            let _: Option<u64> = conn.get(count)?;
            let mut there = Resharding::new(&cluster, 1, 2).unwrap();
            there.run(&slot).unwrap();
            pipe.set(count, 1);
            Ok(())
        })
    });
    let error = outcome.unwrap_err();
    let given_back =
        (error.token()).map(|token| nodes.run(lock, |conn| release_lock(conn, lock, token)));
    let written: bool = nodes.get_for(lock).unwrap().exists(count).unwrap();
    let mut back = Resharding::new(&cluster, 2, 1).unwrap();
    back.run(&slot).unwrap();
    assert!(given_back.unwrap().unwrap() && !written, "{error:?}");
}

#[test]
fn a_lock_that_moves_during_a_closure_is_reported_with_its_token() {
    let cluster = shared();
    let tag = cluster.tag(2, "ran").unwrap();
    let slot = [cluster.slot_of(&tag).unwrap()];
    let nodes = patient(&cluster);
    let [lock, count] = &["lock", "count"].map(|name| format!("{{{tag}}}:{name}"));
    let mut runs = 0;
    let ran = nodes.run(lock, |conn| {
        with_lock(conn, lock, WAIT, LEASE, |conn, _| {
            runs += 1;
            conn.set::<_, _, ()>(count, 1).unwrap();
            let mut there = Resharding::new(&cluster, 2, 0).unwrap();
            there.run(&slot).unwrap();
            conn.incr::<_, _, u64>(count, 1)
        })
    });
    let ran = ran.unwrap().unwrap();
    let release = |token: &Token| nodes.run(lock, |conn| release_lock(conn, lock, token));
    let given_back = (ran.released.as_ref().err().and_then(Error::token)).map(release);
    let written: u64 = nodes.get_for(lock).unwrap().get(count).unwrap();
    let mut back = Resharding::new(&cluster, 0, 2).unwrap();
    back.run(&slot).unwrap();
    assert!(given_back.unwrap().unwrap(), "{:?}", ran.released);
    let refused = ran.value.unwrap_err();
    assert_eq!((refused.code(), runs, written), (Some("MOVED"), 1, 1));
}
