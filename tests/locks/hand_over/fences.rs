//! Fencing tokens reserved for later turns.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use leasehold::{
    Lease, Lock, Locks, Options, Owner, Pool,
    recipes::mutex::{self, End},
};
use parking_lot::Mutex;
use redis::{Commands, Connection};

use super::{COMPANION, LONG, MS, bench, fence, handing, lock};
use crate::common::{Proxy, Server, hold::comes_true, wait::unless_halted};

#[test]
fn reserved_fencing_tokens_lie_before_the_clock_and_others_see_the_first() {
    unless_halted(|| {
        let mut bench = bench(handing(500));
        let other = lock(&bench.server, Options::new());
        for reserved in [500, 500] {
            let first = bench.lock.acquire(LONG).unwrap();
            assert_eq!(bench.stored("reserved"), reserved);
            assert_eq!(bench.stored("fence"), fence(&first) + reserved);
            assert!(bench.stored("fence") <= micros(&mut bench.conn));
            let found = other.inspect().unwrap();
            assert_eq!(found.holders()[0].fencing_token(), first.fencing_token());
            let stored = bench.stored("fence");
            drop(first);
            assert_eq!(bench.stored("fence"), stored);
        }
    });
}

/// Numbers before the last fencing token may be in use, however many are requested.
#[test]
fn only_numbers_after_the_last_fencing_token_are_reserved() {
    let bench = bench(handing(1_000_000));
    let other = lock(&bench.server, Options::new());
    for _ in 0..20 {
        let last = other.acquire(LONG).unwrap();
        let used = fence(&last);
        last.release().unwrap();
        assert!(fence(&bench.lock.acquire(LONG).unwrap()) > used);
    }
}

fn micros(conn: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(conn).unwrap();
    seconds * 1_000_000 + micros
}

#[test]
fn a_hold_after_a_flush_is_not_handed_over() {
    unless_halted(|| {
        let mut bench = bench(handing(500));
        redis::cmd("FLUSHALL").exec(&mut bench.conn).unwrap();
        let before = micros(&mut bench.conn);
        let first = bench.lock.acquire(LONG).unwrap();
        assert_eq!(bench.stored("reserved"), 0);
        assert!(fence(&first) >= before);
    });
}

/// If another client frees the lock, no number of a range is returned.
#[test]
fn fencing_tokens_grow_after_a_flush_however_the_lock_was_freed() {
    unless_halted(|| {
        for turns in [256, 1_000_000] {
            let mut bench = bench(handing(turns));
            let ways: [fn(&Lock, Lease, &mut Connection); 3] = [
                |_, lease, conn| {
                    let (token, _) = lease.detach();
                    assert!(mutex::release(conn, "a", &token).unwrap());
                },
                |lock, _lease, _| assert!(lock.force_release().unwrap().is_held()),
                |_, _lease, conn| conn.del("lock:a").unwrap(),
            ];
            for free in ways {
                let mut last = 0;
                for _ in 0..200 {
                    let lease = bench.lock.acquire(LONG).unwrap();
                    assert!(fence(&lease) > last);
                    last = fence(&lease);
                    free(&bench.lock, lease, &mut bench.conn);
                }
                redis::cmd("FLUSHALL").exec(&mut bench.conn).unwrap();
                let next = fence(&bench.lock.acquire(LONG).unwrap());
                assert!(next > last, "{turns}: {next} after {last}");
            }
        }
    });
}

/// Without notifications the turns continue after the loss, unless the watchdog has read the lock
/// before.
#[test]
fn hand_overs_after_a_flush_stay_below_the_next_holders_fencing_token() {
    unless_halted(|| {
        let handed_over = (0..10).any(|_| some_turns_come_after_a_loss_of_all_data());
        assert!(handed_over, "the lock was never handed over after the loss");
    });
}

fn some_turns_come_after_a_loss_of_all_data() -> bool {
    let mut bench = bench(handing(1_000_000).lease(LONG));
    bench.keep_silent();
    let lock = lock(&bench.server, handing(1_000_000).lease(LONG));
    let other = self::lock(&bench.server, Options::new());
    let before = other.acquire(LONG).unwrap();
    let lawful = Mutex::new(None::<Lease>);
    let (turns, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let a_turn = |lease: Lease| {
        let mut lawful = lawful.lock();
        if let Some(lawful) = &*lawful {
            let is_held = lease.is_held();
            assert!(!is_held || fence(&lease) < fence(lawful), "overtaken");
            turns.fetch_add(u64::from(is_held), Ordering::SeqCst);
        } else {
            let mut conn = bench.server.connection().unwrap();
            redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
            // On a busy machine one of our threads may be faster. It stands behind this turn, so do
            // not wait for it here.
            *lawful = other.try_acquire().unwrap();
        }
    };
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    if let Ok(lease) = lock.acquire(600 * MS) {
                        a_turn(lease);
                    }
                }
            });
        }
        let all_wait = comes_true(|| lock.inspect().unwrap().waiting_here() == 8);
        drop(before);
        thread::sleep(600 * MS);
        stop.store(true, Ordering::SeqCst);
        assert!(all_wait);
    });
    let lawful = lawful.into_inner();
    assert!(lawful.is_none_or(|lawful| lawful.verify().is_ok()));
    turns.into_inner() > 0
}

/// An attempt whose answer was lost is sent again.
#[test]
fn fencing_tokens_reserved_by_an_unanswered_attempt_are_used() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let () = conn.hset(COMPANION, "fence", 1).unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let client = redis::Client::open(proxy.url()).unwrap();
        let pool = Pool::builder().io_timeout(700 * MS).build(&client).unwrap();
        let lock = Locks::new(&pool).unwrap().lock("a").with(handing(500));
        drop(lock.acquire(LONG).unwrap());
        thread::sleep(MS);
        proxy.at("EVALSHA").swallow();
        let lease = lock.acquire(LONG).unwrap();
        let stored: (u64, u64) = conn.hmget(COMPANION, &["fence", "reserved"]).unwrap();
        assert_eq!(stored, (fence(&lease) + 500, 500));
    });
}

#[test]
fn a_plain_acquire_with_a_handed_over_token_returns_no_smaller_fencing_token() {
    unless_halted(|| {
        let bench = bench(handing(500));
        bench.one_after_the_other(3, |number, lease| {
            if number == 2 {
                let mut conn = bench.server.connection().unwrap();
                let end = End::After(LONG);
                for _ in 0..2 {
                    let again = mutex::try_acquire(&mut conn, "a", lease.token(), end);
                    let number = again.unwrap().unwrap().fencing_token();
                    assert!(Some(number) >= lease.fencing_token());
                }
            }
        });
    });
}

#[test]
fn a_release_does_not_need_the_companion_key() {
    unless_halted(|| {
        // A hash with longer values may be dumped in another order.
        let mut bench = bench(handing(500).owner(Owner::new("short").unwrap()));
        let harms: [fn(&mut Connection); 3] = [
            |conn| conn.del(COMPANION).unwrap(),
            |conn| {
                let () = conn.del(COMPANION).unwrap();
                conn.rpush::<_, _, ()>(COMPANION, 1).unwrap();
            },
            |conn| conn.hset(COMPANION, "token", "somebody's").unwrap(),
        ];
        for harm in harms {
            let lease = bench.lock.acquire(LONG).unwrap();
            harm(&mut bench.conn);
            let before: Option<Vec<u8>> = redis::cmd("DUMP")
                .arg(COMPANION)
                .query(&mut bench.conn)
                .unwrap();
            lease.release().unwrap();
            assert!(!bench.conn.exists::<_, bool>("lock:a").unwrap());
            let after: Option<Vec<u8>> = redis::cmd("DUMP")
                .arg(COMPANION)
                .query(&mut bench.conn)
                .unwrap();
            assert_eq!(before, after);
            let () = bench.conn.del(COMPANION).unwrap();
        }
    });
}
