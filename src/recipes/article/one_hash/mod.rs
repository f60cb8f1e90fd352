//! The article's cluster edition (集群版): one hash with the times at which the last reader and the
//! writer came.
//!
//! For programs that share a lock with the article's scripts; for anything else take
//! [`read_write`](crate::recipes::read_write). The key is the caller's own name, without the prefix
//! `lock:`.
//!
//! # What is kept, what is repaired
//!
//! The article's scripts keep two fields, `read` and `write`, each a time in milliseconds, and
//! count a field as absent when its time lies further back than [`Leases`] say. We keep these two
//! as they do, so that the article's programs exclude ours and ours theirs. Beside them we keep a
//! field for each holder of ours, `read:<token>` or `write:<token>`, which the article's scripts do
//! not look at, so that among our own functions
//! - a second reader does not push out the first: each is released by its own token, and the last
//!   one frees the lock;
//! - nobody's release frees anybody else, and each says whether the hold was still ours;
//! - the times are the server's, so that no client's clock lets it in too early or keeps others out
//!   too long, and no reader moves the time back;
//! - a hold that is over leaves no field behind for whoever comes next, and the key's life is never
//!   shortened.
//!
//! # Guarantees
//!
//! On one server that loses no data, among programs that agree on the leases, and as long as none
//! on the article's scripts has a wrong clock: before a writer's hold ends or is released nobody
//! else comes in, neither ours nor the article's; nor does a writer before a reader's, as long as
//! no program on the article's scripts reads. A release ends nobody else's hold. A caller that
//! waits may wait for ever.
//!
//! # Source
//!
//! "集群版" of the article: "获取读锁", "删除读锁", "获取写锁", "删除写锁". It tries once; its caller waits.
//!
//! # Differences from the article
//!
//! - The server's clock gives the time, with a fraction, so that it is never equal to one of the
//!   article's.
//! - Each holder has a field of its own, by which its release is compared: by token, not by time.
//! - `read` is never moved back. When others still read after a release, `read` says so.
//! - The fields of holders that did not release in time are removed.
//! - A release says whether the hold was still ours; the article's answers nothing.
//!
//! # What the article's own programs can still do
//!
//! - Its readers write their time over ours. When the last of them releases, the article's writers
//!   see no reader and come in, although ours may still read. (Our own writers look at the other
//!   fields and do not.) And of two readers of the article's the second one's release frees both.
//! - A client whose clock is ahead takes a lock whose time is not over, and the time that it writes
//!   keeps others out for longer, until the key ends. One whose clock is behind moves the readers'
//!   time back, and with it their end.
//! - Two of them that come in the same millisecond have the same time, so that one releases the
//!   other's lock.
//! - Readers that keep coming keep writers out for ever. There is no place for a waiting writer's
//!   intent that the article's readers would look at.
//!
//! A hold of this edition cannot be renewed: the lock does not say how long it lasts, each program
//! that asks assumes it, and any program on the article's scripts may end it, and let another in,
//! without leaving a trace, so that no answer to a renewal could be trusted. There is no
//! [`Hold`](crate::recipes::Hold) for it, so that handing it to a watchdog does not compile.
//! Choose leases longer than the work.
//!
//! ```compile_fail,E0308
//! # fn keep(watchdog: &leasehold::Watchdog) -> leasehold::Result<()> {
//! // A watchdog keeps only what can be renewed safely; there is no hold of this edition to give it.
//! let leases = leasehold::recipes::read_write::one_hash::Leases::default();
//! watchdog.keep(&leases, std::time::Duration::from_secs(10))?;
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
    wire::{Call, Script, scripts},
};

scripts! {
    ACQUIRE_READ_ONE_HASH = "holders.lua" then "acquire_read.lua";
    ACQUIRE_WRITE_ONE_HASH = "holders.lua" then "acquire_write.lua";
    RELEASE_READ_ONE_HASH = "holders.lua" then "release_read.lua";
    RELEASE_WRITE_ONE_HASH = "holders.lua" then "release_write.lua";
}

/// The lengths of the holds of a lock: the same for everybody who uses it, since the lock itself
/// says only when a hold began.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold::recipes::read_write::one_hash::Leases;
///
/// let longer = Leases { read: Duration::from_secs(5), ..Leases::default() };
/// assert_eq!(longer.write, Duration::from_secs(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The time that a reader may stay (读锁的超时时间). Default 1 s, as in the article.
    pub read: Duration,
    /// The time that a writer may stay (写锁的超时时间). Default 3 s, as in the article.
    pub write: Duration,
    /// The life of the key after the last holder has come (key 的过期时间), at least as long as
    /// either hold lasts. Default 10 s, as in the article. It is what ends a hold whose time is in
    /// the future by a wrong clock.
    pub key: Duration,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(1),
            write: Duration::from_secs(3),
            key: Duration::from_secs(10),
        }
    }
}

impl Leases {
    /// Answers whether we are in, or were until now. Checks the key and the leases first.
    fn call(&self, script: &'static Script, key: &str, token: &Token) -> Result<Call> {
        check_size("key", key)?;
        let read = lease_millis("read lease", self.read)?;
        let write = lease_millis("write lease", self.write)?;
        let whole = lease_millis("key lease", self.key)?;
        if whole < read.max(write) {
            return Err(Error::invalid(
                "key lease",
                "a key that ends before the holds would end them early",
            ));
        }
        let call = script.on([key]).arg(token.as_str());
        Ok(call.arg(&[read, write, whole]))
    }
}

/// Comes in as a reader, if there is no writer. Never waits.
///
/// The hold lasts as long as `leases` say for a reader, from when the server takes it, in
/// milliseconds. Sent twice with the same token it is granted once, and its time counts from the
/// second. `Ok(false)`: there is a writer. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the key is empty or longer than 512 bytes; a lease is not between 1 ms and
///   24 h, or the key's is the shortest. Nothing was sent.
/// - [`Error::Unknown`]: no answer came, so the token may be among the readers until the lease
///   ends. Release it, or send the same again, on another connection.
/// - [`Error::WrongKind`]: the key is no hash, or has a field that no lock of this kind has, or one
///   that is no time. Nothing was changed.
/// - [`Error::Redis`]: the server refused; nothing was changed.
///
/// # Example
/// ```no_run
/// use leasehold::{Token, recipes::read_write::one_hash};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, leases) = (Token::random(), one_hash::Leases::default());
/// if one_hash::try_acquire_read(&mut conn, "lockKey", &token, &leases)? {
///     // … read, for less than a second …
///     one_hash::release_read(&mut conn, "lockKey", &token, &leases)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire_read(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    leases: &Leases,
) -> Result<bool> {
    let operation = Operation::new("one_hash::try_acquire_read", key);
    let call = leases.call(&ACQUIRE_READ_ONE_HASH, key, token)?;
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
/// use leasehold::{Token, recipes::read_write::one_hash};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, leases) = (Token::random(), one_hash::Leases::default());
/// if one_hash::acquire_read(&mut conn, "lockKey", &token, Duration::from_secs(5), &leases)? {
///     one_hash::release_read(&mut conn, "lockKey", &token, &leases)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_read(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    acquire_timeout: Duration,
    leases: &Leases,
) -> Result<bool> {
    let operation = Operation::new("one_hash::acquire_read", key);
    let call = leases.call(&ACQUIRE_READ_ONE_HASH, key, token)?;
    acquired(conn, operation, token, acquire_timeout, &call)
}

/// Takes the lock for writing, if nobody is in. Never waits.
///
/// The hold lasts as long as `leases` say for a writer, from when the server takes it, in
/// milliseconds. Sent twice with the same token it is granted once, and its time counts from the
/// second. `Ok(false)`: somebody is in. One round trip.
///
/// # Errors
/// As [`try_acquire_read`].
///
/// # Example
/// ```no_run
/// use leasehold::{Token, recipes::read_write::one_hash};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, leases) = (Token::random(), one_hash::Leases::default());
/// if one_hash::try_acquire_write(&mut conn, "lockKey", &token, &leases)? {
///     // … write, for less than three seconds …
///     one_hash::release_write(&mut conn, "lockKey", &token, &leases)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire_write(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    leases: &Leases,
) -> Result<bool> {
    let operation = Operation::new("one_hash::try_acquire_write", key);
    let call = leases.call(&ACQUIRE_WRITE_ONE_HASH, key, token)?;
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
/// use leasehold::{Token, recipes::read_write::one_hash};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, leases) = (Token::random(), one_hash::Leases::default());
/// if one_hash::acquire_write(&mut conn, "lockKey", &token, Duration::from_secs(5), &leases)? {
///     one_hash::release_write(&mut conn, "lockKey", &token, &leases)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_write(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    acquire_timeout: Duration,
    leases: &Leases,
) -> Result<bool> {
    let operation = Operation::new("one_hash::acquire_write", key);
    let call = leases.call(&ACQUIRE_WRITE_ONE_HASH, key, token)?;
    acquired(conn, operation, token, acquire_timeout, &call)
}

/// Ends a reader's hold. `Ok(false)`: its time was over before, so that a writer may have come in
/// meanwhile; nothing was changed.
///
/// `leases` are those of the acquire. The last reader's release frees the lock, for the article's
/// writers too. Waits for nothing but the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: as for [`try_acquire_read`]. Nothing was sent.
/// - [`Error::Unknown`]: no answer came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Example
/// As for [`try_acquire_read`].
pub fn release_read(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    leases: &Leases,
) -> Result<bool> {
    let operation = Operation::new("one_hash::release_read", key);
    let call = leases.call(&RELEASE_READ_ONE_HASH, key, token)?;
    call.asks_for(operation, conn)
}

/// Ends the writer's hold. `Ok(false)`: its time was over before, so that somebody else may have
/// come in meanwhile; nothing was changed.
///
/// `leases` are those of the acquire. Waits for nothing but the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: as for [`try_acquire_read`]. Nothing was sent.
/// - [`Error::Unknown`]: no answer came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Example
/// As for [`try_acquire_write`].
pub fn release_write(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    leases: &Leases,
) -> Result<bool> {
    let operation = Operation::new("one_hash::release_write", key);
    let call = leases.call(&RELEASE_WRITE_ONE_HASH, key, token)?;
    call.asks_for(operation, conn)
}
