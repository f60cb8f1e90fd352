//! The market's three ways to trade, so a case is written once, and its data as the book's programs
//! write it.

use std::collections::BTreeMap;

use anyhow::Context;
use leasehold::{
    Error, Listing, Purchase, list_item, list_item_with_lock, list_item_with_market_lock,
    market::{MARKET, MarketLock, inventory_key, user_key},
    purchase_item, purchase_item_with_lock, purchase_item_with_market_lock,
};
use redis::Connection;

use super::Server;

/// The way a trade prevents concurrent changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Watch,
    MarketLock,
    ItemLock,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Watch, Self::MarketLock, Self::ItemLock];
    pub const LOCKS: [Self; 2] = [Self::MarketLock, Self::ItemLock];

    pub fn list(
        self,
        conn: &mut Connection,
        item: &str,
        seller: &str,
        price: u64,
    ) -> Result<Listing, Error> {
        match self {
            Self::Watch => list_item(conn, item, seller, price),
            Self::MarketLock => {
                list_item_with_market_lock(conn, MarketLock::Article, item, seller, price)
            }
            Self::ItemLock => list_item_with_lock(conn, item, seller, price),
        }
    }

    pub fn buy(
        self,
        conn: &mut Connection,
        buyer: &str,
        item: &str,
        seller: &str,
        price: u64,
    ) -> Result<Purchase, Error> {
        match self {
            Self::Watch => purchase_item(conn, buyer, item, seller, price),
            Self::MarketLock => purchase_item_with_market_lock(
                conn,
                MarketLock::Article,
                buyer,
                item,
                seller,
                Some(price),
            ),
            Self::ItemLock => purchase_item_with_lock(conn, buyer, item, seller, Some(price)),
        }
    }

    /// The key of the lock that a trade of this item acquires.
    pub fn lock_key(self, item: &str, seller: &str) -> Option<String> {
        match self {
            Self::Watch => None,
            Self::MarketLock => Some("lock:market".to_owned()),
            Self::ItemLock => Some(format!("lock:market:{item}.{seller}")),
        }
    }
}

/// Runs a case for each way, on an empty server.
pub fn for_each(
    ways: &[Way],
    mut case: impl FnMut(Way, &Server, &mut Connection) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let server = Server::start()?;
    let mut conn = server.connection()?;
    for way in ways {
        clear(&mut conn)?;
        case(*way, &server, &mut conn).with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

pub fn clear(conn: &mut Connection) -> redis::RedisResult<()> {
    redis::cmd("FLUSHALL").query(conn)
}

/// Runs a command and ignores its reply.
pub fn run(conn: &mut Connection, command: &[&str]) -> redis::RedisResult<()> {
    let mut cmd = redis::cmd(command[0]);
    for arg in &command[1..] {
        cmd.arg(arg);
    }
    cmd.query(conn)
}

/// Stores a user with these funds, as text, and these items.
pub fn user(
    conn: &mut Connection,
    id: &str,
    funds: &str,
    items: &[&str],
) -> redis::RedisResult<()> {
    run(conn, &["HSET", &user_key(id), "funds", funds])?;
    for item in items {
        run(conn, &["SADD", &inventory_key(id), item])?;
    }
    Ok(())
}

/// Lists an item at a price, as text.
pub fn offer(
    conn: &mut Connection,
    item: &str,
    seller: &str,
    price: &str,
) -> redis::RedisResult<()> {
    run(conn, &["ZADD", MARKET, price, &format!("{item}.{seller}")])
}

pub fn funds(conn: &mut Connection, id: &str) -> redis::RedisResult<Option<i64>> {
    redis::cmd("HGET")
        .arg(user_key(id))
        .arg("funds")
        .query(conn)
}

pub fn has(conn: &mut Connection, id: &str, item: &str) -> redis::RedisResult<bool> {
    redis::cmd("SISMEMBER")
        .arg(inventory_key(id))
        .arg(item)
        .query(conn)
}

/// The price of a listed item, as the server formats it.
pub fn price(
    conn: &mut Connection,
    item: &str,
    seller: &str,
) -> redis::RedisResult<Option<String>> {
    redis::cmd("ZSCORE")
        .arg(MARKET)
        .arg(format!("{item}.{seller}"))
        .query(conn)
}

/// Every key with its serialized value: equal if nothing changed and no lock remains.
pub fn everything(conn: &mut Connection) -> redis::RedisResult<BTreeMap<String, Vec<u8>>> {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(conn)?;
    keys.into_iter()
        .map(|key| {
            let dump = redis::cmd("DUMP").arg(&key).query(conn)?;
            Ok((key, dump))
        })
        .collect()
}

/// The library's typed error, perhaps inside an `anyhow` error.
pub fn typed_error<T: std::fmt::Debug>(
    result: Result<T, impl Into<anyhow::Error>>,
) -> anyhow::Result<Error> {
    match result {
        Err(error) => error.into().downcast().context("not the library's error"),
        Ok(outcome) => anyhow::bail!("expected an error, got {outcome:?}"),
    }
}
