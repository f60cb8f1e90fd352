//! Disturbances of a cluster and a process while its locks are held: a forked child, a pool that is
//! lent out, a slot that moves in a transaction, and masters that join and leave.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use leasehold::{Error, Lease, Lock, Locks, Nodes, Options, Pool};
use redis::Commands;

use super::{connect, key, kinds, moving::Moved, mutex, patient};
use crate::{
    common::{
        Cluster, LONG, MS, Resharding,
        child::said_by_a_child,
        cluster::{shared, slots_of},
        hold::comes_true,
    },
    history::{History, SECOND, violations, work},
};

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
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", "lends", "on", "nopass", "~*", "&*", "+@all"]);
        user.exec(&mut node.connection().unwrap()).unwrap();
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

/// All slots of a shard move to an empty master, the old one leaves and dies, and the new one is
/// replaced by its replica.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn leases_and_waiters_of_a_shard_survive_the_replacement_of_its_nodes() {
    let cluster = Cluster::planned(Duration::from_millis(500), false).unwrap();
    let (locks, others) = (connect(&cluster), connect(&cluster));
    let tag = cluster.tag(0, "outlives").unwrap();
    let locks = locks.with(Options::new().lease(3_000 * MS));
    let lease = mutex(&locks, &tag).acquire(LONG).unwrap();
    thread::scope(|scope| {
        let here = scope.spawn(|| mutex(&locks, &tag).acquire(6 * LONG).map(drop));
        let there = scope.spawn(|| mutex(&others, &tag).acquire(6 * LONG).map(drop));
        let waits = |locks: &Locks| mutex(locks, &tag).inspect().unwrap().waiting_here() == 1;
        assert!(comes_true(|| waits(&locks) && waits(&others)));
        // The replica of the second becomes a master without slots.
        let meets = cluster.nodes[0].port().to_string();
        let mut fifth = cluster.nodes[4].connection().unwrap();
        let reset = [&["RESET", "SOFT"][..], &["MEET", "127.0.0.1", &meets]];
        for words in reset {
            redis::cmd("CLUSTER").arg(words).exec(&mut fifth).unwrap();
        }
        let knows = |at: usize| {
            let mut conn = cluster.nodes[at].connection().unwrap();
            let all: String = redis::cmd("CLUSTER").arg("NODES").query(&mut conn).unwrap();
            let met = all
                .lines()
                .any(|line| line.starts_with(cluster.id(4)) && line.contains("master"));
            let mut info = redis::cmd("CLUSTER");
            let info: String = info.arg("INFO").query(&mut conn).unwrap();
            met && !all.contains("handshake") && info.contains("cluster_state:ok")
        };
        assert!(comes_true(|| (0..6).all(knows)));
        let slots: Vec<_> = slots_of(0).collect();
        Resharding::new(&cluster, 0, 4)
            .unwrap()
            .run(&slots)
            .unwrap();
        assert!(comes_true(|| cluster
            .master_of(&key(&tag))
            .is_ok_and(|at| at == 4)));
        thread::sleep(300 * MS);
        assert!(lease.is_held() && !here.is_finished() && !there.is_finished());
        crate::common::server::signal(cluster.nodes[0].process(), "KILL").unwrap();
        thread::sleep(3_000 * MS);
        assert!(lease.is_held(), "{lease:?}");
        assert!(!here.is_finished() && !there.is_finished());
        lease.verify().unwrap();
        lease.release().unwrap();
        here.join().unwrap().unwrap();
        there.join().unwrap().unwrap();
    });
}

/// The waiting threads are then in the queues of both shards, and either may hand over a turn.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn hand_overs_keep_their_order_while_the_slot_moves_back_and_forth() {
    let cluster = shared();
    let tag = cluster.tag(0, "in-turn").unwrap();
    let slot = cluster.slot_of(&tag).unwrap();
    let options = Options::new().lease(SECOND).hand_over(20, 200 * MS);
    let (one, two) = (connect(&cluster), connect(&cluster));
    let (history, stop) = (History::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for n in 0..8 {
            let locks = if n % 4 == 0 { &two } else { &one };
            let lock = mutex(locks, &tag).with(options.clone());
            let (history, stop) = (&history, &stop);
            scope.spawn(move || work(&lock, history, stop));
        }
        for _ in 0..10 {
            for (from, to) in [(0, 1), (1, 0)] {
                thread::sleep(50 * MS);
                let mut moves = Resharding::new(&cluster, from, to).unwrap();
                moves.run(&[slot]).unwrap();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    let holds = history.lock().unwrap().len();
    assert!(holds > 50, "{holds}");
    assert_eq!(violations(history), 0, "two held the lock at once");
    assert!(mutex(&one, &tag).try_acquire().unwrap().is_some());
}
