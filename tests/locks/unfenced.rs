//! Locks without a fencing token: their commands and keys, and exclusion in both directions.

use std::{sync::Mutex, thread};

use leasehold::{Lock, Locks, Options, Pool};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Proxy, Server,
    hold::{comes_true, leave_the_watchdog_alone},
    wait::{calls, unless_halted},
};

const COMPANION: &str = "{lock:a}:lease";

fn unfenced() -> Options {
    Options::new().fencing(false)
}

fn start() -> (Server, Locks, Connection) {
    let server = Server::start().unwrap();
    let locks = Locks::connect(&server.url()).unwrap().with(unfenced());
    let conn = server.connection().unwrap();
    (server, locks, conn)
}

fn keys(conn: &mut Connection) -> Vec<String> {
    conn.keys("*").unwrap()
}

#[test]
fn an_unfenced_lock_is_one_set_and_leaves_nothing() {
    unless_halted(|| {
        let (server, _, mut conn) = start();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let locks = Locks::connect(&proxy.url()).unwrap().with(unfenced());
        leave_the_watchdog_alone(&proxy, &locks, &mut conn);
        let lock = locks.lock("a");
        // Retried until the server knows the release script and the connections are open.
        assert!(comes_true(|| {
            let (lease, acquiring) = proxy.traffic_of(|| lock.acquire(LONG).unwrap());
            assert_eq!(lease.fencing_token(), None);
            assert_eq!(keys(&mut conn), ["lock:a"]);
            lease.verify().unwrap();
            let (refused, refusing) = proxy.traffic_of(|| lock.try_acquire().unwrap());
            assert!(refused.is_none());
            let ((), releasing) = proxy.traffic_of(|| lease.release().unwrap());
            assert_eq!(keys(&mut conn), [""; 0]);
            [acquiring, refusing, releasing].map(|traffic| traffic.commands)
                == [["SET"], ["SET"], ["EVALSHA"]]
        }));
    });
}

#[test]
fn fenced_and_unfenced_locks_exclude_and_wake_each_other() {
    unless_halted(|| {
        let (server, locks, _conn) = start();
        let others = Locks::connect(&server.url()).unwrap();
        let (without, with) = (locks.lock("a"), others.lock("a"));
        let mut last = None;
        for _ in 0..5 {
            for (first, second) in [(&with, &without), (&without, &with)] {
                let held = first.acquire(LONG).unwrap();
                assert!(second.try_acquire().unwrap().is_none());
                let next = thread::scope(|scope| {
                    let waiter = scope.spawn(|| second.acquire(LONG).unwrap());
                    assert!(comes_true(|| second.inspect().unwrap().waiting_here() == 1));
                    held.release().unwrap();
                    waiter.join().unwrap()
                });
                if let Some(fence) = next.fencing_token() {
                    assert!(Some(fence) > last, "{fence:?} after {last:?}");
                    last = Some(fence);
                }
                next.release().unwrap();
            }
        }
        assert!(last.is_some());
    });
}

/// The bare command refuses its own token.
#[test]
fn a_lock_taken_by_an_unanswered_attempt_is_recognised() {
    unless_halted(|| {
        let (server, _, mut conn) = start();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let client = redis::Client::open(proxy.url()).unwrap();
        let pool = Pool::builder()
            .io_timeout(1_500 * MS)
            .build(&client)
            .unwrap();
        let lock = Locks::new(&pool).unwrap().lock("a").with(unfenced());
        drop(lock.acquire(LONG).unwrap());
        // No answer comes; or the connection closes, so the client sends it again at once.
        let ways: [fn(&Proxy); 2] = [
            |proxy| proxy.at("SET").swallow(),
            |proxy| proxy.at("SET").cut_after(),
        ];
        for lose in ways {
            let taken = calls(&mut conn, "set").unwrap();
            lose(&proxy);
            let lease = lock.acquire(LONG).unwrap();
            assert!(proxy.happened());
            lease.verify().unwrap();
            assert_eq!(calls(&mut conn, "set").unwrap(), taken + 1, "by the first");
            lease.release().unwrap();
            assert_eq!(keys(&mut conn), [""; 0]);
        }
    });
}

/// Each waits behind the previous one; then the first is released.
fn in_turn(first: &Lock, others: &[Lock]) -> Vec<bool> {
    let fenced = Mutex::new(Vec::new());
    let held = first.acquire(LONG).unwrap();
    thread::scope(|scope| {
        for (before, lock) in others.iter().enumerate() {
            let fenced = &fenced;
            scope.spawn(move || {
                let lease = lock.acquire(LONG).unwrap();
                lease.verify().unwrap();
                fenced.lock().unwrap().push(lease.fencing_token().is_some());
                lease.release().unwrap();
            });
            assert!(comes_true(
                || lock.inspect().unwrap().waiting_here() == before + 1
            ));
        }
        held.release().unwrap();
    });
    fenced.into_inner().unwrap()
}

#[test]
fn an_unfenced_lock_is_handed_over_from_the_first_hold_on() {
    unless_halted(|| {
        let (_server, locks, mut conn) = start();
        let lock = locks.lock("a").with(unfenced().hand_over(100, LONG));
        assert_eq!(in_turn(&lock, &vec![lock.clone(); 10]), [false; 10]);
        assert_eq!(calls(&mut conn, "del").unwrap(), 1);
        assert_eq!(keys(&mut conn), [""; 0]);
    });
}

#[test]
fn a_waiter_for_a_fencing_token_is_not_handed_an_unfenced_lock() {
    unless_halted(|| {
        let (_server, locks, mut conn) = start();
        let () = conn.hset(COMPANION, "fence", 1).unwrap();
        let handing = Options::new().hand_over(100, LONG);
        let without = locks.lock("a").with(handing.clone().fencing(false));
        let with = locks.lock("a").with(handing.fencing(true));
        for (first, second, numbered) in [(&without, &with, false), (&with, &without, true)] {
            let others = [first, second, first, second].map(Clone::clone);
            let expected = [numbered, !numbered, numbered, !numbered];
            assert_eq!(in_turn(first, &others), expected);
        }
    });
}

#[test]
fn the_other_kinds_keep_their_companion_keys() {
    unless_halted(|| {
        let (_server, locks, _conn) = start();
        for (lock, fenced) in [
            (locks.reentrant("e"), true),
            (locks.write("w"), true),
            (locks.read("r"), false),
        ] {
            let lease = lock.acquire(LONG).unwrap();
            assert_eq!(lease.fencing_token().is_some(), fenced, "{lock:?}");
            lease.release().unwrap();
        }
    });
}
