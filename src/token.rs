//! Who holds a lock.

use std::fmt;

use redis::Value;
use uuid::Uuid;

/// The random proof of ownership that is stored as the lock's value (in the book: the identifier).
///
/// [`Display`](fmt::Display) prints the text that is stored in Redis and [`FromStr`](std::str::FromStr) reads it back, so that a lock can be
/// handed to another process. `Debug` keeps it secret: whoever has the token can release the lock.
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
    /// A new token: the text of a random 128-bit UUID, as in the book.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4().to_string().into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the value that a key holds.
    pub(crate) fn is_value(&self, value: Option<&Value>) -> bool {
        matches!(value, Some(Value::BulkString(bytes)) if bytes == self.0.as_bytes())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A number that only grows from one acquisition of a lock to the next, handed to the resource that the lock protects.
///
/// A resource that remembers the greatest number it has seen, and refuses smaller ones, never takes a write from a holder
/// whose lease has ended. It is the server's clock in microseconds, or one more than the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number to hand to the resource.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// The next of a range that was reserved.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The one so many before.
    pub(crate) fn before(self, count: u64) -> Option<Self> {
        self.0.checked_sub(count).map(Self)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
