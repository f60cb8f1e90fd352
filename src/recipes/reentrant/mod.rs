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

pub(crate) mod calls;

use std::time::Duration;

use redis::{ConnectionLike, RedisResult};

use self::calls::Levels;
use super::wait::until_granted;
use crate::{
    error::{Operation, Result},
    name::{LockName, Owner},
    script::{Call, Refusal, ask},
    time::lease_millis,
    token::{FencingToken, Token},
};

/// What an acquire grants beside the lock itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    fencing_token: FencingToken,
    count: u64,
}

impl Grant {
    /// The number to hand to the resource that the lock protects: the same from the first
    /// acquisition of a hold until its last release.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }

    /// How often the owner holds the lock now: 1 for the first time.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// What a release has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was the last: the lock is free. The script of the notes answers 1.
    Freed,
    /// One level less, and still the owner's. The script of the notes answers 0.
    StillHeld {
        /// How often the owner holds it now.
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
/// if let Some(grant) = reentrant::try_acquire(&mut *conn, "report", &owner, &token, lease)? {
///     println!("held {} times, write with {}", grant.count(), grant.fencing_token());
///     reentrant::release(&mut *conn, "report", &owner, &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire<C: ConnectionLike>(
    conn: &mut C,
    name: &str,
    owner: &Owner,
    token: &Token,
    lease: Duration,
) -> Result<Option<Grant>> {
    let lock = LockName::new(name)?;
    let millis = lease_millis("lease", lease)?;
    let call = calls::acquire(&lock, owner, token, millis, Refusal::Bare);
    let operation = Operation::new("reentrant::try_acquire", name);
    attempt(conn, &call).map_err(|error| operation.unanswered(Some(token), error))
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
/// let granted = reentrant::acquire(&mut *conn, "report", &owner, &token, wait, lease)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire<C: ConnectionLike>(
    conn: &mut C,
    name: &str,
    owner: &Owner,
    token: &Token,
    acquire_timeout: Duration,
    lease: Duration,
) -> Result<Option<Grant>> {
    let lock = LockName::new(name)?;
    let millis = lease_millis("lease", lease)?;
    let call = calls::acquire(&lock, owner, token, millis, Refusal::Bare);
    let operation = Operation::new("reentrant::acquire", name);
    until_granted(conn, operation, token, acquire_timeout, |conn| {
        attempt(conn, &call)
    })
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
/// if !reentrant::renew(&mut *conn, "report", &owner, &token, Duration::from_secs(10))? {
///     println!("the lock is not ours any more: stop");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew<C: ConnectionLike>(
    conn: &mut C,
    name: &str,
    owner: &Owner,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let lock = LockName::new(name)?;
    let millis = lease_millis("lease", lease)?;
    let call = calls::renew(&lock, owner, token, millis, Levels::AlsoOfTheNotes);
    let operation = Operation::new("reentrant::renew", name);
    call.asks_for(operation, conn)
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
/// match reentrant::release(&mut *conn, "report", &owner, &token)? {
///     Release::Freed => println!("free"),
///     Release::StillHeld { count } => println!("still held {count} times"),
///     Release::NotHeld => println!("the lease had ended before"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release<C: ConnectionLike>(
    conn: &mut C,
    name: &str,
    owner: &Owner,
    token: &Token,
) -> Result<Release> {
    let lock = LockName::new(name)?;
    let operation = Operation::new("reentrant::release", name);
    let held = calls::release(&lock, owner, token, Levels::AlsoOfTheNotes)
        .counts(conn)
        .map_err(|error| operation.unanswered(None, error))?;
    Ok(match held {
        0 => Release::NotHeld,
        1 => Release::Freed,
        _ => Release::StillHeld { count: held - 1 },
    })
}

/// How often the owner holds the lock; 0 if it is free or another owner's.
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
/// let times = reentrant::holds(&mut *conn, "report", &Owner::current_thread())?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn holds<C: ConnectionLike>(conn: &mut C, name: &str, owner: &Owner) -> Result<u64> {
    let lock = LockName::new(name)?;
    let operation = Operation::new("reentrant::holds", name);
    let (count, kind) =
        count_and_kind(conn, &lock, owner).map_err(|error| operation.failed(error))?;
    match (count, kind) {
        (None, None) => Ok(0),
        (Some(count), None) => whole_number_above_0(&count)
            .ok_or_else(|| operation.wrong_kind("a count that is no whole number above 0")),
        (_, Some(_)) => Err(operation.wrong_kind("a lock of another kind")),
    }
}

type Bytes = Vec<u8>;

/// The owner's count, and what only the hash of a read-write lock has.
fn count_and_kind(
    conn: &mut dyn ConnectionLike,
    lock: &LockName,
    owner: &Owner,
) -> RedisResult<(Option<Bytes>, Option<Bytes>)> {
    let mut question = redis::cmd("HMGET");
    question.arg(lock.key()).arg(owner.as_str()).arg("kind");
    ask(&question, conn)
}

fn whole_number_above_0(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let number = text.parse().ok().filter(|number| *number > 0)?;
    text.starts_with(|first: char| first.is_ascii_digit())
        .then_some(number)
}

fn attempt(conn: &mut dyn ConnectionLike, call: &Call) -> RedisResult<Option<Grant>> {
    let granted: Option<(u64, u64)> = call.send(conn)?;
    Ok(granted.map(|(number, count)| Grant {
        fencing_token: FencingToken::new(number),
        count,
    }))
}
