//! What is for sale: an item of a seller at a whole price, and the keys it touches.

use crate::{Error, Result, name::LockName};

/// The key of the market.
pub const MARKET: &str = "market:";

/// The highest price, 2^53: up to it every whole number survives as a sorted set's score.
pub const MAX_PRICE: u64 = 1 << 53;

/// The key of a user's hash: `users:ID`.
#[must_use]
pub fn user_key(user_id: &str) -> String {
    format!("users:{user_id}")
}

/// The key of the set of items that a user has: `inventory:ID`.
#[must_use]
pub fn inventory_key(user_id: &str) -> String {
    format!("inventory:{user_id}")
}

/// Splits a member of the market, `ITEM.SELLER`, at its last dot.
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
        if item_id.is_empty() {
            return Err(Error::invalid("item_id", "it may not be empty"));
        }
        check_user("seller_id", seller_id)?;
        if seller_id.contains('.') {
            return Err(Error::invalid(
                "seller_id",
                "it may not hold a dot: the market's members end in `.SELLER`",
            ));
        }
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

pub(super) fn check_user(argument: &'static str, user_id: &str) -> Result<()> {
    if user_id.is_empty() || user_id.len() > 512 {
        return Err(Error::invalid(argument, "it has to have 1 to 512 bytes"));
    }
    Ok(())
}

pub(super) fn check_price(price: u64) -> Result<()> {
    if price > MAX_PRICE {
        return Err(Error::invalid(
            "price",
            format!("it may not exceed 2^53 ({MAX_PRICE})"),
        ));
    }
    Ok(())
}
