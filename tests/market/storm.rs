//! Storms of trades by a few users from many threads: all money and items remain, and no user has
//! debts.

use std::{collections::BTreeMap, thread};

use crate::common::{
    market::{Way, everything, user},
    start,
};
use leasehold::{Purchase, market::split_listing};
use redis::{Commands, Connection};

const USERS: [&str; 3] = ["1", "2", "3"];
const ITEMS_EACH: usize = 6;
const FUNDS_EACH: i64 = 30;
const THREADS: u64 = 6;
const TRADES: u64 = 80;

/// Random enough for a storm, and reproducible for each thread.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn user(&mut self) -> &'static str {
        USERS[usize::try_from(self.below(3)).unwrap()]
    }
}

#[derive(Debug, Default)]
struct Tally {
    listed: u32,
    bought: u32,
    too_poor: u32,
    retries: u32,
}

/// One thread's trades, as alternating users.
fn trade(way: Way, conn: &mut Connection, seed: u64) -> Tally {
    let (mut dice, mut tally) = (Dice(seed), Tally::default());
    for _ in 0..TRADES {
        let user = dice.user();
        let item: Option<String> = conn.srandmember(format!("inventory:{user}")).unwrap();
        if let (Some(item), 0) = (item, dice.below(2)) {
            let listing = way.list(conn, &item, user, dice.below(20)).unwrap();
            tally.listed += u32::from(listing.is_listed());
            tally.retries += listing.retries();
            continue;
        }
        let offers: Vec<(String, u64)> = redis::cmd("ZRANDMEMBER")
            .arg(("market:", 1, "WITHSCORES"))
            .query(conn)
            .unwrap();
        for (member, price) in offers {
            let (item, seller) = split_listing(&member).unwrap();
            if seller == user {
                continue;
            }
            let purchase = way.buy(conn, user, item, seller, price).unwrap();
            tally.bought += u32::from(purchase.is_bought());
            tally.too_poor += u32::from(matches!(purchase, Purchase::NotEnoughMoney { .. }));
            tally.retries += purchase.retries();
        }
    }
    tally
}

/// Number of places of each item, in inventories and in the market.
fn places(conn: &mut Connection) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    let mut found: Vec<String> = conn.zrange("market:", 0, -1).unwrap();
    for member in &mut found {
        *member = split_listing(member).unwrap().0.to_owned();
    }
    for id in USERS {
        let items: Vec<String> = conn.smembers(format!("inventory:{id}")).unwrap();
        found.extend(items);
    }
    for item in found {
        *places.entry(item).or_default() += 1;
    }
    places
}

fn storm(way: Way) {
    let (server, mut conn) = start();
    for id in USERS {
        let items: Vec<String> = (0..ITEMS_EACH).map(|n| format!("item{n}of{id}")).collect();
        let items: Vec<&str> = items.iter().map(String::as_str).collect();
        user(&mut conn, id, &FUNDS_EACH.to_string(), &items).unwrap();
    }
    let before = places(&mut conn);

    let tallies: Vec<Tally> = thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS)
            .map(|seed| {
                let mut conn = server.connection().unwrap();
                scope.spawn(move || trade(way, &mut conn, seed * 0x9E37_79B9))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });

    let funds: Vec<i64> = USERS
        .map(|id| conn.hget(format!("users:{id}"), "funds").unwrap())
        .into();
    assert_eq!(
        funds.iter().sum::<i64>(),
        3 * FUNDS_EACH,
        "{way:?}: {funds:?}"
    );
    assert!(funds.iter().all(|funds| *funds >= 0), "{way:?}: {funds:?}");
    assert_eq!(places(&mut conn), before, "{way:?}");
    let keys = everything(&mut conn).unwrap();
    assert!(!keys.keys().any(|key| key.starts_with("lock:")), "{way:?}");

    let sum = |count: fn(&Tally) -> u32| tallies.iter().map(count).sum::<u32>();
    assert!(
        sum(|tally| tally.listed) > 20 && sum(|tally| tally.bought) > 20,
        "{tallies:?}"
    );
    assert!(sum(|tally| tally.too_poor) > 0, "{tallies:?}");
    if way == Way::MarketLock {
        assert_eq!(sum(|tally| tally.retries), 0, "{tallies:?}");
    }
}

#[test]
fn a_storm_with_watch() {
    storm(Way::Watch);
}

#[test]
fn a_storm_under_the_markets_lock() {
    storm(Way::MarketLock);
}

#[test]
fn a_storm_under_the_items_locks() {
    storm(Way::ItemLock);
}
