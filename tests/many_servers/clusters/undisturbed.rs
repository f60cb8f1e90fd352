//! Everything that works on one server also works on each shard of a cluster.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Committed, Error, Locks, Once, Options, Owner, Pool, RenewalState};
use redis::Commands;

use super::{key, kinds, mutex, patient};
use crate::common::{
    LONG, MS, SLACK, access_list::rules, cluster::shared, hold::comes_true, monitor::Monitor,
    wait::at_once,
};

const SHARDS: usize = 3;

#[test]
fn each_kind_of_lock_is_acquired_renewed_and_released_on_every_shard() {
    let cluster = shared();
    let locks = Locks::connect(&cluster.url()).unwrap();
    // Another owner, as in another process.
    let another = Owner::new("another").unwrap();
    let others = patient(&cluster).with(Options::new().owner(another));
    let time = 6_000 * MS;
    let short = Options::new().lease(time);
    let tags: Vec<_> = (0..SHARDS)
        .map(|shard| cluster.tag(shard, "kinds").unwrap())
        .collect();
    let leases: Vec<_> = (tags.iter())
        .flat_map(|tag| kinds(&locks, tag))
        .map(|lock| lock.with(short.clone()).acquire(LONG).unwrap())
        .collect();
    // The first end of all leases.
    let first_end = Instant::now() + time;
    for (shard, tag) in tags.iter().enumerate() {
        for lock in kinds(&others, tag) {
            if !lock.name().starts_with("read") {
                assert!(lock.try_acquire().unwrap().is_none(), "{}", lock.name());
            }
            let seen = lock.inspect().unwrap();
            assert!(seen.is_held() && seen.holders().len() == 1);
        }
        let mut master = cluster.nodes[shard].connection().unwrap();
        assert!(
            master
                .exists::<_, bool>(format!("lock:mutex{{{tag}}}"))
                .unwrap()
        );
    }
    for lease in &leases {
        let is_renewed = || Instant::now() + lease.remaining() > first_end;
        assert!(comes_true(is_renewed), "{lease:?}");
        let is_known = || lease.state() == RenewalState::Held;
        assert!(comes_true(is_known) && lease.is_held(), "{lease:?}");
        lease.verify().unwrap();
        lease.renew(LONG).unwrap();
        let done = format!("{} done", lease.name());
        lease.commit(|pipe| _ = pipe.set(done, 1)).unwrap();
    }
    // The proof of a lock without a tag is in its slot too.
    for kind in [Locks::lock, Locks::reentrant, Locks::read, Locks::write] {
        let lease = kind(&locks, "no tag").acquire(LONG).unwrap();
        let done = "{lock:no tag} done";
        lease
            .commit_and_release(|pipe| _ = pipe.set(done, 1))
            .unwrap();
    }
    let fences: Vec<_> = leases.iter().map(leasehold::Lease::fencing_token).collect();
    for lease in leases {
        lease.release().unwrap();
    }
    let again = tags.iter().flat_map(|tag| kinds(&others, tag));
    for (lock, before) in again.zip(fences) {
        let lease = lock.try_acquire().unwrap().unwrap();
        let grows = lease.fencing_token() > before || before.is_none();
        assert!(grows, "{} {before:?}", lock.name());
    }
}

#[test]
fn every_shard_notifies_waiters_and_locks_are_handed_over() {
    let cluster = shared();
    let (locks, others) = (patient(&cluster), patient(&cluster));
    for shard in 0..SHARDS {
        let tag = cluster.tag(shard, "waiting").unwrap();
        for (held, wanted) in kinds(&locks, &tag).into_iter().zip(kinds(&others, &tag)) {
            let wanted = if wanted.name().starts_with("read") {
                others.write(wanted.name())
            } else {
                wanted
            };
            let lease = held.acquire(LONG).unwrap();
            thread::scope(|scope| {
                let waiting = scope.spawn(|| wanted.acquire(LONG).map(|_| Instant::now()));
                assert!(comes_true(|| wanted.inspect().unwrap().waiting_here() == 1));
                thread::sleep(50 * MS);
                let released = Instant::now();
                lease.release().unwrap();
                let granted = waiting.join().unwrap().unwrap();
                let took = granted.saturating_duration_since(released);
                assert!(took < SLACK, "{} {took:?}", wanted.name());
            });
        }
        // Between threads of one process: the server does not see each turn's acquire and release.
        let turns = Options::new().hand_over(1_000, LONG);
        let lock = mutex(&locks, &tag).with(turns.fencing(false));
        let mut monitor = Monitor::start(&cluster.nodes[shard]).unwrap();
        let (all_are_there, count) = (Barrier::new(4), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // A thread alone has no other to hand over to.
                    all_are_there.wait();
                    for _ in 0..100 {
                        let ran = lock.run(LONG, |_| count.fetch_add(1, Ordering::SeqCst));
                        ran.unwrap().released.unwrap();
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 400);
        // Other tests make the node execute scripts too.
        let is_ours =
            |command: &&String| command.starts_with("EVALSHA") && command.contains(&key(&tag));
        let sent = monitor.commands().unwrap().iter().filter(is_ours).count();
        assert!(sent > 0 && sent < 700, "{sent}");
    }
}

#[test]
fn commit_transaction_and_run_once_work_on_every_shard() {
    let cluster = shared();
    let (locks, others) = (patient(&cluster), patient(&cluster));
    for shard in 0..SHARDS {
        let tag = cluster.tag(shard, "work").unwrap();
        let (count, wallet) = (format!("count{{{tag}}}"), format!("wallet{{{tag}}}"));
        let lock = mutex(&locks, &tag);
        let lease = lock.acquire(LONG).unwrap();
        lease.commit(|pipe| _ = pipe.set(&wallet, 7)).unwrap();
        let (n,): (u64,) = lease
            .commit_returning(|pipe| _ = pipe.incr(&count, 1))
            .unwrap();
        assert_eq!(n, 1);
        for is_first in [true, false] {
            let done = lease.commit_once("id", LONG, |pipe| _ = pipe.incr(&count, 1));
            assert_eq!(done.unwrap() == Committed::Now, is_first);
        }
        let funds = lease.transaction(&[&wallet], |conn, pipe| {
            let funds: i64 = conn.get(&wallet)?;
            pipe.decr(&wallet, 5);
            Ok(funds)
        });
        assert_eq!(funds.unwrap(), 7);
        // A transaction cannot include a key of another shard, and nothing is written.
        let elsewhere = format!("count{{{}}}", cluster.tag((shard + 1) % 3, "work").unwrap());
        let refused = lease.commit(|pipe| _ = pipe.incr(&count, 1).incr(elsewhere, 1));
        assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
        lease
            .commit_and_release(|pipe| _ = pipe.incr(&count, 1))
            .unwrap();
        let mut master = cluster.nodes[shard].connection().unwrap();
        let found: (u64, i64) = (master.get(&count).unwrap(), master.get(&wallet).unwrap());
        assert_eq!(found, (3, 2));
        let hour = Duration::from_hours(1);
        for (locks, runs) in [(&locks, true), (&others, false)] {
            let job = locks.lock(&format!("job{{{tag}}}"));
            let ran = job.run_once(hour, LONG, |_| Ok::<_, Error>(())).unwrap();
            assert_eq!(matches!(ran, Once::Ran(_)), runs);
            assert!(job.last_run().unwrap().is_some());
        }
        let lease = mutex(&others, &tag).acquire(LONG).unwrap();
        let taken = lock.force_release().unwrap();
        assert!(taken.is_held() && comes_true(|| !lease.is_held()));
        let unfenced = lock.with(Options::new().fencing(false));
        assert!(unfenced.try_acquire().unwrap().is_some());
    }
}

#[test]
fn a_lock_is_granted_once_its_shards_replica_has_it() {
    let cluster = shared();
    let locks = patient(&cluster);
    at_once(0..SHARDS, |shard| {
        let tag = cluster.tag(shard, "replicas").unwrap();
        let confirmed = |count| mutex(&locks, &tag).with(Options::new().replicas(count, 500 * MS));
        let lease = confirmed(1).acquire(LONG).unwrap();
        let mut replica = cluster.nodes[shard + SHARDS].connection().unwrap();
        redis::cmd("READONLY").exec(&mut replica).unwrap();
        assert!(replica.exists::<_, bool>(key(&tag)).unwrap());
        lease.release().unwrap();
        // The replica may be late.
        assert!(comes_true(|| matches!(
            confirmed(2).try_acquire(),
            Err(Error::TooFewReplicas {
                wanted: 2,
                had: 1,
                ..
            })
        )));
    });
}

/// The commands in docs/guarantees.md beyond those of the locks themselves: they suffice, and each
/// is needed.
#[test]
fn the_access_list_of_a_node_needs_its_row() {
    let cluster = shared();
    let is_granted = |name: &str, needs: &[String], limit: Duration| {
        for node in &cluster.nodes {
            let mut user = redis::cmd("ACL");
            user.arg(&["SETUSER", "app", "reset", "on", ">secret"]);
            user.arg(needs)
                .exec(&mut node.connection().unwrap())
                .unwrap();
        }
        let builder = Pool::builder().connect_timeout(limit).get_timeout(limit);
        let url = cluster.url().replace("://", "://app:secret@");
        let locks = Locks::on_nodes(&builder.connect_nodes(&url).unwrap());
        locks.lock(name).try_acquire().is_ok_and(|it| it.is_some())
    };
    let work = rules("`mutex::try_acquire`,");
    let needed = rules("each node of a cluster");
    let enough = [&work[..], &needed].concat();
    assert!(comes_true(|| is_granted("app:a", &enough, LONG)));
    for (name, part) in [("app:b", &needed[..1]), ("app:c", &needed[1..])] {
        assert!(!is_granted(name, &[&work[..], part].concat(), 400 * MS));
    }
}
