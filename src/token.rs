//! Tokens, which identify a holder, and fencing tokens.

use std::{
    cell::RefCell,
    fmt,
    fs::File,
    io::{self, Read},
    process,
    time::SystemTime,
};

use redis::Value;
use uuid::{Builder, Uuid};

/// The system's random source, on Linux and other Unix systems.
const RANDOM: &str = "/dev/urandom";
/// Random bytes are read for this many tokens at once: the system call is the slowest part of
/// making a token.
const AT_A_TIME: usize = 64;

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
        Self::random_in(process::id())
    }

    /// Creates a token, for a caller that knows the process id.
    pub(crate) fn random_in(process: u32) -> Self {
        let mut text = Uuid::encode_buffer();
        let text = &*random_uuid(process).hyphenated().encode_lower(&mut text);
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if `value`, read from a key, is this token.
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

/// The random bytes that this thread has read and not yet used.
struct Drawn {
    /// The process that read them. A forked child has a copy and must not use it.
    process: u32,
    bytes: [u8; 16 * AT_A_TIME],
    used: usize,
}

thread_local! {
    static DRAWN: RefCell<Drawn> = const {
        RefCell::new(Drawn { process: 0, bytes: [0; 16 * AT_A_TIME], used: 16 * AT_A_TIME })
    };
}

impl Drawn {
    fn next(&mut self, process: u32) -> io::Result<Uuid> {
        if self.process != process || self.used == self.bytes.len() {
            File::open(RANDOM)?.read_exact(&mut self.bytes)?;
            (self.process, self.used) = (process, 0);
        }
        let mut next = [0; 16];
        for (place, byte) in next.iter_mut().zip(self.bytes.iter_mut().skip(self.used)) {
            *place = std::mem::take(byte);
        }
        self.used += next.len();
        Ok(Builder::from_u128(u128::from_ne_bytes(next) ^ copy_salt())
            .with_variant(uuid::Variant::RFC4122)
            .with_version(uuid::Version::Random)
            .into_uuid())
    }
}

/// Returns the time. It differs between virtual machines that resume from one snapshot, and so have
/// the same unused bytes.
fn copy_salt() -> u128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos())
}

/// Returns a random version 4 UUID, made by the `uuid` crate if the thread's bytes cannot be used.
fn random_uuid(process: u32) -> Uuid {
    let drawn = DRAWN.try_with(|drawn| drawn.try_borrow_mut().ok()?.next(process).ok());
    drawn.ok().flatten().unwrap_or_else(Uuid::new_v4)
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
        for _ in 0..5 * AT_A_TIME {
            let token = Token::random().to_string();
            let uuid: Uuid = token.parse().unwrap();
            assert_eq!(uuid.get_version(), Some(uuid::Version::Random));
            assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
            assert_eq!(uuid.to_string(), token);
            assert!(seen.insert(token));
        }
    }

    #[test]
    fn a_forked_process_reads_new_random_bytes() {
        let mut drawn = Drawn {
            process: 1,
            bytes: [0; 16 * AT_A_TIME],
            used: 0,
        };
        let (before, bytes) = (drawn.used, drawn.bytes);
        drawn.next(2).unwrap();
        assert_ne!(drawn.bytes[16..], bytes[16..], "read again");
        assert_eq!((drawn.process, drawn.used), (2, before + 16));
        assert_eq!(drawn.bytes[..16], [0; 16], "used once");
    }
}
