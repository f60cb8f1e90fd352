//! A job in the book's market: money and items change hands, and none is created or lost.

use leasehold::{
    Listing, Purchase, list_item,
    market::{MARKET, inventory_key, split_listing, user_key},
    purchase_item,
    redis::{Commands, Connection, cmd},
};

use super::hand::Hand;

const USERS: u32 = 6;
const ITEMS: u32 = 4;
const FUNDS: i64 = 1_000;
const PRICE: u64 = 7;

/// The contents of the market, which must be the same before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Money {
    pub(crate) funds: i64,
    pub(crate) items: usize,
    pub(crate) poorest: i64,
}

impl Money {
    /// Gives each user funds and items.
    pub(crate) fn endow(conn: &mut Connection) -> anyhow::Result<Self> {
        for user in 0..USERS {
            let name = format!("u{user}");
            let _: i64 = conn.hset(user_key(&name), "funds", FUNDS)?;
            for item in 0..ITEMS {
                let _: i64 = conn.sadd(inventory_key(&name), format!("i{user}x{item}"))?;
            }
        }
        Self::count(conn)
    }

    pub(crate) fn count(conn: &mut Connection) -> anyhow::Result<Self> {
        let listed: Vec<String> = conn.zrange(MARKET, 0, -1)?;
        let mut items: Vec<String> = listed
            .iter()
            .filter_map(|member| Some(split_listing(member)?.0.to_owned()))
            .collect();
        let (mut funds, mut poorest) = (0, i64::MAX);
        for user in 0..USERS {
            let name = format!("u{user}");
            let has: Option<i64> = conn.hget(user_key(&name), "funds")?;
            funds += has.unwrap_or(0);
            poorest = poorest.min(has.unwrap_or(0));
            items.extend(conn.smembers::<_, Vec<String>>(inventory_key(&name))?);
        }
        items.sort();
        items.dedup();
        Ok(Self {
            funds,
            items: items.len(),
            poorest,
        })
    }
}

/// Lists an item, or buys one.
pub(super) fn trade(hand: &mut Hand) -> anyhow::Result<()> {
    if !hand.plan.trades {
        hand.pause(200);
        return Ok(());
    }
    let me = format!("u{}", hand.random.u32(..USERS));
    let mut conn = hand.connection("market")?;
    hand.keeps_a_connection();
    if hand.plan.has_bug("coin") && hand.chance(20) {
        let _: i64 = conn.hincr(user_key(&me), "funds", 1)?;
    }
    if hand.chance(2) {
        let mine: Option<String> = conn.srandmember(inventory_key(&me))?;
        if let Some(item) = mine {
            let _: Listing = list_item(&mut conn, &item, &me, PRICE)?;
        }
        return Ok(());
    }
    let listed: Option<String> = cmd("ZRANDMEMBER").arg(MARKET).query(&mut conn)?;
    let Some((item, seller)) = listed.as_deref().and_then(split_listing) else {
        return Ok(());
    };
    if seller != me {
        let _: Purchase = purchase_item(&mut conn, &me, item, seller, PRICE)?;
    }
    hand.pause(20);
    Ok(())
}
