//! Failovers of a Sentinel group, by crash and planned, while locks are held and waited for.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lease, Locks, Options, Pool, Watchdog, acquire_lock_with_timeout, recipes::Hold};
use redis::Commands;

use super::{LEASE, USERS, connect, urls_of_users};
use crate::common::{
    LONG, MS, SLACK, Sentinels, hold::comes_true, sentinels::in_step, tell, wait::comes_true_within,
};

/// Waits until the replica has all writes.
fn replicated(group: &Sentinels, master: usize) {
    let mut conn = group.servers[master].connection().unwrap();
    assert!(comes_true(
        || in_step(&mut conn).unwrap() == group.servers.len() - 1
    ));
}

/// The way in which the old master is replaced while it goes on serving its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It learns of the failover ten seconds later.
    Planned,
    /// The sentinels do not reach it, and clients do.
    CutOff,
}

/// The old master keeps its connections open, and goes on granting and renewing.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_lease_survives_a_replaced_master_and_a_waiter_gets_the_lock_there() {
    for way in [Way::Planned, Way::CutOff] {
        let group = Sentinels::start().unwrap();
        let urls = urls_of_users(&group.servers, &group.url());
        let (holders, waiters) = (
            urls.each_ref().map(|url| connect(url)),
            urls.each_ref().map(|url| connect(url)),
        );
        let leases = [0, 1].map(|user| {
            let lock = holders[user].lock(USERS[user].0);
            lock.with(Options::new().lease(LEASE))
                .acquire(LONG)
                .unwrap()
        });
        let fences = leases.each_ref().map(Lease::fencing_token);
        let pool = Pool::connect(&group.url()).unwrap();
        let watchdog = Watchdog::new(&pool).unwrap();
        let (kept, long, mut conn) = ("kept", 6 * LEASE, pool.get().unwrap());
        let token = acquire_lock_with_timeout(&mut conn, kept, LONG, long).unwrap();
        drop(conn);
        let hold = Hold::mutex(kept, &token.unwrap()).unwrap();
        // Its renewals are 20 s apart.
        let renewal = watchdog.keep(&hold, long).unwrap();
        replicated(&group, 0);
        thread::scope(|scope| {
            let waiting = [0, 1].map(|user| {
                let lock = waiters[user].lock(USERS[user].0);
                scope.spawn(move || {
                    let lease = lock.acquire(2 * LONG).unwrap();
                    (Instant::now(), lease.fencing_token())
                })
            });
            thread::sleep(600 * MS);
            match way {
                Way::Planned => assert_eq!(group.fail_over().unwrap(), 1),
                Way::CutOff => {
                    tell(
                        &mut group.servers[0].connection().unwrap(),
                        "ACL SETUSER default -ping",
                    );
                }
            }
            let named = group.another_is_named(0).unwrap();
            let mut next = group.servers[1].connection().unwrap();
            // The holder does nothing, and its lease is renewed there.
            let short = USERS.map(|(name, _)| (name, 9_000));
            for (name, full) in short.into_iter().chain([(kept, 59_500)]) {
                let key = format!("lock:{name}");
                let is_full = || next.pttl::<_, u64>(&key).unwrap() > full;
                let is_renewed = comes_true_within(LEASE, is_full);
                let after = named.elapsed();
                assert!(is_renewed, "{way:?} {name}");
                println!("{way:?}, {name}: renewed there after {after:?}");
                assert!(
                    after < Duration::from_secs(2) + SLACK,
                    "{way:?} {name} {after:?}"
                );
            }
            assert!(renewal.is_held(), "{way:?}");
            for ((lease, waiting), fence) in leases.into_iter().zip(waiting).zip(fences) {
                assert!(
                    lease.is_held() && lease.verify().is_ok(),
                    "{way:?} {lease:?}"
                );
                let released = Instant::now();
                lease.release().unwrap();
                let (got, granted) = waiting.join().unwrap();
                assert!(got - released < SLACK, "{way:?} {:?}", got - released);
                assert!(granted > fence);
            }
            for (name, _) in USERS {
                assert!(!next.exists::<_, bool>(format!("lock:{name}")).unwrap());
            }
        });
    }
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_deposed_master_grants_nothing_two_seconds_after_the_failover() {
    let group = Sentinels::start().unwrap();
    let locks = connect(&group.url());
    let pool = Pool::connect(&group.url()).unwrap();
    drop(locks.lock("warm").acquire(LONG).unwrap());
    group.fail_over().unwrap();
    let promoted = Instant::now();
    let mut old = group.servers[0].connection().unwrap();
    let on_the_old = |conn: &mut redis::Connection, n: usize| {
        conn.exists::<_, bool>(format!("lock:{n}")).unwrap()
    };
    let mut last = None;
    for n in 0.. {
        if promoted.elapsed() > Duration::from_millis(3_500) {
            break;
        }
        let asked = Instant::now();
        let lease = (n % 2 == 0).then(|| locks.lock(&n.to_string()).acquire(LONG).unwrap());
        if lease.is_none() {
            // A connection may fail at this moment; the next one works.
            let taken = pool.get().and_then(|mut conn| {
                acquire_lock_with_timeout(&mut conn, &n.to_string(), MS, LONG)
            });
            assert!(taken.is_ok_and(|token| token.is_some()));
        }
        if on_the_old(&mut old, n) {
            last = Some(asked - promoted);
        }
        thread::sleep(5 * MS);
    }
    let last = last.unwrap_or_default();
    println!("the deposed master granted for {last:?}");
    assert!(last < Duration::from_secs(2) + SLACK, "{last:?}");
}

#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_lease_survives_a_crash_and_a_waiter_gets_the_lock() {
    let mut group = Sentinels::start().unwrap();
    let (holder, waiter) = (connect(&group.url()), connect(&group.url()));
    let lease = holder
        .lock("a")
        .with(Options::new().lease(LEASE))
        .acquire(LONG)
        .unwrap();
    replicated(&group, 0);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            waiter
                .lock("a")
                .acquire(LONG)
                .map(|lease| (Instant::now(), lease))
        });
        thread::sleep(100 * MS);
        group.servers[0].kill().unwrap();
        let killed = Instant::now();
        // No server answers, and the thread waits for the next master.
        let other = scope.spawn(|| {
            let lease = connect(&group.url()).lock("b").acquire(LONG);
            (Instant::now(), lease.map(drop))
        });
        let told = group.another_is_named(0).unwrap();
        let (granted, other) = other.join().unwrap();
        other.unwrap();
        let later = granted.saturating_duration_since(told);
        println!("named after {:?}, granted {later:?} later", told - killed);
        // Half a second is for others to learn of it.
        assert!(later < 750 * MS + SLACK, "{later:?}");
        assert!(lease.is_held());
        assert!(comes_true(|| lease.verify().is_ok()));
        lease.release().unwrap();
        drop(waiting.join().unwrap().unwrap());
    });
}

/// A silent master executes pending commands when it resumes. By then this process knows its
/// successor.
#[test]
#[ignore = "seconds: cargo test --test many_servers -- --ignored --skip ::many_ --skip long::"]
fn a_silent_masters_late_grant_is_refused_once_its_successor_is_known() {
    let group = Sentinels::start().unwrap();
    let patient = Pool::builder().io_timeout(20 * LEASE).connect(&group.url());
    let locks = Locks::new(&patient.unwrap()).unwrap();
    let options = Options::new().lease(6 * LEASE);
    let late = |n: usize| {
        let options = options.clone().fencing(n.is_multiple_of(2));
        locks.lock(&format!("late-{n}")).with(options)
    };
    // A connection for each.
    thread::scope(|scope| {
        for n in 0..4 {
            let late = &late;
            scope.spawn(move || drop(late(n).acquire(LONG).unwrap()));
        }
    });
    group.servers[0].freeze().unwrap();
    thread::scope(|scope| {
        let asking: Vec<_> = (0..4)
            .map(|n| {
                let late = &late;
                scope.spawn(move || match n / 2 {
                    0 => (n, late(n).try_acquire()),
                    _ => (n, late(n).acquire(10 * LEASE).map(Some)),
                })
            })
            .collect();
        group.wait_until_known(1).unwrap();
        let others = connect(&group.url()).with(Options::new().lease(6 * LEASE));
        let leases: Vec<_> = (0..4)
            .map(|n| others.lock(&format!("late-{n}")).acquire(LONG).unwrap())
            .collect();
        // This process also knows it.
        let known = locks.lock("known").acquire(LONG).unwrap();
        known.verify().unwrap();
        let mut next = group.servers[1].connection().unwrap();
        assert!(next.exists::<_, bool>("lock:known").unwrap());
        group.servers[0].thaw().unwrap();
        let (tries, waits): (Vec<_>, Vec<_>) =
            asking.into_iter().enumerate().partition(|(n, _)| *n < 2);
        for (_, answer) in tries {
            let (n, answer) = answer.join().unwrap();
            assert!(
                !matches!(answer, Ok(Some(_))),
                "two hold lock {n}: {answer:?}"
            );
        }
        assert!(waits.iter().all(|(_, waiting)| !waiting.is_finished()));
        for lease in leases {
            lease.verify().unwrap();
            lease.release().unwrap();
        }
        for (_, answer) in waits {
            let (_, answer) = answer.join().unwrap();
            answer.unwrap().unwrap().verify().unwrap();
        }
    });
}
