//! An offer: an item of a seller at a whole price, its keys, and their values. Prices, funds and
//! memberships are read as the book stores them, and checked, since other programs write them too.

use redis::Value;

use crate::{
    error::{Error, Operation, Result, ensure},
    name::{LockName, check_size},
    wire::yes_or_no,
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

/// No sale raises funds above 2^62, so that even 500 simultaneous sales do not overflow `HINCRBY`.
const MAX_FUNDS: i64 = 1 << 62;

/// Returns the key of a user's hash: `users:ID`, with the fields `name` and `funds`.
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

/// Returns the key of the set of items that a user owns and does not offer: `inventory:ID`.
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
/// An item's id may contain dots and a seller's may not. The book allows dots in both, so two of
/// its offers can share a member.
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
        ensure(!item_id.is_empty(), "item_id", "it must not be empty")?;
        check_size("seller_id", seller_id)?;
        let reason = "it must not contain a dot: the market's members end in `.SELLER`";
        ensure(!seller_id.contains('.'), "seller_id", reason)?;
        let member = format!("{item_id}.{seller_id}");
        let offer = Self { item_id, member };
        // All ways of trading accept the same ids.
        match LockName::new(&offer.item_lock()) {
            Err(Error::Invalid { reason, .. }) => {
                Err(Error::invalid("item_id or seller_id", reason))
            }
            Err(other) => Err(other),
            Ok(_) => Ok(offer),
        }
    }

    /// Returns the item lock's name.
    pub(super) fn item_lock(&self) -> String {
        format!("{MARKET}{}", self.member)
    }
}

pub(super) fn check_price(price: u64) -> Result<()> {
    let reason = "it must not exceed 2^53 (9007199254740992)";
    ensure(price <= MAX_PRICE, "price", reason)
}

/// Returns the price in a score of the market; `None` if the item is not there.
pub(super) fn price(operation: Operation<'_>, score: &Value) -> Result<Option<u64>> {
    let score: Option<f64> = match score {
        Value::Nil => return Ok(None),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).parse().ok(),
        Value::Double(score) => Some(*score),
        _ => None,
    };
    let score = score.ok_or_else(|| operation.unreadable())?;
    // A server may write a large score as 4.6e+15; Rust writes every whole number in full.
    match score.to_string().parse() {
        Ok(price) if price <= MAX_PRICE => Ok(Some(price)),
        _ => Err(operation.wrong_kind(format!(
            "the price {score}, which is not a whole number from 0 to 2^53"
        ))),
    }
}

/// Reads the reply to `SISMEMBER`.
pub(super) fn has(operation: Operation<'_>, is_member: &Value) -> Result<bool> {
    yes_or_no(is_member).map_err(|error| operation.failed(error))
}

/// Returns a user's funds, or 0 if they are missing. Accepts only the form that `HINCRBY` accepts.
pub(super) fn funds(operation: Operation<'_>, key: &str, field: &Value) -> Result<i64> {
    let bytes = match field {
        Value::BulkString(bytes) => bytes,
        Value::Nil => return Ok(0),
        _ => return Err(operation.unreadable()),
    };
    let text = String::from_utf8_lossy(bytes);
    match text.parse::<i64>() {
        Ok(funds) if funds.to_string() == text => Ok(funds),
        _ => Err(operation.wrong_kind(format!(
            "funds at `{key}` that are not a whole number below 2^63"
        ))),
    }
}

/// Refuses a price that would raise the seller's funds above the maximum.
pub(super) fn check_room(
    operation: Operation<'_>,
    key: &str,
    funds: i64,
    price: u64,
) -> Result<()> {
    if i128::from(funds) + i128::from(price) > i128::from(MAX_FUNDS) {
        return Err(operation.wrong_kind(format!(
            "funds at `{key}` that the price would raise above 2^62"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the price that a trade reads from a score; -1 for an error.
    fn read(score: &Value) -> Option<i128> {
        match price(Operation::new("a test", "an item"), score) {
            Ok(price) => price.map(i128::from),
            Err(_) => Some(-1),
        }
    }

    fn text(score: &str) -> Option<i128> {
        read(&Value::BulkString(score.into()))
    }

    #[test]
    fn a_price_is_the_same_however_a_server_writes_it() {
        let highest = Some(i128::from(MAX_PRICE));
        assert_eq!(text("35"), Some(35));
        assert_eq!(text("0"), Some(0));
        assert_eq!(text("4.6e+15"), Some(4_600_000_000_000_000));
        assert_eq!(text("9007199254740992"), highest);
        assert_eq!(text("9.007199254740992e15"), highest);
        assert_eq!(read(&Value::Double(9_007_199_254_740_992.0)), highest);
        assert_eq!(read(&Value::Double(35.0)), Some(35));
        assert_eq!(read(&Value::Nil), None);
    }

    #[test]
    fn a_price_must_be_a_whole_number() {
        for score in [
            "",
            "x",
            "9.99",
            "-5",
            "nan",
            "inf",
            "-inf",
            "1e17",
            "9007199254740994",
        ] {
            assert_eq!(text(score), Some(-1), "{score}");
        }
        assert_eq!(read(&Value::Double(f64::NAN)), Some(-1));
        assert_eq!(read(&Value::Double(0.5)), Some(-1));
        assert_eq!(read(&Value::Int(5)), Some(-1));
    }
}
