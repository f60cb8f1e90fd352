//! One buyer, two items, two locks: the money is spent twice.
//!
//! A lock for each item keeps apart two buyers of one item, but not two purchases by one buyer:
//! both read the same funds.

use std::thread::scope;

use leasehold::{Purchase, purchase_item_with_lock};

use super::bazaar;
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "overdraft",
    title: "one buyer overdraws an account under two item locks",
    source: "the book, 6.2.4: a lock for each item",
    actors: &["A buys ItemA", "B buys ItemB"],
    keys: &[
        "market:",
        "users:17",
        "users:27",
        "inventory:27",
        "lock:market:ItemA.17",
        "lock:market:ItemB.17",
    ],
    classic,
    ours,
};

const OFFERS: [(&str, &str); 2] = [("ItemA", "60"), ("ItemB", "60")];

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let [first, second] = ["A buys ItemA", "B buys ItemB"];
    bazaar::open(&mut conn, 100, &OFFERS)?;
    scene.send(first, &mut conn, "SET lock:market:ItemA.17 A NX PX 10000")?;
    scene.send(second, &mut conn, "SET lock:market:ItemB.17 B NX PX 10000")?;
    let enough = [
        scene
            .send(first, &mut conn, "HGET users:27 funds")?
            .is_text("100"),
        scene
            .send(second, &mut conn, "HGET users:27 funds")?
            .is_text("100"),
    ];
    if enough == [true, true] {
        scene.send(first, &mut conn, "HINCRBY users:27 funds -60")?;
        scene.send(second, &mut conn, "HINCRBY users:27 funds -60")?;
    }
    let wrong = bazaar::funds(&mut conn, "users:27")? < 0;
    scene.goes_wrong(
        wrong,
        "Both held their own lock, both read 100 and both paid 60.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut one, mut two) = (redis.client()?, redis.client()?);
    bazaar::open(&mut one, 100, &OFFERS)?;
    let [first, second] = scope(|threads| {
        [(&mut one, "ItemA"), (&mut two, "ItemB")]
            .map(|(conn, item)| {
                threads.spawn(move || purchase_item_with_lock(conn, "27", item, "17", Some(60)))
            })
            .map(|buyer| buyer.join().ok().context("a buyer fails"))
    });
    let purchases = [first??, second??];
    let bought = purchases
        .iter()
        .filter(|purchase| purchase.is_bought())
        .count();
    let poor =
        |purchase: &&Purchase| matches!(purchase, Purchase::NotEnoughMoney { funds: 40, .. });
    let refused = purchases.iter().filter(poor).count();
    scene.tell(
        "A buys ItemA",
        "purchase_item_with_lock, at the same time as B",
    )?;
    scene.tell(
        "B buys ItemB",
        &format!(
            "purchase_item_with_lock\n{bought} of the two is Bought, {refused} is NotEnoughMoney"
        ),
    )?;
    let right = (bought, refused) == (1, 1) && bazaar::funds(&mut one, "users:27")? == 40;
    scene.goes_right(
        right,
        "The buyer's funds are watched too, so the second purchase starts again.",
    )
}
