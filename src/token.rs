//! Who holds a lock.

use std::{
    env, fmt, fs, process,
    str::FromStr,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

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

/// Who may enter a reentrant lock again: a thread of a process, or whatever the caller names.
///
/// ```
/// use leasehold::Owner;
///
/// assert_eq!(Owner::current_thread(), Owner::current_thread());
/// assert_eq!(Owner::new("night job on host 7")?.as_str(), "night job on host 7");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(Box<str>);

impl Owner {
    /// This thread of this process: never the same for two threads, nor for two processes on any host.
    #[must_use]
    pub fn current_thread() -> Self {
        static PROCESS: LazyLock<Uuid> = LazyLock::new(Uuid::new_v4);
        static THREADS: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        // After a fork the child has the parent's UUID and thread number, but not its process id.
        Self(
            format!(
                "{}:{}:{}",
                *PROCESS,
                process::id(),
                THREAD.with(|number| *number)
            )
            .into(),
        )
    }

    /// This thread, for people to find: host, process and thread.
    pub(crate) fn described() -> Self {
        static HOST: LazyLock<String> = LazyLock::new(host);
        thread_local! {
            static TEXT: Box<str> = {
                let thread = thread::current();
                let name: String = thread.name().unwrap_or("thread").chars().take(64).collect();
                format!("{}:{}:{name}", *HOST, process::id()).into()
            };
        }
        Self(TEXT.with(Clone::clone))
    }

    /// An owner of the caller's own naming.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty, longer than 512 bytes, or looks like a field of a read-write lock: `kind`, or
    /// something that starts with `r:`, `w:` or `i:`.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        if text.is_empty() || text.len() > 512 {
            return Err(Error::invalid("owner", "it has to have 1 to 512 bytes"));
        }
        if text == "kind"
            || ["r:", "w:", "i:"]
                .iter()
                .any(|field| text.starts_with(field))
        {
            return Err(Error::invalid(
                "owner",
                "`kind`, `r:`, `w:` and `i:` begin the fields of a read-write lock",
            ));
        }
        Ok(Self(text.into()))
    }

    /// The text that is stored in Redis.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What this machine calls itself, as far as it can be asked without a system call of its own.
fn host() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let said = kernel.or_else(|| {
        env::var("HOSTNAME")
            .or_else(|_| env::var("COMPUTERNAME"))
            .ok()
    });
    let name: String = said.unwrap_or_default().trim().chars().take(64).collect();
    if name.is_empty() {
        String::from("?")
    } else {
        name
    }
}
