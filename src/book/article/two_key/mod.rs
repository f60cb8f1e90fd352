//! The article's single-instance edition (单机版): one key exists while readers hold the lock, the
//! other while a writer does.
//!
//! For programs that share a lock with the article's scripts; for anything else use
//! [`read_write`](crate::recipes::read_write). Both keys are the caller's own names, without the
//! prefix `lock:`. On a cluster they need a common hash tag, such as `{prices}:read` and
//! `{prices}:write`: otherwise the server refuses with `CROSSSLOT`.
//!
//! # Kept and repaired
//!
//! The article's scripts check that a key exists and write `1` into it. We check the same and write
//! our own values: the writer's token into the write key, our readers' tokens and ends as JSON into
//! the read key. So the article's programs and ours exclude each other, and among our own functions
//! - each reader has its own end, which a later reader never shortens;
//! - a release ends only its own hold;
//! - leases are in milliseconds, by the server's clock.
//!
//! # Guarantees
//!
//! On one server that loses no data: neither our functions nor the article's scripts grant the lock
//! to a writer while a reader holds it, as long as no program reads or releases through the
//! article's scripts. They grant it to no one while a writer holds it, as long as no program
//! deletes the key without checking its holder. A hold lasts until it is released or its lease
//! ends. A release ends no other hold. A caller may wait forever.
//!
//! # Source
//!
//! "单机版" of the article: "获取读锁" and "获取写锁". The article tries once, and leaves the wait to its
//! caller. It has no release script: a plain `DEL` ends the holds of all readers, or that of
//! whichever writer has the lock by then.
//!
//! # Differences from the article
//!
//! - Each reader is listed with its own lease; the key lasts as long as the longest. In the article
//!   the last reader's time applies to all, even if it is shorter. A read key without an end is
//!   left unchanged, and its readers are not listed.
//! - A writer's value is its token, so that a release can check it; the article's is `1` for every
//!   writer.
//! - It has a release.
//!
//! # Remaining gaps in the article's programs
//!
//! - Its readers overwrite the read key with `1` and their own end. From then on our readers are
//!   protected only until *that* end, which may be before their own, and their releases return
//!   `Ok(false)`: the readers are no longer known. Its readers do the same to each other.
//! - It has no release script, so its programs delete the key, and with it the holds of all
//!   readers, including ours.
//! - A steady stream of readers keeps writers out forever. The article's readers read no key in
//!   which a waiting writer could announce itself.
//!
//! A hold of this edition cannot be renewed: any program that uses the article's scripts may end a
//! read lock, and let a writer in, without leaving a trace, so the reply to a renewal would prove
//! nothing. It has no [`Hold`](crate::recipes::Hold), so passing it to a watchdog does not compile.
//! Choose a lease longer than the work.
//!
//! ```compile_fail,E0308
//! # fn keep(watchdog: &leasehold::Watchdog, token: &leasehold::Token) -> leasehold::Result<()> {
//! // A watchdog keeps only holds that can be renewed safely. This edition has none.
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
    time::lease_millis,
    token::Token,
    wire::{Call, Script, releasing, scripts},
};

scripts! {
    ACQUIRE_READ_TWO_KEY = "readers.lua" then "acquire_read.lua";
    RELEASE_READ_TWO_KEY = "readers.lua" then "release_read.lua";
    ACQUIRE_WRITE_TWO_KEY = "acquire_write.lua";
}

/// The full names of the two keys of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    read: String,
    write: String,
}

impl Keys {
    /// Creates the pair of the article's `readKey` and `writeKey`.
    ///
    /// # Errors
    /// [`Error::Invalid`]: one is empty or longer than 512 bytes, or both are the same.
    pub fn new(read_key: impl Into<String>, write_key: impl Into<String>) -> Result<Self> {
        let (read, write) = (read_key.into(), write_key.into());
        check_size("read key", &read)?;
        check_size("write key", &write)?;
        if read == write {
            let reason = "it must differ from the read key";
            return Err(Error::invalid("write key", reason));
        }
        Ok(Self { read, write })
    }

    /// Builds the call of a script that returns 1 if we hold the lock.
    fn acquiring(&self, script: &'static Script, token: &Token, lease: Duration) -> Result<Call> {
        let call = script.on([&self.read, &self.write]);
        let call = call.arg(own(token)?);
        Ok(call.arg(lease_millis("lease", lease)?))
    }
}

/// Acquires the lock for reading, waiting up to `acquire_timeout` for the writer.
///
/// Tries at least once: `Duration::ZERO` never waits, `Duration::MAX` waits forever. Retries after
/// a random 1 to 10 ms, with the same token. `Ok(false)`: a writer held the lock until the
/// deadline. One round trip for each attempt.
///
/// The lease is 1 ms to 24 h, rounded up to milliseconds. If repeated with the same token it counts
/// once, and no lease is ever shortened.
///
/// # Errors
/// - [`Error::Invalid`]: the lease is not between 1 ms and 24 h, or the token is `1`, the article's
///   value. Nothing was sent.
/// - [`Error::Unknown`]: no reply came, so the token may hold the lock until the lease ends.
///   Release it, or repeat the call, on another connection.
/// - [`Error::WrongKind`]: one of the keys is not a string. Nothing was changed.
/// - [`Error::Redis`]: the server refused; nothing was changed.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, book::article::two_key};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let keys = two_key::Keys::new("readKey", "writeKey")?;
/// let (token, wait, lease) = (Token::random(), Duration::from_secs(30), Duration::from_secs(10));
/// if two_key::acquire_read(&mut conn, &keys, &token, wait, lease)? {
///     // … read …
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
    Operation::new("two_key::acquire_read", &keys.read).run(|operation| {
        let call = keys.acquiring(&ACQUIRE_READ_TWO_KEY, token, lease)?;
        acquired(conn, operation, token, acquire_timeout, &call)
    })
}

/// Acquires the lock for writing, waiting up to `acquire_timeout` for all holders.
///
/// Tries at least once: `Duration::ZERO` never waits, `Duration::MAX` waits forever. Retries after
/// a random 1 to 10 ms, with the same token. Readers that come meanwhile go first. `Ok(false)`:
/// someone else held the lock until the deadline. One round trip for each attempt.
///
/// The lease is 1 ms to 24 h, rounded up to milliseconds. If repeated with the same token it counts
/// once, and the lease is never shortened.
///
/// # Errors
/// As [`acquire_read`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, book::article::two_key};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let keys = two_key::Keys::new("readKey", "writeKey")?;
/// let (token, wait, lease) = (Token::random(), Duration::from_secs(30), Duration::from_secs(10));
/// if two_key::acquire_write(&mut conn, &keys, &token, wait, lease)? {
///     // … write …
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
    Operation::new("two_key::acquire_write", &keys.write).run(|operation| {
        let call = keys.acquiring(&ACQUIRE_WRITE_TWO_KEY, token, lease)?;
        acquired(conn, operation, token, acquire_timeout, &call)
    })
}

/// Releases a reader's hold. `Ok(false)`: it is no longer listed, because its lease has ended, or
/// because a program with the article's scripts has overwritten or deleted the key; nothing was
/// deleted.
///
/// The last reader's release deletes the key. Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Unknown`]: no reply came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Examples
/// As for [`acquire_read`].
pub fn release_read(conn: &mut Connection, keys: &Keys, token: &Token) -> Result<bool> {
    Operation::new("two_key::release_read", &keys.read).run(|operation| {
        let call = RELEASE_READ_TWO_KEY.on([&keys.read]).arg(token.as_str());
        call.asks_for(operation, conn)
    })
}

/// Releases the writer's hold. `Ok(false)`: it was no longer ours, and nothing was deleted.
///
/// Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Unknown`]: no reply came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Examples
/// As for [`acquire_write`].
pub fn release_write(conn: &mut Connection, keys: &Keys, token: &Token) -> Result<bool> {
    Operation::new("two_key::release_write", &keys.write).run(|operation| {
        own(token)?;
        // The write key is a mutex.
        releasing(&keys.write, token).asks_for(operation, conn)
    })
}

/// Refuses `1`, the value of every writer of the article: all of them would look like ours.
fn own(token: &Token) -> Result<&str> {
    match token.as_str() {
        "1" => {
            let reason = "it must not be `1`, the value that the article's writers write";
            Err(Error::invalid("token", reason))
        }
        text => Ok(text),
    }
}
