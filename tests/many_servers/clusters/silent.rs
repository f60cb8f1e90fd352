//! One silent shard does not affect the others.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, LockSet, Locks, Options};

use super::{connect, mutex};
use crate::common::{Cluster, LONG, MS, Resharding, SLACK, hold::comes_true};

const LEASE: Duration = Duration::from_millis(1_500);
/// The tag of locks whose slot does not move.
const STAYS: &str = "stays";
/// Longer than the lease.
const FROZEN: Duration = Duration::from_millis(2_500);

/// A cluster that replaces a silent master only after a long time.
fn patient() -> Cluster {
    Cluster::planned(Duration::from_secs(15), false).unwrap()
}

/// While the shard is silent, locks of the others are granted, and these leases are renewed on
/// time.
fn others_go_on(locks: &Locks, tags: &[String], leases: &[Lease]) {
    let began = Instant::now();
    let (mut slowest, mut least) = (Duration::ZERO, Duration::MAX);
    let mut n = 0;
    while began.elapsed() < FROZEN {
        for tag in tags {
            n += 1;
            let asked = Instant::now();
            locks
                .lock(&format!("{n}{{{tag}}}"))
                .acquire(LONG)
                .unwrap()
                .release()
                .unwrap();
            slowest = slowest.max(asked.elapsed());
        }
        let left = leases.iter().map(Lease::remaining).min().unwrap();
        least = least.min(left);
        thread::sleep(5 * MS);
    }
    println!("slowest acquire and release {slowest:.1?}, least of a lease {least:.1?}");
    // All nodes are on this machine. A wait for the silent one takes its I/O time-out, which is
    // longer.
    assert!(slowest < 250 * MS + SLACK, "{slowest:?}");
    // Renewed after a third, and shortened by the clock skew.
    let latest = LEASE / 3 + 50 * MS + SLACK;
    assert!(least + latest > LEASE, "{least:?}");
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_frozen_shard_does_not_delay_the_others() {
    let cluster = patient();
    let locks = connect(&cluster).with(Options::new().lease(LEASE));
    let tags: Vec<_> = (0..3).map(|n| cluster.tag(n, "a").unwrap()).collect();
    let mut leases: Vec<_> = (tags.iter())
        .map(|tag| mutex(&locks, tag).acquire(LONG).unwrap())
        .collect();
    thread::sleep(100 * MS);
    cluster.nodes[0].freeze().unwrap();
    let of_the_frozen = leases.remove(0);
    thread::scope(|scope| {
        // Calls to the silent shard do not delay others.
        for n in 0..3 {
            let lock = locks.lock(&format!("wanted-{n}{{{}}}", tags[0]));
            scope.spawn(move || {
                let answer = lock.acquire(FROZEN);
                assert!(answer.is_err(), "{answer:?}");
            });
        }
        others_go_on(&locks, &tags[1..], &leases);
    });
    assert!(!of_the_frozen.is_held());
    cluster.nodes[0].thaw().unwrap();
    assert!(comes_true(|| mutex(&locks, &tags[0]).acquire(LONG).is_ok()));
    for lease in leases {
        lease.release().unwrap();
    }
}

/// Two leases of the first shard; the slot of one has moved to the second. Both have been renewed
/// since.
fn parted(cluster: &Cluster, locks: &Locks) -> (Lease, Lease) {
    let goes = cluster.tag(0, "goes").unwrap();
    let kept = mutex(locks, &cluster.tag(0, STAYS).unwrap());
    let (kept, gone) = (
        kept.acquire(LONG).unwrap(),
        mutex(locks, &goes).acquire(LONG).unwrap(),
    );
    let slot = cluster.slot_of(&goes).unwrap();
    let mut resharding = Resharding::new(cluster, 0, 1).unwrap();
    resharding.run(&[slot]).unwrap();
    thread::sleep(LEASE);
    (kept, gone)
}

/// Their keeper belongs to the silent shard.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn leases_that_moved_away_from_a_frozen_shard_are_renewed_on_time() {
    let cluster = patient();
    let locks = connect(&cluster).with(Options::new().lease(LEASE));
    let (kept, gone) = parted(&cluster, &locks);
    cluster.nodes[0].freeze().unwrap();
    let began = Instant::now();
    while began.elapsed() < FROZEN {
        assert!(gone.is_held(), "{gone:?} after {:?}", began.elapsed());
        thread::sleep(5 * MS);
    }
    assert!(!kept.is_held());
    gone.release().unwrap();
    cluster.nodes[0].thaw().unwrap();
}

/// A keeper that follows leases to the silent shard still renews the others.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn leases_that_did_not_move_to_a_frozen_shard_are_renewed_on_time() {
    let cluster = patient();
    let locks = connect(&cluster).with(Options::new().lease(LEASE));
    let (kept, gone) = parted(&cluster, &locks);
    assert!(kept.is_held() && gone.is_held());
    cluster.nodes[1].freeze().unwrap();
    let stays = cluster.tag(0, STAYS).unwrap();
    others_go_on(&locks, &[stays], &[kept]);
    assert!(!gone.is_held());
    cluster.nodes[1].thaw().unwrap();
}

/// The two are asked at once, and together they get one I/O time-out.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_set_beside_two_frozen_shards_returns_within_one_timeout() {
    let cluster = patient();
    let (locks, others) = (connect(&cluster), connect(&cluster));
    let tags: Vec<_> = (0..3).map(|n| cluster.tag(n, "set").unwrap()).collect();
    let busy = format!("z{{{}}}", tags[2]);
    let held = others.lock(&busy).acquire(LONG).unwrap();
    let all = tags.iter().map(|tag| mutex(&locks, tag));
    let all = all.chain([locks.lock(&busy)]);
    let set = LockSet::of(all).with(Options::new().drop_timeout(LONG));
    let limit = 1_500 * MS;
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let began = Instant::now();
            let error = set.acquire(limit).unwrap_err();
            (error, began.elapsed())
        });
        assert!(comes_true(|| locks
            .lock(&busy)
            .inspect()
            .unwrap()
            .waiting_here()
            == 1));
        cluster.nodes[0].freeze().unwrap();
        cluster.nodes[1].freeze().unwrap();
        let (error, took) = waiter.join().unwrap();
        let is_free = !mutex(&others, &tags[2]).inspect().unwrap().is_held();
        cluster.nodes[0].thaw().unwrap();
        cluster.nodes[1].thaw().unwrap();
        assert!(matches!(error, Error::Contended { .. }), "{error:?}");
        assert!(is_free, "the third shard answers");
        // Their I/O time-out is 2 s.
        assert!(took < limit + 2_250 * MS + SLACK, "{took:?}");
    });
    held.release().unwrap();
    let is_free = |tag: &String| !mutex(&others, tag).inspect().unwrap().is_held();
    assert!(comes_true(|| tags.iter().all(is_free)));
}
