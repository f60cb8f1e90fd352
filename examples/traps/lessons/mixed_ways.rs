//! A lock excludes only those who ask for it.
//!
//! One program trades under the market's lock, another still by `WATCH`. The first does not notice
//! the second, and the item is sold twice.

use std::thread::scope;

use leasehold::{MarketLock, Purchase, purchase_item, purchase_item_with_market_lock};

use super::bazaar;
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "mixed-ways",
    title: "a buyer under a lock does not notice one that uses WATCH",
    source: "the book, 6.2.3 together with 4.4.3",
    actors: &["A, by lock", "B, by WATCH"],
    keys: &[
        "market:",
        "users:17",
        "users:27",
        "users:28",
        "lock:market",
        "inventory:27",
        "inventory:28",
    ],
    classic,
    ours,
};

const OFFERS: [(&str, &str); 1] = [("ItemA", "60")];

fn open(conn: &mut Connection) -> Result<()> {
    bazaar::open(conn, 100, &OFFERS)?;
    redis::cmd("HSET")
        .arg("users:28")
        .arg("funds")
        .arg(100)
        .exec(conn)?;
    Ok(())
}

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    open(&mut a)?;
    scene.send("A, by lock", &mut a, "SET lock:market A NX PX 10000")?;
    scene.send("A, by lock", &mut a, "ZSCORE market: ItemA.17")?;
    scene.send("B, by WATCH", &mut b, "WATCH market: users:28")?;
    for (actor, conn, buyer) in [("B, by WATCH", &mut b, 28), ("A, by lock", &mut a, 27)] {
        let mut sale = redis::pipe();
        sale.atomic().hincr("users:17", "funds", 60);
        sale.hincr(format!("users:{buyer}"), "funds", -60);
        sale.sadd(format!("inventory:{buyer}"), "ItemA")
            .zrem("market:", "ItemA.17");
        sale.exec(conn)?;
        scene.tell(actor, "MULTI … EXEC: money to 17, ItemA to the buyer")?;
    }
    let wrong = bazaar::funds(&mut a, "users:17")? == 120;
    scene.goes_wrong(
        wrong,
        "ItemA was sold twice: A read the price before B bought it.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    open(&mut a)?;
    let [by_lock, by_watch] = scope(|threads| {
        let by_lock = threads.spawn(|| {
            purchase_item_with_market_lock(
                &mut a,
                MarketLock::Article,
                "27",
                "ItemA",
                "17",
                Some(60),
            )
        });
        let by_watch = threads.spawn(|| purchase_item(&mut b, "28", "ItemA", "17", 60));
        [by_lock, by_watch].map(|buyer| buyer.join().ok().context("a buyer fails"))
    });
    let purchases = [by_lock??, by_watch??];
    let bought = purchases
        .iter()
        .filter(|purchase| purchase.is_bought())
        .count();
    let gone = |purchase: &&Purchase| matches!(purchase, Purchase::NotForSale { .. });
    let gone = purchases.iter().filter(gone).count();
    scene.tell(
        "A, by lock",
        "purchase_item_with_market_lock, at the same time as B",
    )?;
    scene.tell(
        "B, by WATCH",
        &format!("purchase_item\n{bought} of the two is Bought, {gone} is NotForSale"),
    )?;
    scene.goes_right(
        (bought, gone) == (1, 1) && bazaar::funds(&mut a, "users:17")? == 60,
        "The purchase under the lock also watches the market, so it notices the other sale.",
    )
}
