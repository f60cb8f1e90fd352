//! Trades with constant competition. `faults` has those on a connection that breaks.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Proxy, Server,
    market::{Way, clear, everything, offer, run, user},
};
use leasehold::{Listing, Purchase};
use redis::Connection;

/// Seller 1 has a ring and offers a sword for 10, buyer 2 has 125.
fn prepare(server: &Server) -> Connection {
    let mut conn = server.connection().unwrap();
    clear(&mut conn).unwrap();
    user(&mut conn, "1", "7", &["ring"]).unwrap();
    user(&mut conn, "2", "125", &[]).unwrap();
    offer(&mut conn, "sword", "1", "10").unwrap();
    conn
}

#[test]
#[ignore = "waits ten seconds: cargo test --test market faults:: -- --ignored"]
fn a_lock_that_stays_busy_for_ten_seconds_is_contention() {
    let server = Server::start().unwrap();
    thread::scope(|scope| {
        let mut conn = prepare(&server);
        run(&mut conn, &["SET", "lock:market:ring.1", "somebody"]).unwrap();
        run(&mut conn, &["SET", "lock:market", "somebody"]).unwrap();
        for way in Way::LOCKS {
            let mut conn = server.connection().unwrap();
            scope.spawn(move || {
                let asked = Instant::now();
                let listing = way.list(&mut conn, "ring", "1", 5).unwrap();
                assert_eq!(listing, Listing::Contended { retries: 0 });
                assert!(asked.elapsed() >= Duration::from_secs(10));
                assert!(asked.elapsed() < Duration::from_secs(11));
            });
        }
    });
}

#[test]
fn a_listing_disturbed_again_and_again_gives_up_and_changes_nothing() {
    thread::scope(|scope| {
        for way in Way::ALL {
            scope.spawn(move || {
                disturbed(way, 5, |conn| {
                    let listing = way.list(conn, "ring", "1", 5).unwrap();
                    matches!(listing, Listing::Contended { retries: 10.. })
                });
            });
        }
    });
}

#[test]
#[ignore = "waits ten seconds: cargo test --test market faults:: -- --ignored"]
fn a_purchase_disturbed_again_and_again_gives_up_and_changes_nothing() {
    thread::scope(|scope| {
        for way in Way::ALL {
            scope.spawn(move || {
                let patience = if way == Way::Watch { 10 } else { 5 };
                disturbed(way, patience, |conn| {
                    let purchase = way.buy(conn, "2", "sword", "1", 10).unwrap();
                    matches!(purchase, Purchase::Contended { retries: 10.. })
                });
            });
        }
    });
}

/// Runs a trade whose transactions are all aborted. Asserts whether it returned `Contended`.
fn disturbed(way: Way, patience_secs: u64, is_contended: impl FnOnce(&mut Connection) -> bool) {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = prepare(&server);
    let untouched = everything(&mut conn).unwrap();
    disturb(&proxy, server.connection().unwrap());

    let asked = Instant::now();
    assert!(is_contended(&mut proxy.connection().unwrap()), "{way:?}");
    let (took, patience) = (asked.elapsed(), Duration::from_secs(patience_secs));
    assert!(
        took >= patience && took < patience + Duration::from_secs(1),
        "{way:?}: {took:?}"
    );
    assert_eq!(everything(&mut conn).unwrap(), untouched);
}

/// Writes to a trade's watched keys before each of its transactions.
fn disturb(proxy: &Proxy, mut conn: Connection) {
    proxy.at("MULTI").run_each_time(move || {
        run(&mut conn, &["HINCRBY", "users:2", "funds", "0"]).unwrap();
        run(&mut conn, &["SMOVE", "inventory:1", "inventory:0", "ring"]).unwrap();
        run(&mut conn, &["SMOVE", "inventory:0", "inventory:1", "ring"]).unwrap();
    });
}
