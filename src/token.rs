//! Who holds a lock.

use std::{fmt, str::FromStr};

use redis::Value;
use uuid::Uuid;

use crate::{Error, Result};

/// The random proof of ownership that is stored as the lock's value (in the book: the identifier).
///
/// [`Display`](fmt::Display) prints the text that is stored in Redis and [`FromStr`] reads it back, so that a lock can be
/// handed to another process. `Debug` keeps it secret: whoever has the token can release the lock.
///
/// ```
/// let token: leasehold::Token = "0f8fad5b-d9cb-469f-a165-70867728950e".parse()?;
/// assert_eq!(token.to_string(), "0f8fad5b-d9cb-469f-a165-70867728950e");
/// assert_eq!(format!("{token:?}"), "Token(..)");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(Box<str>);

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

impl FromStr for Token {
    type Err = Error;

    /// Takes the text of a token as it is stored in Redis, by us or by another library.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty or longer than 512 bytes.
    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() || text.len() > 512 {
            return Err(Error::invalid("token", "it has to have 1 to 512 bytes"));
        }
        Ok(Self(text.into()))
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
