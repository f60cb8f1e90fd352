//! Trades on a connection that breaks, with a lock that expires, and with constant competition.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Proxy, Server,
    market::{Way, clear, everything, offer, run, typed_error, user},
    monitor::Monitor,
    wait,
};
use leasehold::{Error, Listing, Purchase};
use redis::{Commands, Connection};

/// Seller 1 has a ring and offers a sword for 10, buyer 2 has 125.
fn prepare(server: &Server) -> Connection {
    let mut conn = server.connection().unwrap();
    clear(&mut conn).unwrap();
    user(&mut conn, "1", "7", &["ring"]).unwrap();
    user(&mut conn, "2", "125", &[]).unwrap();
    offer(&mut conn, "sword", "1", "10").unwrap();
    conn
}

fn list_ring(way: Way, conn: &mut Connection) -> anyhow::Result<bool> {
    Ok(way.list(conn, "ring", "1", 5)?.is_listed())
}

fn buy_sword(way: Way, conn: &mut Connection) -> anyhow::Result<bool> {
    Ok(way.buy(conn, "2", "sword", "1", 10)?.is_bought())
}

type Trade = fn(Way, &mut Connection) -> anyhow::Result<bool>;
const TRADES: [(&str, Trade); 2] = [("ring", list_ring), ("sword", buy_sword)];

#[test]
fn a_connection_that_breaks_anywhere_moves_all_or_nothing() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    for way in Way::ALL {
        for (item, trade) in TRADES {
            let mut conn = prepare(&server);
            let untouched = everything(&mut conn).unwrap();
            let mut through = proxy.connection().unwrap();
            let (done, traffic) = proxy.traffic_of(|| trade(way, &mut through));
            assert!(done.unwrap());
            let traded = everything(&mut conn).unwrap();

            for n in 1..=traffic.commands.len() {
                for after in [false, true] {
                    let mut conn = prepare(&server);
                    let mut through = proxy.connection().unwrap();
                    let point = proxy.at_command(n);
                    if after {
                        point.cut_after();
                    } else {
                        point.cut_before();
                    }
                    let error = typed_error(trade(way, &mut through)).unwrap();
                    let place = format!("{way:?} {:?} {after}: {error}", traffic.commands[n - 1]);

                    let mut found = everything(&mut conn).unwrap();
                    let lock = way.lock_key(item, "1").unwrap_or_default();
                    if found.remove(&lock).is_some() {
                        let ttl: i64 = redis::cmd("PTTL").arg(&lock).query(&mut conn).unwrap();
                        assert!((1..=10_000).contains(&ttl), "{place}: {ttl} ms left");
                    }
                    match error {
                        Error::Redis { .. } => assert!(found == untouched, "{place}"),
                        Error::Unknown { .. } => {
                            assert!(found == untouched || found == traded, "{place}");
                        }
                        _ => unreachable!("{place}"),
                    }
                    let executed = after && traffic.commands[n - 1] == "EXEC";
                    assert_eq!(found == traded, executed, "{place}");
                }
            }
        }
    }
}

#[test]
fn the_lock_of_a_trade_is_a_lease_of_ten_seconds() {
    let server = Server::start().unwrap();
    for way in Way::LOCKS {
        for (item, trade) in TRADES {
            let mut conn = prepare(&server);
            let mut monitor = Monitor::start(&server).unwrap();
            assert!(trade(way, &mut conn).unwrap());
            let commands = monitor.commands().unwrap();
            let lock = way.lock_key(item, "1").unwrap();
            assert!(
                commands[0].starts_with(&format!("SET {lock} ")),
                "{commands:?}"
            );
            assert!(commands[0].ends_with(" NX PX 10000"), "{commands:?}");
        }
    }
}

#[test]
fn a_lock_that_expires_between_reading_and_writing_writes_nothing() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    for way in Way::LOCKS {
        for (item, trade) in TRADES {
            let mut conn = prepare(&server);
            let untouched = everything(&mut conn).unwrap();
            let lock = way.lock_key(item, "1").unwrap();

            let (mut shortens, mut waits) =
                (server.connection().unwrap(), server.connection().unwrap());
            let key = lock.clone();
            proxy
                .at("WATCH")
                .run(move || run(&mut shortens, &["PEXPIRE", &key, "100"]).unwrap());
            proxy.at("MULTI").run(move || {
                assert!(wait::comes_true(|| !waits
                    .exists::<_, bool>(&lock)
                    .unwrap()));
            });
            let error = typed_error(trade(way, &mut proxy.connection().unwrap())).unwrap();
            assert!(
                matches!(error, Error::Lost { .. }),
                "{way:?} {item}: {error}"
            );
            assert_eq!(everything(&mut conn).unwrap(), untouched);
        }
    }
}

#[test]
fn a_nonsensical_answer_trades_nothing_and_leaves_no_lock() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    for way in Way::ALL {
        for (command, answer) in [
            ("ZSCORE", ":5\r\n"),
            ("HGET", ":125\r\n"),
            ("SISMEMBER", "*0\r\n"),
        ] {
            let mut conn = prepare(&server);
            let untouched = everything(&mut conn).unwrap();
            let mut through = proxy.connection().unwrap();
            proxy.at(command).reply(answer);
            let error = typed_error(buy_sword(way, &mut through)).unwrap();
            assert!(
                matches!(error, Error::Redis { .. }),
                "{way:?} {command}: {error}"
            );
            assert_eq!(everything(&mut conn).unwrap(), untouched);
            assert!(buy_sword(way, &mut through).unwrap());
        }
    }
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
