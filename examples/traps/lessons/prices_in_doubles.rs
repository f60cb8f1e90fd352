//! Prices are doubles, money is whole.
//!
//! The score of a sorted set is a double, but `HINCRBY` takes a whole number. The ports cut the
//! price: 9.99 sells for 9, 0.5 for nothing, and −5 pays the buyer.

use leasehold::{Error, purchase_item};

use super::bazaar;
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "prices-in-doubles",
    title: "an item for 9.99 costs 9, and one for 0.5 costs nothing",
    source: "the book, 4.4.3: int(price); the article: (int) price",
    actors: &["buyer"],
    keys: &["market:", "users:17", "users:27", "inventory:27"],
    classic,
    ours,
};

const OFFERS: [(&str, &str); 1] = [("ItemA", "9.99")];

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    bazaar::open(&mut conn, 100, &OFFERS)?;
    scene.send("buyer", &mut conn, "ZSCORE market: ItemA.17")?;
    let price = whole("9.99");
    scene.send(
        "buyer",
        &mut conn,
        &format!("HINCRBY users:27 funds -{price}"),
    )?;
    scene.send(
        "buyer",
        &mut conn,
        &format!("HINCRBY users:17 funds {price}"),
    )?;
    scene.send("buyer", &mut conn, "ZREM market: ItemA.17")?;
    let wrong = bazaar::funds(&mut conn, "users:17")? == 9;
    scene.goes_wrong(wrong, "The seller asked for 9.99 and got 9.")
}

/// The value of `(int) price`.
fn whole(price: &str) -> &str {
    price.split('.').next().unwrap_or(price)
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    bazaar::open(&mut conn, 100, &OFFERS)?;
    let refused = purchase_item(&mut conn, "27", "ItemA", "17", 9);
    let error = refused.err().context("9.99 was taken for 9")?;
    scene.tell("buyer", &error.to_string())?;
    let is_typed = matches!(error, Error::WrongKind { .. });
    let nothing = bazaar::funds(&mut conn, "users:27")? == 100;
    scene.goes_right(
        is_typed && nothing,
        "A price is a u64; an item with any other price is not sold.",
    )
}
