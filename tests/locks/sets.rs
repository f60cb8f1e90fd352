//! Several locks at once: all are held or none, and no two sets wait for each other in a circle.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Cancel, Error, Leases, LockSet, Locks, LostReason, Options};
use redis::Commands;

use crate::{
    common::{
        LONG, MS, Proxy, SLACK, Server,
        hold::{comes_true, every_kind, leave_the_watchdog_alone},
        wait::unless_halted,
    },
    waiting::waiting,
};

const BOTH: [&str; 2] = ["b", "a"];

fn bench() -> (Server, Locks, redis::Connection) {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let conn = server.connection().unwrap();
    (server, locks, conn)
}

fn keys(conn: &mut redis::Connection) -> Vec<String> {
    let mut keys: Vec<String> = conn.keys("lock:*").unwrap();
    keys.sort();
    keys
}

#[test]
fn all_kinds_are_held_and_released_together() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let leases = LockSet::of(every_kind(&locks)).acquire(LONG).unwrap();
        leases.check().unwrap();
        assert!(leases.is_held() && leases.remaining() > Duration::from_secs(5));
        assert_eq!(keys(&mut conn).len(), 6);
        assert!(leases.fencing_token("mutex").is_some());
        assert!(leases.fencing_token("read").is_none());
        assert!(leases.fencing_token("another").is_none() && leases.get("another").is_none());
        leases.release().unwrap();
        assert_eq!(keys(&mut conn), [""; 0]);
        drop(locks.all_of(BOTH).acquire(LONG).unwrap());
        assert_eq!(keys(&mut conn), [""; 0]);
    });
}

#[test]
fn a_busy_lock_leaves_none_held_and_the_error_names_it_and_its_holder() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let held = locks.lock("b").acquire(LONG).unwrap();
        let set = locks.all_of(["a", "b", "c"]);
        assert!(set.try_acquire().unwrap().is_none());
        assert_eq!(keys(&mut conn), ["lock:b"]);
        let refused = set.acquire(100 * MS).unwrap_err();
        let Error::Contended {
            context, holder, ..
        } = &refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(context.lock, "b");
        assert!(holder.is_some(), "{refused:?}");
        assert_eq!(keys(&mut conn), ["lock:b"]);
        held.release().unwrap();
        set.acquire(LONG).unwrap().release().unwrap();
    });
}

/// In the callers' orders they would wait for each other until their time limits.
#[test]
fn sets_in_opposite_orders_do_not_deadlock() {
    unless_halted(|| {
        let (server, ours, _conn) = bench();
        let theirs = crate::connect(&server.url());
        let sets = [ours.all_of(["a", "b"]), theirs.all_of(["b", "a"])];
        thread::scope(|scope| {
            for set in sets.iter().cycle().take(8) {
                scope.spawn(move || {
                    for _ in 0..25 {
                        let leases = set.acquire(6 * LONG).unwrap();
                        thread::sleep(MS);
                        leases.release().unwrap();
                    }
                });
            }
        });
    });
}

#[test]
fn held_locks_are_renewed_while_the_next_is_awaited() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        let short = locks.with(Options::new().lease(2_000 * MS));
        let held = locks.lock("b").acquire(LONG).unwrap();
        let set = short.all_of(BOTH);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| set.acquire(LONG).map(Leases::release));
            assert!(comes_true(|| waiting(&short.lock("b")) == 1));
            thread::sleep(2_500 * MS);
            assert!(short.lock("a").inspect().unwrap().is_held());
            held.release().unwrap();
            waiter.join().unwrap().unwrap().unwrap();
        });
    });
}

/// It is not renewed, so it expires before the other one is free.
#[test]
fn a_lock_lost_while_waiting_for_another_ends_the_wait_and_none_is_held() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let held = locks.lock("b").acquire(LONG).unwrap();
        let short = Options::new().lease(200 * MS).renewal(false);
        let set = LockSet::of([locks.lock("b"), locks.lock("a").with(short)]);
        let asked = Instant::now();
        let error = set.acquire(LONG).unwrap_err();
        assert!(asked.elapsed() < 450 * MS + SLACK, "{:?}", asked.elapsed());
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        assert!(error.context().is_some_and(|context| context.lock == "a"));
        assert_eq!(keys(&mut conn), ["lock:b"]);
        held.release().unwrap();
    });
}

#[test]
fn an_invalid_set_is_refused_before_anything_is_sent() {
    let locks = Locks::connect("redis://127.0.0.1:1/").unwrap();
    let other_prefix = locks.with(Options::new().prefix("lock:a"));
    let sets = [
        (locks.all_of([""; 0]), "empty"),
        (locks.all_of(["a", "b", "a"]), "`a` appears twice"),
        (LockSet::of([locks.lock("a"), locks.read("a")]), "twice"),
        (
            LockSet::of([locks.lock("ab"), other_prefix.lock("b")]),
            "twice",
        ),
        (locks.all_of(["a", "b:lease"]), ":lease"),
    ];
    for (set, reason) in sets {
        for refused in [set.try_acquire().map(drop), set.acquire(MS).map(drop)] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}

#[test]
fn a_loss_names_its_lock_and_the_others_are_released() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let leases = locks.all_of(["a", "b", "c"]).acquire(LONG).unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let called = Arc::clone(&calls);
        let call = move |reason| called.lock().unwrap().push(reason);
        leases.lost().notify(call).unwrap();
        assert!(!leases.lost().wait_for(50 * MS));
        let () = conn.del(&["lock:b", "lock:c"]).unwrap();
        assert!(leases.lost().wait_for(LONG));
        let lost = || leases.get("c").is_some_and(|lease| !lease.is_held());
        assert!(comes_true(lost));
        let error = leases.check().unwrap_err();
        assert!(matches!(&error, Error::Lost { context, .. } if context.lock == "b"));
        assert!(!leases.is_held() && leases.remaining().is_zero());
        assert!(comes_true(
            || *calls.lock().unwrap() == [LostReason::TakenAway]
        ));
        let error = leases.release().unwrap_err();
        let Error::Lost { context, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(context.lock, "b, c");
        assert_eq!(keys(&mut conn), [""; 0]);
    });
}

#[test]
fn a_commit_writes_only_while_all_locks_are_held() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let locks = locks.with(Options::new().hand_over(0, Duration::ZERO));
        let set = LockSet::of([locks.lock("a"), locks.read("b"), locks.semaphore("c", 2)]);
        let leases = set.acquire(LONG).unwrap();
        leases.commit(|pipe| _ = pipe.incr("balance", 1)).unwrap();
        let moved = leases.transaction(&["other"], |conn, pipe| {
            let balance: i64 = conn.get("balance")?;
            pipe.set("balance", balance + 1);
            Ok(balance)
        });
        assert_eq!(moved.unwrap(), 1);
        for lost in ["a", "b", "c"] {
            let set = LockSet::of([locks.lock("a2"), locks.read("b2"), locks.semaphore("c2", 2)]);
            let leases = set.acquire(LONG).unwrap();
            let key = format!("lock:{lost}2");
            // The client is not notified: the server does not track reads of this connection.
            let () = conn.del(&key).unwrap();
            let error = leases
                .commit(|pipe| _ = pipe.incr("balance", 1))
                .unwrap_err();
            let named = format!("{lost}2");
            let is_named = matches!(&error, Error::Lost { context, .. } if context.lock == named);
            assert!(is_named, "{error:?}");
            let never = leases.transaction(&[], |_, pipe| Ok(_ = pipe.incr("balance", 1)));
            assert!(matches!(never, Err(Error::Lost { .. })), "{never:?}");
        }
        assert_eq!(conn.get::<_, i64>("balance").unwrap(), 2);
        leases.release().unwrap();
    });
}

#[test]
fn free_locks_cost_one_round_trip_and_their_release_another() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let locks = Locks::connect(&proxy.url()).unwrap();
        let mut conn = server.connection().unwrap();
        leave_the_watchdog_alone(&proxy, &locks, &mut conn);
        let set = locks.all_of(["a", "b", "c", "d", "e"]);
        set.acquire(LONG).unwrap().release().unwrap();
        let (leases, traffic) = proxy.traffic_of(|| set.acquire(LONG).unwrap());
        assert_eq!(traffic.round_trips, 1);
        let ((), traffic) = proxy.traffic_of(|| leases.release().unwrap());
        assert_eq!(traffic.round_trips, 1);
    });
}

#[test]
fn a_cancel_ends_the_wait_for_a_set_and_none_is_held() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let cancel = Cancel::new();
        let set = locks.all_of(BOTH).with(Options::new().cancel(&cancel));
        let held = locks.lock("b").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| set.acquire(LONG).unwrap_err());
            assert!(comes_true(|| waiting(&locks.lock("b")) == 1));
            cancel.cancel();
            let error = waiter.join().unwrap();
            assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        });
        assert_eq!(keys(&mut conn), ["lock:b"]);
        held.release().unwrap();
    });
}

/// All drops share one time-out.
#[test]
fn dropping_all_beside_a_silent_server_takes_one_timeout() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = Locks::connect(&server.url()).unwrap();
        let options = Options::new().drop_timeout(400 * MS);
        let set = locks.all_of(["a", "b", "c", "d", "e", "f"]).with(options);
        let leases = set.acquire(LONG).unwrap();
        server.freeze().unwrap();
        let asked = Instant::now();
        drop(leases);
        let took = asked.elapsed();
        assert!(took >= 400 * MS && took < 400 * MS + SLACK, "{took:?}");
        server.thaw().unwrap();
    });
}

/// The order of a set does not cover a lock acquired while the set is held.
#[test]
fn a_single_lock_within_a_set_can_deadlock_until_the_shorter_wait_ends() {
    unless_halted(|| {
        let (server, ours, _conn) = bench();
        let theirs = crate::connect(&server.url());
        let set = ours.all_of(BOTH).acquire(LONG).unwrap();
        let single = theirs.lock("c").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| theirs.all_of(BOTH).acquire(6 * LONG));
            let error = ours.lock("c").acquire(400 * MS).unwrap_err();
            assert!(matches!(&error, Error::Contended { context, .. } if context.lock == "c"));
            assert!(!waiter.is_finished());
            set.release().unwrap();
            waiter.join().unwrap().unwrap().release().unwrap();
        });
        single.release().unwrap();
    });
}

/// A thread that acquires its locks one by one, in another order, can form a circle with a set
/// until one gives up.
#[test]
fn a_set_beside_single_locks_in_another_order_deadlocks_until_the_shorter_wait_ends() {
    unless_halted(|| {
        let (server, ours, _conn) = bench();
        let theirs = crate::connect(&server.url());
        let last = theirs.lock("b").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| ours.all_of(BOTH).acquire(6 * LONG));
            assert!(comes_true(|| waiting(&ours.lock("b")) == 1));
            let error = theirs.lock("a").acquire(400 * MS).unwrap_err();
            assert!(matches!(&error, Error::Contended { context, .. } if context.lock == "a"));
            assert!(!waiter.is_finished());
            last.release().unwrap();
            waiter.join().unwrap().unwrap().release().unwrap();
        });
    });
}
