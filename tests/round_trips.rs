//! The round trips and commands of each function, without faults.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Proxy, Server};
use leasehold::{
    Lease, Locks, Pool, Result, Token, WatchedConnection, acquire_lock, acquire_lock_with_timeout,
    commit_while_held, list_item, list_item_with_lock, list_item_with_market_lock,
    market::MarketLock, purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
    release_lock, transaction_while_held, transaction_with_lock, with_lock,
};
use redis::{Commands, Connection};

const LONG: Duration = Duration::from_secs(20);
/// Transactions on the market, without the acquire of a lock and the `GET` that reads it.
const PURCHASE: &str = "ZSCORE HGET HGET SISMEMBER MULTI HINCRBY HINCRBY SADD ZREM";
const LISTED: &str = "SISMEMBER ZSCORE MULTI ZADD SREM";
const PAID: &str = "GET HGET MULTI HINCRBY HINCRBY";

/// A call, on a market in which user 17 has one item listed for 5 and one in stock, and user 27 has
/// money. Panics if it does not do its work.
type Call = fn(&mut Connection);

/// Each call with its round trips and its commands.
fn calls() -> Vec<(usize, String, Call)> {
    let locked = |commands: &str| format!("SET WATCH GET {commands} DEL EXEC");
    vec![
        (1, "SET".into(), |conn| {
            held(conn);
        }),
        (1, "SET".into(), |conn| {
            let acquired = acquire_lock_with_timeout(conn, "a", LONG, LONG);
            assert!(acquired.unwrap().is_some());
        }),
        // A busy lock: two round trips, and one more for a new script.
        (6, "SET SET EVALSHA EVAL SET EVALSHA".into(), |conn| {
            held(conn);
            for _ in 0..2 {
                let refused = acquire_lock_with_timeout(conn, "a", Duration::ZERO, LONG);
                assert_eq!(refused.unwrap(), None);
            }
        }),
        (3, "SET WATCH GET MULTI DEL EXEC".into(), |conn| {
            let token = held(conn);
            assert!(release_lock(conn, "a", &token).unwrap());
        }),
        (2, "WATCH GET UNWATCH".into(), |conn| {
            assert!(!release_lock(conn, "a", &Token::random()).unwrap());
        }),
        (3, "SET WATCH GET MULTI INCRBY INCRBY EXEC".into(), |conn| {
            let token = held(conn);
            let counts: (i64, i64) = commit_while_held(conn, "a", &token, |pipe| {
                pipe.incr("n", 1).incr("n", 1);
            })
            .unwrap();
            assert_eq!(counts, (1, 2));
        }),
        (2, format!("WATCH {LISTED} EXEC"), |conn| {
            assert!(list_item(conn, "stocked", "17", 5).unwrap().is_listed());
        }),
        (2, locked(LISTED), |conn| {
            let listing = list_item_with_lock(conn, "stocked", "17", 5);
            assert!(listing.unwrap().is_listed());
        }),
        (2, locked(LISTED), |conn| {
            let listing = list_item_with_market_lock(conn, MarketLock::Book, "stocked", "17", 5);
            assert!(listing.unwrap().is_listed());
        }),
        (2, format!("WATCH {PURCHASE} EXEC"), |conn| {
            let bought = purchase_item(conn, "27", "listed", "17", 5);
            assert!(bought.unwrap().is_bought());
        }),
        (2, locked(PURCHASE), |conn| {
            let bought = purchase_item_with_lock(conn, "27", "listed", "17", Some(5));
            assert!(bought.unwrap().is_bought());
        }),
        (2, locked(PURCHASE), |conn| {
            let lock = MarketLock::Article;
            let bought = purchase_item_with_market_lock(conn, lock, "27", "listed", "17", Some(5));
            assert!(bought.unwrap().is_bought());
        }),
        // A refusal.
        (2, locked("ZSCORE HGET HGET SISMEMBER MULTI"), |conn| {
            let refused = purchase_item_with_lock(conn, "27", "listed", "17", Some(4));
            assert!(!refused.unwrap().is_bought());
        }),
        (3, format!("SET WATCH {PAID} EXEC"), |conn| {
            let token = held(conn);
            assert!(transaction_while_held(conn, "a", &token, &["users:27"], pay).unwrap());
        }),
        (2, format!("SET WATCH {PAID} DEL EXEC"), |conn| {
            let paid = transaction_with_lock(conn, "market", LONG, LONG, &["users:27"], pay);
            assert_eq!(paid.unwrap(), Some(true));
        }),
        (3, "SET WATCH GET GET UNWATCH".into(), |conn| {
            let token = held(conn);
            let read = transaction_while_held(conn, "a", &token, &["b"], |conn, _| {
                Ok(conn.get::<_, Option<String>>("b")?)
            });
            assert_eq!(read.unwrap(), None);
        }),
        // A transaction on a busy lock.
        (
            5,
            "SET SET WATCH GET HGET EVALSHA EVAL UNWATCH".into(),
            |conn| {
                held(conn);
                let none =
                    transaction_with_lock(conn, "a", Duration::ZERO, LONG, &["users:27"], pay);
                assert_eq!(none.unwrap(), None);
            },
        ),
        (4, "SET INCRBY WATCH GET MULTI DEL EXEC".into(), |conn| {
            let ran = with_lock(conn, "a", LONG, LONG, |conn, _| {
                conn.incr::<_, _, i64>("n", 1).unwrap()
            });
            assert_eq!(ran.unwrap().unwrap().unless_lost().unwrap(), 1);
        }),
    ]
}

fn held(conn: &mut Connection) -> Token {
    acquire_lock(conn, "a", LONG).unwrap().unwrap()
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
fn of_each_plain_function() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    for (round_trips, commands, call) in calls() {
        let mut conn = proxy.connection().unwrap();
        redis::pipe()
            .cmd("FLUSHALL")
            .cmd("SCRIPT")
            .arg("FLUSH")
            .zadd("market:", "listed.17", 5)
            .sadd("inventory:17", "stocked")
            .hset("users:27", "funds", 100)
            .exec(&mut conn)
            .unwrap();
        let ((), traffic) = proxy.traffic_of(|| call(&mut conn));
        assert_eq!(traffic.commands.join(" "), commands);
        assert_eq!(traffic.round_trips, round_trips, "{commands}");
        let locks: Vec<String> = conn.keys("lock:market*").unwrap();
        assert!(locks.is_empty(), "{commands}: {locks:?} left behind");
    }
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
