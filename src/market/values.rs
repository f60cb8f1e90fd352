//! Reads prices, funds and memberships as the book stores them, and checks them: other programs
//! write them too.

use redis::Value;

use super::offer::MAX_PRICE;
use crate::error::{Operation, Result};

/// No sale raises funds above 2^62, so that even 500 simultaneous sales do not overflow `HINCRBY`.
const MAX_FUNDS: i64 = 1 << 62;

/// The price in a score of the market; `None` if the item is not there.
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
            "the price {score}, which is no whole number from 0 to 2^53"
        ))),
    }
}

/// Reads the reply to `SISMEMBER`.
pub(super) fn has(operation: Operation<'_>, is_member: &Value) -> Result<bool> {
    match is_member {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        _ => Err(operation.unreadable()),
    }
}

/// A user's funds, 0 if there are none. Accepts only the form that `HINCRBY` accepts.
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
            "funds at `{key}` that are no whole number below 2^63"
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
            "funds at `{key}` that the price would carry past 2^62"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The price that a trade reads from a score; -1 for an error.
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
    fn what_is_no_whole_number_is_no_price() {
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
