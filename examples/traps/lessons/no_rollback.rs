//! `EXEC` does not roll back.
//!
//! A command in a transaction fails because a key has another type. The others still run: the money
//! and the item are gone.

use leasehold::{Error, purchase_item};

use super::bazaar;
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "no-rollback",
    title: "one command in EXEC fails, and the others still run",
    source: "the book, 4.4.3: MULTI … EXEC",
    actors: &["buyer"],
    keys: &["market:", "users:17", "users:27", "inventory:27"],
    classic,
    ours,
};

const OFFERS: [(&str, &str); 1] = [("ItemA", "60")];

fn open(conn: &mut Connection) -> Result<()> {
    bazaar::open(conn, 100, &OFFERS)?;
    // A string where a set should be.
    redis::cmd("SET")
        .arg("inventory:27")
        .arg("oops")
        .exec(conn)?;
    Ok(())
}

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    open(&mut conn)?;
    for command in [
        "MULTI",
        "HINCRBY users:17 funds 60",
        "HINCRBY users:27 funds -60",
        "SADD inventory:27 ItemA",
        "ZREM market: ItemA.17",
        "EXEC",
    ] {
        scene.send("buyer", &mut conn, command)?;
    }
    let paid = bazaar::funds(&mut conn, "users:27")? == 40;
    let offered = scene.send("buyer", &mut conn, "ZSCORE market: ItemA.17")?;
    scene.goes_wrong(
        paid && offered.is_nil(),
        "The buyer has paid, and the item is gone.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    open(&mut conn)?;
    let refused = purchase_item(&mut conn, "27", "ItemA", "17", 60);
    let error = refused
        .err()
        .context("a string was taken for an inventory")?;
    scene.tell("buyer", &error.to_string())?;
    let is_typed = matches!(error, Error::WrongKind { .. });
    let nothing = bazaar::funds(&mut conn, "users:27")? == 100;
    scene.goes_right(
        is_typed && nothing,
        "The type of every key is checked before anything is written.",
    )
}
