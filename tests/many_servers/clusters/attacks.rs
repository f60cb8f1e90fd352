//! Disturbances of a cluster and a process while its locks are held: a forked child, a pool that is
//! lent out, and a slot that moves in a transaction.

use std::thread;

use leasehold::{Error, Lease, Lock, Locks, Nodes, Options, Pool};
use redis::Commands;

use super::{key, kinds, moving::Moved, mutex, patient};
use crate::common::{LONG, MS, child::said_by_a_child, cluster::shared, tell};

/// The parent has a connection for slot maps. A child that used it would read the parent's answers.
#[test]
fn a_forked_child_is_refused_its_parents_nodes_even_for_an_unused_shard() {
    let cluster = shared();
    let nodes = Nodes::connect(&cluster.url()).unwrap();
    let locks = Locks::on_nodes(&nodes);
    let (used, unused) = (
        cluster.tag(0, "fork").unwrap(),
        cluster.tag(1, "fork").unwrap(),
    );
    let lease = mutex(&locks, &used).acquire(LONG).unwrap();
    let forked = |refused: Option<Error>| matches!(refused, Some(Error::Forked { .. })).to_string();
    for tag in [&used, &unused] {
        let says = [
            said_by_a_child(|| forked(mutex(&locks, tag).try_acquire().err())),
            said_by_a_child(|| forked(mutex(&locks, tag).acquire(LONG).err())),
            said_by_a_child(|| forked(mutex(&locks, tag).inspect().err())),
            said_by_a_child(|| forked(mutex(&locks, tag).force_release().err())),
            said_by_a_child(|| forked(nodes.get_for_key(&key(tag)).err())),
            said_by_a_child(|| {
                let own = Locks::on_nodes(&nodes);
                forked(mutex(&own, tag).try_acquire().err())
            }),
            said_by_a_child(|| {
                let own = Locks::on_nodes(&nodes);
                forked(mutex(&own, tag).acquire(LONG).err())
            }),
        ];
        for (n, said) in says.iter().enumerate() {
            assert_eq!(said.as_deref(), Some("true"), "{n} {tag}");
        }
    }
    lease.verify().unwrap();
    lease.release().unwrap();
}

/// Neither the renewals on another shard, nor the replacement of a broken connection for the
/// remaining ones, needs a connection of the pool.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn all_leases_are_renewed_after_a_slot_moved_while_all_connections_are_lent() {
    let cluster = shared();
    for node in &cluster.nodes {
        tell(
            &mut node.connection().unwrap(),
            "ACL SETUSER lends on nopass ~* &* +@all",
        );
    }
    let url = cluster.url().replace("://", "://lends:all@");
    let nodes = Pool::builder().max_size(2).connect_nodes(&url).unwrap();
    let locks = Locks::on_nodes(&nodes).with(Options::new().lease(1_500 * MS));
    let (goes, stays) = (
        cluster.tag(0, "away").unwrap(),
        cluster.tag(0, "home").unwrap(),
    );
    let acquire = |lock: &Lock| lock.acquire(LONG).unwrap();
    let mut leases: Vec<Lease> = kinds(&locks, &goes).iter().map(acquire).collect();
    leases.push(mutex(&locks, &stays).acquire(LONG).unwrap());
    let moved = Moved::new(&cluster, &goes, 0);
    let there = cluster.tag(moved.to, "lent").unwrap();
    let lent = [&there, &there, &stays, &stays];
    let lent = lent.map(|tag| nodes.get_for_key(&key(tag)).unwrap());
    for round in 0..60 {
        for lease in &leases {
            assert!(lease.is_held(), "{round} {lease:?}");
        }
        if round == 15 {
            let mut kill = redis::cmd("CLIENT");
            kill.arg(&["KILL", "USER", "lends"]);
            let mut conn = cluster.nodes[0].connection().unwrap();
            assert!(kill.query::<u32>(&mut conn).unwrap() > 2);
        }
        thread::sleep(50 * MS);
    }
    drop(lent);
    for lease in leases {
        lease.verify().unwrap();
        lease.release().unwrap();
    }
}

/// The slot moves between the read and the write: the transaction runs again on the new node.
#[test]
fn a_transaction_whose_slot_moves_runs_once_at_the_new_shard() {
    let cluster = shared();
    let locks = patient(&cluster);
    let tag = cluster.tag(2, "amid").unwrap();
    let count = format!("count{{{tag}}}");
    for lock in kinds(&locks, &tag) {
        let lease = lock.acquire(LONG).unwrap();
        let (mut calls, mut moved) = (0, None);
        let read = lease.transaction(&[&count], |conn, pipe| {
            let n: Option<u32> = conn.get(&count)?;
            calls += 1;
            if calls == 1 {
                moved = Some(Moved::new(&cluster, &tag, 2));
            }
            pipe.incr(&count, 1);
            Ok(n.unwrap_or_default())
        });
        let read = read.unwrap_or_else(|error| panic!("{} {error:?}", lock.name()));
        assert_eq!(calls, 2, "{}", lock.name());
        let mut master = cluster.nodes[moved.as_ref().unwrap().to]
            .connection()
            .unwrap();
        assert_eq!(master.get::<_, u32>(&count).unwrap(), read + 1);
        lease
            .commit_and_release(|pipe| _ = pipe.incr(&count, 1))
            .unwrap();
        assert_eq!(master.get::<_, u32>(&count).unwrap(), read + 2);
        assert!(lock.try_acquire().unwrap().is_some());
        drop(moved);
    }
}
