//! Lists an item for sale, with `WATCH`, an item lock or the market lock.

use std::time::Duration;

use redis::{Connection, Value};

use super::{
    offer::{MARKET, Offer, check_price, has, inventory_key},
    trade::{MarketLock, Way, trade},
};
use crate::error::{Operation, Result};

/// The time within which the book's `list_item` retries after an aborted transaction.
const PATIENCE: Duration = Duration::from_secs(5);

/// Moves an item from the seller's inventory into the market, with `WATCH`.
///
/// `price` is in whole units of money, from 0 to [`MAX_PRICE`](super::MAX_PRICE). Section 4.4.2,
/// listing 4.5.
///
/// Two round trips. If the seller's inventory changes between them, the listing restarts at once,
/// for up to 5 s as in the book. The connection's time-outs limit each wait for the server.
///
/// # Errors
/// - [`Error::Partial`](crate::Error::Partial): between the read and the write, someone listed the
///   same item or changed the type of `market:`, which is not watched.
/// - All others as in [the errors of all trades](super#errors).
///
/// # Guarantees
/// One transaction takes the item from the inventory and puts it into the market. It runs only if
/// the inventory has not changed since it was read. This holds if everyone in the market trades
/// with `WATCH`: see [one way for one market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - If the item is already in the market, the result is [`Listing::AlreadyListed`]; the book
///   overwrites its price.
/// - It makes at least one attempt, and its clock is monotonic.
/// - A listing watches only the inventory, as in the book. It writes to `market:`, so it aborts
///   every [`purchase_item`](super::purchase_item) in progress. The locks avoid this.
/// - See also the [differences that all ways share](super#differences-from-the-book).
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
) -> Result<Listing> {
    let goods = Goods::new("list_item", item_id, seller_id, price)?;
    let (way, keys) = (Way::Watch(PATIENCE), [goods.inventory.as_str()]);
    goods.list(conn, &goods.offer.member, way, &keys)
}

/// Moves an item from the seller's inventory into the market, under a lock for the item. This is
/// the recommended way.
///
/// `price` is in whole units of money, from 0 to [`MAX_PRICE`](super::MAX_PRICE). Section 6.2.4,
/// which has no listing.
///
/// Acquires the lock `market:ITEM.SELLER` (key `lock:market:ITEM.SELLER`): waits up to 10 s for it
/// and holds it for at most 10 s. If the seller's inventory changes between the read and the write,
/// the listing restarts at once, for up to 5 s. Two round trips if the lock is free, two more for
/// each restart. The connection's time-outs limit each wait for the server.
///
/// # Errors
/// - [`Error::Partial`](crate::Error::Partial): between the read and the write, someone without the
///   lock listed the same item or changed the type of `market:`, which is not watched.
/// - All others as in [the errors of all trades](super#errors).
///
/// # Guarantees
/// One transaction takes the item from the inventory, puts it into the market and releases the
/// lock. It runs only if the lock is still ours and the inventory has not changed since it was
/// read. This holds if everyone in the market uses the item locks: see [one way for one
/// market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - The lock's name contains the seller as well as the item. With the item alone, trades with
///   different sellers would wait for each other.
/// - A listing acquires the lock too. If only purchases did, a purchase could sell an offer that a
///   new listing had just replaced.
/// - The lock expires, so a crash does not block the item forever. It is released in the
///   transaction that lists the item.
/// - See also the [differences that all ways share](super#differences-from-the-book).
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
) -> Result<Listing> {
    let goods = Goods::new("list_item_with_lock", item_id, seller_id, price)?;
    let (lock, keys) = (goods.offer.item_lock(), [goods.inventory.as_str()]);
    goods.list(conn, &lock, Way::Lock, &keys)
}

/// Moves an item from the seller's inventory into the market, under one lock for the market.
///
/// `price` is in whole units of money, from 0 to [`MAX_PRICE`](super::MAX_PRICE). Section 6.2.3;
/// the Jedis article.
///
/// Acquires `lock`, the [`MarketLock`] of the edition that the market's other programs follow:
/// waits up to 10 s for it and holds it for at most 10 s. If someone without the lock changes the
/// inventory or the market between the read and the write, the listing restarts at once, for up to
/// 5 s. Two round trips if the lock is free, two more for each restart. The connection's time-outs
/// limit each wait for the server.
///
/// # Errors
/// - [`Error::Partial`](crate::Error::Partial): the server's access list changed during the
///   transaction. All keys are watched, so no other cause exists.
/// - All others as in [the errors of all trades](super#errors).
///
/// # Guarantees
/// One transaction takes the item from the inventory, puts it into the market and releases the
/// lock. It runs only if the lock is still ours and neither inventory nor market has changed since
/// they were read. This holds if everyone in the market uses this lock: see [one way for one
/// market](super#one-way-for-one-market).
///
/// # Differences from the book
/// - The lock expires, so a crash does not close the market forever. It is released in the
///   transaction that lists the item.
/// - The book shows no code for it: it says to acquire the lock where `list_item` watches.
/// - See also the [differences that all ways share](super#differences-from-the-book).
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// use leasehold::MarketLock;
///
/// let lock = MarketLock::Book;
/// let listing = leasehold::list_item_with_market_lock(&mut conn, lock, "ItemM", "17", 97)?;
/// println!("{listing:?}");
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn list_item_with_market_lock(
    conn: &mut Connection,
    lock: MarketLock,
    item_id: &str,
    seller_id: &str,
    price: u64,
) -> Result<Listing> {
    let goods = Goods::new("list_item_with_market_lock", item_id, seller_id, price)?;
    let keys = [MARKET, &goods.inventory];
    goods.list(conn, lock.name(), Way::Lock, &keys)
}

/// The result of a listing, with the number of attempts that another client's write aborted.
///
/// Unless it is [`Listed`](Self::Listed), nothing has changed.
///
/// ```
/// use leasehold::Listing;
///
/// let listing = Listing::Listed { retries: 2 };
/// assert!(listing.is_listed());
/// assert_eq!(listing.retries(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it tells whether anything has changed"]
#[non_exhaustive]
pub enum Listing {
    /// The item has left the seller's inventory and is in the market.
    Listed {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The item is not in the seller's inventory. The book returns `None`.
    NotOwned {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// The seller already has an item of this name in the market; a second would replace it.
    AlreadyListed {
        /// Aborted attempts before this one.
        retries: u32,
    },
    /// Every attempt was aborted, or the lock was not acquired in time. The book returns false.
    Contended {
        /// Aborted attempts; 0 if the lock was not acquired.
        retries: u32,
    },
}

impl Listing {
    /// Returns true if the item is in the market now.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        matches!(self, Self::Listed { .. })
    }

    /// Returns the number of attempts that another client's write aborted. The book's tables count
    /// them.
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

/// An offer to be listed, and its price.
struct Goods<'a> {
    /// The public function.
    name: &'static str,
    offer: Offer<'a>,
    price: u64,
    inventory: String,
}

impl<'a> Goods<'a> {
    fn new(name: &'static str, item_id: &'a str, seller_id: &str, price: u64) -> Result<Self> {
        Operation::new(name, item_id).run(|_| {
            check_price(price)?;
            Ok(Self {
                name,
                offer: Offer::new(item_id, seller_id)?,
                price,
                inventory: inventory_key(seller_id),
            })
        })
    }

    /// Checks that the seller has the item, as the book does, and that it is not yet in the market.
    fn list(&self, conn: &mut Connection, lock: &str, way: Way, keys: &[&str]) -> Result<Listing> {
        let (item, member) = (self.offer.item_id, &self.offer.member);
        let operation = Operation::new(self.name, lock);
        let contended = |retries| Listing::Contended { retries };
        trade(conn, operation, way, keys, contended, |attempt| {
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
        })
    }
}
