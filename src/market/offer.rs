//! An offer: an item of a seller at a whole price, and the keys it touches.

use crate::{
    error::{Error, Result, ensure},
    name::{LockName, check_size},
};

/// The key of the market: a ZSET of `ITEM.SELLER` with the price as its score.
///
/// Section 4.4.1 of the book, with the colon at the end.
///
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// // The ten cheapest offers.
/// let offers: Vec<(String, u64)> = redis::cmd("ZRANGE")
///     .arg((leasehold::market::MARKET, 0, 9, "WITHSCORES"))
///     .query(&mut *conn)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
pub const MARKET: &str = "market:";

/// The highest price, 2^53 or 9,007,199,254,740,992: up to it every whole number survives as a
/// sorted set's score.
///
/// Above it a score keeps only every second number, and a price would not be the one that was
/// asked.
///
/// ```
/// assert_eq!(leasehold::market::MAX_PRICE, 9_007_199_254_740_992);
/// ```
pub const MAX_PRICE: u64 = 1 << 53;

/// The key of a user's hash: `users:ID`, with the fields `name` and `funds`.
///
/// Section 4.4.1 of the book.
///
/// ```
/// assert_eq!(leasehold::market::user_key("17"), "users:17");
/// ```
#[must_use]
pub fn user_key(user_id: &str) -> String {
    format!("users:{user_id}")
}

/// The key of the set of items that a user has and does not offer: `inventory:ID`.
///
/// Section 4.4.1 of the book.
///
/// ```
/// assert_eq!(leasehold::market::inventory_key("17"), "inventory:17");
/// ```
#[must_use]
pub fn inventory_key(user_id: &str) -> String {
    format!("inventory:{user_id}")
}

/// Splits a member of the market, `ITEM.SELLER`, at its last dot. `None` if it has no dot.
///
/// The last, since an item's id may have dots and a seller's may not. The book does not split; two
/// of its members can be the same text for different items of different sellers.
///
/// ```
/// assert_eq!(leasehold::market::split_listing("ItemM.v2.17"), Some(("ItemM.v2", "17")));
/// assert_eq!(leasehold::market::split_listing("ItemM"), None);
/// ```
#[must_use]
pub fn split_listing(member: &str) -> Option<(&str, &str)> {
    member.rsplit_once('.')
}

/// An item of a seller, checked.
pub(super) struct Offer<'a> {
    pub(super) item_id: &'a str,
    /// `ITEM.SELLER`, the market's member.
    pub(super) member: String,
}

impl<'a> Offer<'a> {
    pub(super) fn new(item_id: &'a str, seller_id: &str) -> Result<Self> {
        ensure(!item_id.is_empty(), "item_id", "it may not be empty")?;
        check_size("seller_id", seller_id)?;
        ensure(
            !seller_id.contains('.'),
            "seller_id",
            "it may not hold a dot: the market's members end in `.SELLER`",
        )?;
        let member = format!("{item_id}.{seller_id}");
        let offer = Self { item_id, member };
        // Whatever one way of trading takes, the others have to take as well.
        match LockName::new(&offer.item_lock()) {
            Err(Error::Invalid { reason, .. }) => Err(Error::Invalid {
                argument: "item_id or seller_id",
                reason,
            }),
            Err(other) => Err(other),
            Ok(_) => Ok(offer),
        }
    }

    /// The fine-grained lock's name.
    pub(super) fn item_lock(&self) -> String {
        format!("{MARKET}{}", self.member)
    }
}

pub(super) fn check_price(price: u64) -> Result<()> {
    ensure(
        price <= MAX_PRICE,
        "price",
        "it may not exceed 2^53 (9007199254740992)",
    )
}
