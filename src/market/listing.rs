//! Offering an item: by `WATCH`, under a lock for the market, under a lock for the item.

use std::time::Duration;

use redis::{Connection, Pipeline, Value};

use super::{
    offer::{MARKET, Offer, check_price, inventory_key},
    trade::{Decision, Held, MARKET_LOCK, has, senseless, with_lock},
};
use crate::{Result, error::Operation, time::Deadline, transaction::watch};

/// How long the book's `list_item` starts again after an aborted transaction.
const PATIENCE: Duration = Duration::from_secs(5);

/// What became of a listing, and how often it had to start again because somebody else's write came between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listing {
    /// The item has left the seller's inventory and is in the market.
    Listed {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The seller does not have the item.
    NotOwned {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The seller has an item of this name in the market already: a second would replace it.
    AlreadyListed {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// Others were faster for the whole time: aborted again and again, or the lock was not to be had.
    Contended {
        /// Aborted attempts.
        retries: u32,
    },
}

impl Listing {
    /// Whether the item is in the market now.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        matches!(self, Self::Listed { .. })
    }

    /// How many attempts were aborted because somebody else wrote in between.
    #[must_use]
    pub fn retries(&self) -> u32 {
        match *self {
            Self::Listed { retries }
            | Self::NotOwned { retries }
            | Self::AlreadyListed { retries }
            | Self::Contended { retries } => retries,
        }
    }
}

/// Moves an item from the seller's inventory into the market, by `WATCH`.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn list_item(
    conn: &mut Connection,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> anyhow::Result<Listing> {
    let goods = Goods::new(item_id, seller_id, price)?;
    let operation = Operation::new("list_item", &goods.offer.member);
    let deadline = Deadline::after(PATIENCE);
    let mut retries = 0;
    loop {
        let (watched, values) = watch(conn, operation, &[&goods.inventory], &goods.reads())?;
        let decision = goods.decide(operation, &values, retries)?;
        if let Some(outcome) = decision.commit(operation, watched, None)? {
            return Ok(outcome);
        }
        retries += 1;
        if deadline.has_passed() {
            return Ok(Listing::Contended { retries });
        }
    }
}

/// Moves an item from the seller's inventory into the market, under a lock for the item.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn list_item_with_lock(
    conn: &mut Connection,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> anyhow::Result<Listing> {
    let goods = Goods::new(item_id, seller_id, price)?;
    let lock = goods.offer.item_lock();
    Ok(goods.list(
        conn,
        Operation::new("list_item_with_lock", &lock),
        &[&goods.inventory],
    )?)
}

/// Moves an item from the seller's inventory into the market, under one lock for the market.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn list_item_with_market_lock(
    conn: &mut Connection,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> anyhow::Result<Listing> {
    let goods = Goods::new(item_id, seller_id, price)?;
    Ok(goods.list(
        conn,
        Operation::new("list_item_with_market_lock", MARKET_LOCK),
        &[MARKET, &goods.inventory],
    )?)
}

/// An offer to be, and its price.
struct Goods<'a> {
    offer: Offer<'a>,
    price: u64,
    inventory: String,
}

impl<'a> Goods<'a> {
    fn new(item_id: &'a str, seller_id: &str, price: u64) -> Result<Self> {
        check_price(price)?;
        Ok(Self {
            offer: Offer::new(item_id, seller_id)?,
            price,
            inventory: inventory_key(seller_id),
        })
    }

    /// Lists under the lock that the operation names, if none of the keys changes meanwhile.
    fn list(
        &self,
        conn: &mut Connection,
        operation: Operation<'_>,
        keys: &[&str],
    ) -> Result<Listing> {
        let (listed, retries) = with_lock(
            conn,
            operation,
            |conn: &mut Connection, held: &Held<'_>, retries| {
                let (watched, values) = held.watch(conn, keys, &self.reads())?;
                let decision = self.decide(operation, &values, retries)?;
                held.commit(watched, decision)
            },
        )?;
        Ok(listed.unwrap_or(Listing::Contended { retries }))
    }

    fn reads(&self) -> Pipeline {
        let mut reads = Pipeline::with_capacity(2);
        reads
            .cmd("SISMEMBER")
            .arg(&self.inventory)
            .arg(self.offer.item_id);
        reads.cmd("ZSCORE").arg(MARKET).arg(&self.offer.member);
        reads
    }

    /// The book's question, does the seller have it, and ours: is it in the market already?
    fn decide(
        &self,
        operation: Operation<'_>,
        values: &[Value],
        retries: u32,
    ) -> Result<Decision<Listing>> {
        let [owned, score] = values else {
            return Err(senseless(operation));
        };
        let refused = |outcome| Ok(Decision::refused(outcome));
        if !has(operation, owned)? {
            return refused(Listing::NotOwned { retries });
        }
        if *score != Value::Nil {
            return refused(Listing::AlreadyListed { retries });
        }
        let mut move_item = Pipeline::with_capacity(3);
        move_item
            .cmd("ZADD")
            .arg(MARKET)
            .arg(self.price)
            .arg(&self.offer.member);
        move_item
            .cmd("SREM")
            .arg(&self.inventory)
            .arg(self.offer.item_id);
        Ok(Decision::agreed(Listing::Listed { retries }, move_item))
    }
}
