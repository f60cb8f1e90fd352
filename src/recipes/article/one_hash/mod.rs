//! The article's cluster edition (集群版): one hash with the start times of the last reader and of the
//! writer.
//!
//! For programs that share a lock with the article's scripts; for anything else use
//! [`read_write`](crate::recipes::read_write). The key is the caller's own name, without the prefix
//! `lock:`.
//!
//! # Kept and repaired
//!
//! The article's scripts keep two fields, `read` and `write`, each a time in milliseconds, and
//! ignore a field that is older than its hold lasts ([`Lifetimes`]). We use these two in the same
//! way, so that the article's programs and ours exclude each other. We add a field for each holder
//! of ours, `read:<token>` or `write:<token>`, which the article's scripts do not read. So among
//! our own functions
//! - a second reader does not displace the first: each is released by its own token, and the last
//!   one frees the lock;
//! - a release never ends another hold, and returns whether the hold was still ours;
//! - the times are the server's, so that no client's clock admits it too early or keeps others out
//!   too long, and no reader moves the time back;
//! - a hold that is over leaves no field behind, and the key's life is never shortened.
//!
//! # Guarantees
//!
//! On one server that loses no data, among programs with the same leases, and as long as no program
//! with the article's scripts has a wrong clock: neither our functions nor the article's scripts
//! grant the lock to anybody while there is a writer, or to a writer while there is a reader; the
//! second part holds only while no program with the article's scripts reads. A hold lasts until it
//! is released or its lease ends. A release ends no other hold. A waiting caller may wait for ever.
//!
//! # Source
//!
//! "集群版" of the article: "获取读锁", "删除读锁", "获取写锁", "删除写锁". The article tries once, and leaves the
//! wait to its caller.
//!
//! # Differences from the article
//!
//! - The time is the server's, with a fraction, so that it never equals one of the article's.
//! - Each holder has its own field, and a release compares the token, not the time.
//! - `read` never moves back. If there are other readers after a release, `read` shows them.
//! - The fields of holders that did not release in time are removed.
//! - A release returns whether the hold was still ours; the article's returns nothing.
//!
//! # Remaining gaps in the article's programs
//!
//! - Its readers overwrite our time. When the last of them releases, the article's writers see no
//!   reader and take the lock, although ours may still read. (Our own writers read the other fields
//!   and do not.) And if the article has two readers, the second one's release frees both.
//! - A client with a fast clock takes a lock before its time is over, and the time that it writes
//!   keeps others out for longer, until the key ends. One with a slow clock moves the readers' time
//!   back, and so ends their hold early.
//! - Two of its clients that start in the same millisecond have the same time, so that one releases
//!   the other's lock.
//! - A steady stream of readers keeps writers out for ever. There is no place for a waiting
//!   writer's intent that the article's readers would read.
//!
//! A hold of this edition cannot be renewed: the lock does not store its length, each program
//! assumes one. Any program with the article's scripts may end the hold, and let another in,
//! without leaving a trace, so the reply to a renewal would prove nothing. There is no
//! [`Hold`](crate::recipes::Hold) for it, so that passing it to a watchdog does not compile. Choose
//! leases longer than the work.
//!
//! ```compile_fail,E0308
//! # fn keep(watchdog: &leasehold::Watchdog) -> leasehold::Result<()> {
//! // A watchdog keeps only holds that can be renewed safely, and this edition has none.
//! let leases = leasehold::recipes::read_write::one_hash::Lifetimes::default();
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

/// The lengths of a lock's holds, which must be the same for all its users.
///
/// The lock itself stores only the start of a hold.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold::recipes::read_write::one_hash::Lifetimes;
///
/// let longer = Lifetimes { read: Duration::from_secs(5), ..Lifetimes::default() };
/// assert_eq!(longer.write, Duration::from_secs(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// The longest hold of a reader (读锁的超时时间). Default 1 s, as in the article.
    pub read: Duration,
    /// The longest hold of a writer (写锁的超时时间). Default 3 s, as in the article.
    pub write: Duration,
    /// The life of the key after the last holder came (key 的过期时间), at least as long as either hold.
    /// Default 10 s, as in the article. It ends a hold whose time is in the future because of a
    /// wrong clock.
    pub key: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(1),
            write: Duration::from_secs(3),
            key: Duration::from_secs(10),
        }
    }
}

impl Lifetimes {
    /// Builds the call of a script that returns 1 if we hold the lock, or held it until now. Checks
    /// the key and the leases first.
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

/// Acquires the lock for reading, waiting up to `acquire_timeout` for the writer.
///
/// Tries at least once: with `Duration::ZERO` it never waits, and with `Duration::MAX` for ever.
/// Retries after a random 1 to 10 ms, with the same token. `Ok(false)`: there was a writer until
/// the deadline. One round trip for each attempt.
///
/// The hold lasts as long as `leases.read`, from when the server grants it, in milliseconds. If
/// sent twice with the same token it is granted once, and its time counts from the second attempt.
///
/// # Errors
/// - [`Error::Invalid`]: the key is empty or longer than 512 bytes; a lease is not between 1 ms and
///   24 h, or the key's is the shortest. Nothing was sent.
/// - [`Error::Unknown`]: no reply came, so the token may hold the lock until the lease ends.
///   Release it, or send the same again, on another connection.
/// - [`Error::WrongKind`]: the key is no hash, or it has a field of another kind of lock, or a
///   value that is no time. Nothing was changed.
/// - [`Error::Redis`]: the server refused; nothing was changed.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write::one_hash};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, leases) = (Token::random(), one_hash::Lifetimes::default());
/// if one_hash::acquire_read(&mut conn, "lockKey", &token, Duration::from_secs(5), &leases)? {
///     // … read, for less than a second …
///     one_hash::release_read(&mut conn, "lockKey", &token, &leases)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_read(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    acquire_timeout: Duration,
    leases: &Lifetimes,
) -> Result<bool> {
    let operation = Operation::new("one_hash::acquire_read", key);
    let call = leases.call(&ACQUIRE_READ_ONE_HASH, key, token)?;
    acquired(conn, operation, token, acquire_timeout, &call)
}

/// Acquires the lock for writing, waiting up to `acquire_timeout` for all holders.
///
/// Tries at least once: with `Duration::ZERO` it never waits, and with `Duration::MAX` for ever.
/// Retries after a random 1 to 10 ms, with the same token. Readers that come meanwhile go first.
/// `Ok(false)`: there was another holder until the deadline. One round trip for each attempt.
///
/// The hold lasts as long as `leases.write`, from when the server grants it, in milliseconds. If
/// sent twice with the same token it is granted once, and its time counts from the second attempt.
///
/// # Errors
/// As [`acquire_read`].
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write::one_hash};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, leases) = (Token::random(), one_hash::Lifetimes::default());
/// if one_hash::acquire_write(&mut conn, "lockKey", &token, Duration::from_secs(5), &leases)? {
///     // … write, for less than three seconds …
///     one_hash::release_write(&mut conn, "lockKey", &token, &leases)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_write(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    acquire_timeout: Duration,
    leases: &Lifetimes,
) -> Result<bool> {
    let operation = Operation::new("one_hash::acquire_write", key);
    let call = leases.call(&ACQUIRE_WRITE_ONE_HASH, key, token)?;
    acquired(conn, operation, token, acquire_timeout, &call)
}

/// Releases a reader's hold. `Ok(false)`: its time was over, so a writer may have held the lock
/// since; nothing was changed.
///
/// Pass the `leases` of the acquire. The last reader's release frees the lock, for the article's
/// writers too. Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: as for [`acquire_read`]. Nothing was sent.
/// - [`Error::Unknown`]: no reply came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Example
/// As for [`acquire_read`].
pub fn release_read(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    leases: &Lifetimes,
) -> Result<bool> {
    let operation = Operation::new("one_hash::release_read", key);
    let call = leases.call(&RELEASE_READ_ONE_HASH, key, token)?;
    call.asks_for(operation, conn)
}

/// Releases the writer's hold. `Ok(false)`: its time was over, so another holder may have had the
/// lock since; nothing was changed.
///
/// Pass the `leases` of the acquire. Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: as for [`acquire_read`]. Nothing was sent.
/// - [`Error::Unknown`]: no reply came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Example
/// As for [`acquire_write`].
pub fn release_write(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    leases: &Lifetimes,
) -> Result<bool> {
    let operation = Operation::new("one_hash::release_write", key);
    let call = leases.call(&RELEASE_WRITE_ONE_HASH, key, token)?;
    call.asks_for(operation, conn)
}
