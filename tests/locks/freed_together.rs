//! What becomes free together is taken together: many permits, or readers after a writer.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Cancel, Error, Lease, Lock, Locks, Options, Result};
use redis::{Commands, Connection};

use crate::{
    common::{
        LONG, MS, Proxy, SLACK, Server,
        hold::{comes_true, leave_the_watchdog_alone},
        wait::{calls, unless_halted},
    },
    waiting::waiting,
};

const KEY: &str = "lock:a";
/// The time of a round trip.
const FAR: Duration = Duration::from_millis(40);
const MANY: u32 = 50;

struct World {
    server: Server,
    proxy: Proxy,
    locks: Locks,
    conn: Connection,
}

/// A server behind a proxy that counts the attempts of waiters.
fn world() -> World {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    // A semaphore cannot be handed over, whatever the other tests do.
    let locks = Locks::connect(&proxy.url()).unwrap();
    let mut conn = server.connection().unwrap();
    leave_the_watchdog_alone(&proxy, &locks, &mut conn);
    World {
        server,
        proxy,
        locks,
        conn,
    }
}

/// Holds all of these permits in another process, until they are freed by one command.
fn all_of(permits: &Lock, count: u32) -> Vec<Lease> {
    let permit = |_| permits.try_acquire().unwrap().unwrap();
    (0..count).map(permit).collect()
}

/// Lets these waiters come one after another, and frees the lock. Returns their results, and the
/// time until the last of them. They hold the lock together.
fn freed(waiters: &[Lock], free: impl FnOnce()) -> (Vec<Result<Lease>>, Duration) {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, lock) in waiters.iter().enumerate() {
            threads.push(scope.spawn(|| (lock.acquire(LONG), Instant::now())));
            assert!(comes_true(|| waiting(lock) == number + 1));
        }
        let at = Instant::now();
        free();
        let ended: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        let last = ended.iter().map(|(_, moment)| *moment - at).max().unwrap();
        (ended.into_iter().map(|(result, _)| result).collect(), last)
    })
}

/// One after another they would need two seconds, and a write each.
#[test]
fn fifty_permits_or_readers_far_away_are_granted_in_a_few_round_trips() {
    unless_halted(|| {
        let mut world = world();
        let theirs = Locks::connect(&world.server.url()).unwrap();
        let permits = theirs.semaphore("a", MANY);
        let readers = || {
            (
                world.locks.read("a"),
                vec![theirs.write("a").acquire(LONG).unwrap()],
            )
        };
        let permits = || (world.locks.semaphore("a", MANY), all_of(&permits, MANY));
        let cases: [&dyn Fn() -> (Lock, Vec<Lease>); 2] = [&permits, &readers];
        for case in cases {
            let (ours, held) = case();
            let waiters = vec![ours; 50];
            let (ended, last) = freed(&waiters, || {
                world.proxy.delay_each(FAR);
                world.proxy.take_bursts();
                let () = world.conn.del(KEY).unwrap();
            });
            let leases: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
            world.proxy.delay_each(Duration::ZERO);
            let attempts = |burst: &Vec<String>| burst.iter().filter(|it| *it == "EVALSHA").count();
            let bursts = world.proxy.take_bursts();
            let attempts: Vec<_> = bursts.iter().map(attempts).filter(|it| *it > 0).collect();
            assert!(last < 250 * MS + SLACK, "{last:?}");
            assert!(attempts.len() <= 15, "{attempts:?}");
            assert!(attempts.iter().sum::<usize>() <= 55, "{attempts:?}");
            let () = world.conn.del(KEY).unwrap();
            drop((leases, held));
        }
    });
}

/// The threads of two processes that free and take several permits at a time.
#[test]
fn no_permit_is_taken_twice_when_many_are_freed_together() {
    unless_halted(|| {
        let world = world();
        let theirs = Locks::connect(&world.server.url()).unwrap();
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        world.proxy.delay_each(2 * MS);
        thread::scope(|scope| {
            for number in 0..32 {
                let locks = if number % 2 == 0 {
                    &world.locks
                } else {
                    &theirs
                };
                let (inside, most) = (&inside, &most);
                scope.spawn(move || {
                    for _ in 0..10 {
                        let lease = locks.semaphore("a", 8).acquire(LONG).unwrap();
                        let now = inside.fetch_add(1, SeqCst) + 1;
                        most.fetch_max(now, SeqCst);
                        // Several permits are freed within a round trip.
                        thread::sleep(MS);
                        inside.fetch_sub(1, SeqCst);
                        lease.release().unwrap();
                    }
                });
            }
        });
        assert!((2..=8).contains(&most.load(SeqCst)), "{most:?}");
    });
}

/// The numbers of these waiters in the order in which they are granted the lock, which is freed
/// now. The first two hold it together until the third has asked too.
fn order_of(world: &mut World, waiters: &[Lock]) -> Vec<usize> {
    let order = Mutex::new(Vec::new());
    let before = AtomicU64::new(u64::MAX);
    thread::scope(|scope| {
        for (number, lock) in waiters.iter().enumerate() {
            let (order, before) = (&order, &before);
            let mut conn = world.server.connection().unwrap();
            scope.spawn(move || {
                let lease = lock.acquire(LONG).unwrap();
                order.lock().unwrap().push(number);
                let three = || calls(&mut conn, "evalsha").unwrap() >= before.load(SeqCst) + 3;
                assert!(number > 1 || comes_true(three));
                lease.release().unwrap();
            });
            assert!(comes_true(|| waiting(lock) == number + 1));
        }
        before.store(calls(&mut world.conn, "evalsha").unwrap(), SeqCst);
        let () = world.conn.del(KEY).unwrap();
    });
    order.into_inner().unwrap()
}

/// A writer, or a permit out of fewer, is refused while the first two hold the lock.
#[test]
fn nobody_overtakes_a_waiter_that_does_not_share() {
    unless_halted(|| {
        let mut world = world();
        let theirs = Locks::connect(&world.server.url()).unwrap();
        let (five, two) = (world.locks.semaphore("a", 5), world.locks.semaphore("a", 2));
        let (read, write) = (world.locks.read("a"), world.locks.write("a"));
        for (holder, count, shares, other) in [
            (theirs.semaphore("a", 5), 5, five, two),
            (theirs.write("a"), 1, read, write),
        ] {
            let held = all_of(&holder, count);
            let waiters = [&shares, &shares, &other, &shares, &shares].map(Lock::clone);
            let order = order_of(&mut world, &waiters);
            assert_eq!(order[2], 2, "{order:?}");
            assert!(order[..2].iter().all(|number| *number < 2), "{order:?}");
            drop(held);
        }
    });
}

/// The fourth attempt after the permits are freed is disturbed: a waiter in the middle is cancelled
/// meanwhile, or the connection is lost with the answers.
#[test]
fn a_cancel_or_a_lost_answer_in_the_middle_delays_no_other() {
    unless_halted(|| {
        for is_cancelled in [true, false] {
            let mut world = world();
            let theirs = Locks::connect(&world.server.url()).unwrap();
            let held = all_of(&theirs.semaphore("a", 10), 10);
            let ours = world.locks.semaphore("a", 10);
            let cancel = Cancel::new();
            let mut waiters = vec![ours.clone(); 10];
            waiters[4] = ours.with(Options::new().cancel(&cancel));
            let (ended, last) = freed(&waiters, || {
                world.proxy.delay_each(FAR);
                let fourth = world.proxy.at("EVALSHA").nth(4);
                if is_cancelled {
                    fourth.run(move || cancel.cancel());
                } else {
                    fourth.cut_after();
                }
                let () = world.conn.del(KEY).unwrap();
            });
            assert!(world.proxy.happened());
            assert!(last < 500 * MS + SLACK, "{last:?}");
            let (granted, refused): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
            let is_cancel = |it: &Result<Lease>| matches!(it, Err(Error::Cancelled { .. }));
            assert!(refused.iter().all(is_cancel), "{refused:?}");
            assert!(refused.len() <= usize::from(is_cancelled), "{refused:?}");
            // What the cancelled wait was granted is given back.
            let is_as_many = || world.conn.zcard(KEY) == Ok(granted.len());
            assert!(comes_true(is_as_many));
            drop((granted, held));
        }
    });
}
