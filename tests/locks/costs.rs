//! The cost of waiting: connections of the pool, and commands to the server.

use std::{thread, time::Instant};

use leasehold::{Locks, Pool};

use crate::{
    common::{
        LONG, MS, Proxy, Server,
        hold::{comes_true, every_kind, leave_the_watchdog_alone, semaphore},
        proxy::Traffic,
        wait::at_once,
    },
    waiting::waiting,
};

/// Runs concurrently: each mostly waits.
#[test]
fn the_cost_of_waiting() {
    let cases: [fn(); 3] = [
        who_waits_has_no_connection_of_the_pool,
        a_free_lock_costs_a_round_trip_and_so_does_its_release,
        a_crowd_costs_the_server_two_commands_a_release_and_two_a_renewal,
    ];
    at_once(cases, |case| case());
}

fn who_waits_has_no_connection_of_the_pool() {
    let server = Server::start().unwrap();
    // A stray client of a server that has stopped would not use this database.
    let url = format!("{}7", server.url());
    let pool = Pool::builder().max_size(1).connect(&url).unwrap();
    let locks = Locks::new(&pool)
        .unwrap()
        .with(crate::options().lease(6_000 * MS));
    let lease = locks.lock("a").acquire(LONG).unwrap();
    thread::scope(|scope| {
        // The last one must arrive before the first gives up.
        for _ in 0..100 {
            scope.spawn(|| assert!(locks.lock("a").acquire(6_000 * MS).is_err()));
        }
        assert!(comes_true(|| waiting(&locks.lock("a")) == 100));
        let asked = Instant::now();
        while asked.elapsed() < 600 * MS {
            drop(pool.get().unwrap());
            assert!(lease.is_held());
            thread::sleep(5 * MS);
        }
    });
    let list: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(&mut server.connection().unwrap())
        .unwrap();
    let connections = list.lines().filter(|line| line.contains(" db=7 "));
    assert_eq!(connections.count(), 4, "the pool's, and three more: {list}");
    lease.release().unwrap();
}

fn a_free_lock_costs_a_round_trip_and_so_does_its_release() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let locks = crate::connect(&proxy.url());
    leave_the_watchdog_alone(&proxy, &locks, &mut server.connection().unwrap());
    let permits = semaphore(&locks, "permits", 3);
    let _another = permits.acquire(LONG).unwrap();
    for lock in every_kind(&locks).into_iter().chain([permits]) {
        // Retried until the server knows the script and the connections are open.
        assert!(
            comes_true(|| {
                let (lease, acquiring) = proxy.traffic_of(|| lock.acquire(LONG).unwrap());
                let ((), releasing) = proxy.traffic_of(|| lease.release().unwrap());
                let acquire = if lock.name() == "bare" {
                    "SET"
                } else {
                    "EVALSHA"
                };
                [acquiring, releasing].map(|traffic| traffic.commands) == [[acquire], ["EVALSHA"]]
            }),
            "{lock:?}"
        );
    }
}

fn a_crowd_costs_the_server_two_commands_a_release_and_two_a_renewal() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let locks = crate::connect(&proxy.url());
    leave_the_watchdog_alone(&proxy, &locks, &mut server.connection().unwrap());
    let outside = crate::connect(&server.url());
    let options = crate::options().lease(1_200 * MS);
    let lease = outside.lock("a").with(options).acquire(LONG).unwrap();
    thread::scope(|scope| {
        let crowd: Vec<_> = (0..50)
            .map(|_| scope.spawn(|| locks.lock("a").acquire(LONG).unwrap().release().unwrap()))
            .collect();
        assert!(comes_true(|| waiting(&locks.lock("a")) == 50));
        thread::sleep(100 * MS);
        let begun = Instant::now();
        let ((), traffic) = proxy.traffic_of(|| thread::sleep(1_200 * MS));
        // Three renewals, more if the thread slept for longer, and one at the edge: the head tries
        // at once, and again after 100 ms.
        let renewals = usize::try_from(begun.elapsed().as_millis() / 400).unwrap() + 1;
        assert!(
            (1..=2 * renewals + 2).contains(&for_locks(&traffic)),
            "{traffic:?}"
        );
        let ((), traffic) = proxy.traffic_of(|| {
            lease.release().unwrap();
            for one in crowd {
                one.join().unwrap();
            }
        });
        // Each of the 50 turns takes an attempt and a release. A late message costs one more
        // attempt, which happens on a busy machine. If all woke each other, there would be a
        // thousand.
        assert!(for_locks(&traffic) < 50 * 4, "{traffic:?}");
    });
}

/// Number of commands about a lock rather than a connection.
fn for_locks(traffic: &Traffic) -> usize {
    let of_connections = ["PING", "INFO", "CLIENT", "SUBSCRIBE", "HELLO"];
    let names = traffic.commands.iter();
    names
        .filter(|name| !of_connections.contains(&name.as_str()))
        .count()
}
