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
//! ignore a field that is older than the length of its hold ([`Lifetimes`]). We use these two in
//! the same way, so the article's programs and ours exclude each other. We add a field for each of
//! our holders, `read:<token>` or `write:<token>`, which the article's scripts do not read. So
//! among our own functions
//! - a second reader does not displace the first: each is released by its own token, and the last
//!   one frees the lock;
//! - a release never ends another hold, and returns whether the hold was still ours;
//! - the times are the server's, so a client's clock cannot admit it too early or keep others out
//!   too long, and a reader cannot move the time back;
//! - a hold that is over leaves no field behind, and the key's life is never shortened.
//!
//! # Guarantees
//!
//! On one server that loses no data, among programs with the same leases, and as long as no program
//! that uses the article's scripts has a wrong clock: neither our functions nor the article's
//! scripts grant the lock to anyone while a writer holds it, or to a writer while a reader holds
//! it; the second part holds only while no program reads through the article's scripts. A hold
//! lasts until it is released or its lease ends. A release ends no other hold. A caller may wait
//! forever.
//!
//! # Source
//!
//! "集群版" of the article: "获取读锁", "删除读锁", "获取写锁", "删除写锁". The article tries once, and leaves the
//! wait to its caller.
//!
//! # Differences from the article
//!
//! - The time is the server's, with a fraction, so it never equals one of the article's.
//! - Each holder has its own field, and a release compares the token, not the time.
//! - `read` never moves back. If other readers remain after a release, `read` shows them.
//! - Fields of holders that did not release in time are removed.
//! - A release returns whether the hold was still ours; the article's returns nothing.
//!
//! # Remaining gaps in the article's programs
//!
//! - Its readers overwrite our time. When the last of them releases, the article's writers see no
//!   reader and acquire the lock, although ours may still read. (Our own writers read the other
//!   fields and do not.) And if two of the article's readers hold the lock, the second one's
//!   release frees both.
//! - A client with a fast clock acquires a lock before the hold of another has ended, and the time
//!   that it writes keeps others out for longer, until the key ends. One with a slow clock moves
//!   the readers' time back, which ends their hold early.
//! - Two of its clients that start in the same millisecond have the same time, so one releases the
//!   other's lock.
//! - A steady stream of readers keeps writers out forever. The article's readers read no field in
//!   which a waiting writer could announce itself.
//!
//! A hold of this edition cannot be renewed: the lock does not store its length, which each program
//! assumes. Any program that uses the article's scripts may end the hold, and let another in,
//! without leaving a trace, so the reply to a renewal would prove nothing. It has no
//! [`Hold`](crate::recipes::Hold), so passing it to a watchdog does not compile. Choose leases
//! longer than the work.
//!
//! ```compile_fail,E0308
//! # fn keep(watchdog: &leasehold::Watchdog) -> leasehold::Result<()> {
//! // A watchdog keeps only holds that can be renewed safely. This edition has none.
//! let leases = leasehold::book::article::one_hash::Lifetimes::default();
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
/// use leasehold::book::article::one_hash::Lifetimes;
///
/// let longer = Lifetimes { read: Duration::from_secs(5), ..Lifetimes::default() };
/// assert_eq!(longer.write, Duration::from_secs(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// The maximum time of a reader's hold (读锁的超时时间). Default 1 s, as in the article.
    pub read: Duration,
    /// The maximum time of a writer's hold (写锁的超时时间). Default 3 s, as in the article.
    pub write: Duration,
    /// The lifetime of the key after the last acquire (key 的过期时间), at least as long as either hold.
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
            let reason = "it must not be shorter than the other leases: the end of the key ends \
                          the holds";
            return Err(Error::invalid("key lease", reason));
        }
        let call = script.on([key]).arg(token.as_str());
        Ok(call.arg(&[read, write, whole]))
    }
}

/// Acquires the lock for reading, waiting up to `acquire_timeout` for the writer.
///
/// Tries at least once: `Duration::ZERO` never waits, `Duration::MAX` waits forever. Retries after
/// a random 1 to 10 ms, with the same token. `Ok(false)`: a writer held the lock until the
/// deadline. One round trip for each attempt.
///
/// The hold lasts as long as `lifetimes.read`, from when the server grants it, in milliseconds. If
/// repeated with the same token it counts once, and its time counts from the second attempt.
///
/// # Errors
/// - [`Error::Invalid`]: the key is empty or longer than 512 bytes; a lease is not between 1 ms and
///   24 h, or that of the key is the shortest. Nothing was sent.
/// - [`Error::Unknown`]: no reply came, so the token may hold the lock until the lease ends.
///   Release it, or repeat the call, on another connection.
/// - [`Error::WrongKind`]: the key is not a hash, or it has a field of another kind of lock, or a
///   value that is not a time. Nothing was changed.
/// - [`Error::Redis`]: the server refused; nothing was changed.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, book::article::one_hash};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, lifetimes) = (Token::random(), one_hash::Lifetimes::default());
/// if one_hash::acquire_read(&mut conn, "lockKey", &token, Duration::from_secs(5), &lifetimes)? {
///     // … read, for less than a second …
///     one_hash::release_read(&mut conn, "lockKey", &token, &lifetimes)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_read(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    acquire_timeout: Duration,
    lifetimes: &Lifetimes,
) -> Result<bool> {
    Operation::new("one_hash::acquire_read", key).run(|operation| {
        let call = lifetimes.call(&ACQUIRE_READ_ONE_HASH, key, token)?;
        acquired(conn, operation, token, acquire_timeout, &call)
    })
}

/// Acquires the lock for writing, waiting up to `acquire_timeout` for all holders.
///
/// Tries at least once: `Duration::ZERO` never waits, `Duration::MAX` waits forever. Retries after
/// a random 1 to 10 ms, with the same token. Readers that come meanwhile go first. `Ok(false)`:
/// someone else held the lock until the deadline. One round trip for each attempt.
///
/// The hold lasts as long as `lifetimes.write`, from when the server grants it, in milliseconds. If
/// repeated with the same token it counts once, and its time counts from the second attempt.
///
/// # Errors
/// As [`acquire_read`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, book::article::one_hash};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, lifetimes) = (Token::random(), one_hash::Lifetimes::default());
/// if one_hash::acquire_write(&mut conn, "lockKey", &token, Duration::from_secs(5), &lifetimes)? {
///     // … write, for less than three seconds …
///     one_hash::release_write(&mut conn, "lockKey", &token, &lifetimes)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_write(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    acquire_timeout: Duration,
    lifetimes: &Lifetimes,
) -> Result<bool> {
    Operation::new("one_hash::acquire_write", key).run(|operation| {
        let call = lifetimes.call(&ACQUIRE_WRITE_ONE_HASH, key, token)?;
        acquired(conn, operation, token, acquire_timeout, &call)
    })
}

/// Releases a reader's hold. `Ok(false)`: its time was over, so a writer may have held the lock
/// since then; nothing was changed.
///
/// Pass the `lifetimes` of the acquire. The last reader's release frees the lock, for the article's
/// writers too. Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: as for [`acquire_read`]. Nothing was sent.
/// - [`Error::Unknown`]: no reply came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Examples
/// As for [`acquire_read`].
pub fn release_read(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    lifetimes: &Lifetimes,
) -> Result<bool> {
    Operation::new("one_hash::release_read", key).run(|operation| {
        let call = lifetimes.call(&RELEASE_READ_ONE_HASH, key, token)?;
        call.asks_for(operation, conn)
    })
}

/// Releases the writer's hold. `Ok(false)`: its time was over, so someone else may have held the
/// lock since then; nothing was changed.
///
/// Pass the `lifetimes` of the acquire. Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: as for [`acquire_read`]. Nothing was sent.
/// - [`Error::Unknown`]: no reply came; the hold is over now or at the end of its lease.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Examples
/// As for [`acquire_write`].
pub fn release_write(
    conn: &mut Connection,
    key: &str,
    token: &Token,
    lifetimes: &Lifetimes,
) -> Result<bool> {
    Operation::new("one_hash::release_write", key).run(|operation| {
        let call = lifetimes.call(&RELEASE_WRITE_ONE_HASH, key, token)?;
        call.asks_for(operation, conn)
    })
}
