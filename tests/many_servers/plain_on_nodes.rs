//! The book's functions, and writes under a lock, on connections to a cluster's nodes.

use std::time::Duration;

use leasehold::{
    Error, Owner, Result, Token, acquire_lock_with_timeout, commit_while_held,
    recipes::{mutex, read_write, reentrant},
    release_lock, transaction_while_held, transaction_with_lock, with_lock,
};
use redis::{Commands, Connection, Value};

use crate::{
    clusters::patient_nodes,
    common::{Cluster, LONG, MS, cluster::shared},
};

const TAGGED: &str = "{shop}:report";
const TOTAL: &str = "{shop}:total";

fn code<T: std::fmt::Debug>(answer: Result<T>) -> String {
    match answer.unwrap_err() {
        Error::Redis { source, .. } => source.code().unwrap_or_default().to_owned(),
        error => panic!("{error:?}"),
    }
}

/// Another key of the same node, in another slot.
fn neighbour(cluster: &Cluster, key: &str) -> String {
    let master = cluster.master_of(key).unwrap();
    let mut others = (0..).map(|n| format!("neighbour-{n}"));
    let is_one = |other: &String| cluster.master_of(other).unwrap() == master;
    others.find(is_one).unwrap()
}

/// A key of another node.
fn stranger(cluster: &Cluster, key: &str) -> String {
    let master = cluster.master_of(key).unwrap();
    let mut others = (0..).map(|n| format!("stranger-{n}"));
    let is_one = |other: &String| cluster.master_of(other).unwrap() != master;
    others.find(is_one).unwrap()
}

#[test]
fn a_write_without_the_locks_hash_tag_is_refused() {
    let cluster = shared();
    let nodes = patient_nodes(&cluster);
    let conn = &mut nodes.get_for(TAGGED).unwrap();
    let token = acquire_lock_with_timeout(conn, TAGGED, MS, LONG);
    let token = token.unwrap().unwrap();

    commit_while_held::<Value>(conn, TAGGED, &token, |pipe| _ = pipe.set(TOTAL, 1)).unwrap();
    let read = transaction_while_held(conn, TAGGED, &token, &[TOTAL], |conn, pipe| {
        pipe.incr(TOTAL, 1);
        Ok(conn.get::<_, u64>(TOTAL)?)
    });
    assert_eq!(read.unwrap(), 1);

    let elsewhere = [
        neighbour(&cluster, "lock:{shop}"),
        stranger(&cluster, "lock:{shop}"),
    ];
    for (other, refused) in elsewhere.iter().zip(["CROSSSLOT", "MOVED"]) {
        let both = |pipe: &mut redis::Pipeline| _ = pipe.set(TOTAL, 9).set(other, 9);
        assert_eq!(
            code(commit_while_held::<Value>(conn, TAGGED, &token, both)),
            refused
        );
        // Both for a watched key, and for one that is only written.
        let written = transaction_while_held(conn, TAGGED, &token, &[], |_, pipe| {
            both(pipe);
            Ok(())
        });
        assert_eq!(code(written), refused);
        let watched = transaction_while_held(conn, TAGGED, &token, &[other], |_, pipe| {
            both(pipe);
            Ok(())
        });
        // The WATCH itself names two slots.
        assert_eq!(code(watched), "CROSSSLOT");
        let once = LONG;
        let with_lock = transaction_with_lock(conn, "{shop}:other", MS, once, &[], |conn, pipe| {
            let _: u64 = conn.get(TOTAL)?;
            both(pipe);
            Ok(())
        });
        assert_eq!(code(with_lock), refused);
        assert!(
            !nodes
                .get_for_key(other)
                .unwrap()
                .exists::<_, bool>(other)
                .unwrap()
        );
    }
    assert_eq!(conn.get::<_, u64>(TOTAL).unwrap(), 2);
    let left: Vec<String> = conn.keys("lock:{shop}:other*").unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert!(release_lock(conn, TAGGED, &token).unwrap());
}

#[test]
fn every_plain_function_works_on_each_shard_through_run() {
    let cluster = shared();
    let nodes = patient_nodes(&cluster);
    let lease = Duration::from_secs(10);
    let mut met = [false; 3];
    for n in 0..12 {
        let name = &format!("name-{n}");
        met[cluster.master_of(&format!("lock:{name}")).unwrap()] = true;
        let took = |conn: &mut Connection| acquire_lock_with_timeout(conn, name, MS, lease);
        let token = nodes.run(name, took).unwrap().unwrap();
        assert_eq!(nodes.run(name, took).unwrap(), None);
        assert!(
            nodes
                .run(name, |conn| release_lock(conn, name, &token))
                .unwrap()
        );

        let token = &Token::random();
        let end = mutex::End::After(lease);
        let took = nodes.run(name, |conn| mutex::try_acquire(conn, name, token, end));
        assert!(took.unwrap().is_some());
        assert!(
            nodes
                .run(name, |conn| mutex::renew(conn, name, token, lease))
                .unwrap()
        );
        assert!(
            nodes
                .run(name, |conn| mutex::release(conn, name, token))
                .unwrap()
        );

        let owner = &Owner::current_thread();
        let entered = nodes.run(name, |conn| {
            reentrant::try_acquire(conn, name, owner, token, lease)
        });
        assert_eq!(entered.unwrap().unwrap().count(), 1);
        assert_eq!(
            nodes
                .run(name, |conn| reentrant::holds(conn, name, owner))
                .unwrap(),
            1
        );
        nodes
            .run(name, |conn| reentrant::release(conn, name, owner, token))
            .unwrap();

        let read = nodes.run(name, |conn| {
            read_write::try_acquire_read(conn, name, token, lease)
        });
        assert!(read.unwrap());
        assert!(
            nodes
                .run(name, |conn| read_write::release_read(conn, name, token))
                .unwrap()
        );

        let ran = nodes.run(name, |conn| with_lock(conn, name, MS, lease, |_, _| 7));
        assert_eq!(ran.unwrap().unwrap().unless_lost().unwrap(), 7);
    }
    assert_eq!(met, [true; 3]);
}
