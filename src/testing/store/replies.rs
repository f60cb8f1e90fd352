//! Replies as a server gives them, and numbers in what it is sent.

use redis::{RedisError, RedisResult, Value};

use crate::error::makes_no_sense;

pub(super) fn yes(is_so: bool) -> Value {
    Value::Int(is_so.into())
}

pub(super) fn digits(number: u64) -> Value {
    Value::BulkString(number.to_string().into_bytes())
}

pub(super) fn int(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

pub(super) fn number(text: &str) -> RedisResult<u64> {
    text.parse().map_err(|_| makes_no_sense())
}

pub(super) fn wrong_type() -> RedisError {
    refused(
        "WRONGTYPE",
        "Operation against a key holding the wrong kind of value".to_owned(),
    )
}

pub(super) fn wrong_kind(found: &str) -> RedisError {
    refused("WRONGKIND", found.to_owned())
}

/// As the server's error of this code.
pub(super) fn refused(code: &str, text: String) -> RedisError {
    redis::make_extension_error(code.to_owned(), Some(text))
}
