//! Several locks at once: all are held or none, and no two sets wait for each other in a circle.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use leasehold::{Error, Leases, LockSet, LostReason, Options};
use redis::Commands;

use crate::{
    bench,
    common::{
        LONG, MS,
        hold::{comes_true, every_kind},
        wait::unless_halted,
    },
    waiting::waiting,
};

const BOTH: [&str; 2] = ["b", "a"];

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
