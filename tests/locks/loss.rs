//! A lease never reports *held* for too long, and never touches another holder's lock.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Lease, Locks, LostReason, Options, Pool, RenewalState, acquire_lock_with_timeout,
    recipes::mutex, release_lock,
};
use redis::Commands;

use crate::common::{
    LONG, MS, SLACK, Server,
    hold::{comes_true, every_kind},
    wait::{PATIENCE, at_once, unless_halted},
};

type Harm = fn(&mut redis::Connection);

struct Bench {
    locks: Locks,
    conn: redis::Connection,
    server: Server,
}

fn bench() -> Bench {
    let server = Server::start().unwrap();
    Bench {
        locks: crate::connect(&server.url()),
        conn: server.connection().unwrap(),
        server,
    }
}

fn is_lost<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Lost { .. }))
}

#[test]
fn a_guard_ends_before_the_server_does() {
    let bench = bench();
    let options = Options::new().lease(3_000 * MS).renewal(false);
    at_once(every_kind(&bench.locks), |lock| {
        let mut conn = bench.server.connection().unwrap();
        let key = format!("lock:{}", lock.name());
        let lease = lock.with(options.clone()).acquire(LONG).unwrap();
        let mut looked = 0;
        loop {
            // After the server's answer: if held now, the key existed a moment ago.
            let there: bool = conn.exists(&key).unwrap();
            let held = lease.is_held();
            if !there {
                assert!(!held, "{key} is gone and held");
                break;
            }
            looked += 1;
        }
        assert!(looked > 3);
        assert!(is_lost(&lease.verify()) && is_lost(&lease.check()));
    });
}

#[test]
fn every_change_of_the_key_is_reported() {
    unless_halted(|| {
        let mut bench = bench();
        let harms: [(&str, Harm); 4] = [
            ("overwritten", |conn| {
                conn.set::<_, _, ()>("lock:a", "somebody").unwrap();
            }),
            ("renamed", |conn| conn.rename("lock:a", "b").unwrap()),
            ("flushed", |conn| redis::cmd("FLUSHALL").exec(conn).unwrap()),
            ("another kind", |conn| {
                let () = conn.del("lock:a").unwrap();
                conn.rpush::<_, _, ()>("lock:a", 1).unwrap();
            }),
        ];
        for (name, harm) in harms {
            // A flush changes all keys at once.
            let locks: &[&str] = match name {
                "flushed" => &["a", "b", "c"],
                _ => &["a"],
            };
            // No renewal reports it.
            let long = bench.locks.with(Options::new().lease(6 * LONG));
            let lock = |name| long.lock(name).acquire(LONG).unwrap();
            let leases: Vec<Lease> = locks.iter().copied().map(lock).collect();
            thread::sleep(150 * MS); // armed
            harm(&mut bench.conn);
            let harmed = Instant::now();
            let soon = match leases.len() {
                1 => 50 * MS + SLACK,
                _ => PATIENCE,
            };
            for lease in leases {
                let name = format!("{name} {}", lease.name());
                assert!(lease.lost().wait_for(LONG), "{name}");
                let took = harmed.elapsed();
                assert!(took < soon, "{name}: {took:?}");
                assert_eq!(lease.lost().reason(), Some(LostReason::TakenAway), "{name}");
            }
            redis::cmd("FLUSHALL").exec(&mut bench.conn).unwrap();
        }
    });
}

#[test]
fn a_late_holder_does_not_touch_the_next() {
    unless_halted(|| {
        let mut bench = bench();
        for drops in [false, true] {
            let late = bench.locks.lock("a").acquire(LONG).unwrap();
            let () = bench.conn.del("lock:a").unwrap();
            let next = acquire_lock_with_timeout(&mut bench.conn, "a", MS, LONG)
                .unwrap()
                .unwrap();
            if drops {
                drop(late);
            } else {
                assert!(is_lost(&late.renew(LONG * 2)));
                assert!(is_lost(&late.release()));
            }
            let left: i64 = bench.conn.pttl("lock:a").unwrap();
            assert!(left > 10_000 && left <= 20_000);
            assert!(release_lock(&mut bench.conn, "a", &next).unwrap());
        }
    });
}

/// Runs concurrently: each mostly waits.
#[test]
fn how_a_hold_ends() {
    let cases: [fn(); 3] = [
        max_hold_ends_it_however_often_it_is_renewed,
        a_renewal_by_hand_lengthens_and_never_shortens,
        a_lock_that_is_left_is_its_tokens_holders,
    ];
    at_once(cases, |case| case());
}

fn max_hold_ends_it_however_often_it_is_renewed() {
    let mut bench = bench();
    let options = crate::options().lease(600 * MS).max_hold(1_200 * MS);
    let started = Instant::now();
    let lease = bench.locks.lock("a").with(options).acquire(LONG).unwrap();
    lease.renew(LONG).unwrap();
    assert!(lease.remaining() <= 1_200 * MS);
    // If its holder dies, the server does not keep it longer either.
    let left: i64 = bench.conn.pttl("lock:a").unwrap();
    assert!((1_200 - 750..=1_200).contains(&left), "{left}");
    assert!(lease.lost().wait_for(LONG));
    assert!(started.elapsed() >= 1_200 * MS && started.elapsed() < 1_200 * MS + SLACK);
    assert_eq!(lease.lost().reason(), Some(LostReason::MaxHold));
    assert_eq!(lease.state(), RenewalState::Lost(LostReason::MaxHold));
}

fn a_renewal_by_hand_lengthens_and_never_shortens() {
    let bench = bench();
    at_once(every_kind(&bench.locks), |lock| {
        let mut conn = bench.server.connection().unwrap();
        let key = format!("lock:{}", lock.name());
        let options = Options::new().lease(3_000 * MS).renewal(false);
        let lease = lock.with(options).acquire(LONG).unwrap();
        lease.renew(LONG).unwrap();
        lease.renew(10 * MS).unwrap();
        assert!(lease.remaining() + Duration::from_secs(2) > LONG);
        let left: u64 = conn.pttl(&key).unwrap();
        assert!(left > 18_000);
        thread::sleep(3_100 * MS);
        assert!(lease.is_held(), "{key}");
        assert!(matches!(
            lease.renew(Duration::ZERO),
            Err(Error::Invalid { .. })
        ));
        lease.release().unwrap();
    });
}

fn a_lock_that_is_left_is_its_tokens_holders() {
    let mut bench = bench();
    let lock = bench
        .locks
        .lock("a")
        .with(crate::options().lease(1_500 * MS));
    let (token, left) = lock.acquire(LONG).unwrap().detach();
    assert!(left > 750 * MS);
    assert!(lock.try_acquire().unwrap().is_none());
    assert!(mutex::renew(&mut bench.conn, "a", &token, LONG).unwrap());
    assert!(release_lock(&mut bench.conn, "a", &token).unwrap());
    // A detached lock that was not adopted is not renewed.
    let (_, left) = lock.acquire(LONG).unwrap().detach();
    thread::sleep(left);
    assert!(comes_true(|| lock.try_acquire().unwrap().is_some()));
}

#[test]
fn nothing_prints_a_token() {
    unless_halted(|| {
        let bench = bench();
        for lock in every_kind(&bench.locks) {
            let lease = lock.acquire(LONG).unwrap();
            let token = lease.token().to_string();
            let seen = lock.inspect().unwrap();
            let printed = format!(
                "{:?} {lease:?} {lock:?} {seen:?} {:?} {:?}",
                bench.locks,
                lease.lost(),
                lease.check()
            );
            assert!(!printed.contains(&token), "{printed}");
        }
    });
}

#[test]
fn releasing_a_known_lost_lease_says_so_without_an_answer() {
    unless_halted(|| {
        let bench = bench();
        let pool = Pool::builder().io_timeout(300 * MS);
        let pool = pool.connect(&bench.server.url()).unwrap();
        let options = crate::options().lease(600 * MS);
        let locks = Locks::new(&pool).unwrap().with(options);
        let leases = every_kind(&locks).map(|lock| lock.acquire(LONG).unwrap());
        bench.server.freeze().unwrap();
        for lease in leases {
            assert!(comes_true(|| !lease.is_held()));
            let released = lease.release();
            assert!(is_lost(&released), "{released:?}");
        }
        bench.server.thaw().unwrap();
    });
}

/// Our clock ends a lease before the server does, by the clock skew.
#[test]
fn a_lease_that_our_clock_ended_is_over_whatever_the_server_says() {
    unless_halted(|| {
        let mut bench = bench();
        let options = Options::new().lease(3_000 * MS).clock_skew(1_500 * MS);
        let lock = bench.locks.lock("a").with(options.renewal(false));

        // A manual renewal also subtracts the skew.
        let lease = lock.acquire(LONG).unwrap();
        lease.renew(10_000 * MS).unwrap();
        let left = lease.remaining();
        assert!(left <= 8_500 * MS && left + SLACK > 8_500 * MS, "{left:?}");
        lease.release().unwrap();

        // The server's success arrives after the end.
        let lease = lock.acquire(LONG).unwrap();
        bench.server.freeze().unwrap();
        thread::scope(|scope| {
            let verified = scope.spawn(|| lease.verify());
            assert!(lease.lost().wait_for(LONG));
            bench.server.thaw().unwrap();
            let verified = verified.join().unwrap();
            assert!(is_lost(&verified), "{verified:?}");
        });
        // No more renewals, so the next holder does not wait longer.
        assert!(is_lost(&lease.renew(LONG)));
        let left: i64 = bench.conn.pttl("lock:a").unwrap();
        // The server counts from when it has the request.
        assert!((1_500 - 1_000..=1_500 + 750).contains(&left), "{left}");
    });
}
