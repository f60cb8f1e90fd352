//! Waiting threads wake up in time although the server sends them no notification.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lease, Lock};
use redis::Commands;

use crate::{
    common::{
        LONG, MS, Proxy, Server,
        hold::comes_true,
        tell,
        wait::{in_time, tracked_keys, unless_halted},
    },
    faults::kill,
};

/// Less than the second after which each asks on its own.
const SOON: Duration = Duration::from_millis(600);
/// That second, with time for a busy machine.
const BY_ITSELF: Duration = Duration::from_secs(3);

fn set_user(server: &Server, rules: &[&str]) {
    let mut conn = server.connection().unwrap();
    let mut command = redis::cmd("ACL");
    let command = command.arg("SETUSER").arg("default").arg(rules);
    command.exec(&mut conn).unwrap();
}

/// Threads wait for these locks until `happens` runs, which has to wake all of them. Returns how
/// long that takes.
fn all_are_woken(locks: &[&Lock], happens: impl FnOnce()) -> Duration {
    thread::scope(|scope| {
        let wait = |lock: &Lock| {
            let lease: Lease = lock.acquire(2 * LONG).unwrap();
            (Instant::now(), lease)
        };
        let waiters: Vec<_> = (locks.iter().copied())
            .map(|lock| scope.spawn(move || wait(lock)))
            .collect();
        for lock in locks {
            assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
        }
        thread::sleep(100 * MS); // all have been refused
        let happened = Instant::now();
        happens();
        let woken = waiters.into_iter().map(|it| it.join().unwrap().0);
        woken.max().unwrap() - happened
    })
}

#[test]
fn a_waiter_missed_a_release_of_its_own_process() {
    unless_halted(|| {
        in_time(SOON, || {
            let server = Server::start().unwrap();
            set_user(&server, &["-client", "+client|id"]);
            let options = crate::options().lease(3 * LONG).backoff(LONG, LONG);
            let locks = crate::connect(&server.url()).with(options);
            let [a, b] = ["a", "b"].map(|name| locks.lock(name));
            let held = [&a, &b].map(|lock| lock.acquire(LONG).unwrap());
            all_are_woken(&[&a, &b], || {
                for lease in held {
                    lease.release().unwrap();
                }
            })
        });
    });
}

#[test]
fn a_listener_is_lost_and_does_not_come_back() {
    unless_halted(|| {
        in_time(SOON, || {
            let server = Server::start().unwrap();
            let locks = crate::connect(&server.url());
            let [a, b] = ["a", "b"].map(|name| locks.lock(name));
            let mut conn = server.connection().unwrap();
            for key in ["lock:a", "lock:b"] {
                let () = conn.pset_ex(key, "somebody", 60_000).unwrap();
            }
            all_are_woken(&[&a, &b], || {
                let listens = |line: &str| line.contains("cmd=subscribe");
                let mut list = redis::cmd("CLIENT");
                let list = list.arg("LIST");
                let mut clients = || list.query::<String>(&mut conn).unwrap();
                // Before it is forbidden: otherwise a slow thread never listens.
                assert!(comes_true(|| clients().lines().any(listens)));
                set_user(&server, &["-subscribe"]);
                assert_eq!(kill(&server, listens), 1);
                let () = conn.del(&["lock:a", "lock:b"]).unwrap();
            })
        });
    });
}

/// Each attempt to listen opens a connection; the proxy refuses it permanently.
#[test]
fn a_server_without_tracking_is_polled_rarely() {
    for forbidden in ["-subscribe", "-client"] {
        let server = Server::start().unwrap();
        set_user(&server, &[forbidden]);
        let mut conn = server.connection().unwrap();
        let mut opened = || {
            let stats: redis::InfoDict = redis::cmd("INFO").query(&mut conn).unwrap();
            stats.get::<u64>("total_connections_received").unwrap()
        };
        let held = crate::connect(&server.url())
            .lock("a")
            .acquire(LONG)
            .unwrap();
        thread::sleep(500 * MS); // all the holder's connections are open
        let before = opened();
        thread::sleep(2_000 * MS);
        assert!(opened() - before <= 1, "{forbidden}: {}", opened() - before);
        held.release().unwrap();
    }
}

/// The server no longer tracks the keys read on the closed connection, and only one of the two
/// threads notices.
#[test]
fn another_waiter_of_the_process_needs_a_new_connection() {
    unless_halted(|| {
        in_time(SOON, || {
            let server = Server::start().unwrap();
            let locks =
                crate::connect(&server.url()).with(crate::options().lease(3 * LONG).renewal(false));
            let [a, b] = ["a", "b"].map(|name| locks.lock(name));
            let held = a.acquire(LONG).unwrap();
            let mut conn = server.connection().unwrap();
            let () = conn.pset_ex("lock:b", "somebody", 60_000).unwrap();
            all_are_woken(&[&a, &b], || {
                let is_tracked = |line: &str| line.contains("redir=") && !line.contains("redir=-1");
                assert!(comes_true(|| kill(&server, is_tracked) > 0));
                let () = conn.del("lock:b").unwrap();
                held.release().unwrap();
            })
        });
    });
}

/// The server drops a key when it tracks another, and does not notify the client that read it.
#[test]
fn a_waiter_polls_each_second_if_the_server_cannot_track_all_keys() {
    unless_halted(|| {
        in_time(BY_ITSELF, || {
            let server = Server::start_with(&["--tracking-table-max-keys", "1"]).unwrap();
            let locks = crate::connect(&server.url());
            let names = ["a", "b", "c", "d", "e"];
            let (waited, keys) = (
                names.map(|name| locks.lock(name)),
                names.map(|name| format!("lock:{name}")),
            );
            let mut conn = server.connection().unwrap();
            for key in &keys {
                let () = conn.pset_ex(key, "somebody", 60_000).unwrap();
            }
            all_are_woken(&waited.each_ref(), || {
                let () = conn.del(&keys).unwrap();
            })
        });
    });
}

#[test]
fn a_waiter_polls_each_second_after_a_swap_of_databases() {
    unless_halted(|| {
        in_time(BY_ITSELF, || {
            let server = Server::start().unwrap();
            let locks = crate::connect(&server.url());
            let [a, b] = ["a", "b"].map(|name| locks.lock(name));
            let mut conn = server.connection().unwrap();
            let () = conn.pset_ex("lock:a", "somebody", 60_000).unwrap();
            // A lock without an end.
            let () = conn.set("lock:b", "somebody").unwrap();
            all_are_woken(&[&a, &b], || {
                tell(&mut conn, "SWAPDB 0 1");
            })
        });
    });
}

/// It has been read while there was nobody to be told.
#[test]
fn a_lease_that_is_older_than_the_listener_learns_of_its_loss_soon() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        proxy.at("SUBSCRIBE").delay(1_000 * MS);
        // No renewal is due.
        let options = crate::options().lease(24 * LONG);
        let lock = crate::connect(&proxy.url()).with(options).lock("a");
        let lease = lock.acquire(LONG).unwrap();
        assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
        let () = conn.del("lock:a").unwrap();
        assert!(lease.lost().wait_for(SOON));
    });
}

/// The server does not report the `SWAPDB` that removes the lock either.
#[test]
fn a_holder_learns_of_a_loss_within_a_third_of_its_lease() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let options = crate::options().lease(3_000 * MS);
        let lock = crate::connect(&server.url()).with(options).lock("a");
        let lease = lock.acquire(LONG).unwrap();
        thread::sleep(100 * MS); // read by the watchdog
        tell(&mut server.connection().unwrap(), "SWAPDB 0 1");
        assert!(lease.lost().wait_for(1_500 * MS));
    });
}
