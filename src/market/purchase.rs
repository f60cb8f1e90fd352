//! Buying an item: by `WATCH`, under a lock for the market, under a lock for the item.

use std::time::Duration;

use redis::{Connection, Pipeline, Value};

use super::{
    offer::{MARKET, Offer, check_price, check_user, inventory_key, user_key},
    trade::{Decision, Held, MARKET_LOCK, check_room, funds, has, price, senseless, with_lock},
};
use crate::{Error, Result, error::Operation, time::Deadline, transaction::watch};

/// How long the book's `purchase_item` starts again after an aborted transaction.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of a purchase, and how often it had to start again because somebody else's write came between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purchase {
    /// The item is the buyer's, the money the seller's.
    Bought {
        /// What it cost.
        price: u64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The item is not in the market, or not from this seller.
    NotForSale {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The item has another price than the one that was offered.
    PriceChanged {
        /// The price now.
        price: u64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The buyer cannot pay.
    NotEnoughMoney {
        /// The price.
        price: u64,
        /// What the buyer has.
        funds: i64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The buyer has an item of the same name already: a set would keep only one of the two.
    AlreadyOwned {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// Others were faster for the whole time: aborted again and again, or the lock was not to be had.
    Contended {
        /// Aborted attempts.
        retries: u32,
    },
}

impl Purchase {
    /// Whether the item changed hands.
    #[must_use]
    pub fn is_bought(&self) -> bool {
        matches!(self, Self::Bought { .. })
    }

    /// How many attempts were aborted because somebody else wrote in between.
    #[must_use]
    pub fn retries(&self) -> u32 {
        match *self {
            Self::Bought { retries, .. }
            | Self::NotForSale { retries }
            | Self::PriceChanged { retries, .. }
            | Self::NotEnoughMoney { retries, .. }
            | Self::AlreadyOwned { retries }
            | Self::Contended { retries } => retries,
        }
    }
}

/// Buys an item at a price, by `WATCH`.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn purchase_item(
    conn: &mut Connection,
    buyer_id: &str,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> anyhow::Result<Purchase> {
    let sale = Sale::new(buyer_id, item_id, seller_id, Some(price))?;
    let operation = Operation::new("purchase_item", &sale.offer.member);
    let deadline = Deadline::after(PATIENCE);
    let mut retries = 0;
    loop {
        let (watched, values) = watch(conn, operation, &sale.all_keys(), &sale.reads())?;
        let decision = sale.decide(operation, &values, retries)?;
        if let Some(outcome) = decision.commit(operation, watched, None)? {
            return Ok(outcome);
        }
        retries += 1;
        if deadline.has_passed() {
            return Ok(Purchase::Contended { retries });
        }
    }
}

/// Buys an item under a lock for the item: the way for users.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn purchase_item_with_lock(
    conn: &mut Connection,
    buyer_id: &str,
    item_id: &str,
    seller_id: &str,
    price: Option<u64>,
) -> anyhow::Result<Purchase> {
    let sale = Sale::new(buyer_id, item_id, seller_id, price)?;
    let lock = sale.offer.item_lock();
    // The lock keeps everybody else off the item; only WATCH keeps the same buyer's other purchases off the buyer's funds.
    // The market and the seller are left out, as purchases of other items change them all the time.
    let keys = [sale.buyer.as_str(), &sale.inventory];
    Ok(sale.buy(
        conn,
        Operation::new("purchase_item_with_lock", &lock),
        &keys,
    )?)
}

/// Buys an item under one lock for the market.
///
/// # Errors
/// See [`Error`](crate::Error).
pub fn purchase_item_with_market_lock(
    conn: &mut Connection,
    buyer_id: &str,
    item_id: &str,
    seller_id: &str,
    price: Option<u64>,
) -> anyhow::Result<Purchase> {
    let sale = Sale::new(buyer_id, item_id, seller_id, price)?;
    Ok(sale.buy(
        conn,
        Operation::new("purchase_item_with_market_lock", MARKET_LOCK),
        &sale.all_keys(),
    )?)
}

/// One buyer, one offer, and the price that was agreed on, if any was.
struct Sale<'a> {
    offer: Offer<'a>,
    agreed_price: Option<u64>,
    buyer: String,
    seller: String,
    inventory: String,
}

impl<'a> Sale<'a> {
    fn new(
        buyer_id: &str,
        item_id: &'a str,
        seller_id: &str,
        agreed_price: Option<u64>,
    ) -> Result<Self> {
        check_user("buyer_id", buyer_id)?;
        check_price(agreed_price.unwrap_or(0))?;
        let offer = Offer::new(item_id, seller_id)?;
        if buyer_id == seller_id {
            return Err(Error::invalid("buyer_id", "nobody buys from himself"));
        }
        let (buyer, seller) = (user_key(buyer_id), user_key(seller_id));
        Ok(Self {
            offer,
            agreed_price,
            buyer,
            seller,
            inventory: inventory_key(buyer_id),
        })
    }

    /// Where no two purchases happen at once anyway, it costs nothing to watch all that one touches.
    fn all_keys(&self) -> [&str; 4] {
        [MARKET, &self.buyer, &self.seller, &self.inventory]
    }

    /// Buys under the lock that the operation names, if none of the keys changes meanwhile.
    fn buy(
        &self,
        conn: &mut Connection,
        operation: Operation<'_>,
        keys: &[&str],
    ) -> Result<Purchase> {
        let (bought, retries) = with_lock(
            conn,
            operation,
            |conn: &mut Connection, held: &Held<'_>, retries| {
                let (watched, values) = held.watch(conn, keys, &self.reads())?;
                let decision = self.decide(operation, &values, retries)?;
                held.commit(watched, decision)
            },
        )?;
        Ok(bought.unwrap_or(Purchase::Contended { retries }))
    }

    fn reads(&self) -> Pipeline {
        let mut reads = Pipeline::with_capacity(4);
        reads.cmd("ZSCORE").arg(MARKET).arg(&self.offer.member);
        reads.cmd("HGET").arg(&self.buyer).arg("funds");
        reads.cmd("HGET").arg(&self.seller).arg("funds");
        reads
            .cmd("SISMEMBER")
            .arg(&self.inventory)
            .arg(self.offer.item_id);
        reads
    }

    /// The book's questions: is it there, at that price, and can the buyer pay?
    fn decide(
        &self,
        operation: Operation<'_>,
        values: &[Value],
        retries: u32,
    ) -> Result<Decision<Purchase>> {
        let [score, buyer_funds, seller_funds, owned] = values else {
            return Err(senseless(operation));
        };
        let buyer_funds = funds(operation, &self.buyer, buyer_funds)?;
        let seller_funds = funds(operation, &self.seller, seller_funds)?;
        let refused = |outcome| Ok(Decision::refused(outcome));
        let Some(price) = price(operation, score)? else {
            return refused(Purchase::NotForSale { retries });
        };
        if self.agreed_price.is_some_and(|agreed| agreed != price) {
            return refused(Purchase::PriceChanged { price, retries });
        }
        if i128::from(buyer_funds) < i128::from(price) {
            return refused(Purchase::NotEnoughMoney {
                price,
                funds: buyer_funds,
                retries,
            });
        }
        if has(operation, owned)? {
            return refused(Purchase::AlreadyOwned { retries });
        }
        check_room(operation, &self.seller, seller_funds, price)?;
        let bought = Purchase::Bought { price, retries };
        Ok(Decision::agreed(bought, self.transfer(price)))
    }

    fn transfer(&self, price: u64) -> Pipeline {
        let mut transfer = Pipeline::with_capacity(5);
        transfer
            .cmd("HINCRBY")
            .arg(&self.seller)
            .arg("funds")
            .arg(price);
        transfer
            .cmd("HINCRBY")
            .arg(&self.buyer)
            .arg("funds")
            // Never `-0`: HINCRBY would refuse it, and the rest of the transaction would happen all the same.
            .arg(-i128::from(price));
        transfer
            .cmd("SADD")
            .arg(&self.inventory)
            .arg(self.offer.item_id);
        transfer.cmd("ZREM").arg(MARKET).arg(&self.offer.member);
        transfer
    }
}
