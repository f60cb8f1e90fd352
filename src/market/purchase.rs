//! Buying an item: by `WATCH`, under a lock for the market, under a lock for the item.

use std::time::Duration;

use redis::Connection;

use super::{
    Purchase,
    offer::{MARKET, Offer, check_price, inventory_key, user_key},
    trade::{MarketLock, TradeAttempt, Way, trade},
    values::{check_room, funds, has, price},
};
use crate::{
    error::{Operation, Result, ensure},
    name::check_size,
};

/// The book's `purchase_item` starts again for so long after an aborted transaction.
const PATIENCE: Duration = Duration::from_secs(10);

/// Buys an item at a price, by `WATCH`.
///
/// `price` is what the buyer agreed to pay, in whole units of money: at any other nothing is
/// bought. Section 4.4.3, listing 4.6.
///
/// Two round trips. If anything that it touches changes in between it starts again, at once, for up
/// to 10 s as in the book. The connection's own time-outs bound each wait for the server.
///
/// # Errors
/// See [the errors of all trades](super#errors). All that it touches is watched: for
/// [`Error::Partial`](crate::Error::Partial) an access list has to change in the middle of the
/// transaction.
///
/// # Guarantees
/// Money and item change hands in one transaction. It happens only if neither the market, nor the
/// funds of the two, nor the buyer's inventory has changed since they were read. This holds for a
/// market in which everybody trades by `WATCH`: see [one way for one
/// market](super#one-way-for-one-market).
///
/// The price of it: **any** listing or purchase by anybody aborts it. With five listers and one
/// buyer the book counts some 250 retries a sale. On a busy market be ready for
/// [`Purchase::Contended`].
///
/// # Differences from the book
/// - The seller's funds and the buyer's inventory are watched too. That aborts nothing that
///   `market:` did not abort already, and lets no change of a type between reading and writing lose
///   money.
/// - There is at least one attempt, and the clock is monotonic.
/// - What all ways have in common is said [in the module](super#differences-from-the-book).
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
) -> anyhow::Result<Purchase> {
    let sale = Sale::new(buyer_id, item_id, seller_id, Some(price))?;
    let operation = Operation::new("purchase_item", &sale.offer.member);
    sale.purchase(conn, operation, Way::Watch(PATIENCE), &sale.all_keys())
}

/// Buys an item under a lock for the item: the way to take.
///
/// `price` is what the buyer agreed to pay, in whole units of money: at any other nothing is
/// bought. `None` buys at any price, as the book does under a lock. Section 6.2.4, which has no
/// listing; the price is from the Jedis article.
///
/// Takes the lock `market:ITEM.SELLER` (key `lock:market:ITEM.SELLER`): waits up to 10 s for it and
/// holds it for 10 s at most. Under it the purchase starts again, at once, when the buyer's funds
/// or inventory change in between, for up to 5 s. Two round trips on a free lock, two more for each
/// new start. The connection's own time-outs bound each wait for the server.
///
/// # Errors
/// See [the errors of all trades](super#errors). [`Error::Partial`](crate::Error::Partial) if the
/// item was **sold twice**, as somebody without the lock bought it, or changed the type of
/// `market:` or of the seller's funds, between reading and writing: they are not watched.
///
/// # Guarantees
/// Money and item change hands and the lock is given back in one transaction. It happens only if
/// the lock is still ours and the buyer's funds and inventory have not changed since they were
/// read: one buyer who buys two things at once is not overdrawn. This holds for a market in which
/// everybody takes the item locks: see [one way for one market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - The lock of an item does not protect the buyer's funds: with it alone, two purchases by one
///   buyer at once both find enough money. Here `WATCH` protects the funds, without a second lock
///   and so without deadlocks.
/// - The lock's name holds the seller as well as the item, and
///   [`list_item_with_lock`](super::list_item_with_lock) takes the same one.
/// - The lock has an end, so that a crash does not keep the item off the market for ever. A buyer
///   who is slower than that is told [`Error::Lost`](crate::Error::Lost); the book writes all the
///   same.
/// - The lock is given back in the transaction that pays, not in round trips of its own.
/// - A lock that is not to be had is [`Purchase::Contended`]; in the book false, in the Jedis
///   article an exception.
/// - What all ways have in common is said [in the module](super#differences-from-the-book).
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
) -> anyhow::Result<Purchase> {
    let sale = Sale::new(buyer_id, item_id, seller_id, price)?;
    let lock = sale.offer.item_lock();
    // The lock keeps everybody else off the item; only WATCH keeps the same buyer's other purchases
    // off the buyer's funds. The market and the seller are left out, as purchases of other items
    // change them all the time.
    let keys = [sale.buyer.as_str(), &sale.inventory];
    let operation = Operation::new("purchase_item_with_lock", &lock);
    sale.purchase(conn, operation, Way::Lock, &keys)
}

/// Buys an item under one lock for the market.
///
/// `price` is what the buyer agreed to pay, in whole units of money, as in the Jedis article: at
/// any other nothing is bought. `None` buys at any price, as in the book's section 6.2.3, listing
/// 6.9.
///
/// Takes the [`MarketLock`] of the edition that the market's other programs are written after:
/// waits up to 10 s for it and holds it for 10 s at most. Under it the purchase starts again, at
/// once, when somebody who does not hold the lock changes what it touches in between, for up to 5
/// s. Two round trips on a free lock, two more for each new start. The connection's own time-outs
/// bound each wait for the server.
///
/// # Errors
/// See [the errors of all trades](super#errors). All that it touches is watched: for
/// [`Error::Partial`](crate::Error::Partial) an access list has to change in the middle of the
/// transaction.
///
/// # Guarantees
/// Money and item change hands and the lock is given back in one transaction. It happens only if
/// the lock is still ours and neither the market, nor the funds of the two, nor the buyer's
/// inventory has changed since they were read. This holds for a market in which everybody takes
/// this lock: see [one way for one market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - All that is touched is watched too, which costs nothing among those who hold the lock, and
///   notices those who do not.
/// - The lock has an end, so that a crash does not close the market for ever. A buyer who is slower
///   than that is told [`Error::Lost`](crate::Error::Lost); the book writes all the same.
/// - The lock is given back in the transaction that pays, not in round trips of its own. The Jedis
///   article pays without a transaction.
/// - A lock that is not to be had is [`Purchase::Contended`]; in the book false, in the Jedis
///   article an exception.
/// - What all ways have in common is said [in the module](super#differences-from-the-book).
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// use leasehold::{market::MarketLock, purchase_item_with_market_lock};
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
) -> anyhow::Result<Purchase> {
    let sale = Sale::new(buyer_id, item_id, seller_id, price)?;
    let operation = Operation::new("purchase_item_with_market_lock", lock.name());
    sale.purchase(conn, operation, Way::Lock, &sale.all_keys())
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
        check_size("buyer_id", buyer_id)?;
        check_price(agreed_price.unwrap_or(0))?;
        let offer = Offer::new(item_id, seller_id)?;
        ensure(
            buyer_id != seller_id,
            "buyer_id",
            "nobody buys from himself",
        )?;
        let (buyer, seller) = (user_key(buyer_id), user_key(seller_id));
        Ok(Self {
            offer,
            agreed_price,
            buyer,
            seller,
            inventory: inventory_key(buyer_id),
        })
    }

    /// Where no two purchases happen at once anyway, it costs nothing to watch all that one
    /// touches.
    fn all_keys(&self) -> [&str; 4] {
        [MARKET, &self.buyer, &self.seller, &self.inventory]
    }

    fn purchase(
        &self,
        conn: &mut Connection,
        operation: Operation<'_>,
        way: Way,
        keys: &[&str],
    ) -> anyhow::Result<Purchase> {
        let contended = |retries| Purchase::Contended { retries };
        let attempt = |attempt: &mut TradeAttempt<'_, '_>| self.attempt(attempt);
        Ok(trade(conn, operation, way, keys, contended, attempt)?)
    }

    /// The book's questions: is it there, at that price, and can the buyer pay?
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
        // Never `-0`: HINCRBY would refuse it, and the rest of the transaction would happen all
        // the same.
        let (gain, loss) = (price.to_string(), (-i128::from(price)).to_string());
        attempt.write(&["HINCRBY", &self.seller, "funds", &gain]);
        attempt.write(&["HINCRBY", &self.buyer, "funds", &loss]);
        attempt.write(&["SADD", &self.inventory, item]);
        attempt.write(&["ZREM", MARKET, member]);
        Ok(Purchase::Bought { price, retries })
    }
}
