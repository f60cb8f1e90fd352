//! A pipeline without `MULTI` is not a transaction.
//!
//! It looks like one: four commands, sent together. But if the program crashes when the server has
//! two of them, half a purchase remains.

use leasehold::{MarketLock, purchase_item_with_market_lock};

use super::bazaar;
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "no-multi",
    title: "a pipeline without MULTI leaves half a purchase",
    source: "the Jedis article, purchaseItemWithLock: pipelined() and sync()",
    actors: &["buyer"],
    keys: &[
        "market:",
        "users:17",
        "users:27",
        "inventory:27",
        "lock:market",
    ],
    classic,
    ours,
};

const OFFERS: [(&str, &str); 1] = [("ItemA", "60")];

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    bazaar::open(&mut conn, 100, &OFFERS)?;
    scene.tell("buyer", "begins to send a pipeline")?;
    let mut half = redis::pipe();
    half.hincr("users:17", "funds", 60)
        .hincr("users:27", "funds", -60);
    // SADD inventory:27 ItemA and ZREM market: ItemA.17 would follow.
    send_and_break(redis, &half.get_packed_pipeline(), |conn| {
        Ok(bazaar::funds(conn, "users:27")? == 40)
    })?;
    scene.tell(
        "buyer",
        "HINCRBY users:17 funds 60\nHINCRBY users:27 funds -60\n(crashes)",
    )?;
    let has = scene.send("buyer", &mut conn, "SISMEMBER inventory:27 ItemA")?;
    scene.goes_wrong(has.is_int(0), "Paid for, and still for sale.")
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    bazaar::open(&mut conn, 100, &OFFERS)?;
    scene.tell("buyer", "has 100")?;
    let purchase = purchase_item_with_market_lock(
        &mut conn,
        MarketLock::Article,
        "27",
        "ItemA",
        "17",
        Some(60),
    )?;
    scene.tell(
        "buyer",
        &format!("purchase_item_with_market_lock\n{purchase:?}"),
    )?;
    let has = scene.send("buyer", &mut conn, "SISMEMBER inventory:27 ItemA")?;
    let right = purchase.is_bought() && has.is_int(1);
    scene.goes_right(
        right,
        "Money, item and lock move in one EXEC, or none of them does.",
    )
}
