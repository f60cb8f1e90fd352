//! An offer: an item of a seller at a whole price, and its keys.

use crate::{
    error::{Error, Result, ensure},
    name::{LockName, check_size},
};

/// The key of the market: a ZSET of `ITEM.SELLER` with the price as its score.
///
/// Section 4.4.1 of the book; the colon at the end is part of the key.
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

/// The highest price: 2^53, or 9,007,199,254,740,992. A sorted set's score holds every whole number
/// up to it exactly.
///
/// Above it a score holds only every second number, so the stored price could differ from the one
/// that was asked.
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

/// The key of the set of items that a user owns and does not offer: `inventory:ID`.
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
/// It is the last dot because an item's id may have dots and a seller's may not. The book allows
/// dots in both, so two of its offers can share a member.
///
/// ```
/// assert_eq!(leasehold::market::split_listing("ItemM.v2.17"), Some(("ItemM.v2", "17")));
/// assert_eq!(leasehold::market::split_listing("ItemM"), None);
/// ```
#[must_use]
pub fn split_listing(member: &str) -> Option<(&str, &str)> {
    member.rsplit_once('.')
}

/// An item of a seller, with checked ids.
pub(super) struct Offer<'a> {
    pub(super) item_id: &'a str,
    /// `ITEM.SELLER`, the member of the market's sorted set.
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
        // All ways of trading accept the same ids.
        match LockName::new(&offer.item_lock()) {
            Err(Error::Invalid { reason, .. }) => Err(Error::Invalid {
                argument: "item_id or seller_id",
                reason,
            }),
            Err(other) => Err(other),
            Ok(_) => Ok(offer),
        }
    }

    /// The item lock's name.
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
