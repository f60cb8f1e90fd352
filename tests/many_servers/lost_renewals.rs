//! Renewals that a master has acknowledged and its successor does not have.

use std::time::Duration;

use leasehold::{
    Error, Keep, Lease, Options, Owner, Pool, Renewal, Token, Watchdog, acquire_lock_with_timeout,
    recipes::Hold,
};
use redis::{Commands, Connection};

use super::connect;
use crate::common::{
    Cluster, LONG, MS, SLACK, Sentinels,
    hold::{comes_true, every_kind},
    sentinels::{Plan, in_step},
    wait::{comes_true_within, tracked_keys},
};

/// Longer than any test.
const LEASE: Duration = Duration::from_mins(10);
/// The watchdog renews after a third of this, which is longer than any test.
const SHORT: Duration = Duration::from_mins(1);
/// Enough for the first attempts on the new master.
const PATIENCE: Duration = Duration::from_secs(1);
/// After the promotion, and before the renewal is repeated.
const REPEATED: Duration = Duration::from_secs(2);
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// A group; with its gate shut, only clients reach the master.
fn group() -> Sentinels {
    let plan = Plan {
        gated: true,
        ..Plan::default()
    };
    Sentinels::planned(plan).unwrap()
}

fn wait_until_replicated(group: &Sentinels) {
    let mut conn = group.servers[0].connection().unwrap();
    assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
}

/// Waits for the watchdog's first connection: when it opens another, it renews all leases.
fn wait_until_watched(master: &mut Connection) {
    assert!(comes_true(|| tracked_keys(master).unwrap() > 0));
}

fn names(leases: &[Lease]) -> Vec<String> {
    leases.iter().map(|lease| lease.name().to_owned()).collect()
}

/// The remaining time of each on this server. Every existing lock expires.
fn left(conn: &mut Connection, names: &[String]) -> Vec<Duration> {
    let left = |name| conn.pttl::<_, i64>(format!("lock:{name}")).unwrap();
    let left = names.iter().map(left);
    left.map(|ms| u64::try_from(ms).map_or(Duration::ZERO, Duration::from_millis))
        .collect()
}

/// Nearly the time that its holder renewed it for.
fn is_long(left: &Duration) -> bool {
    *left > LEASE * 9 / 10 && *left <= LEASE
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_renewal_lost_in_a_crash_is_repeated_on_the_new_master() {
    let mut group = group();
    let locks = connect(&group.url()).with(Options::new().lease(SHORT));
    let leases = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap());
    let names = names(&leases);
    wait_until_watched(&mut group.servers[0].connection().unwrap());
    wait_until_replicated(&group);
    group.gates[0].shut_for_replicas();
    for lease in &leases {
        lease.renew(LEASE).unwrap();
    }
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    let mut next = group.servers[1].connection().unwrap();
    let at_first = left(&mut next, &names);
    assert!(at_first.iter().all(|left| *left <= SHORT), "{at_first:?}");
    let are_long = comes_true_within(REPEATED + SLACK, || {
        left(&mut next, &names).iter().all(is_long)
    });
    assert!(are_long, "{:?}", left(&mut next, &names));
    for lease in leases {
        assert!(lease.is_held() && lease.remaining() <= LEASE);
        lease.release().unwrap();
    }
}

/// The new master has what is left of the released holds.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn after_a_release_lost_in_a_crash_fencing_tokens_still_grow() {
    let mut group = group();
    let locks = connect(&group.url()).with(Options::new().lease(SHORT));
    let others = connect(&group.url()).with(Options::new().owner(Owner::new("other").unwrap()));
    let leases = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap());
    wait_until_replicated(&group);
    group.gates[0].shut_for_replicas();
    for lease in leases {
        lease.release().unwrap();
    }
    let newest = every_kind(&others).map(|lock| lock.acquire(LONG).unwrap().fencing_token());
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    let free = locks.lock("free").acquire(LONG).unwrap();
    let mut entered = 0;
    for (lock, newest) in every_kind(&locks).into_iter().zip(newest) {
        // Another kind waits for the end of the lost release's lease.
        match lock.acquire(PATIENCE) {
            Ok(lease) => {
                assert!(lease.fencing_token().is_none() || lease.fencing_token() > newest);
                entered += 1;
            }
            Err(error) => assert!(matches!(error, Error::Contended { .. }), "{error:?}"),
        }
    }
    // The reentrant lock and the reader.
    assert_eq!(entered, 2);
    free.release().unwrap();
}

/// If it renews several locks: with the next renewal of any of them.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_watchdog_repeats_lost_renewals_on_a_new_master() {
    let mut group = group();
    let pool = Pool::connect(&group.url()).unwrap();
    let watchdog = Watchdog::new(&pool).unwrap();
    let mut conn = pool.get().unwrap();
    let mut take = |name, lease| {
        let token: Token = acquire_lock_with_timeout(&mut conn, name, MS, lease)
            .unwrap()
            .unwrap();
        Hold::mutex(name, &token).unwrap()
    };
    // Renewed every four seconds; it lasts until a replica is promoted.
    let often = take("often", SHORT / 5);
    let seldom = take("seldom", SHORT);
    let often: Renewal = watchdog.keep_with(&often, Keep::new(SHORT / 5)).unwrap();
    wait_until_replicated(&group);
    group.gates[0].shut_for_replicas();
    let seldom = watchdog.keep_with(&seldom, Keep::new(LEASE)).unwrap();
    group.servers[0].kill().unwrap();
    assert_eq!(group.promoted_after(0).unwrap(), 1);
    let mut next = group.servers[1].connection().unwrap();
    let names = [String::from("seldom")];
    let at_first = left(&mut next, &names);
    assert!(at_first[0] <= SHORT, "{at_first:?}");
    assert!(comes_true(|| left(&mut next, &names).iter().all(is_long)));
    assert!(often.is_held() && seldom.is_held());
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_renewal_lost_by_a_shard_is_repeated_on_its_new_master() {
    let mut cluster = Cluster::planned(NODE_TIMEOUT, true).unwrap();
    let tag = cluster.tag(0, "renewed").unwrap();
    let locks = connect(&cluster.url()).with(Options::new().lease(SHORT));
    let names = [format!("first{{{tag}}}"), format!("second{{{tag}}}")];
    let leases = [locks.lock(&names[0]), locks.write(&names[1])];
    let leases = leases.map(|lock| lock.acquire(LONG).unwrap());
    let mut conn = cluster.nodes[0].connection().unwrap();
    wait_until_watched(&mut conn);
    assert!(comes_true(|| in_step(&mut conn).unwrap() == 1));
    cluster.gates[0].shut_for_replicas();
    for lease in &leases {
        lease.renew(LEASE).unwrap();
    }
    cluster.nodes[0].kill().unwrap();
    cluster.wait_until_master(3).unwrap();
    let mut next = cluster.nodes[3].connection().unwrap();
    let at_first = left(&mut next, &names);
    assert!(at_first.iter().all(|left| *left <= SHORT), "{at_first:?}");
    let are_long = comes_true_within(REPEATED + SLACK, || {
        left(&mut next, &names).iter().all(is_long)
    });
    assert!(are_long, "{:?}", left(&mut next, &names));
    assert!(leases.iter().all(Lease::is_held));
}
