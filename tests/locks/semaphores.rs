//! A semaphore as a `Lock`: never more holders than permits, and no thread waits while one is free.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Holder, Lease, Lock, Locks, Options, Owner};
use redis::Commands;

use crate::{
    common::{
        LONG, MS, SLACK, Server,
        hold::comes_true,
        wait::{in_time, told_of_keys, unless_halted},
    },
    waiting::waiting,
};

const KEY: &str = "lock:api";
const TEN_SECONDS: Duration = Duration::from_secs(10);

fn bench() -> (Server, Locks, redis::Connection) {
    let server = Server::start().unwrap();
    let locks = Locks::connect(&server.url()).unwrap();
    let conn = server.connection().unwrap();
    (server, locks, conn)
}

fn all(lock: &Lock, count: usize) -> Vec<Lease> {
    (0..count)
        .map(|_| lock.try_acquire().unwrap().unwrap())
        .collect()
}

#[test]
fn there_are_as_many_holders_as_permits_and_the_next_one_waits() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        let lock = locks.semaphore("api", 3);
        let mut held = all(&lock, 3);
        assert!(lock.try_acquire().unwrap().is_none());
        let refused = lock.acquire(500 * MS).unwrap_err();
        let Error::Contended { remaining, .. } = &refused else {
            panic!("{refused:?}");
        };
        assert!(remaining.is_some_and(|left| left <= 10 * Duration::from_secs(1)));
        held.pop().unwrap().release().unwrap();
        let lease = lock.try_acquire().unwrap().unwrap();
        assert!(lock.try_acquire().unwrap().is_none());
        assert!(lease.fencing_token().is_none());
        lease.verify().unwrap();
    });
}

/// The first granted thread wakes the next, because the server sent one notification for both
/// permits.
#[test]
fn two_permits_freed_at_once_wake_two_waiters() {
    in_time(SLACK, || {
        let (server, locks, mut conn) = bench();
        let theirs = Locks::connect(&server.url()).unwrap();
        let _held = all(&theirs.semaphore("api", 2), 2);
        // The watchdog has read it.
        assert!(comes_true(|| told_of_keys(&mut conn).unwrap() > 0));
        let read_by_one = told_of_keys(&mut conn).unwrap();
        let lock = locks.semaphore("api", 2);
        thread::scope(|scope| {
            let waiters = [0; 2].map(|_| scope.spawn(|| lock.acquire(LONG).unwrap()));
            assert!(comes_true(|| waiting(&lock) == 2));
            // The first has been refused.
            assert!(comes_true(|| told_of_keys(&mut conn).unwrap() > read_by_one));
            // One command, and one notification.
            let () = conn.del(KEY).unwrap();
            let freed = Instant::now();
            let _leases = waiters.map(|it| it.join().unwrap());
            freed.elapsed()
        })
    });
}

#[test]
fn invalid_semaphores_are_refused_before_anything_is_sent() {
    let locks = Locks::connect("redis://127.0.0.1:1/").unwrap();
    let hands_over = Options::new().hand_over(4, MS);
    let lock = locks.semaphore("api", 3);
    let once = lock.run_once(LONG, MS, |_| Ok::<(), Error>(())).map(drop);
    let refused = [lock.with(hands_over).try_acquire().map(drop), once];
    for (refused, reason) in refused.into_iter().zip(["no order", "once"]) {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn inspect_shows_all_holders_the_free_permits_and_differing_limits() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        let lock = locks.semaphore("api", 3);
        let free = lock.inspect().unwrap();
        assert!(free.free_permits() == Some(3) && !free.is_semaphore());
        let me = Owner::new("the night job, second part").unwrap();
        let long = Options::new()
            .owner(me.clone())
            .lease(30 * Duration::from_secs(1));
        let first = lock.acquire(LONG).unwrap();
        let second = locks.semaphore("api", 5).with(long).acquire(LONG).unwrap();
        let seen = lock.inspect().unwrap();
        assert_eq!(seen.free_permits(), Some(1));
        let counted: Vec<_> = seen.holders().iter().map(Holder::permits).collect();
        assert_eq!(counted, [Some(3), Some(5)], "{seen:?}");
        let last = &seen.holders()[1];
        assert_eq!(last.owner(), Some(&me));
        assert!(last.since().is_some() && last.remaining() > Some(LONG));
        assert!(!seen.is_foreign() && seen.is_held() && seen.is_semaphore());
        drop((first, second));
        // Used as a lock of another kind, and questions about a lock of another kind.
        let mutex = locks.lock("api");
        assert_eq!(mutex.inspect().unwrap().free_permits(), None);
        let held = mutex.acquire(LONG).unwrap();
        let seen = lock.inspect().unwrap();
        assert!(seen.free_permits().is_none() && !seen.is_semaphore());
        drop(held);
    });
}

#[test]
fn a_smaller_limit_takes_no_permit_away_and_waits() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        // With two permits a thread waits for three of these four to end, at most until the end of
        // the last but one.
        let four = locks.semaphore("api", 4);
        let of_ten_more = |n| four.clone().with(Options::new().lease(n * TEN_SECONDS));
        let mut held: Vec<_> = (1..=4)
            .map(|n| of_ten_more(n).try_acquire().unwrap().unwrap())
            .collect();
        let fewer = locks.semaphore("api", 2);
        let refused = fewer.acquire(500 * MS).unwrap_err();
        let Error::Contended { remaining, .. } = refused else {
            panic!("{refused:?}");
        };
        let left = remaining.unwrap();
        assert!(
            left > 2 * TEN_SECONDS && left <= 3 * TEN_SECONDS,
            "{left:?}"
        );
        assert_eq!(fewer.inspect().unwrap().free_permits(), Some(0));
        for _ in 0..2 {
            assert!(fewer.try_acquire().unwrap().is_none());
            held.pop().unwrap().release().unwrap();
        }
        assert!(fewer.try_acquire().unwrap().is_none());
        held.pop().unwrap().release().unwrap();
        let lease = fewer.try_acquire().unwrap().unwrap();
        held[0].verify().unwrap();
        lease.verify().unwrap();
    });
}

/// The mutex's fencing token outlives its lock by a day, in the companion that both share.
#[test]
fn the_fencing_token_of_a_mutex_with_this_name_is_kept() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let mutex = locks.lock("api");
        let before = mutex.acquire(LONG).unwrap();
        let last = before.fencing_token();
        before.release().unwrap();
        let held = locks.semaphore("api", 1).acquire(LONG).unwrap();
        let mut ends_in = || conn.pttl::<_, i64>("{lock:api}:lease").unwrap();
        assert!(ends_in() > 80_000_000);
        held.release().unwrap();
        assert!(ends_in() > 80_000_000);
        let after = mutex.acquire(LONG).unwrap();
        assert!(after.fencing_token() > last);
    });
}

/// `ZSCORE` returns a number in RESP3, and a text in RESP2.
#[test]
fn a_commit_finds_its_permit_with_either_protocol() {
    unless_halted(|| {
        let (server, _, mut conn) = bench();
        for protocol in ["resp2", "resp3"] {
            let url = format!("{}?protocol={protocol}", server.url());
            let locks = Locks::connect(&url).unwrap();
            let lease = locks.semaphore("api", 2).acquire(LONG).unwrap();
            let committed = lease.commit(|pipeline| {
                pipeline.set("written", protocol);
            });
            assert!(committed.is_ok(), "{protocol}: {committed:?}");
            assert_eq!(conn.get::<_, String>("written").unwrap(), protocol);
            lease.release().unwrap();
        }
    });
}

/// The grant of one reports when the other's permit expires.
#[test]
fn waiters_get_the_permits_of_dead_holders_as_each_lease_expires() {
    unless_halted(|| {
        let (server, locks, mut conn) = bench();
        let theirs = Locks::connect(&server.url()).unwrap().semaphore("api", 2);
        let dead = [400 * MS, 500 * MS].map(|lease| {
            let dies = Options::new().renewal(false).lease(lease);
            theirs.clone().with(dies).acquire(LONG).unwrap().detach()
        });
        let lock = locks.semaphore("api", 2);
        let asked = Instant::now();
        thread::scope(|scope| {
            let waiters = [0; 2].map(|_| scope.spawn(|| lock.acquire(LONG).unwrap()));
            let leases = waiters.map(|it| it.join().unwrap());
            assert!(asked.elapsed() < 500 * MS + SLACK, "{:?}", asked.elapsed());
            // Each grant has removed a dead holder's permit.
            assert_eq!(conn.zcard::<_, u64>(KEY).unwrap(), 2);
            drop(leases);
        });
        drop(dead);
    });
}
