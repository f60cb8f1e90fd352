//! Offering an item: by `WATCH`, under a lock for the market, under a lock for the item.

use std::time::Duration;

use redis::{Connection, Value};

use super::{
    Listing,
    offer::{MARKET, Offer, check_price, inventory_key},
    trade::{MarketLock, Way, trade},
    values::has,
};
use crate::error::{Operation, Result};

/// The book's `list_item` starts again for so long after an aborted transaction.
const PATIENCE: Duration = Duration::from_secs(5);

/// Moves an item from the seller's inventory into the market, by `WATCH`.
///
/// `price` is in whole units of money, from 0 to [`MAX_PRICE`](super::MAX_PRICE). Section 4.4.2,
/// listing 4.5.
///
/// Two round trips. If the seller's inventory changes in between it starts again, at once, for up
/// to 5 s as in the book. The connection's own time-outs bound each wait for the server.
///
/// # Errors
/// See [the errors of all trades](super#errors). [`Error::Partial`](crate::Error::Partial) if
/// somebody put the same item into the market, or changed the type of `market:`, between reading
/// and writing: it is not watched.
///
/// # Guarantees
/// The item is taken from the inventory and put into the market in one transaction, which happens
/// only if the inventory has not changed since the item was seen there. This holds for a market in
/// which everybody trades by `WATCH`: see [one way for one market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - An item that is in the market already is [`Listing::AlreadyListed`]; the book overwrites its
///   price.
/// - There is at least one attempt, and the clock is monotonic.
/// - Listing watches the inventory only, as in the book. Since it writes to `market:`, it aborts
///   every [`purchase_item`](super::purchase_item) that is under way. This is what the locks are
///   for.
/// - What all ways have in common is said [in the module](super#differences-from-the-book).
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let listing = leasehold::list_item(&mut conn, "ItemM", "17", 97)?;
/// println!("{listing:?}");
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn list_item(
    conn: &mut Connection,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> anyhow::Result<Listing> {
    let goods = Goods::new(item_id, seller_id, price)?;
    let operation = Operation::new("list_item", &goods.offer.member);
    let keys = [goods.inventory.as_str()];
    goods.list(conn, operation, Way::Watch(PATIENCE), &keys)
}

/// Moves an item from the seller's inventory into the market, under a lock for the item: the way to
/// take.
///
/// `price` is in whole units of money, from 0 to [`MAX_PRICE`](super::MAX_PRICE). Section 6.2.4,
/// which has no listing.
///
/// Takes the lock `market:ITEM.SELLER` (key `lock:market:ITEM.SELLER`): waits up to 10 s for it and
/// holds it for 10 s at most. Under it the listing starts again, at once, when the seller's
/// inventory changes in between, for up to 5 s. Two round trips on a free lock, two more for each
/// new start. The connection's own time-outs bound each wait for the server.
///
/// # Errors
/// See [the errors of all trades](super#errors). [`Error::Partial`](crate::Error::Partial) if
/// somebody without the lock put the same item into the market, or changed the type of `market:`,
/// between reading and writing: it is not watched.
///
/// # Guarantees
/// The item is taken from the inventory, put into the market and the lock given back in one
/// transaction. It happens only if the lock is still ours and the inventory has not changed since
/// the item was seen there. This holds for a market in which everybody takes the item locks: see
/// [one way for one market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - The lock's name holds the seller as well as the item. The item's alone would keep apart what
///   does not meet.
/// - Listing takes the lock too. If only purchases did, one could sell what another offer had just
///   replaced.
/// - The lock has an end, so that a crash does not keep the item off the market for ever, and is
///   given back in the transaction that lists.
/// - What all ways have in common is said [in the module](super#differences-from-the-book).
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let listing = leasehold::list_item_with_lock(&mut conn, "ItemM", "17", 97)?;
/// println!("{listing:?}");
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn list_item_with_lock(
    conn: &mut Connection,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> anyhow::Result<Listing> {
    let goods = Goods::new(item_id, seller_id, price)?;
    let (lock, keys) = (goods.offer.item_lock(), [goods.inventory.as_str()]);
    let operation = Operation::new("list_item_with_lock", &lock);
    goods.list(conn, operation, Way::Lock, &keys)
}

/// Moves an item from the seller's inventory into the market, under one lock for the market.
///
/// `price` is in whole units of money, from 0 to [`MAX_PRICE`](super::MAX_PRICE). Section 6.2.3;
/// the Jedis article.
///
/// Takes the [`MarketLock`] of the edition that the market's other programs are written after:
/// waits up to 10 s for it and holds it for 10 s at most. Under it the listing starts again, at
/// once, when somebody who does not hold the lock changes the inventory or the market in between,
/// for up to 5 s. Two round trips on a free lock, two more for each new start. The connection's own
/// time-outs bound each wait for the server.
///
/// # Errors
/// See [the errors of all trades](super#errors). All that it touches is watched: for
/// [`Error::Partial`](crate::Error::Partial) an access list has to change in the middle of the
/// transaction.
///
/// # Guarantees
/// The item is taken from the inventory, put into the market and the lock given back in one
/// transaction. It happens only if the lock is still ours and neither inventory nor market has
/// changed since they were read. This holds for a market in which everybody takes this lock: see
/// [one way for one market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - The lock has an end, so that a crash does not close the market for ever, and is given back in
///   the transaction that lists.
/// - The book has no listing of it: it says to lock where `list_item` watched.
/// - What all ways have in common is said [in the module](super#differences-from-the-book).
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// use leasehold::market::MarketLock;
///
/// let listing = leasehold::list_item_with_market_lock(&mut conn, MarketLock::Book, "ItemM", "17", 97)?;
/// println!("{listing:?}");
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn list_item_with_market_lock(
    conn: &mut Connection,
    lock: MarketLock,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> anyhow::Result<Listing> {
    let goods = Goods::new(item_id, seller_id, price)?;
    let operation = Operation::new("list_item_with_market_lock", lock.name());
    let keys = [MARKET, &goods.inventory];
    goods.list(conn, operation, Way::Lock, &keys)
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

    /// The book's question, does the seller have it, and ours: is it in the market already?
    fn list(
        &self,
        conn: &mut Connection,
        operation: Operation<'_>,
        way: Way,
        keys: &[&str],
    ) -> anyhow::Result<Listing> {
        let (item, member) = (self.offer.item_id, &self.offer.member);
        let contended = |retries| Listing::Contended { retries };
        let listed = trade(conn, operation, way, keys, contended, |attempt| {
            let retries = attempt.retries;
            let [owned, score] = attempt.read([
                &["SISMEMBER", &self.inventory, item],
                &["ZSCORE", MARKET, member],
            ])?;
            if !has(operation, &owned)? {
                return Ok(Listing::NotOwned { retries });
            }
            if score != Value::Nil {
                return Ok(Listing::AlreadyListed { retries });
            }
            attempt.write(&["ZADD", MARKET, &self.price.to_string(), member]);
            attempt.write(&["SREM", &self.inventory, item]);
            Ok(Listing::Listed { retries })
        });
        Ok(listed?)
    }
}
