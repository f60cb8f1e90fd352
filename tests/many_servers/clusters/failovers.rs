//! Failovers of one shard, by crash and planned, while its locks are held and waited for.
//!
//! Twenty of each way: `cargo test --release --test many_servers clusters::failovers -- --ignored
//! --nocapture --test-threads 1`; `LEASEHOLD_FAILOVERS=200` sets another number.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Locks, LostReason, Options};
use redis::Commands;

use super::{connect, key, mutex};
use crate::{
    LEASE,
    common::{
        Cluster, LONG, MS, SLACK, cluster::partner, hold::comes_true, sentinels::in_step,
        server::signal,
    },
    history::{History, SECOND, Stopping, median, probe, violations, work},
    long::failovers,
    urls_of_users,
};

const THREADS: usize = 4;
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// The way to replace a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Crash,
    Planned,
}

/// Times since the start of a failover.
struct Took {
    /// Until the next master reports its role.
    promoted: Duration,
    /// Until the old master reports the change to a client that keeps asking; until then it blocks
    /// all clients.
    told: Option<Duration>,
    /// Until the new master has granted a lock.
    granted: Duration,
}

/// Replaces the master of the first shard while one lock is held, another changes hands, and free
/// ones are acquired.
fn fail_over(cluster: &mut Cluster, way: Way, round: usize) -> (Took, usize) {
    let tag = &*cluster.tag(0, &format!("round-{round}")).unwrap();
    let before = cluster.master_of(&key(tag)).unwrap();
    let next = partner(before);
    let locks = connect(cluster).with(Options::new().lease(SECOND));
    let held = locks.lock(&format!("held{{{tag}}}"));
    let lease = held
        .clone()
        .with(Options::new().lease(LEASE))
        .acquire(LONG)
        .unwrap();
    let (history, stop) = (History::default(), AtomicBool::new(false));
    let name = |n| format!("probe-{n}{{{tag}}}");
    let mut conn = cluster.nodes[before].connection().unwrap();
    assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
    let took = thread::scope(|scope| {
        let stopping = Stopping(&stop);
        let work = |locks: Locks| work(&mutex(&locks, tag), &history, &stop);
        for _ in 0..THREADS / 2 {
            // Two of one process, and two of another.
            let (one, other) = (
                locks.clone(),
                connect(cluster).with(Options::new().lease(SECOND)),
            );
            scope.spawn(move || work(one));
            scope.spawn(move || work(other));
        }
        let probe = scope.spawn(|| probe(&connect(cluster), name, &stop));
        let mut bare = cluster.nodes[before].connection().unwrap();
        let stop = &stop;
        let bare = scope.spawn(move || {
            let mut is_served = || bare.get::<_, Option<String>>(key(tag)).is_ok();
            while !stop.load(Ordering::SeqCst) && is_served() {
                thread::sleep(MS);
            }
            Instant::now()
        });
        thread::sleep(200 * MS);
        let began = Instant::now();
        match way {
            Way::Planned => assert_eq!(cluster.fail_over(before).unwrap(), next),
            Way::Crash => signal(cluster.nodes[before].process(), "KILL").unwrap(),
        }
        cluster.wait_until_master(next).unwrap();
        let promoted = Instant::now();
        thread::sleep(1_200 * MS);
        drop(stopping);
        let grants = probe.join().unwrap();
        let mut conn = cluster.nodes[next].connection().unwrap();
        let ended = Instant::now();
        let granted = (0..grants.len()).find(|n| {
            grants[*n].1 > promoted
                && conn
                    .exists::<_, bool>(format!("lock:{}", name(*n)))
                    .unwrap()
        });
        // None: later than that.
        let granted = granted.map_or(ended, |n| grants[n].1);
        Took {
            promoted: promoted - began,
            told: (way == Way::Planned).then(|| bare.join().unwrap() - began),
            granted: granted - began,
        }
    });
    assert!(lease.is_held(), "{way:?}: {lease:?}");
    assert!(comes_true(|| lease.verify().is_ok()));
    lease.release().unwrap();
    assert!(held.try_acquire().unwrap().is_some());
    (took, violations(history))
}

fn run(way: Way, rounds: usize) {
    let mut cluster = Cluster::planned(NODE_TIMEOUT, false).unwrap();
    let mut all = Vec::new();
    for round in 0..rounds {
        let before = cluster
            .master_of(&key(&cluster.tag(0, "a").unwrap()))
            .unwrap();
        let (took, wrong) = fail_over(&mut cluster, way, round);
        assert_eq!(wrong, 0, "two held the lock at once");
        all.push(took);
        if all.len() % 20 == 0 {
            println!("{} failovers of a shard, {way:?}, so far", all.len());
        }
        if round + 1 == rounds {
            break;
        }
        let whole = if way == Way::Crash {
            cluster.nodes[before].kill().unwrap();
            cluster.revive(before)
        } else {
            cluster.wait_until_whole()
        };
        if let Err(why) = whole {
            println!("another cluster after {} failovers: {why}", all.len());
            cluster = Cluster::planned(NODE_TIMEOUT, false).unwrap();
        }
    }
    println!("{rounds} failovers of a shard, {way:?}: nobody had a lock twice, no lease was lost");
    let show = |what: &str, of: fn(&Took) -> Duration| {
        let (median, longest) = median(all.iter().map(of).collect());
        println!("  {what}: p50 {median:.2?}, longest {longest:.2?}");
        longest
    };
    show("promoted after", |took| took.promoted);
    if way == Way::Planned {
        show("the one before says so after", |took| {
            took.told.unwrap_or_default()
        });
    }
    show("a lock granted after", |took| took.granted);
    let later = show("granted, since it was promoted", |took| {
        took.granted.saturating_sub(took.promoted)
    });
    assert!(later < 500 * MS + SLACK, "{later:?}");
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_planned_failover_of_a_shard_loses_no_lease_and_keeps_exclusion() {
    run(Way::Planned, 3);
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_crash_of_a_shards_master_loses_no_lease_and_keeps_exclusion() {
    run(Way::Crash, 1);
}

/// No answer about the slots names a node that is down, or new.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_lease_survives_a_planned_failover_to_a_replica_that_no_answer_has_named() {
    let cluster = Cluster::planned(NODE_TIMEOUT, false).unwrap();
    let tag = cluster.tag(0, "unknown").unwrap();
    let mut master = cluster.nodes[0].connection().unwrap();
    let named = |conn: &mut redis::Connection| {
        let slots: redis::Value = redis::cmd("CLUSTER").arg("SLOTS").query(conn).unwrap();
        format!("{slots:?}").contains(&cluster.nodes[3].port().to_string())
    };
    let urls = urls_of_users(&cluster.nodes, &cluster.url());
    cluster.nodes[3].freeze().unwrap();
    for node in &cluster.nodes[..3] {
        let mut conn = node.connection().unwrap();
        assert!(comes_true(|| !named(&mut conn)));
    }
    let lease = 4 * SECOND;
    let held = urls.map(|url| {
        let locks = Locks::connect(&url).unwrap();
        let name = format!("{}{{{tag}}}", url.split([':', '/']).nth(3).unwrap());
        let options = Options::new().lease(lease);
        locks.lock(&name).with(options).acquire(LONG).unwrap()
    });
    cluster.nodes[3].thaw().unwrap();
    cluster.wait_until_whole().unwrap();
    assert!(comes_true(|| in_step(&mut master).unwrap() == 1));
    assert_eq!(cluster.fail_over(0).unwrap(), 3);
    thread::sleep(lease + SECOND);
    for held in held {
        assert!(held.is_held(), "{held:?}");
        held.release().unwrap();
    }
}

/// All others are frozen, so it is alone, but clients reach it.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn an_isolated_master_stops_granting() {
    let cluster = Cluster::planned(NODE_TIMEOUT, false).unwrap();
    let tag = cluster.tag(0, "alone").unwrap();
    let locks = connect(&cluster);
    drop(mutex(&locks, &tag).acquire(LONG).unwrap());
    for node in &cluster.nodes[1..] {
        node.freeze().unwrap();
    }
    let cut_off = Instant::now();
    let (mut last, mut refused) = (Duration::ZERO, None);
    for n in 0.. {
        if cut_off.elapsed() > 3 * SECOND {
            break;
        }
        match locks.lock(&format!("{n}{{{tag}}}")).try_acquire() {
            Ok(lease) => {
                assert!(lease.is_some());
                last = cut_off.elapsed();
            }
            Err(error) => refused = Some(error),
        }
        thread::sleep(5 * MS);
    }
    println!("a master that is cut off granted for {last:?}");
    assert!(last < NODE_TIMEOUT + 500 * MS + SLACK, "{last:?}");
    let words = |error: &Error| match error {
        Error::Redis { source, .. } => source.code().map(str::to_owned),
        _ => None,
    };
    assert_eq!(
        refused.as_ref().and_then(words).as_deref(),
        Some("CLUSTERDOWN")
    );
    // This does not count as another holder either.
    let waited = mutex(&locks, &tag).acquire(300 * MS);
    assert!(!waited.unwrap_err().is_contended());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| mutex(&locks, &tag).acquire(LONG).map(drop));
        for node in &cluster.nodes[1..] {
            node.thaw().unwrap();
        }
        waiting.join().unwrap().unwrap();
    });
}

#[test]
#[ignore = "minutes: cargo test --release --test many_servers clusters::failovers -- --ignored --nocapture --test-threads 1"]
fn many_planned_failovers_of_a_shard() {
    run(Way::Planned, failovers());
}

#[test]
#[ignore = "minutes: cargo test --release --test many_servers clusters::failovers -- --ignored --nocapture --test-threads 1"]
fn many_crashes_of_a_master() {
    run(Way::Crash, failovers());
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_waiter_gets_the_lock_on_the_new_master() {
    let mut cluster = Cluster::planned(NODE_TIMEOUT, false).unwrap();
    let tag = cluster.tag(1, "waiting").unwrap();
    let (holder, waiter) = (connect(&cluster), connect(&cluster));
    for way in [Way::Planned, Way::Crash] {
        cluster.wait_until_whole().unwrap();
        let before = cluster.master_of(&key(&tag)).unwrap();
        let next = partner(before);
        let lock = mutex(&holder, &tag).with(Options::new().lease(LEASE));
        let lease = lock.acquire(LONG).unwrap();
        let fence = lease.fencing_token();
        let mut conn = cluster.nodes[before].connection().unwrap();
        assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let lease = mutex(&waiter, &tag).acquire(LONG).unwrap();
                (Instant::now(), lease.fencing_token())
            });
            let inspected = mutex(&waiter, &tag);
            assert!(comes_true(
                || inspected.inspect().unwrap().waiting_here() == 1
            ));
            if way == Way::Planned {
                cluster.fail_over(before).unwrap();
            } else {
                cluster.nodes[before].kill().unwrap();
                cluster.wait_until_master(next).unwrap();
                // By now everyone has found the new master.
                thread::sleep(1_000 * MS);
            }
            assert!(lease.is_held() && comes_true(|| lease.verify().is_ok()));
            let released = Instant::now();
            lease.release().unwrap();
            let (granted, next) = waiting.join().unwrap();
            let took = granted.saturating_duration_since(released);
            println!("{way:?}: granted {took:?} after the release");
            assert!(took < 250 * MS + SLACK, "{way:?} {took:?}");
            assert!(next > fence);
        });
    }
}

/// A lock that had not reached the promoted replica is lost, and its holder is notified.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_holder_learns_of_a_loss_with_the_master_which_required_replicas_prevent() {
    let mut cluster = Cluster::planned(NODE_TIMEOUT, true).unwrap();
    let tag = cluster.tag(0, "lost").unwrap();
    let locks = connect(&cluster).with(Options::new().lease(LEASE));
    let kept = locks.lock(&format!("kept{{{tag}}}"));
    let kept = kept.with(Options::new().replicas(1, 100 * MS));
    let kept = kept.acquire(LONG).unwrap();
    cluster.gates[0].shut_for_replicas();
    let lease = mutex(&locks, &tag).acquire(LONG).unwrap();
    cluster.nodes[0].kill().unwrap();
    cluster.wait_until_master(3).unwrap();
    let promoted = Instant::now();
    assert!(comes_true(|| !lease.is_held()));
    let told = promoted.elapsed();
    println!("the holder is told {told:?} after the promotion");
    assert!(told < Duration::from_secs(2) + SLACK, "{told:?}");
    let lost = lease.release();
    let is_told = matches!(
        &lost,
        Err(Error::Lost {
            reason: Some(LostReason::TakenAway),
            ..
        })
    );
    assert!(is_told, "{lost:?}");
    assert!(kept.is_held() && comes_true(|| kept.verify().is_ok()));
    kept.release().unwrap();
}
