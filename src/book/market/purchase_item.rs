//! Buys an item, with `WATCH`, an item lock or the market lock.

use std::time::Duration;

use redis::Connection;

use super::{
    offer::{MARKET, Offer, check_price, check_room, funds, has, inventory_key, price, user_key},
    trade::{MarketLock, TradeAttempt, Way, trade},
};
use crate::{
    error::{Operation, Result, ensure},
    name::check_size,
};

/// The time within which the book's `purchase_item` retries after an aborted transaction.
const PATIENCE: Duration = Duration::from_secs(10);

/// Buys an item at a price, with `WATCH`.
///
/// `price` is the agreed price, in whole units of money. At any other price nothing is bought.
/// Section 4.4.3, listing 4.6.
///
/// Two round trips. If one of its keys changes between them, the purchase restarts at once, for up
/// to 10 s as in the book. The connection's time-outs limit each wait for the server.
///
/// # Errors
/// - [`Error::Partial`](crate::Error::Partial): the server's access list changed during the
///   transaction. All keys are watched, so no other cause exists.
/// - All others as in [the errors of all trades](super#errors).
///
/// # Guarantees
/// One transaction moves money and item. It runs only if the market, the funds of both users and
/// the buyer's inventory have not changed since they were read. This holds if everyone in the
/// market trades with `WATCH`: see [one way for one market](super#one-way-for-one-market).
///
/// The cost: **any** listing or purchase by anyone aborts it. With five sellers and one buyer the
/// book counts some 250 retries per sale. On a busy market expect [`Purchase::Contended`].
///
/// # Differences from the book
/// - The seller's funds and the buyer's inventory are watched too. In such a market this causes no
///   aborts beyond those of `market:`, and a key whose type changes between the read and the write
///   cannot lose money.
/// - It makes at least one attempt, and its clock is monotonic.
/// - See also the [differences that all ways share](super#differences-from-the-book).
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let purchase = leasehold::purchase_item(&mut conn, "27", "ItemM", "17", 97)?;
/// println!("{purchase:?}");
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn purchase_item(
    conn: &mut Connection,
    buyer_id: &str,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> Result<Purchase> {
    let sale = Sale::new("purchase_item", buyer_id, item_id, seller_id, Some(price))?;
    let (lock, way) = (&sale.offer.member, Way::Watch(PATIENCE));
    sale.purchase(conn, lock, way, &sale.all_keys())
}

/// Buys an item under a lock for the item. This is the recommended way.
///
/// `price` is the agreed price, in whole units of money. At any other price nothing is bought.
/// `None` buys at any price, as the book does under a lock. Section 6.2.4, which has no listing;
/// the price is from the Jedis article.
///
/// Acquires the lock `market:ITEM.SELLER` (key `lock:market:ITEM.SELLER`): waits up to 10 s for it
/// and holds it for at most 10 s. If the buyer's funds or inventory change between the read and the
/// write, the purchase restarts at once, for up to 5 s. Two round trips if the lock is free, two
/// more for each restart. The connection's time-outs limit each wait for the server.
///
/// # Errors
/// - [`Error::Partial`](crate::Error::Partial): between the read and the write, someone without the
///   lock bought the item, so that it was **sold twice**, or changed the type of `market:` or of
///   the seller's funds, which are not watched.
/// - All others as in [the errors of all trades](super#errors).
///
/// # Guarantees
/// One transaction moves money and item and releases the lock. It runs only if the lock is still
/// ours and the buyer's funds and inventory have not changed since they were read. So a buyer who
/// buys two items at once cannot overdraw the funds. This holds if everyone in the market uses the
/// item locks: see [one way for one market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - An item lock does not protect the buyer's funds: with it alone, two simultaneous purchases by
///   one buyer both find enough money. Here `WATCH` protects the funds, without a second lock and
///   so without deadlocks.
/// - The lock's name contains the seller as well as the item, and
///   [`list_item_with_lock`](super::list_item_with_lock) acquires the same lock.
/// - The lock expires, so a crash does not block the item forever. A buyer who takes longer gets
///   [`Error::Lost`](crate::Error::Lost); the book writes anyway.
/// - The lock is released in the transaction that pays, not in round trips of its own.
/// - If the lock is not acquired in time, the result is [`Purchase::Contended`]; the book returns
///   false, the Jedis article throws an exception.
/// - See also the [differences that all ways share](super#differences-from-the-book).
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let purchase = leasehold::purchase_item_with_lock(&mut conn, "27", "ItemM", "17", Some(97))?;
/// println!("{purchase:?}");
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn purchase_item_with_lock(
    conn: &mut Connection,
    buyer_id: &str,
    item_id: &str,
    seller_id: &str,
    price: Option<u64>,
) -> Result<Purchase> {
    let name = "purchase_item_with_lock";
    let sale = Sale::new(name, buyer_id, item_id, seller_id, price)?;
    // The lock protects the item from other traders; WATCH protects the buyer's funds from the same
    // buyer's other purchases. The market and the seller's funds are not watched, since purchases
    // of other items change them all the time.
    let keys = [sale.buyer.as_str(), &sale.inventory];
    sale.purchase(conn, &sale.offer.item_lock(), Way::Lock, &keys)
}

/// Buys an item under one lock for the market.
///
/// `price` is the agreed price, in whole units of money, as in the Jedis article. At any other
/// price nothing is bought. `None` buys at any price, as in the book's section 6.2.3, listing 6.9.
///
/// Acquires `lock`, the [`MarketLock`] of the edition that the market's other programs follow:
/// waits up to 10 s for it and holds it for at most 10 s. If someone without the lock changes one
/// of the keys between the read and the write, the purchase restarts at once, for up to 5 s. Two
/// round trips if the lock is free, two more for each restart. The connection's time-outs limit
/// each wait for the server.
///
/// # Errors
/// - [`Error::Partial`](crate::Error::Partial): the server's access list changed during the
///   transaction. All keys are watched, so no other cause exists.
/// - All others as in [the errors of all trades](super#errors).
///
/// # Guarantees
/// One transaction moves money and item and releases the lock. It runs only if the lock is still
/// ours and the market, the funds of both users and the buyer's inventory have not changed since
/// they were read. This holds if everyone in the market uses this lock: see [one way for one
/// market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - All keys are watched too. This costs nothing if everyone acquires the lock, and detects
///   writers that do not.
/// - The lock expires, so a crash does not close the market forever. A buyer who takes longer gets
///   [`Error::Lost`](crate::Error::Lost); the book writes anyway.
/// - The lock is released in the transaction that pays, not in round trips of its own. The Jedis
///   article pays without a transaction.
/// - If the lock is not acquired in time, the result is [`Purchase::Contended`]; the book returns
///   false, the Jedis article throws an exception.
/// - See also the [differences that all ways share](super#differences-from-the-book).
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// use leasehold::{MarketLock, purchase_item_with_market_lock};
///
/// let lock = MarketLock::Article;
/// let purchase = purchase_item_with_market_lock(&mut conn, lock, "27", "ItemM", "17", None)?;
/// println!("{purchase:?}");
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn purchase_item_with_market_lock(
    conn: &mut Connection,
    lock: MarketLock,
    buyer_id: &str,
    item_id: &str,
    seller_id: &str,
    price: Option<u64>,
) -> Result<Purchase> {
    let name = "purchase_item_with_market_lock";
    let sale = Sale::new(name, buyer_id, item_id, seller_id, price)?;
    sale.purchase(conn, lock.name(), Way::Lock, &sale.all_keys())
}

/// The result of a purchase, with the number of attempts that another client's write aborted.
///
/// Unless it is [`Bought`](Self::Bought), nothing has changed. Prices and funds are in whole units
/// of money.
///
/// ```
/// use leasehold::Purchase;
///
/// let purchase = Purchase::NotEnoughMoney { price: 97, funds: 43, retries: 0 };
/// assert!(!purchase.is_bought());
/// assert_eq!(purchase.retries(), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it tells whether anything has changed"]
#[non_exhaustive]
pub enum Purchase {
    /// The buyer has the item and the seller the money.
    Bought {
        /// The price that was paid.
        price: u64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// This seller does not offer the item; someone else may have bought it.
    NotForSale {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The item's price is not the one that the buyer agreed to.
    PriceChanged {
        /// The current price.
        price: u64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The buyer's funds are less than the price.
    NotEnoughMoney {
        /// The price.
        price: u64,
        /// The buyer's funds.
        funds: i64,
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The buyer already has an item of this name; a set would keep only one of the two.
    AlreadyOwned {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// Every attempt was aborted, or the lock was not acquired in time. The book returns false.
    Contended {
        /// Aborted attempts; 0 if the lock was not acquired.
        retries: u32,
    },
}

impl Purchase {
    /// Returns true if the item changed hands.
    #[must_use]
    pub fn is_bought(&self) -> bool {
        matches!(self, Self::Bought { .. })
    }

    /// Returns the number of attempts that another client's write aborted. The book's tables count
    /// them.
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

/// A buyer, an offer, and the agreed price, if any.
struct Sale<'a> {
    /// The public function.
    name: &'static str,
    offer: Offer<'a>,
    agreed_price: Option<u64>,
    buyer: String,
    seller: String,
    inventory: String,
}

impl<'a> Sale<'a> {
    fn new(
        name: &'static str,
        buyer_id: &str,
        item_id: &'a str,
        seller_id: &str,
        agreed_price: Option<u64>,
    ) -> Result<Self> {
        Operation::new(name, item_id).run(|_| {
            check_size("buyer_id", buyer_id)?;
            check_price(agreed_price.unwrap_or(0))?;
            let offer = Offer::new(item_id, seller_id)?;
            let reason = "buyer and seller must differ";
            ensure(buyer_id != seller_id, "buyer_id", reason)?;
            Ok(Self {
                name,
                offer,
                agreed_price,
                buyer: user_key(buyer_id),
                seller: user_key(seller_id),
                inventory: inventory_key(buyer_id),
            })
        })
    }

    /// Returns all keys of the purchase. Under the market lock no two purchases overlap, and with
    /// `WATCH` alone `market:` changes anyway, so watching all of them costs no retries.
    fn all_keys(&self) -> [&str; 4] {
        [MARKET, &self.buyer, &self.seller, &self.inventory]
    }

    fn purchase(
        &self,
        conn: &mut Connection,
        lock: &str,
        way: Way,
        keys: &[&str],
    ) -> Result<Purchase> {
        let operation = Operation::new(self.name, lock);
        let contended = |retries| Purchase::Contended { retries };
        let attempt = |attempt: &mut TradeAttempt<'_, '_>| self.attempt(attempt);
        trade(conn, operation, way, keys, contended, attempt)
    }

    /// Checks, as the book does, that the item is for sale at this price and the buyer can pay.
    fn attempt(&self, attempt: &mut TradeAttempt<'_, '_>) -> Result<Purchase> {
        let (operation, retries) = (attempt.operation, attempt.retries);
        let (item, member) = (self.offer.item_id, &self.offer.member);
        let [score, buyer_funds, seller_funds, owned] = attempt.read([
            &["ZSCORE", MARKET, member],
            &["HGET", &self.buyer, "funds"],
            &["HGET", &self.seller, "funds"],
            &["SISMEMBER", &self.inventory, item],
        ])?;
        let seller_funds = funds(operation, &self.seller, &seller_funds)?;
        let funds = funds(operation, &self.buyer, &buyer_funds)?;
        let Some(price) = price(operation, &score)? else {
            return Ok(Purchase::NotForSale { retries });
        };
        if self.agreed_price.is_some_and(|agreed| agreed != price) {
            return Ok(Purchase::PriceChanged { price, retries });
        }
        if i128::from(funds) < i128::from(price) {
            return Ok(Purchase::NotEnoughMoney {
                price,
                funds,
                retries,
            });
        }
        if has(operation, &owned)? {
            return Ok(Purchase::AlreadyOwned { retries });
        }
        check_room(operation, &self.seller, seller_funds, price)?;
        // A price of 0 must not become `-0`: HINCRBY would refuse it, and the rest of the
        // transaction would still run.
        let (gain, loss) = (price.to_string(), (-i128::from(price)).to_string());
        attempt.write(&["HINCRBY", &self.seller, "funds", &gain]);
        attempt.write(&["HINCRBY", &self.buyer, "funds", &loss]);
        attempt.write(&["SADD", &self.inventory, item]);
        attempt.write(&["ZREM", MARKET, member]);
        Ok(Purchase::Bought { price, retries })
    }
}
