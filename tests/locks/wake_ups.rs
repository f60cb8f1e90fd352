//! Wake-ups at awkward moments: the next thread to ask learns of each of them.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Locks, Options, Owner, RenewalState};
use redis::Commands;

use crate::{
    common::{
        Proxy, SLACK, Server,
        hold::{comes_true, every_kind},
        tell,
        wait::{at_once, in_time, told_of_keys, unless_halted},
    },
    waiting::waiting,
};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);

/// The holder keeps the lock: only the server's notification can wake the next thread.
#[test]
fn a_wake_up_during_a_grant_wakes_the_next_waiter() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let locks = crate::connect(&proxy.url());
        let others = crate::connect(&server.url());
        let lock = locks.lock("a");
        drop(lock.acquire(LONG).unwrap());
        let held = others.lock("a").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let (got, gets) = mpsc::channel();
            for number in 1..=2 {
                let (lock, got) = (&lock, got.clone());
                scope.spawn(move || got.send(lock.acquire(LONG).unwrap()).unwrap());
                assert!(comes_true(|| waiting(lock) == number));
            }
            // Until the head has asked.
            thread::sleep(50 * MS);
            proxy.at("EVALSHA").delay(200 * MS);
            held.release().unwrap();
            assert!(comes_true(|| conn.exists("lock:a").unwrap()));
            // Granted, but the answer is still on its way.
            let () = conn.del("lock:a").unwrap();
            let first = gets.recv_timeout(LONG).unwrap();
            let asked = Instant::now();
            let second = gets.recv_timeout(LONG).unwrap();
            assert!(asked.elapsed() < SLACK, "{:?}", asked.elapsed());
            assert!(comes_true(|| matches!(
                first.state(),
                RenewalState::Lost(_)
            )));
            second.release().unwrap();
        });
    });
}

/// The server refuses to track.
#[test]
fn the_next_waiter_gets_an_expired_lock_without_a_message() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        tell(
            &mut server.connection().unwrap(),
            "ACL SETUSER default -client +client|id",
        );
        let lease = 1_000 * MS;
        let dying = Options::new().lease(lease).renewal(false);
        let lock = Locks::connect(&server.url()).unwrap().lock("a").with(dying);
        let held = lock.acquire(LONG).unwrap();
        thread::scope(|scope| {
            let (got, gets) = mpsc::channel();
            for number in 1..=2 {
                let (lock, got) = (&lock, got.clone());
                scope.spawn(move || {
                    let lease = lock.acquire(LONG).unwrap();
                    got.send(Instant::now()).unwrap();
                    std::mem::forget(lease);
                });
                assert!(comes_true(|| waiting(lock) == number));
            }
            held.release().unwrap();
            let first = gets.recv_timeout(LONG).unwrap();
            let second = gets.recv_timeout(LONG).unwrap();
            assert!(second - first < lease + SLACK, "{:?}", second - first);
        });
    });
}

/// Only the script that granted it has read it: the watchdog reads the lease later, if at all.
#[test]
fn a_waiter_behind_a_grant_is_woken_if_the_lock_is_taken_away_at_once() {
    // A reader would share it.
    let kinds = (0..6).filter(|kind| *kind != 2).map(|kind| (kind, 0));
    // A mutex with hand-over is granted together with numbers for the next turns.
    let cases = kinds.chain([(0, 9)]);
    at_once(cases, |case| in_time(500 * MS, || taken_away_at_once(case)));
}

/// Returns the time until the waiter behind has the lock.
fn taken_away_at_once((kind, turns): (usize, u32)) -> Duration {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let [ours, theirs] = [turns, 0].map(|turns| {
        let locks = Locks::connect(&server.url()).unwrap();
        locks.with(Options::new().hand_over(turns, LONG))
    });
    let acquired = |locks: &Locks, owner| {
        let kept = Options::new().lease(3 * LONG).renewal(false);
        let options = kept.owner(Owner::new(owner).unwrap());
        let lock = every_kind(locks)[kind].clone().with(options);
        lock.acquire(LONG).unwrap()
    };
    let _held = acquired(&theirs, "their thread");
    // The watchdog has read it.
    assert!(comes_true(|| told_of_keys(&mut conn).unwrap() > 0));
    let read_by_one = told_of_keys(&mut conn).unwrap();
    let lock = &every_kind(&ours)[kind];
    let key = format!("lock:{}", lock.name());
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut conn = server.connection().unwrap();
            let lease = acquired(&ours, "first");
            let () = conn.del(&key).unwrap();
            (Instant::now(), lease)
        });
        assert!(comes_true(|| waiting(lock) == 1));
        let second = scope.spawn(|| acquired(&ours, "second"));
        assert!(comes_true(|| waiting(lock) == 2));
        // The first has been refused.
        assert!(comes_true(|| told_of_keys(&mut conn).unwrap() > read_by_one));
        // One key, and one notification.
        let () = conn.del(&key).unwrap();
        let (freed, _first) = first.join().unwrap();
        let _second = second.join().unwrap();
        freed.elapsed()
    })
}
