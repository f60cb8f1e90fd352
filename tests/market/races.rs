//! Changes between a trade's reads and its writes, injected at a given command.

use std::thread;

use crate::common::{
    Proxy, Server,
    market::{Way, clear, everything, funds, has, offer, price, run, typed_error, user},
    start,
};
use leasehold::{Error, Purchase};
use redis::Connection;

/// A server, a proxy in front of it, and the way to trade.
struct Bazaar {
    server: Server,
    proxy: Proxy,
}

impl Bazaar {
    fn open() -> Self {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        Self { server, proxy }
    }

    /// Resets the server: seller 1 has a ring and offers a sword for 10, buyer 2 has 125.
    fn clear(&self) -> (Connection, Connection) {
        let mut direct = self.server.connection().unwrap();
        clear(&mut direct).unwrap();
        user(&mut direct, "1", "7", &["ring"]).unwrap();
        user(&mut direct, "2", "125", &[]).unwrap();
        offer(&mut direct, "sword", "1", "10").unwrap();
        (self.proxy.connection().unwrap(), direct)
    }

    /// Runs `meanwhile` on another connection just before the next such command is executed.
    fn before(&self, command: &str, meanwhile: impl FnOnce(&mut Connection) + Send + 'static) {
        let mut direct = self.server.connection().unwrap();
        self.proxy.at(command).run(move || meanwhile(&mut direct));
    }
}

#[test]
fn one_of_two_purchases_that_the_funds_cover_once_succeeds() {
    let (server, mut conn) = start();
    for way in Way::ALL {
        for _ in 0..20 {
            clear(&mut conn).unwrap();
            user(&mut conn, "2", "300", &[]).unwrap();
            offer(&mut conn, "lamp", "1", "150").unwrap();
            offer(&mut conn, "horse", "1", "300").unwrap();
            let buy = |item, price| {
                let mut conn = server.connection().unwrap();
                move || {
                    way.buy(&mut conn, "2", item, "1", price)
                        .unwrap()
                        .is_bought()
                }
            };
            let (lamp, horse) = thread::scope(|scope| {
                let lamp = scope.spawn(buy("lamp", 150));
                let horse = scope.spawn(buy("horse", 300));
                (lamp.join().unwrap(), horse.join().unwrap())
            });
            assert!(lamp != horse, "{way:?}: {lamp} {horse}");
            let left = if lamp { 150 } else { 0 };
            assert_eq!(funds(&mut conn, "2").unwrap(), Some(left));
            assert_eq!(funds(&mut conn, "1").unwrap(), Some(300 - left));
        }
    }
}

#[test]
fn an_item_of_the_same_name_that_arrives_meanwhile_is_not_merged() {
    let bazaar = Bazaar::open();
    for way in Way::ALL {
        for is_bought in [false, true] {
            if is_bought && way == Way::MarketLock {
                continue; // it would wait for the lock
            }
            let (mut conn, mut direct) = bazaar.clear();
            offer(&mut direct, "sword", "3", "0").unwrap();
            bazaar.before("MULTI", move |meanwhile| {
                if is_bought {
                    let purchase = way.buy(meanwhile, "2", "sword", "3", 0);
                    assert!(purchase.unwrap().is_bought());
                } else {
                    run(meanwhile, &["SADD", "inventory:2", "sword"]).unwrap();
                }
            });
            let purchase = way.buy(&mut conn, "2", "sword", "1", 10).unwrap();
            assert_eq!(purchase, Purchase::AlreadyOwned { retries: 1 }, "{way:?}");
            assert_eq!(funds(&mut direct, "2").unwrap(), Some(125));
            assert!(price(&mut direct, "sword", "1").unwrap().is_some());
        }
    }
}

#[test]
fn a_lock_lost_midway_writes_nothing() {
    let bazaar = Bazaar::open();
    for way in Way::LOCKS {
        // Before it reads, between reading and writing, and just before EXEC.
        for moment in ["WATCH", "MULTI", "EXEC"] {
            for loss in LOSSES {
                for item in ["ring", "sword"] {
                    lose_the_lock(&bazaar, way, moment, loss, item);
                }
            }
        }
    }
}

/// Changes to the key `LOCK`.
const LOSSES: [&[&str]; 4] = [
    &["DEL", "LOCK"],
    &["SET", "LOCK", "somebody"],
    &["PEXPIRE", "LOCK", "0"],
    &["FLUSHALL"],
];

/// Lists the ring or buys the sword, and loses the lock at that moment.
fn lose_the_lock(bazaar: &Bazaar, way: Way, moment: &str, loss: &[&str], item: &str) {
    let (mut conn, mut direct) = bazaar.clear();
    let mut expected = everything(&mut direct).unwrap();
    let lock = way.lock_key(item, "1").unwrap();
    let command: Vec<String> = loss.iter().map(|arg| arg.replace("LOCK", &lock)).collect();
    bazaar.before(moment, move |meanwhile| {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        run(meanwhile, &command).unwrap();
    });

    let error = match item {
        "ring" => typed_error(way.list(&mut conn, item, "1", 5)),
        _ => typed_error(way.buy(&mut conn, "2", item, "1", 10)),
    };
    let (error, what) = (error.unwrap(), format!("{way:?} {moment} {loss:?}"));
    assert!(matches!(error, Error::Lost { .. }), "{what}: {error}");
    if loss.contains(&"somebody") {
        let theirs: String = redis::cmd("GET").arg(&lock).query(&mut direct).unwrap();
        assert_eq!(theirs, "somebody");
        run(&mut direct, &["DEL", &lock]).unwrap();
    }
    if loss == ["FLUSHALL"] {
        expected.clear();
    }
    assert_eq!(everything(&mut direct).unwrap(), expected, "{what}");
}

#[test]
fn a_key_that_changes_its_type_meanwhile_moves_no_money() {
    // Under the item's lock neither key is watched: otherwise any trade of any item would
    // interfere.
    let bazaar = Bazaar::open();
    for way in [Way::Watch, Way::MarketLock] {
        for key in ["market:", "users:1"] {
            let (mut conn, mut direct) = bazaar.clear();
            bazaar.before("MULTI", move |meanwhile| {
                run(meanwhile, &["SET", key, "something else"]).unwrap();
            });
            let error = typed_error(way.buy(&mut conn, "2", "sword", "1", 10)).unwrap();
            assert!(
                matches!(&error, Error::WrongKind { found, .. } if found.contains(key)),
                "{way:?} {key}: {error}"
            );
            assert_eq!(funds(&mut direct, "2").unwrap(), Some(125));
            assert!(!has(&mut direct, "2", "sword").unwrap());
            let left: Vec<_> = everything(&mut direct).unwrap().into_keys().collect();
            assert_eq!(left, ["inventory:1", "market:", "users:1", "users:2"]);
        }
    }
}
