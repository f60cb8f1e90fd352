//! The article's single-instance edition (单机版): a key that is there while anybody reads, a key that
//! is there while somebody writes.
//!
//! For programs that share a lock with the article's scripts; for anything else take
//! [`read_write`](crate::recipes::read_write). Both keys are the caller's own names, without the
//! prefix `lock:`. On a cluster they need a hash tag in common, such as `{prices}:read` and
//! `{prices}:write`: otherwise the server refuses with `CROSSSLOT`.
//!
//! # What is kept, what is repaired
//!
//! The article's scripts ask whether a key exists and write `1` into it. We ask the same and write
//! something of our own: into the write key the writer's token, into the read key our readers'
//! tokens and ends as JSON. So the article's programs exclude ours and ours theirs, and among our
//! own functions
//! - each reader has an end of its own, which a later reader never shortens;
//! - a reader's release frees nobody but that reader, and the writer's frees nobody else's lock;
//! - leases are milliseconds by the server's clock.
//!
//! # Guarantees
//!
//! On one server that loses no data: before a reader's lease ends or is released no writer comes
//! in, neither ours nor the article's, as long as no program on the article's scripts reads or
//! releases; before a writer's nobody else does, as long as no program deletes the key without
//! looking whose it is. A release ends nobody else's hold. A caller that waits may wait for ever.
//!
//! # Source
//!
//! "单机版" of the article: "获取读锁" and "获取写锁". It tries once; its caller waits. It gives no script for
//! a release: a plain `DEL` frees every reader, or whoever has the write lock by then.
//!
//! # Differences from the article
//!
//! - Each reader is listed with a lease of its own; the key lasts as long as the longest. In the
//!   article the last reader's time counts for all, however short. A read key that somebody has
//!   made without an end is left as it is, and its readers are not listed.
//! - A writer's value is its token, so that the release can tell whose lock it is; the article's is
//!   `1`, and belongs to nobody.
//! - There is a release.
//!
//! # What the article's own programs can still do
//!
//! - Its readers write `1` with their own end over ours. From then on our readers are protected for
//!   as long as *that* lasts, which may be shorter than their leases, and their releases answer
//!   `Ok(false)`: nobody can tell any more who reads. Its readers do the same to each other.
//! - It has no script to release, so its programs delete the key, and with it every reader's lock,
//!   ours too.
//! - Readers that keep coming keep writers out for ever. There is no place for a waiting writer's
//!   intent that the article's readers would look at.
//!
//! A hold of this edition cannot be renewed: any program on the article's scripts may end a read
//! lock, and let a writer in, without leaving a trace, so that no answer to a renewal could be
//! trusted. There is no [`Hold`](crate::recipes::Hold) for it, so that handing it to a watchdog
//! does not compile. Choose a lease longer than the work.
//!
//! ```compile_fail,E0308
//! # fn keep(watchdog: &leasehold::Watchdog, token: &leasehold::Token) -> leasehold::Result<()> {
//! // A watchdog keeps only what can be renewed safely; there is no hold of this edition to give it.
//! let keys = ("prices:read", "prices:write", token.clone());
//! watchdog.keep(&keys, std::time::Duration::from_secs(10))?;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use redis::Connection;

use super::acquired;
use crate::{
    error::{Error, Operation, Result},
    name::check_size,
    recipes::mutex::releasing,
    time::lease_millis,
    token::Token,
    wire::{Call, Script, scripts},
};

scripts! {
    ACQUIRE_READ_TWO_KEY = "readers.lua" then "acquire_read.lua";
    RELEASE_READ_TWO_KEY = "readers.lua" then "release_read.lua";
    ACQUIRE_WRITE_TWO_KEY = "acquire_write.lua";
}

/// The two keys of a lock, in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    read: String,
    write: String,
}

impl Keys {
    /// The article's `readKey` and `writeKey`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one is empty or longer than 512 bytes, or if they are the same.
    pub fn new(read_key: impl Into<String>, write_key: impl Into<String>) -> Result<Self> {
        let (read, write) = (read_key.into(), write_key.into());
        check_size("read key", &read)?;
        check_size("write key", &write)?;
        if read == write {
            return Err(Error::invalid("write key", "it is the read key"));
        }
        Ok(Self { read, write })
    }

    /// Answers whether we are in.
    fn acquiring(&self, script: &'static Script, token: &Token, lease: Duration) -> Result<Call> {
        let call = script.on([&self.read, &self.write]);
        let call = call.arg(own(token)?);
        Ok(call.arg(lease_millis("lease", lease)?))
    }
}

/// Comes in as a reader, if there is no writer. Never waits.
///
/// The lease is 1 ms to 24 h, in milliseconds, rounded up. Sent twice with the same token it is
/// granted once, and no lease is ever shortened by it. `Ok(false)`: there is a writer. One round
/// trip.
///
/// # Errors
/// - [`Error::Invalid`]: the lease is not between 1 ms and 24 h, or the token is `1`, which is what
///   the article writes. Nothing was sent.
/// - [`Error::Unknown`]: no answer came, so the token may be among the readers until the lease
///   ends. Release it, or send the same again, on another connection.
/// - [`Error::WrongKind`]: one of the keys is no string. Nothing was changed.
/// - [`Error::Redis`]: the server refused; nothing was changed.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write::two_key};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let keys = two_key::Keys::new("readKey", "writeKey")?;
/// let token = Token::random();
/// if two_key::try_acquire_read(&mut conn, &keys, &token, Duration::from_secs(10))? {
///     // … read …
///     two_key::release_read(&mut conn, &keys, &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire_read(
    conn: &mut Connection,
    keys: &Keys,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let operation = Operation::new("two_key::try_acquire_read", &keys.read);
    let call = keys.acquiring(&ACQUIRE_READ_TWO_KEY, token, lease)?;
    acquired(conn, operation, token, Duration::ZERO, &call)
}

/// Comes in as a reader, waiting up to `acquire_timeout` for the writer to leave.
///
/// Looks again after 1 to 10 ms, at random. There is always one try, even for a wait of nothing;
/// `Duration::MAX` waits for ever. Otherwise as [`try_acquire_read`], with the same token
/// throughout.
///
/// # Errors
/// As [`try_acquire_read`].
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write::two_key};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let keys = two_key::Keys::new("readKey", "writeKey")?;
/// let (token, wait, lease) = (Token::random(), Duration::from_secs(5), Duration::from_secs(10));
/// if two_key::acquire_read(&mut conn, &keys, &token, wait, lease)? {
///     two_key::release_read(&mut conn, &keys, &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_read(
    conn: &mut Connection,
    keys: &Keys,
    token: &Token,
    acquire_timeout: Duration,
    lease: Duration,
) -> Result<bool> {
    let operation = Operation::new("two_key::acquire_read", &keys.read);
    let call = keys.acquiring(&ACQUIRE_READ_TWO_KEY, token, lease)?;
    acquired(conn, operation, token, acquire_timeout, &call)
}

/// Takes the lock for writing, if there is no reader and no writer. Never waits.
///
/// The lease is 1 ms to 24 h, in milliseconds, rounded up. Sent twice with the same token it is
/// granted once, and the lease is never shortened. `Ok(false)`: somebody is in. One round trip.
///
/// # Errors
/// As [`try_acquire_read`].
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write::two_key};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let keys = two_key::Keys::new("readKey", "writeKey")?;
/// let token = Token::random();
/// if two_key::try_acquire_write(&mut conn, &keys, &token, Duration::from_secs(10))? {
///     // … write …
///     two_key::release_write(&mut conn, &keys, &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire_write(
    conn: &mut Connection,
    keys: &Keys,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let operation = Operation::new("two_key::try_acquire_write", &keys.write);
    let call = keys.acquiring(&ACQUIRE_WRITE_TWO_KEY, token, lease)?;
    acquired(conn, operation, token, Duration::ZERO, &call)
}

/// Takes the lock for writing, waiting up to `acquire_timeout` for everybody to leave.
///
/// Looks again after 1 to 10 ms, at random. There is always one try, even for a wait of nothing;
/// `Duration::MAX` waits for ever. Readers that come meanwhile get in before it. Otherwise as
/// [`try_acquire_write`], with the same token throughout.
///
/// # Errors
/// As [`try_acquire_read`].
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write::two_key};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let keys = two_key::Keys::new("readKey", "writeKey")?;
/// let (token, wait, lease) = (Token::random(), Duration::from_secs(5), Duration::from_secs(10));
/// if two_key::acquire_write(&mut conn, &keys, &token, wait, lease)? {
///     two_key::release_write(&mut conn, &keys, &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_write(
    conn: &mut Connection,
    keys: &Keys,
    token: &Token,
    acquire_timeout: Duration,
    lease: Duration,
) -> Result<bool> {
    let operation = Operation::new("two_key::acquire_write", &keys.write);
    let call = keys.acquiring(&ACQUIRE_WRITE_TWO_KEY, token, lease)?;
    acquired(conn, operation, token, acquire_timeout, &call)
}

/// Ends a reader's hold. `Ok(false)`: it is not listed any more, because its lease has ended, or
/// because a program on the article's scripts has read or deleted the key since; nothing was
/// deleted.
///
/// The last reader's release deletes the key. Waits for nothing but the server. One round trip.
///
/// # Errors
/// - [`Error::Unknown`]: no answer came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Example
/// As for [`try_acquire_read`].
pub fn release_read(conn: &mut Connection, keys: &Keys, token: &Token) -> Result<bool> {
    let operation = Operation::new("two_key::release_read", &keys.read);
    let call = RELEASE_READ_TWO_KEY.on([&keys.read]).arg(token.as_str());
    call.asks_for(operation, conn)
}

/// Ends the writer's hold. `Ok(false)`: it was not ours any more, and nothing was deleted.
///
/// Waits for nothing but the server. One round trip.
///
/// # Errors
/// - [`Error::Unknown`]: no answer came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Example
/// As for [`try_acquire_write`].
pub fn release_write(conn: &mut Connection, keys: &Keys, token: &Token) -> Result<bool> {
    let operation = Operation::new("two_key::release_write", &keys.write);
    own(token)?;
    // The write key is a mutex.
    releasing(&keys.write, token).asks_for(operation, conn)
}

/// Refuses `1`, which the article's writers write: all of them would be taken for ours.
fn own(token: &Token) -> Result<&str> {
    match token.as_str() {
        "1" => Err(Error::invalid(
            "token",
            "it is what the article's writers write",
        )),
        text => Ok(text),
    }
}
