//! A lock that its owner may acquire again: a hash of one owner and a count, and a fencing token.
//!
//! This is the reentrant lock of the Chinese notes on Redis locks, modelled there on Java's
//! `ReentrantLock`. As in the notes, the key `lock:NAME` is a hash of one field: the name of the
//! field is the [`Owner`], and its value the number of times that the owner holds the lock. So
//! programs that use the three scripts of the notes and programs that use these functions share the
//! lock: they exclude each other, and one owner may enter through either.
//!
//! # Owner and token
//!
//! The *owner* may enter again: a thread of a process ([`Owner::current_thread`]), or a name of the
//! caller's choice ([`Owner::new`]). The *token* identifies one acquisition. Use a new one for
//! each: an acquire or a release whose reply was lost can then be repeated, because it is counted
//! only once.
//!
//! Each acquisition has its own lease: renewing one does not extend the others. An acquisition that
//! is neither released nor renewed, because its process died or its reply was lost, ends with its
//! own lease, even if the owner enters again meanwhile. The owner's next acquire or release, at the
//! earliest 100 ms after that end, subtracts its level from the count; the lock is free when the
//! last acquisition ends.
//!
//! The acquisitions and their ends are stored in a companion key that the notes' scripts do not
//! know. Only the count shows levels that these scripts acquired:
//!
//! - Such a level has no token. [`release`] with a new token releases one of them, once none of our
//!   acquisitions is left.
//! - If an owner's lock ends, and the *same* owner acquires it again by the notes' script, then a
//!   late release of ours, meant for the earlier hold, releases the new one. If you use both, give
//!   them different owners.
//! - The notes' renewal script extends the key, but none of our acquisitions.
//!
//! # Guarantees
//!
//! On one server that loses no data, there is at most one owner at a time, by the server's clock,
//! and the lock is free when its last acquisition is released or ends. The fencing token is greater
//! than that of every earlier hold, even after `FLUSHALL`, as long as the server's clock is not set
//! back. Not guaranteed: that an owner notices the end of its lease, or that waiters are served in
//! order.
//!
//! [`renew`] and [`release`] touch neither another owner's lock nor another acquisition of the same
//! owner, now or later: those have other tokens. [`holds`] changes nothing.
//!
//! # Source
//!
//! From the notes: the scripts under "可重入锁 … 加锁" ([`try_acquire`]), "自动续期1.0版本" ([`renew`]) and
//! "解锁#可重入锁" ([`release`]); `hget 'lock-key-1' 'thread-1'` under "查询加锁次数" ([`holds`]); and the
//! retries that "临界资源竞争者重试(即应用程序重试)" leaves to the program ([`acquire`]).
//!
//! # Differences from the document
//!
//! - Leases are milliseconds, checked before the first write. The notes' script counts first and
//!   then sets the end: `EXPIRE` with `0.5` fails after the hash was written, which then never
//!   ends, and with `0` it deletes the lock that the script reports as acquired.
//! - Re-entry never shortens the lease; the notes set the end to the new lease from now, even if
//!   that is 300 s earlier.
//! - A hash without an end gets one when its owner enters again.
//! - A key that is not a lock of this kind is an error; the notes' scripts increment it or report a
//!   busy lock. So is a count that is 0, negative or not a number; the notes' release decrements it
//!   further, and the lock is never freed.
//! - An acquire or a release that is sent twice counts once; in the notes it counts twice, and the
//!   lock stays until it ends.
//! - A renewal applies to one acquisition, not to the owner, and never shortens it.
//! - The replies of a release have names: nil is [`Release::NotHeld`], 0 [`Release::StillHeld`], 1
//!   [`Release::Freed`].
//! - If the lease has ended and the owner has acquired the lock again, releases of the earlier hold
//!   do nothing; in the notes they free the new hold.

mod ended;

use std::time::Duration;

use redis::Connection;

pub(crate) use ended::EndedHolds;

use super::hold::Hold;
pub use super::plain::Grant;
use crate::{
    error::{Operation, Result},
    name::{LockName, Owner},
    time::lease_millis,
    token::Token,
    wire::{BusyReply, Call, Script, ask, scripts},
};

scripts! {
    ACQUIRE_REENTRANT = "../companion.lua" then "levels.lua" then "acquire.lua";
    RENEW_REENTRANT = "../companion.lua" then "levels.lua" then "renew.lua";
    RELEASE_REENTRANT = "../companion.lua" then "levels.lua" then "release.lua";
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was the last acquisition: the lock is free. The notes' script replies 1.
    Freed,
    /// One acquisition was released; the owner still holds the lock. The notes' script replies 0.
    StillHeld {
        /// The number of times that the owner still holds the lock.
        count: u64,
    },
    /// The owner does not hold the lock, or no longer holds it by this acquisition. Nothing was
    /// changed. The notes' script replies nil.
    NotHeld,
}

/// Acquires the lock if it is free, or enters it again if the owner holds it. Never waits.
///
/// `Ok(None)`: another owner has it. The token identifies this acquisition: if repeated with the
/// same token, it is granted again with the same fencing token, and not counted again.
///
/// The lease counts from when the server grants the lock, rounded up to milliseconds. Re-entry
/// never shortens it.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is empty, longer than 512 bytes, ends in
///   `:lease` or `:lease:ran`, or has braces other than one non-empty `{tag}`; or the lease is not
///   between 1 ms and 24 h. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. Repeat the call with the same token,
///   or release with [`Error::token`](crate::Error::token), on another connection: the count stays
///   correct either way.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is not a hash of one owner and a whole
///   count above 0, or its companion key is not a companion. Nothing was changed.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; the lock was not acquired.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Owner, Token, recipes::reentrant};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (owner, token) = (Owner::current_thread(), Token::random());
/// let lease = Duration::from_secs(10);
/// if let Some(grant) = reentrant::try_acquire(&mut conn, "report", &owner, &token, lease)? {
///     println!("held {} times, write with {}", grant.count(), grant.fencing_token());
///     reentrant::release(&mut conn, "report", &owner, &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire(
    conn: &mut Connection,
    name: &str,
    owner: &Owner,
    token: &Token,
    lease: Duration,
) -> Result<Option<Grant>> {
    Operation::new("reentrant::try_acquire", name).run(|operation| {
        Hold::reentrant(name, owner, token)?.acquire(conn, operation, Duration::ZERO, lease)
    })
}

/// Acquires the lock, or enters it again, waiting up to `timeout` while another owner has
/// it.
///
/// Like [`try_acquire`], but retries after a random 1 to 10 ms. Tries at least once, even if
/// `timeout` is zero; `Duration::MAX` waits forever. `Ok(None)`: another owner had the lock
/// until the deadline. All attempts use the same token, and an attempt without a timely reply is
/// repeated while the connection is open.
///
/// One round trip per attempt.
///
/// # Errors
/// As [`try_acquire`]. A key that is not a lock of this kind ends the wait at once.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Owner, Token, recipes::reentrant};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (owner, token) = (Owner::new("night job")?, Token::random());
/// let (wait, lease) = (Duration::from_secs(90), Duration::from_secs(60));
/// let granted = reentrant::acquire(&mut conn, "report", &owner, &token, wait, lease)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire(
    conn: &mut Connection,
    name: &str,
    owner: &Owner,
    token: &Token,
    timeout: Duration,
    lease: Duration,
) -> Result<Option<Grant>> {
    Operation::new("reentrant::acquire", name).run(|operation| {
        Hold::reentrant(name, owner, token)?.acquire(conn, operation, timeout, lease)
    })
}

/// Extends one acquisition's lease to `lease` from now, but never shortens it. `Ok(false)`: it is
/// no longer the owner's, was released, or has ended.
///
/// Pass the token of the acquisition. The lock lasts as long as its longest acquisition; one
/// without an end (after `PERSIST`) stays without one. The lease counts from when the server renews
/// it, rounded up to milliseconds; a lease of 1 ms only checks the acquisition. A level acquired by
/// the notes' script has no token: any new token renews it.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name or the lease is invalid, as for
///   [`try_acquire`]. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. The call can be repeated.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was renewed.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Owner, Token, recipes::reentrant};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = Token::random();
/// let owner = Owner::current_thread();
/// if !reentrant::renew(&mut conn, "report", &owner, &token, Duration::from_secs(10))? {
///     println!("the lock is no longer ours: stop");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew(
    conn: &mut Connection,
    name: &str,
    owner: &Owner,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    Operation::new("reentrant::renew", name).run(|operation| {
        let hold = Hold::reentrant(name, owner, token)?;
        let call = renewing(&hold, lease_millis("lease", lease)?, Levels::AlsoOfTheNotes);
        call.asks_for(operation, conn)
    })
}

/// Releases one acquisition. The release of the last one frees the lock.
///
/// Pass the token of the acquisition. A repeated release does not count again: its result is
/// [`Release::NotHeld`]. Acquisitions may be released in any order.
///
/// A level acquired by the notes' script has no token: any new token releases one, once none of our
/// acquisitions is left.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for [`try_acquire`].
///   Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. Repeat the call with the same token
///   on another connection: [`Release::NotHeld`] then means that the first call released it, or
///   that the lease had ended.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was released.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// use leasehold::recipes::reentrant::{self, Release};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let (owner, token) = (leasehold::Owner::current_thread(), leasehold::Token::random());
/// match reentrant::release(&mut conn, "report", &owner, &token)? {
///     Release::Freed => println!("free"),
///     Release::StillHeld { count } => println!("still held {count} times"),
///     Release::NotHeld => println!("the lease had ended before"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release(conn: &mut Connection, name: &str, owner: &Owner, token: &Token) -> Result<Release> {
    Operation::new("reentrant::release", name).run(|operation| {
        let hold = Hold::reentrant(name, owner, token)?;
        let levels = releasing(&hold, Levels::AlsoOfTheNotes)
            .counts(conn)
            .map_err(|error| operation.unanswered(None, error))?;
        Ok(match levels {
            0 => Release::NotHeld,
            1 => Release::Freed,
            _ => Release::StillHeld { count: levels - 1 },
        })
    })
}

/// Returns the number of times that the owner holds the lock: 0 if it is free or another owner's.
///
/// The result holds only for the moment of the query. To protect a write, use the fencing token.
///
/// One round trip.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for [`try_acquire`].
///   Nothing was sent.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is not a hash, is a read-write lock, or
///   its count is not a whole number above 0.
/// - [`Error::Redis`](crate::Error::Redis): the server refused or did not reply. Nothing was
///   changed, since this only reads.
///
/// # Examples
/// ```no_run
/// use leasehold::{Owner, recipes::reentrant};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let times = reentrant::holds(&mut conn, "report", &Owner::current_thread())?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn holds(conn: &mut Connection, name: &str, owner: &Owner) -> Result<u64> {
    Operation::new("reentrant::holds", name).run(|operation| {
        let lock = LockName::new(name)?;
        // Only a read-write lock has the field `kind`.
        let mut question = redis::cmd("HMGET");
        question.arg(&[lock.key(), owner.as_str(), "kind"]);
        let answer: (Option<Vec<u8>>, Option<Vec<u8>>) =
            ask(&question, conn).map_err(|error| operation.failed(error))?;
        match answer {
            (None, None) => Ok(0),
            (Some(count), None) => whole_number_above_0(count)
                .ok_or_else(|| operation.wrong_kind("a count that is not a whole number above 0")),
            (_, Some(_)) => Err(operation.wrong_kind("a lock of another kind")),
        }
    })
}

fn whole_number_above_0(digits: Vec<u8>) -> Option<u64> {
    let is_digits = digits.iter().all(u8::is_ascii_digit);
    let number = String::from_utf8(digits).ok()?.parse().ok()?;
    (is_digits && number > 0).then_some(number)
}

/// Acquires the lock: the reply is the fencing token and the owner's count, or nil if another owner
/// has the lock.
pub(super) fn acquiring(hold: &Hold, lease_millis: u64, busy_reply: BusyReply) -> Call {
    let ended = hold.ended.as_ref();
    on(&ACQUIRE_REENTRANT, hold)
        .arg(lease_millis)
        .arg(busy_reply.flag())
        .arg(ended.map_or(0, |ended| ended.last(hold.lock.key()).get()))
}

/// The levels of a reentrant lock that a token may renew or release.
#[derive(Clone, Copy)]
pub(super) enum Levels {
    /// Only the acquisition that was counted with the token.
    Counted,
    /// Also a level acquired by the notes' scripts, which has no token.
    AlsoOfTheNotes,
}

impl Levels {
    fn flag(self) -> u8 {
        u8::from(matches!(self, Self::Counted))
    }
}

/// Renews the lease: the reply is 1 if the acquisition is ours, and now lasts at least this long.
pub(super) fn renewing(hold: &Hold, lease_millis: u64, levels: Levels) -> Call {
    on(&RENEW_REENTRANT, hold)
        .arg(lease_millis)
        .arg(levels.flag())
}

/// Releases an acquisition: the reply is the owner's count before the release.
pub(super) fn releasing(hold: &Hold, levels: Levels) -> Call {
    on(&RELEASE_REENTRANT, hold).arg(levels.flag())
}

fn on(script: &'static Script, hold: &Hold) -> Call {
    script
        .on([hold.lock.key(), &hold.lock.companion()])
        .arg(&[hold.owner.as_str(), hold.token.as_str()])
}
