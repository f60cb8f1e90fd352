//! The round trips and commands of each function, without faults.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Proxy, Server};
use leasehold::{
    Lease, Locks, Pool, Purchase, Result, WatchedConnection, acquire_lock,
    acquire_lock_with_timeout, commit_while_held, list_item, list_item_with_lock,
    list_item_with_market_lock, market::MarketLock, purchase_item, purchase_item_with_lock,
    purchase_item_with_market_lock, release_lock, transaction_while_held, transaction_with_lock,
    with_lock,
};
use redis::{Commands, Connection};

const LONG: Duration = Duration::from_secs(20);
const LIST: [&str; 10] = [
    "SET",
    "WATCH",
    "GET",
    "SISMEMBER",
    "ZSCORE",
    "MULTI",
    "ZADD",
    "SREM",
    "DEL",
    "EXEC",
];
const PURCHASE: [&str; 14] = [
    "SET",
    "WATCH",
    "GET",
    "ZSCORE",
    "HGET",
    "HGET",
    "SISMEMBER",
    "MULTI",
    "HINCRBY",
    "HINCRBY",
    "SADD",
    "ZREM",
    "DEL",
    "EXEC",
];

/// Runs a closure on a market in which user 17 has one item listed for 5 and one in stock, and user
/// 27 has money.
#[track_caller]
fn assert_sends<T>(
    round_trips: usize,
    commands: &[&str],
    run: impl FnOnce(&mut Connection) -> T,
) -> T {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    redis::pipe()
        .zadd("market:", "listed.17", 5)
        .sadd("inventory:17", "stocked")
        .hset("users:27", "funds", 100)
        .exec(&mut conn)
        .unwrap();

    let (result, traffic) = proxy.traffic_of(|| run(&mut conn));
    assert_eq!(traffic.commands, commands);
    assert_eq!(traffic.round_trips, round_trips);
    let locks: Vec<String> = conn.keys("lock:market*").unwrap();
    assert!(locks.is_empty(), "{locks:?} left behind");
    result
}

#[test]
fn acquire_lock_is_one() {
    assert_sends(1, &["SET"], |conn| {
        acquire_lock(conn, "a", LONG).unwrap().unwrap()
    });
}

#[test]
fn acquire_lock_with_timeout_is_one() {
    assert_sends(1, &["SET"], |conn| {
        acquire_lock_with_timeout(conn, "a", LONG, LONG)
            .unwrap()
            .unwrap()
    });
}

#[test]
fn one_try_on_a_busy_lock_is_two_or_three_with_a_new_script() {
    let commands = ["SET", "SET", "EVALSHA", "EVAL", "SET", "EVALSHA"];
    assert_sends(6, &commands, |conn| {
        acquire_lock(conn, "a", LONG).unwrap().unwrap();
        for _ in 0..2 {
            let refused = acquire_lock_with_timeout(conn, "a", Duration::ZERO, LONG);
            assert_eq!(refused.unwrap(), None);
        }
    });
}

#[test]
fn release_lock_is_two() {
    let commands = ["SET", "WATCH", "GET", "MULTI", "DEL", "EXEC"];
    assert_sends(3, &commands, |conn| {
        let token = acquire_lock(conn, "a", LONG).unwrap().unwrap();
        assert!(release_lock(conn, "a", &token).unwrap());
    });
}

#[test]
fn a_refused_release_is_two_and_unwatches() {
    assert_sends(2, &["WATCH", "GET", "UNWATCH"], |conn| {
        assert!(!release_lock(conn, "a", &leasehold::Token::random()).unwrap());
    });
}

#[test]
fn commit_while_held_is_two() {
    let commands = ["SET", "WATCH", "GET", "MULTI", "INCRBY", "INCRBY", "EXEC"];
    assert_sends(3, &commands, |conn| {
        let token = acquire_lock(conn, "a", LONG).unwrap().unwrap();
        let counts: (i64, i64) = commit_while_held(conn, "a", &token, |pipe| {
            pipe.incr("n", 1).incr("n", 1);
        })
        .unwrap();
        assert_eq!(counts, (1, 2));
    });
}

#[test]
fn list_item_is_two() {
    let commands = [
        "WATCH",
        "SISMEMBER",
        "ZSCORE",
        "MULTI",
        "ZADD",
        "SREM",
        "EXEC",
    ];
    assert_sends(2, &commands, |conn| {
        assert!(list_item(conn, "stocked", "17", 5).unwrap().is_listed());
    });
}

#[test]
fn list_item_with_a_lock_is_two() {
    assert_sends(2, &LIST, |conn| {
        let listing = list_item_with_lock(conn, "stocked", "17", 5);
        assert!(listing.unwrap().is_listed());
    });
    for lock in [MarketLock::Article, MarketLock::Book] {
        assert_sends(2, &LIST, |conn| {
            let listing = list_item_with_market_lock(conn, lock, "stocked", "17", 5);
            assert!(listing.unwrap().is_listed());
        });
    }
}

#[test]
fn purchase_item_is_two() {
    let commands = [
        "WATCH",
        "ZSCORE",
        "HGET",
        "HGET",
        "SISMEMBER",
        "MULTI",
        "HINCRBY",
        "HINCRBY",
        "SADD",
        "ZREM",
        "EXEC",
    ];
    assert_sends(2, &commands, |conn| {
        let bought = purchase_item(conn, "27", "listed", "17", 5).unwrap();
        assert!(bought.is_bought());
    });
}

#[test]
fn purchase_item_with_a_lock_is_two() {
    assert_sends(2, &PURCHASE, |conn| {
        let bought = purchase_item_with_lock(conn, "27", "listed", "17", Some(5)).unwrap();
        assert!(bought.is_bought());
    });
    for lock in [MarketLock::Article, MarketLock::Book] {
        assert_sends(2, &PURCHASE, |conn| {
            let bought = purchase_item_with_market_lock(conn, lock, "27", "listed", "17", Some(5));
            assert!(bought.unwrap().is_bought());
        });
    }
}

#[test]
fn a_refused_purchase_with_a_lock_is_two() {
    let mut commands = PURCHASE[..8].to_vec();
    commands.extend(["DEL", "EXEC"]);
    let not_listed = Purchase::NotForSale { retries: 0 };
    let too_dear = Purchase::PriceChanged {
        price: 5,
        retries: 0,
    };
    for (item, outcome) in [("unknown", not_listed), ("listed", too_dear)] {
        let refused = assert_sends(2, &commands, |conn| {
            purchase_item_with_lock(conn, "27", item, "17", Some(4)).unwrap()
        });
        assert_eq!(refused, outcome);
    }
}

/// Moves 5 from one key to another if there is enough.
fn pay(conn: &mut WatchedConnection<'_>, pipe: &mut redis::Pipeline) -> Result<bool> {
    let funds: i64 = conn.hget("users:27", "funds")?;
    if funds >= 5 {
        pipe.hincr("users:27", "funds", -5)
            .hincr("users:17", "funds", 5);
    }
    Ok(funds >= 5)
}

#[test]
fn a_transaction_on_a_held_lock_is_two() {
    let commands = [
        "SET", "WATCH", "GET", "HGET", "MULTI", "HINCRBY", "HINCRBY", "EXEC",
    ];
    assert_sends(3, &commands, |conn| {
        let token = acquire_lock(conn, "a", LONG).unwrap().unwrap();
        assert!(transaction_while_held(conn, "a", &token, &["users:27"], pay).unwrap());
    });
}

#[test]
fn a_transaction_with_its_own_lock_is_two() {
    let commands = [
        "SET", "WATCH", "GET", "HGET", "MULTI", "HINCRBY", "HINCRBY", "DEL", "EXEC",
    ];
    assert_sends(2, &commands, |conn| {
        let paid = transaction_with_lock(conn, "market", LONG, LONG, &["users:27"], pay);
        assert_eq!(paid.unwrap(), Some(true));
    });
}

#[test]
fn a_transaction_that_writes_nothing_unwatches() {
    assert_sends(3, &["SET", "WATCH", "GET", "GET", "UNWATCH"], |conn| {
        let token = acquire_lock(conn, "a", LONG).unwrap().unwrap();
        let read = transaction_while_held(conn, "a", &token, &["b"], |conn, _| {
            Ok(conn.get::<_, Option<String>>("b")?)
        });
        assert_eq!(read.unwrap(), None);
    });
}

#[test]
fn a_transaction_on_a_busy_lock_sends_only_the_acquire() {
    let commands = [
        "SET", "SET", "WATCH", "GET", "HGET", "EVALSHA", "EVAL", "UNWATCH",
    ];
    assert_sends(5, &commands, |conn| {
        acquire_lock(conn, "a", LONG).unwrap().unwrap();
        let none = transaction_with_lock(conn, "a", Duration::ZERO, LONG, &["users:27"], pay);
        assert_eq!(none.unwrap(), None);
    });
}

#[test]
fn with_lock_is_three() {
    let commands = ["SET", "INCRBY", "WATCH", "GET", "MULTI", "DEL", "EXEC"];
    assert_sends(4, &commands, |conn| {
        let ran = with_lock(conn, "a", LONG, LONG, |conn, _| {
            conn.incr::<_, _, i64>("n", 1).unwrap()
        });
        assert_eq!(ran.unwrap().unwrap().unless_lost().unwrap(), 1);
    });
}

type OnALease = fn(Lease) -> Result<()>;

#[test]
fn a_lease_commits_reads_and_releases_with_two_each() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let pool = Pool::connect(&proxy.url()).unwrap();
    let mut conn = server.connection().unwrap();
    let () = conn.hset("users:27", "funds", 100_000).unwrap();
    let lock = Locks::new(&pool).unwrap().lock("a");
    let two: [(&str, OnALease); 3] = [
        ("commit", |lease| lease.commit(|pipe| _ = pipe.incr("n", 1))),
        ("commit_and_release", |lease| {
            lease.commit_and_release(|pipe| _ = pipe.incr("n", 1))
        }),
        ("transaction", |lease| {
            lease.transaction(&["users:27"], pay).map(drop)
        }),
    ];
    for (name, run) in two {
        // Retried if the watchdog or the listener sent something in between. A dropped lease
        // releases: one more command.
        let undisturbed = (0..100).any(|_| {
            let lease = lock.acquire(LONG).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            let ((), traffic) = proxy.traffic_of(|| run(lease).unwrap());
            let expected = if name == "commit_and_release" { 2 } else { 3 };
            assert!(traffic.round_trips >= expected, "{name}: {traffic:?}");
            traffic.round_trips == expected
        });
        assert!(undisturbed, "{name}");
    }
}

#[test]
fn a_checkout_from_a_warm_pool_is_none() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let pool = Pool::connect(&proxy.url()).unwrap();
    drop(pool.get().unwrap());

    let (token, traffic) = proxy.traffic_of(|| {
        for _ in 0..10 {
            drop(pool.get().unwrap());
        }
        acquire_lock(&mut pool.get().unwrap(), "a", LONG).unwrap()
    });
    assert!(token.is_some());
    assert_eq!(traffic.commands, ["SET"]);
    assert_eq!(traffic.round_trips, 1);
}
