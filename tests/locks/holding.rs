//! A lease of every kind, without faults.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lock, LostReason, Options, acquire_lock_with_timeout, recipes::mutex};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, SLACK, Server,
    hold::{comes_true, every_kind, semaphore},
    wait::{at_once, unless_halted},
};

#[test]
fn every_kind_is_acquired_held_and_released_or_dropped() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        for lock in every_kind(&locks) {
            let lease = lock.acquire(Duration::ZERO).unwrap();
            assert!(lease.is_held(), "{lock:?}");
            lease.check().unwrap();
            lease.verify().unwrap();
            let has_none = ["read", "semaphore", "bare"].contains(&lock.name());
            assert_eq!(lease.fencing_token().is_none(), has_none);
            assert!(lease.remaining() > Duration::from_secs(9));
            lease.release().unwrap();
            assert!(!lock.inspect().unwrap().is_held());
            drop(lock.acquire(Duration::ZERO).unwrap());
            assert!(!lock.inspect().unwrap().is_held());
        }
    });
}

/// Runs concurrently: each mostly waits.
#[test]
fn how_long_it_is_held() {
    let cases: [fn(); 4] = [
        who_comes_second_waits_and_is_woken_by_the_release,
        a_lease_outlives_its_length,
        a_deletion_is_told_at_once,
        a_deletion_after_a_renewal_is_told_at_once,
    ];
    at_once(cases, |case| case());
}

fn who_comes_second_waits_and_is_woken_by_the_release() {
    let server = Server::start().unwrap();
    let (one, other) = (crate::connect(&server.url()), crate::connect(&server.url()));
    for waiting in [&one, &other] {
        let lease = one.lock("a").acquire(LONG).unwrap();
        assert!(waiting.lock("a").try_acquire().unwrap().is_none());
        let asked = Instant::now();
        assert!(matches!(
            waiting.lock("a").acquire(50 * MS),
            Err(Error::Contended { .. })
        ));
        assert!(asked.elapsed() >= 50 * MS && asked.elapsed() < 50 * MS + SLACK);
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let lease = waiting.lock("a").acquire(LONG).unwrap();
                let got = Instant::now();
                lease.release().unwrap();
                got
            });
            thread::sleep(100 * MS);
            let released = Instant::now();
            lease.release().unwrap();
            let got = second.join().unwrap();
            assert!(got > released && got - released < SLACK);
        });
    }
}

fn a_lease_outlives_its_length() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    at_once(every_kind(&locks), |lock| {
        let lease = lock
            .with(Options::new().lease(3_600 * MS))
            .acquire(LONG)
            .unwrap();
        let until = Instant::now() + 4_000 * MS;
        while Instant::now() < until {
            assert!(lease.is_held());
            thread::sleep(5 * MS);
        }
        lease.release().unwrap();
    });
}

#[test]
fn without_renewal_it_expires_with_its_lease() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url()).with(crate::options().lease(200 * MS).renewal(false));
    at_once(every_kind(&locks), |lock| {
        let started = Instant::now();
        let lease = lock.acquire(LONG).unwrap();
        assert!(lease.lost().wait_for(LONG));
        assert!(started.elapsed() >= 200 * MS && started.elapsed() < 200 * MS + SLACK);
        assert_eq!(lease.lost().reason(), Some(LostReason::Ended));
        assert!(matches!(lease.check(), Err(Error::Lost { .. })));
        assert!(matches!(lease.release(), Err(Error::Lost { .. })));
    });
}

fn a_deletion_is_told_at_once() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let mut conn = server.connection().unwrap();
    for lock in every_kind(&locks) {
        for armed in [false, true] {
            let lease = lock.acquire(LONG).unwrap();
            if armed {
                thread::sleep(100 * MS);
            }
            let () = conn.del(format!("lock:{}", lock.name())).unwrap();
            let deleted = Instant::now();
            assert!(lease.lost().wait_for(LONG));
            assert!(
                deleted.elapsed() < 50 * MS + SLACK,
                "{lock:?} {armed} {:?}",
                deleted.elapsed()
            );
            assert_eq!(lease.lost().reason(), Some(LostReason::TakenAway));
            assert!(!lease.is_held());
        }
    }
}

/// A write to a key ends the server's tracking of it, whether this connection or another wrote.
fn a_deletion_after_a_renewal_is_told_at_once() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let options = Options::new().lease(6_000 * MS);
    let ways = [false, true];
    let cases = ways.map(|by_hand| every_kind(&locks).map(|lock| (lock, by_hand)));
    at_once(cases.into_iter().flatten(), |(lock, by_hand)| {
        let name = format!("{}-{by_hand}", lock.name());
        let lock = match lock.name() {
            "mutex" => locks.lock(&name),
            "bare" => locks.lock(&name).with(Options::new().fencing(false)),
            "reentrant" => locks.reentrant(&name),
            "read" => locks.read(&name),
            "semaphore" => semaphore(&locks, &name, 1),
            _ => locks.write(&name),
        };
        let lease = lock.with(options.clone()).acquire(LONG).unwrap();
        if by_hand {
            thread::sleep(150 * MS); // armed
            lease.renew(LONG).unwrap();
        } else {
            let renewed = || lease.remaining() > 5_900 * MS;
            assert!(comes_true(|| !renewed()) && comes_true(renewed));
        }
        thread::sleep(150 * MS);
        let () = (server.connection().unwrap())
            .del(format!("lock:{name}"))
            .unwrap();
        let deleted = Instant::now();
        assert!(lease.lost().wait_for(LONG));
        let took = deleted.elapsed();
        // The next renewal, which would also find out, is due later.
        assert!(took < 500 * MS + SLACK, "{name} {took:?}");
    });
}

/// The server refuses commands that need memory unless the script has already written. The reader
/// and the level share a key with one that lasts longer, so the key's expiry need not change.
#[test]
fn a_held_lock_is_renewed_and_released_on_a_full_server() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let locks = crate::connect(&server.url());
        let for_long = |lock: Lock| {
            let options = crate::options().lease(600_000 * MS);
            lock.with(options).acquire(LONG).unwrap()
        };
        let beside = [
            for_long(locks.read("beside")),
            for_long(locks.reentrant("level")),
        ];
        let others = [locks.read("beside"), locks.reentrant("level")];
        let all = every_kind(&locks).into_iter().chain(others);
        let leases: Vec<_> = all.map(|lock| lock.acquire(LONG).unwrap()).collect();
        let book = acquire_lock_with_timeout(&mut conn, "book", MS, LONG).unwrap();
        let memory = |limit: &str, conn: &mut Connection| {
            let limit = ["SET", "maxmemory", limit];
            redis::cmd("CONFIG").arg(&limit).exec(conn).unwrap();
        };
        memory("1", &mut conn);
        for lease in &leases {
            let renewed = lease.renew(60_000 * MS);
            assert!(renewed.is_ok(), "{lease:?}: {renewed:?}");
        }
        let renewed = mutex::renew(&mut conn, "book", &book.unwrap(), 60_000 * MS);
        assert!(renewed.unwrap());
        let [mutex, _, _, write, semaphore, bare] = every_kind(&locks);
        for kind in [mutex, write, semaphore, bare] {
            let free = Options::new().prefix("free:");
            let refused = kind.with(free).try_acquire();
            assert!(refused.is_err(), "the server still has memory: {refused:?}");
        }
        memory("0", &mut conn);
        // The renewals took effect: they were for longer than the lease.
        for name in ["mutex", "reentrant", "read", "write", "bare", "book"] {
            let left: i64 = conn.pttl(format!("lock:{name}")).unwrap();
            assert!(left > 50_000, "{name}: {left}");
        }
        drop(beside);
        for name in ["beside", "level"] {
            let left: i64 = conn.pttl(format!("lock:{name}")).unwrap();
            assert!((50_000..=60_001).contains(&left), "{name}: {left}");
        }
        memory("1", &mut conn);
        for lease in leases {
            lease.release().unwrap();
        }
    });
}
