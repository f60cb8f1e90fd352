//! A lock that its owner may take again: a hash of one owner and a count, and a fencing token.
//!
//! The reentrant lock of the Chinese notes on Redis locks, modelled there on Java's
//! `ReentrantLock`. The key `lock:NAME` is a hash of one field, as in the notes: its name says
//! whose the lock is ([`Owner`]), its value how often. So a program that runs the three scripts of
//! the notes on that key, and one on these functions, share the lock: they exclude each other, and
//! one owner may enter by either.
//!
//! # Owner and token
//!
//! The *owner* is who may enter again: a thread of a process ([`Owner::current_thread`]), or what
//! the caller names ([`Owner::new`]). The *token* names one acquisition. Take a new one for each:
//! that is what makes it safe to send an acquisition or a release again whose answer was lost,
//! since it is counted once, however often it is sent.
//!
//! Each acquisition has a lease of its own: renewing one does not prolong the others. One that
//! nobody gives back or renews, because its process died or its answer was lost, ends with its own
//! lease, however often the owner enters meanwhile. Its level is taken off the count when the owner
//! next enters, or gives another back, a tenth of a second after its end at the earliest; the lock
//! is free at the end of the last of them.
//!
//! Which acquisitions have been counted, and when each ends, stands beside the lock, in a companion
//! key that the scripts of the notes do not know. What they do is told from what we do only by the
//! count:
//!
//! - What they have taken has no token. [`release`] with a new token gives one of these back, as
//!   long as no acquisition of ours is left.
//! - If one owner's lock ends, and the *same* owner takes it again by the script of the notes, a
//!   release of ours that was meant for the hold before gives that one back. Where both are in use,
//!   give them different owners.
//! - The notes' script for renewing moves the end of the key, and not that of an acquisition of
//!   ours.
//!
//! # Guarantees
//!
//! On one server that loses no data, at most one owner at a time, judged by the server's clock, and
//! a lock that is free when the last of its acquisitions has been given back or has ended. The
//! fencing token is greater than that of every hold before, also after `FLUSHALL`, as long as the
//! server's clock does not go back. Not that an owner notices that its lease has ended, nor that
//! waiters are served in turn.
//!
//! [`renew`] and [`release`] do not touch the lock of another owner, and no other acquisition of
//! the same owner, now or later: those have other tokens. [`holds`] changes nothing.
//!
//! # Source
//!
//! Of the notes: the scripts under "可重入锁 … 加锁" ([`try_acquire`]), "自动续期1.0版本" ([`renew`]) and
//! "解锁#可重入锁" ([`release`]); `hget 'lock-key-1' 'thread-1'` under "查询加锁次数" ([`holds`]); and
//! "临界资源竞争者重试(即应用程序重试)", the retrying that they leave to the program ([`acquire`]).
//!
//! # Differences from the document
//!
//! - Milliseconds, checked before anything is written. The script of the notes counts first and
//!   sets the end then: `EXPIRE` with `0.5` fails when the hash is there already, which then never
//!   ends, and with `0` it deletes the lock that it has just answered to have taken.
//! - Entering again never shortens the lease; there it puts the end at the new lease from now, be
//!   it 300 s earlier.
//! - A hash that has no end is given one as soon as its owner enters it again.
//! - What is no lock of this kind is an error; there it is counted up or taken for a lock that is
//!   busy. So is a count of 0, below 0 or that is no number; there a release counts it down
//!   further, and the lock is never freed.
//! - Sent twice an acquire or a release counts once; there it counts twice, and the lock stays
//!   until it ends.
//! - A renewal is for one acquisition, and not for the owner, and never shortens.
//! - The answers of a release are named: nil is [`Release::NotHeld`], 0 [`Release::StillHeld`], 1
//!   [`Release::Freed`].
//! - After the lease has ended and the owner has taken the lock anew, the releases of the hold
//!   before do nothing; there they free the new one.

use std::time::Duration;

use redis::Connection;

pub use super::hold::Grant;
use super::hold::Hold;
use crate::{
    error::{Operation, Result},
    name::{LockName, Owner},
    time::lease_millis,
    token::Token,
    wire::{Call, Refusal, Script, ask, scripts},
};

scripts! {
    ACQUIRE_REENTRANT = "../companion.lua" then "levels.lua" then "acquire.lua";
    RENEW_REENTRANT = "../companion.lua" then "levels.lua" then "renew.lua";
    RELEASE_REENTRANT = "../companion.lua" then "levels.lua" then "release.lua";
}

/// The effect of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was the last: the lock is free. The script of the notes answers 1.
    Freed,
    /// One level less, and still the owner's. The script of the notes answers 0.
    StillHeld {
        /// The number of times that the owner holds it now.
        count: u64,
    },
    /// The lock was not the owner's, or this acquisition was not part of its hold (any more).
    /// Nothing was changed. The script of the notes answers nil.
    NotHeld,
}

/// Takes the lock if it is free, or enters it again if it is the owner's. Never waits.
///
/// `Ok(None)`: another owner has it. The token names this acquisition; sent again with the same
/// token, it is granted again, with the same fencing token, and not counted again.
///
/// The lease is counted in milliseconds, rounded up, from the moment at which the server takes the
/// lock. Entering again sets the end anew, but never earlier than it was.
///
/// One round trip; two when the server has forgotten the script.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is empty, longer than 512 bytes, ends in
///   `:lease`, or has braces other than one non-empty `{tag}`; or the lease is not between 1 ms and
///   24 h. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no answer came. Send it again with the same token,
///   or release it with [`Error::token`](crate::Error::token), on another connection; either is
///   counted right.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is no hash of one owner and a whole
///   count above 0 (a lock of another kind, say), or what stands beside it is no companion. Nothing
///   was changed.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; the lock was not taken.
///
/// # Example
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
    let hold = Hold::reentrant(name, owner, token)?;
    let call = acquiring(&hold, lease_millis("lease", lease)?, Refusal::Bare);
    hold.acquire(conn, "reentrant::try_acquire", Duration::ZERO, &call)
}

/// Takes the lock, or enters it again, waiting up to `acquire_timeout` while another owner has it.
///
/// As [`try_acquire`], looking again after 1 to 10 ms, at random. There is always one try, even for
/// a wait of nothing; `Duration::MAX` waits for ever. `Ok(None)`: another owner had it all the
/// time. The token is the same in every attempt, and an attempt whose answer does not come in time
/// is sent again while the connection is open.
///
/// One round trip an attempt.
///
/// # Errors
/// As [`try_acquire`]. A key that is no lock of this kind ends the wait at once.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Owner, Token, recipes::reentrant};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (owner, token) = (Owner::new("night job")?, Token::random());
/// let (wait, lease) = (Duration::from_secs(5), Duration::from_secs(60));
/// let granted = reentrant::acquire(&mut conn, "report", &owner, &token, wait, lease)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire(
    conn: &mut Connection,
    name: &str,
    owner: &Owner,
    token: &Token,
    acquire_timeout: Duration,
    lease: Duration,
) -> Result<Option<Grant>> {
    let hold = Hold::reentrant(name, owner, token)?;
    let call = acquiring(&hold, lease_millis("lease", lease)?, Refusal::Bare);
    hold.acquire(conn, "reentrant::acquire", acquire_timeout, &call)
}

/// Sets the end of one acquisition's lease anew, never earlier. `Ok(false)`: it is not the owner's
/// any more, was given back, or has ended.
///
/// The token is that of the acquisition. The lock lasts as long as the longest of them; one without
/// an end (`PERSIST`) keeps none. The lease is counted in milliseconds, rounded up, from the moment
/// at which the server renews it; one of a millisecond only asks. A level that was taken by the
/// script of the notes has no token: any new one renews it.
///
/// One round trip; two when the server has forgotten the script.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name, or the lease, as for [`try_acquire`].
///   Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no answer came. It may be sent again.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was renewed.
///
/// # Example
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
///     println!("the lock is not ours any more: stop");
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
    let hold = Hold::reentrant(name, owner, token)?;
    let call = renewing(&hold, lease_millis("lease", lease)?, Levels::AlsoOfTheNotes);
    call.asks_for(Operation::new("reentrant::renew", name), conn)
}

/// Gives one acquisition back, and the lock with the last of them.
///
/// The token is that of the acquisition. Sent again with the same token it is not counted again:
/// the second answer is [`Release::NotHeld`]. Acquisitions may be given back in any order.
///
/// A level that was taken by the script of the notes has no token: any new token gives one back, as
/// long as no acquisition of ours is left.
///
/// One round trip; two when the server has forgotten the script.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name, as for [`try_acquire`]. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no answer came. Send it again with the same token
///   on another connection: [`Release::NotHeld`] then means that it had been done, or that the
///   lease had ended.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was given back.
///
/// # Example
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
    let hold = Hold::reentrant(name, owner, token)?;
    let operation = Operation::new("reentrant::release", name);
    let levels = releasing(&hold, Levels::AlsoOfTheNotes)
        .counts(conn)
        .map_err(|error| operation.unanswered(None, error))?;
    Ok(match levels {
        0 => Release::NotHeld,
        1 => Release::Freed,
        _ => Release::StillHeld { count: levels - 1 },
    })
}

/// Counts how often the owner holds the lock: 0 if it is free or another owner's.
///
/// True at the moment at which the server looked. What has to be true while something is written
/// needs the fencing token.
///
/// One round trip.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name, as for [`try_acquire`]. Nothing was sent.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is no hash, a read-write lock, or the
///   count is no whole number above 0.
/// - [`Error::Redis`](crate::Error::Redis): the server refused or did not answer. There is nothing
///   that may have happened.
///
/// # Example
/// ```no_run
/// use leasehold::{Owner, recipes::reentrant};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let times = reentrant::holds(&mut conn, "report", &Owner::current_thread())?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn holds(conn: &mut Connection, name: &str, owner: &Owner) -> Result<u64> {
    let lock = LockName::new(name)?;
    let operation = Operation::new("reentrant::holds", name);
    // `kind` is a field that only a read-write lock has.
    let mut question = redis::cmd("HMGET");
    question.arg(&[lock.key(), owner.as_str(), "kind"]);
    let answer: (Option<Vec<u8>>, Option<Vec<u8>>) =
        ask(&question, conn).map_err(|error| operation.failed(error))?;
    match answer {
        (None, None) => Ok(0),
        (Some(count), None) => whole_number_above_0(count)
            .ok_or_else(|| operation.wrong_kind("a count that is no whole number above 0")),
        (_, Some(_)) => Err(operation.wrong_kind("a lock of another kind")),
    }
}

fn whole_number_above_0(digits: Vec<u8>) -> Option<u64> {
    let is_digits = digits.iter().all(u8::is_ascii_digit);
    let number = String::from_utf8(digits).ok()?.parse().ok()?;
    (is_digits && number > 0).then_some(number)
}

/// Answers the fencing token and how often the owner holds the lock now, or nil if another owner
/// has it.
pub(super) fn acquiring(hold: &Hold, lease_millis: u64, refusal: Refusal) -> Call {
    on(&ACQUIRE_REENTRANT, hold)
        .arg(lease_millis)
        .arg(refusal.flag())
}

/// The levels of a reentrant lock that a token may stand for.
#[derive(Clone, Copy)]
pub(super) enum Levels {
    /// The acquisition that was counted with it.
    Counted,
    /// Also one that a program on the notes' scripts took, which counts without tokens.
    AlsoOfTheNotes,
}

impl Levels {
    fn flag(self) -> u8 {
        u8::from(matches!(self, Self::Counted))
    }
}

/// Answers whether the acquisition is ours, and now lasts at least so long.
pub(super) fn renewing(hold: &Hold, lease_millis: u64, levels: Levels) -> Call {
    on(&RENEW_REENTRANT, hold)
        .arg(lease_millis)
        .arg(levels.flag())
}

/// Answers how often the owner held the lock until now.
pub(super) fn releasing(hold: &Hold, levels: Levels) -> Call {
    on(&RELEASE_REENTRANT, hold).arg(levels.flag())
}

fn on(script: &'static Script, hold: &Hold) -> Call {
    script
        .on([hold.lock.key(), &hold.lock.companion()])
        .arg(&[hold.owner.as_str(), hold.token.as_str()])
}
