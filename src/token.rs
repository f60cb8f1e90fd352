//! Tokens, which identify a holder, and fencing tokens.

use std::fmt;

use redis::Value;
use uuid::Uuid;

/// The random proof of ownership, stored as the lock's value. The book calls it the identifier.
///
/// [`Display`](fmt::Display) prints the text that is stored in Redis and
/// [`FromStr`](std::str::FromStr) reads it, so a lock can be handed to another process. `Debug`
/// does not print it: anyone who has the token can release the lock.
///
/// ```
/// let token: leasehold::Token = "0f8fad5b-d9cb-469f-a165-70867728950e".parse()?;
/// assert_eq!(token.to_string(), "0f8fad5b-d9cb-469f-a165-70867728950e");
/// assert_eq!(format!("{token:?}"), "Token(..)");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(pub(crate) Box<str>);

impl Token {
    /// Creates a token: the text of a random 128-bit UUID, as in the book.
    #[must_use]
    pub fn random() -> Self {
        let mut text = Uuid::encode_buffer();
        let text = &*Uuid::new_v4().hyphenated().encode_lower(&mut text);
        Self(text.into())
    }

    /// Returns the text that is stored in Redis. Anyone who has it can release the lock.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if `value`, read from a key, is this token.
    pub(crate) fn is_value(&self, value: Option<&Value>) -> bool {
        matches!(value, Some(Value::BulkString(bytes)) if bytes == self.0.as_bytes())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A number that grows with each acquisition of a lock, for the resource that the lock protects.
///
/// A resource that remembers the greatest number it has seen and refuses smaller ones rejects the
/// late writes of a previous holder, once it has seen the next holder's number. The number is the
/// server's clock in microseconds, or the last number plus one if that is greater. So it grows even
/// after `FLUSHALL`, unless the clock is set back. See [`recipes::mutex`](crate::recipes::mutex).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number to pass to the resource.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the next number of a reserved range.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the number that is `count` lower.
    pub(crate) fn before(self, count: u64) -> Option<Self> {
        self.0.checked_sub(count).map(Self)
    }
}

/// Reads a number that a process passed on. The caller must ensure that it is of the same lock.
impl From<u64> for FencingToken {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn tokens_are_random_uuids_and_unique() {
        let mut seen = HashSet::new();
        for _ in 0..320 {
            let token = Token::random().to_string();
            let uuid: Uuid = token.parse().unwrap();
            assert_eq!(uuid.get_version(), Some(uuid::Version::Random));
            assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
            assert_eq!(uuid.to_string(), token);
            assert!(seen.insert(token));
        }
    }

    #[test]
    fn the_text_of_a_token_is_padded() {
        let token = Token("a".into());
        assert_eq!(format!("{token:>3}|{token:<3}|{token}"), "  a|a  |a");
    }
}
