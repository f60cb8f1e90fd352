//! A lock by one atomic `SET … NX` with a lease, and a fencing token.
//!
//! This is the non-reentrant lock of the Chinese notes on Redis locks. It has the same key and
//! value as [the book's lock](crate::acquire_lock): the two exclude each other, and also every
//! other program that locks by `SET … NX`.
//!
//! # The options of `SET`
//!
//! The notes list all of them. This recipe sends only `NX` and `PX`:
//!
//! - **`NX`**, used: on a key of another type the bare command replies "busy" forever;
//!   [`try_acquire`] returns [`Error::WrongKind`].
//! - **`PX` milliseconds**, used: the server refuses 0 and fractions, so a lease is rounded up to
//!   whole milliseconds before it is sent.
//! - **`EX` seconds**, refused: it allows no lease below a second. `EX 0` and `EX 0.5` are errors,
//!   and other languages may round 0.5 down to 0.
//! - **`PXAT` time**, refused: `NX PXAT` with a past time replies OK, **and there is no lock**.
//!   [`End::At`] first checks the server's clock, in a script.
//! - **`EXAT` time**, refused: like `PXAT`, but in whole seconds: the lock ends up to a second
//!   early.
//! - **`KEEPTTL`**, refused: `NX KEEPTTL` on a free key creates a lock that never ends. `XX
//!   KEEPTTL` overwrites the lock of any holder.
//! - **`XX`**, refused: it only checks that the lock has a holder, so it takes the lock from that
//!   holder. On a free key it does nothing.
//! - **`GET`**, refused: it inverts the reply: nil if the lock was *acquired*, the other holder's
//!   token if not. With `NX` it needs Redis 7.
//!
//! A bare `SET` without `NX` takes the lock from its holder, and without an expiry it never ends.
//!
//! [`try_acquire_unfenced`] sends the command itself. The other acquires do the same in a script,
//! which issues the fencing token in the same round trip.
//!
//! # Guarantees
//!
//! On one server that loses no data, there is at most one holder at a time, by the server's clock,
//! and the lock is free no later than its end. The fencing token is greater than that of every
//! earlier hold, even after `FLUSHALL`, as long as the server's clock is not set back.
//! [`try_acquire_unfenced`] issues none, so a late holder can write after the next one. Not
//! guaranteed: that a holder notices the end of its lease, or that waiters are served in order.
//!
//! [`renew`] and [`release`] do not touch a lock that is not ours: no one can acquire it between
//! the comparison and the new end or the deletion.
//!
//! # Source
//!
//! From the notes: `set key value … NX` under "不可重入锁" ([`try_acquire`]), there with `PX`
//! ([`try_acquire_unfenced`]); the script under "解锁#不可重入锁" ([`release`]); the script under "自动续期"
//! ([`renew`]), which exists there only for the reentrant lock; and the retries that
//! "临界资源竞争者重试(即应用程序重试)" leaves to the program ([`acquire`]).
//!
//! # Differences from the document
//!
//! - A script instead of the bare `SET`, for the fencing token. [`try_acquire_unfenced`] sends the
//!   bare command.
//! - An acquire that is sent twice is granted both times, to the same holder; the bare command
//!   refuses its own holder.
//! - A time in the past is an error; `PXAT` replies OK and there is no lock.
//! - A key of another type is an error, not a lock that stays busy forever.
//! - A renewal uses milliseconds instead of seconds, and keeps a later end.
//! - A release leaves the lock's companion, so that the next fencing token is greater. The
//!   companion expires a day or ten leases after the last acquire or renewal, whichever is longer.

use std::time::{Duration, SystemTime};

use redis::{Cmd, Connection};

use super::hold::Hold;
pub use super::plain::Grant;
use crate::{
    error::{Error, Operation, Result},
    name::LockName,
    time::{epoch_millis, lease_millis},
    token::Token,
    wire::{BusyReply, Call, ask, releasing, scripts},
};

scripts! {
    ACQUIRE_MUTEX = "acquire.lua";
    ACQUIRE_UNFENCED_MUTEX = "acquire_unfenced.lua";
    ACQUIRE_MUTEX_UNLESS_RUN = "../once/mark.lua" then "../once/unless_run.lua" then "acquire.lua";
    ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN = "../once/mark.lua" then "../once/unless_run.lua" then "acquire_unfenced.lua";
    RENEW_MUTEX = "../companion.lua" then "renew.lua";
}

/// The end of a lease.
///
/// For example, a lock that is kept until midnight (UTC), so that a report is written at most once
/// a day:
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use leasehold::recipes::mutex::End;
///
/// const DAY: u64 = 24 * 60 * 60;
/// let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() / DAY;
/// let midnight = End::At(SystemTime::UNIX_EPOCH + Duration::from_secs((today + 1) * DAY));
/// # Ok::<(), std::time::SystemTimeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// This long after the server grants the lock: 1 ms to 24 h, rounded up to milliseconds.
    After(Duration),
    /// At this time, rounded up to milliseconds. By the server's clock it must be in the future, at
    /// most 24 h ahead.
    At(SystemTime),
}

/// Acquires the lock if it is free, or already ours. Never waits.
///
/// `Ok(None)`: another holder has it. If repeated with the same token while the lock is held, it is
/// granted again with the same fencing token, and the lease is extended but never shortened. A lock
/// that this token acquired without a fencing token, by [`try_acquire_unfenced`] or by
/// [the book's lock](crate::acquire_lock), gets one.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`]: the name is empty, longer than 512 bytes, ends in `:lease` or
///   `:lease:ran`, or has braces other than one non-empty `{tag}`; the lease is not between 1 ms
///   and 24 h; or the end is in the past or more than 24 h ahead by the server's clock, which is
///   checked even if the lock is busy. Nothing was done.
/// - [`Error::Unknown`]: no reply came, so the lock may be held by [`Error::token`] until its end.
///   Repeat the call with the same token, or [`release`] the lock, on another connection.
/// - [`Error::WrongKind`]: the key is not a string, so it is not a lock of this kind, or its
///   companion key holds something else. Nothing was changed.
/// - [`Error::Redis`]: the server refused; the lock was not acquired.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::mutex::{self, End}};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let token = Token::random();
/// let end = End::After(Duration::from_secs(10));
/// if let Some(grant) = mutex::try_acquire(&mut conn, "report", &token, end)? {
///     println!("write with fencing token {}", grant.fencing_token());
///     mutex::release(&mut conn, "report", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    end: End,
) -> Result<Option<Grant>> {
    Operation::new("mutex::try_acquire", name).run(|operation| {
        let (hold, lease) = end.of(Hold::mutex(name, token)?)?;
        hold.acquire(conn, operation, Duration::ZERO, lease)
    })
}

/// Acquires the lock, waiting up to `timeout` for it.
///
/// Like [`try_acquire`], but retries after a random 1 to 10 ms. Tries at least once, even if
/// `timeout` is zero; `Duration::MAX` waits forever. `Ok(None)`: another holder had the
/// lock until the deadline. All attempts use the same token, and an attempt without a timely reply
/// is repeated while the connection is open.
///
/// One round trip per attempt.
///
/// # Errors
/// As [`try_acquire`]. An [`End::At`] that passes during the wait, and a key that is not a lock of
/// this kind, end the wait at once.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::mutex::{self, End}};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (token, wait) = (Token::random(), Duration::from_secs(90));
/// let end = End::After(Duration::from_secs(60));
/// let granted = mutex::acquire(&mut conn, "report", &token, wait, end)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    timeout: Duration,
    end: End,
) -> Result<Option<Grant>> {
    Operation::new("mutex::acquire", name).run(|operation| {
        let (hold, lease) = end.of(Hold::mutex(name, token)?)?;
        hold.acquire(conn, operation, timeout, lease)
    })
}

/// Acquires the lock by the bare `SET … NX PX`, without a fencing token. Never waits.
///
/// `Ok(false)`: the key exists, with any holder or value. It may be our own lock: after
/// [`Error::Unknown`] do not repeat the call, but [`release`] the lock with the token, or acquire
/// it with the token by [`try_acquire`].
///
/// The lease counts from when the server grants the lock, rounded up to milliseconds. Always one
/// round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name is invalid, as for [`try_acquire`], or the lease is not between 1
///   ms and 24 h. Nothing was sent.
/// - [`Error::Unknown`]: no reply came, so the lock may be held by [`Error::token`] until the lease
///   ends.
/// - [`Error::Redis`]: the server refused; the lock was not acquired.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::mutex};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (token, lease) = (Token::random(), Duration::from_secs(10));
/// let is_ours = mutex::try_acquire_unfenced(&mut conn, "report", &token, lease)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire_unfenced(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    Operation::new("mutex::try_acquire_unfenced", name).run(|operation| {
        let lock = LockName::new(name)?;
        let set = set_if_free(lock.key(), token.as_str(), lease_millis("lease", lease)?);
        ask(&set, conn).map_err(|error| operation.unanswered(Some(token), error))
    })
}

/// Extends the lease to `lease` from now, but never shortens it. `Ok(false)`: the lock is no longer
/// ours.
///
/// The lease counts from when the server renews it, rounded up to milliseconds. A lock of ours
/// without an end, from [`acquire_lock`](crate::acquire_lock), stays without one.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`]: the name or the lease is invalid, as for [`try_acquire_unfenced`]. Nothing
///   was sent.
/// - [`Error::Unknown`]: no reply came. The call can be repeated.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was renewed.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// if !leasehold::recipes::mutex::renew(&mut conn, "report", &token, Duration::from_secs(10))? {
///     println!("the lock is no longer ours: stop");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew(conn: &mut Connection, name: &str, token: &Token, lease: Duration) -> Result<bool> {
    Operation::new("mutex::renew", name)
        .run(|operation| Hold::mutex(name, token)?.renew(conn, operation, lease))
}

/// Releases the lock if it is still ours. `Ok(false)`: it was no longer ours, and nothing was
/// deleted.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`]: the name is invalid, as for [`try_acquire`]. Nothing was sent.
/// - [`Error::Unknown`]: no reply came. The call can be repeated: `Ok(false)` then means that the
///   first call released the lock, or that the lease had ended.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was released.
///
/// # Examples
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours_to_the_end = leasehold::recipes::mutex::release(&mut conn, "report", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release(conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
    Operation::new("mutex::release", name).run(|operation| {
        let call = releasing(LockName::new(name)?.key(), token);
        call.asks_for(operation, conn)
    })
}

impl End {
    /// Gives the hold this end, and returns it with its lease, which is zero for a set moment.
    fn of(self, hold: Hold) -> Result<(Hold, Duration)> {
        match self {
            Self::After(lease) => Ok((hold, lease)),
            Self::At(moment) => match epoch_millis(moment) {
                ends_at @ Some(_) => Ok((Hold { ends_at, ..hold }, Duration::ZERO)),
                None => Err(Error::invalid(
                    "end",
                    "it must be between 1970 and the year 9999",
                )),
            },
        }
    }
}

/// Acquires the lock: the reply is the fencing token, and the number of reserved ones if any were
/// requested, or nil if another holder has the lock. With a period the reply may be the last run
/// instead.
///
/// Without a fencing token the reply is 1 or nil. The first attempt is then the bare command, whose
/// reply is OK. That command does not recognise its own token, so every later attempt is the
/// script.
pub(super) fn acquiring(hold: &Hold, lease_millis: u64, busy_reply: BusyReply) -> Call {
    let (lock, token) = (&hold.lock, hold.token.as_str());
    let call = match (hold.is_fenced, hold.period_millis) {
        (true, None) => ACQUIRE_MUTEX.on([lock.key(), &lock.companion()]),
        (true, Some(_)) => {
            ACQUIRE_MUTEX_UNLESS_RUN.on([lock.key(), &lock.companion(), &lock.run_mark()])
        }
        (false, None) => ACQUIRE_UNFENCED_MUTEX
            .on([lock.key()])
            .first_as(set_if_free(lock.key(), token, lease_millis)),
        (false, Some(_)) => ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN.on([lock.key(), &lock.run_mark()]),
    };
    let call = call.arg(token).arg(lease_millis);
    let call = if hold.is_fenced {
        // Omits optional arguments that have no effect: each costs the server a little time.
        let reserved = (hold.reserved > 0 || hold.ends_at.is_some()).then_some(hold.reserved);
        call.arg(hold.owner.as_str())
            .arg(busy_reply.flag())
            .arg(reserved)
            .arg(hold.ends_at)
    } else {
        call.arg(busy_reply.flag())
    };
    call.arg(hold.period_millis)
}

/// Returns the cheapest command that acquires a lock.
fn set_if_free(key: &str, token: &str, lease_millis: u64) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(&[key, token, "NX", "PX"]).arg(lease_millis);
    set
}

/// Renews the lease: the reply is 1 if the lock is ours, and now lasts at least this long. The
/// companion may be missing even for a fenced hold, if a plain function acquired the lock.
pub(super) fn renewing(hold: &Hold, lease_millis: u64) -> Call {
    let lock = &hold.lock;
    let call = if hold.is_fenced {
        RENEW_MUTEX.on([lock.key(), &lock.companion()])
    } else {
        RENEW_MUTEX.on([lock.key()])
    };
    call.arg(hold.token.as_str()).arg(lease_millis)
}
