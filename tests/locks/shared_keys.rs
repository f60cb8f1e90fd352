//! Many holds of one key in one process: readers, and the levels of a reentrant lock.

use std::{thread, time::Duration};

use leasehold::{Lease, Lock, Locks, LostReason};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Proxy, Server, hold::comes_true, monitor::Monitor, wait::unless_halted,
};

/// No test takes a third of it.
const LEASE: Duration = Duration::from_mins(2);
/// A loss is reported sooner than by any renewal.
const SOON: Duration = Duration::from_secs(5);

fn shared(locks: &Locks) -> [(&'static str, Lock); 2] {
    let locks = locks.with(crate::options().lease(LEASE));
    [
        ("lock:read", locks.read("read")),
        ("lock:reentrant", locks.reentrant("reentrant")),
    ]
}

/// This many holds, each of which the watchdog has read separately.
fn held(lock: &Lock, count: usize, monitor: &mut Monitor) -> Vec<Lease> {
    let leases = (0..count).map(|_| lock.acquire(LONG).unwrap()).collect();
    thread::sleep(100 * MS);
    while questions(monitor) > 0 {
        thread::sleep(100 * MS);
    }
    leases
}

/// Number of scripts that the server received since the last call.
fn questions(monitor: &mut Monitor) -> usize {
    let commands = monitor.commands().unwrap();
    let scripts = commands.iter().filter(|it| it.starts_with("EVAL"));
    scripts.count()
}

fn touch(conn: &mut Connection, key: &str) {
    let _: bool = conn.pexpire(key, 1_000_000).unwrap();
}

#[test]
fn a_changed_key_costs_a_process_one_request_for_all_its_holds() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let locks = crate::connect(&server.url());
        for (key, lock) in shared(&locks) {
            let mut monitor = Monitor::start(&server).unwrap();
            let leases = held(&lock, 100, &mut monitor);
            for _ in 0..3 {
                touch(&mut conn, key);
                let mut asked = 0;
                assert!(comes_true(|| {
                    asked += questions(&mut monitor);
                    asked > 0
                }));
                // Further ones would arrive now, or after the rest of each lease.
                thread::sleep(50 * MS);
                assert_eq!(asked + questions(&mut monitor), 1, "{key}");
            }
            assert!(leases.iter().all(Lease::is_held));
        }
    });
}

#[test]
fn all_holders_learn_of_a_deleted_key_in_a_few_round_trips() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = server.connection().unwrap();
    let locks = crate::connect(&proxy.url());
    for (key, lock) in shared(&locks) {
        let leases = held(&lock, 50, &mut Monitor::start(&server).unwrap());
        proxy.take_bursts();
        let () = conn.del(key).unwrap();
        for lease in &leases {
            assert!(lease.lost().wait_for(SOON), "{key}");
            assert_eq!(lease.lost().reason(), Some(LostReason::TakenAway));
        }
        let bursts = proxy.take_bursts();
        let asks = |burst: &&Vec<String>| burst.iter().any(|name| name.starts_with("EVAL"));
        let round_trips = bursts.iter().filter(asks).count();
        assert!(round_trips < 10, "{key}: {round_trips}");
    }
}

/// The server reports one change per read. So when the oldest holder is released before its read,
/// the next holder takes over that read.
#[test]
fn remaining_holders_learn_of_a_loss_after_the_oldest_released() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let locks = crate::connect(&server.url());
    for (key, lock) in shared(&locks) {
        let mut monitor = Monitor::start(&server).unwrap();
        for _ in 0..5 {
            let mut leases = held(&lock, 2, &mut monitor);
            let left = leases.pop().unwrap();
            touch(&mut conn, key);
            thread::sleep(4 * MS);
            // It was read just now, so the next read has to wait.
            touch(&mut conn, key);
            drop(leases);
            thread::sleep(50 * MS);
            let () = conn.del(key).unwrap();
            assert!(left.lost().wait_for(SOON), "{key}");
        }
    }
}
