//! A small world in which every function has work to do, and its invariants.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use leasehold::{
    Error, Token, WatchedConnection, acquire_lock, acquire_lock_with_timeout, commit_while_held,
    list_item, list_item_with_lock, list_item_with_market_lock, market::MarketLock, purchase_item,
    purchase_item_with_lock, purchase_item_with_market_lock, release_lock, transaction_while_held,
    transaction_with_lock,
};
use redis::{Commands, Connection, RedisResult};

/// The token that holds `lock:held` and `lock:spare`.
pub const TOKEN: &str = "5ec7e700-face-4bad-8ace-0123456789ab";
/// Must not appear in any error.
pub const PASSWORD: &str = "open-sesame";
/// The time limit of an acquire here.
pub const WAIT: Duration = Duration::from_millis(1_200);
pub const LEASE: Duration = Duration::from_secs(10);

const FUNDS: i64 = 110;
const ITEMS: [&str; 2] = ["listed", "stocked"];
const LOCKS: [&str; 5] = [
    "free",
    "held",
    "market",
    "market:listed.17",
    "market:stocked.17",
];

/// A function of the library, called so that it succeeds in this world.
#[derive(Clone, Copy)]
pub struct Function {
    pub name: &'static str,
    /// The lock that its errors have to name.
    pub lock: &'static str,
    pub kind: Kind,
    /// True if the call did its work.
    pub call: fn(&mut Connection) -> anyhow::Result<bool>,
    /// True if the server has the effect of the call.
    pub is_done: fn(&mut Connection) -> RedisResult<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One command, sent again with the same token.
    Acquire,
    /// One watched transaction.
    Transaction,
    /// An acquire, then a watched transaction that releases the lock.
    UnderLock,
}

impl Function {
    /// True if it works under a lock, the caller's or its own.
    pub fn has_lock(&self) -> bool {
        self.kind != Kind::Transaction || !self.name.contains("item")
    }
}

/// Every function of the crate root.
pub fn functions() -> Vec<Function> {
    let mut functions = locks();
    functions.extend(listings());
    functions.extend(purchases());
    functions
}

fn locks() -> Vec<Function> {
    let is_acquired = |conn: &mut Connection| conn.exists("lock:free");
    vec![
        Function {
            name: "acquire_lock",
            lock: "free",
            kind: Kind::Acquire,
            call: |conn| Ok(acquire_lock(conn, "free", WAIT)?.is_some()),
            is_done: is_acquired,
        },
        Function {
            name: "acquire_lock_with_timeout",
            lock: "free",
            kind: Kind::Acquire,
            call: |conn| Ok(acquire_lock_with_timeout(conn, "free", WAIT, LEASE)?.is_some()),
            is_done: is_acquired,
        },
        Function {
            name: "release_lock",
            lock: "held",
            kind: Kind::Transaction,
            call: |conn| Ok(release_lock(conn, "held", &token())?),
            is_done: |conn| Ok(!conn.exists("lock:held")?),
        },
        Function {
            name: "commit_while_held",
            lock: "held",
            kind: Kind::Transaction,
            call: |conn| {
                let count = |pipe: &mut redis::Pipeline| {
                    pipe.cmd("INCR").arg("count");
                };
                let (count,): (u64,) = commit_while_held(conn, "held", &token(), count)?;
                Ok(count > 0)
            },
            is_done: |conn| conn.exists("count"),
        },
        Function {
            name: "transaction_while_held",
            lock: "held",
            kind: Kind::Transaction,
            call: |conn| {
                Ok(transaction_while_held(
                    conn,
                    "held",
                    &token(),
                    &["count"],
                    count,
                )?)
            },
            is_done: |conn| conn.exists("count"),
        },
        Function {
            name: "transaction_with_lock",
            lock: "free",
            kind: Kind::UnderLock,
            call: |conn| {
                let done = transaction_with_lock(conn, "free", WAIT, LEASE, &["count"], count)?;
                Ok(done == Some(true))
            },
            is_done: |conn| conn.exists("count"),
        },
    ]
}

/// Counts to one, unless already counted.
fn count(conn: &mut WatchedConnection<'_>, pipe: &mut redis::Pipeline) -> Result<bool, Error> {
    let counted: Option<u64> = conn.get("count")?;
    if counted.is_none() {
        pipe.cmd("INCR").arg("count");
    }
    Ok(counted.is_none())
}

fn listings() -> Vec<Function> {
    let is_done = |conn: &mut Connection| conn.zscore("market:", "stocked.17").map(is_some);
    vec![
        Function {
            name: "list_item",
            lock: "stocked.17",
            kind: Kind::Transaction,
            call: |conn| Ok(list_item(conn, "stocked", "17", 5)?.is_listed()),
            is_done,
        },
        Function {
            name: "list_item_with_lock",
            lock: "market:stocked.17",
            kind: Kind::UnderLock,
            call: |conn| Ok(list_item_with_lock(conn, "stocked", "17", 5)?.is_listed()),
            is_done,
        },
        Function {
            name: "list_item_with_market_lock",
            lock: "market",
            kind: Kind::UnderLock,
            call: |conn| {
                Ok(
                    list_item_with_market_lock(conn, MarketLock::Article, "stocked", "17", 5)?
                        .is_listed(),
                )
            },
            is_done,
        },
    ]
}

fn purchases() -> Vec<Function> {
    let is_done = |conn: &mut Connection| conn.sismember("inventory:27", "listed");
    vec![
        Function {
            name: "purchase_item",
            lock: "listed.17",
            kind: Kind::Transaction,
            call: |conn| Ok(purchase_item(conn, "27", "listed", "17", 5)?.is_bought()),
            is_done,
        },
        Function {
            name: "purchase_item_with_lock",
            lock: "market:listed.17",
            kind: Kind::UnderLock,
            call: |conn| {
                let bought = purchase_item_with_lock(conn, "27", "listed", "17", Some(5))?;
                Ok(bought.is_bought())
            },
            is_done,
        },
        Function {
            name: "purchase_item_with_market_lock",
            lock: "market",
            kind: Kind::UnderLock,
            call: |conn| {
                let bought = purchase_item_with_market_lock(
                    conn,
                    MarketLock::Article,
                    "27",
                    "listed",
                    "17",
                    Some(5),
                )?;
                Ok(bought.is_bought())
            },
            is_done,
        },
    ]
}

fn is_some(score: Option<f64>) -> bool {
    score.is_some()
}

/// The token of `lock:held` and `lock:spare`.
pub fn token() -> Token {
    TOKEN.parse().unwrap()
}

/// User 17 has one item listed for 5 and one in stock; user 27 has money; two locks are held; one
/// key belongs to the caller.
pub fn seed(conn: &mut Connection) {
    redis::pipe()
        .zadd("market:", "listed.17", 5)
        .sadd("inventory:17", "stocked")
        .hset("users:17", "funds", 10)
        .hset("users:27", "funds", FUNDS - 10)
        .set("mine", "intact")
        .pset_ex("lock:held", TOKEN, 60_000)
        .pset_ex("lock:spare", TOKEN, 60_000)
        .exec(conn)
        .unwrap();
}

/// No money was created or lost, each item is in exactly one place, and nothing was done twice.
pub fn assert_conserved(conn: &mut Connection, what: &str) {
    let (seller, buyer, count): (i64, i64, Option<u64>) = redis::pipe()
        .hget("users:17", "funds")
        .hget("users:27", "funds")
        .get("count")
        .query(conn)
        .unwrap();
    assert_eq!(seller + buyer, FUNDS, "{what}: money");
    assert!(seller >= 0 && buyer >= 0, "{what}: overdrawn");
    assert!(count.unwrap_or(0) <= 1, "{what}: committed twice");
    for item in ITEMS {
        let (listed, sellers, buyers): (Option<f64>, u8, u8) = redis::pipe()
            .zscore("market:", format!("{item}.17"))
            .sismember("inventory:17", item)
            .sismember("inventory:27", item)
            .query(conn)
            .unwrap();
        let places = u8::from(listed.is_some()) + sellers + buyers;
        assert_eq!(places, 1, "{what}: {item} is in {places} places");
    }
}

/// The error names the function or its step that failed, and the lock.
pub fn assert_names(error: &anyhow::Error, function: &Function) {
    let text = format!("{error:#}");
    assert!(text.starts_with(function.name), "{text}");
    assert!(text.contains(&format!("`{}`", function.lock)), "{text}");
}

/// No error contains a token or a password, in any format.
pub fn assert_tells_no_secret(error: &anyhow::Error) {
    let text = format!(
        "{error} {error:#} {error:?} {:?}",
        error.downcast_ref::<Error>()
    );
    let looks_like_a_token = |part: &str| part.len() == 36 && part.matches('-').count() == 4;
    let mut parts = text.split(|c: char| !c.is_ascii_hexdigit() && c != '-');
    assert!(!parts.any(looks_like_a_token), "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
}

/// The locks that `seed` did not create.
pub fn new_locks(conn: &mut Connection) -> Vec<String> {
    let mut locks: Vec<String> = conn.keys("lock:*").unwrap();
    locks.retain(|lock| lock != "lock:held" && lock != "lock:spare");
    locks
}

/// Each lock that was left behind expires, unless it was requested without an end.
pub fn assert_locks_end(conn: &mut Connection, what: &str) {
    for key in new_locks(conn) {
        let left: i64 = conn.pttl(&key).unwrap();
        let endless = key == "lock:free" && what.starts_with("acquire_lock ");
        let ends = left > 0 && u128::try_from(left).unwrap() <= LEASE.as_millis();
        assert!(ends || endless, "{what}: {key} expires in {left} ms");
    }
}

/// A transaction of the caller succeeds although every key that a function watches has just
/// changed.
pub fn assert_nothing_is_watched(conn: &mut Connection, direct: &mut Connection, what: &str) {
    let keys = [
        "market:",
        "inventory:17",
        "inventory:27",
        "users:17",
        "users:27",
    ];
    let locks = LOCKS.map(|lock| format!("lock:{lock}"));
    let mut touch = redis::pipe();
    for key in keys.into_iter().chain(locks.iter().map(String::as_str)) {
        touch.set(key, "touched");
    }
    touch.exec(direct).unwrap();

    let mut transaction = redis::pipe();
    transaction.atomic().set("other", 1).ignore().get("other");
    let answer: Option<(u64,)> = transaction.query(conn).unwrap();
    assert_eq!(answer, Some((1,)), "{what}: a WATCH or MULTI was left open");
}
