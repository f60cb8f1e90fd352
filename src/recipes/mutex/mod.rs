//! A lock by one atomic `SET … NX` with an end, and a fencing token.
//!
//! The non-reentrant lock of the Chinese notes on Redis locks. Same key and value as
//! [`simple`](super::simple): the two exclude each other, and any other program that locks by
//! `SET … NX`.
//!
//! # The options of `SET`
//!
//! The notes list them all. This recipe sends `NX` and `PX` and no other:
//!
//! | option | here | what goes wrong with it |
//! |---|---|---|
//! | `NX` | used | On a key of another type the bare command says "busy", for ever. [`try_acquire`] says [`Error::WrongKind`]. |
//! | `PX` milliseconds | used | The server refuses 0 and fractions, so a lease is rounded up to whole milliseconds before it is sent. |
//! | `EX` seconds | refused | No lease below a second: `EX 0` and `EX 0.5` are errors, and in other languages 0.5 becomes 0 on the way. |
//! | `PXAT` moment | refused | `NX PXAT` with a moment in the past answers OK, **and there is no lock**. [`End::At`] asks the server's clock first, in a script. |
//! | `EXAT` moment | refused | As `PXAT`, and in whole seconds: the lock ends up to a second early. |
//! | `KEEPTTL` | refused | `NX KEEPTTL` on a free key is a lock that never ends. `XX KEEPTTL` overwrites whoever holds it. |
//! | `XX` | refused | Looks whether somebody holds the lock, not who: it takes it from its holder. On a free key it does nothing. |
//! | `GET` | refused | Turns the answer around: nil if the lock was *taken*, the other holder's token if not. With `NX` it needs Redis 7. |
//!
//! A bare `SET` without `NX` takes the lock from its holder, and without an end never gives it
//! back.
//!
//! [`try_acquire_unfenced`] sends the command itself. The other acquires do the same in a script,
//! which hands out the fencing token in the same round trip.
//!
//! # Guarantees
//!
//! On one server that loses no data, at most one holder at a time, judged by the server's clock,
//! and a lock that is free at the latest at its end. The fencing token is greater than that of
//! every hold before, also after `FLUSHALL`, as long as the server's clock does not go back;
//! [`try_acquire_unfenced`] gives none, so that a holder which is late can write after the next
//! one. Not that a holder notices that its lease has ended, nor that waiters are served in turn.
//!
//! [`renew`] and [`release`] do not touch a lock that is not ours: nobody can take it between the
//! comparison and the new end or the deletion.
//!
//! # Source
//!
//! Of the notes: `set key value … NX` under "不可重入锁" ([`try_acquire`]), there with `PX milliseconds`
//! ([`try_acquire_unfenced`]); the script under "解锁#不可重入锁" ([`release`]); the script under "自动续期"
//! ([`renew`]), which there knows only the reentrant lock; and "临界资源竞争者重试(即应用程序重试)", the retrying
//! that they leave to the program ([`acquire`]).
//!
//! # Differences from the document
//!
//! - A script instead of the bare `SET`, for the fencing token. [`try_acquire_unfenced`] is the
//!   bare one, with no difference.
//! - Sent twice it is granted twice, to the same holder; the bare command refuses its own.
//! - A moment in the past is an error; `PXAT` answers OK and there is no lock.
//! - A key of another type is an error, not a lock that is busy for ever.
//! - A renewal counts milliseconds instead of seconds, and leaves an end that is further away.
//! - A release leaves the lock's companion, so that the next fencing token is greater. It ends by
//!   itself, a day or ten leases after the lock was last taken or renewed.

use std::time::{Duration, SystemTime};

use redis::{Cmd, Connection};

pub use super::hold::Grant;
use super::hold::Hold;
use crate::{
    error::{Error, Operation, Result},
    name::LockName,
    time::{epoch_millis, lease_millis},
    token::Token,
    wire::{Call, Refusal, ask, scripts},
};

scripts! {
    ACQUIRE_MUTEX = "acquire.lua";
    ACQUIRE_UNFENCED_MUTEX = "acquire_unfenced.lua";
    ACQUIRE_MUTEX_UNLESS_RUN = "../once/mark.lua" then "../once/unless_run.lua" then "acquire.lua";
    ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN = "../once/mark.lua" then "../once/unless_run.lua" then "acquire_unfenced.lua";
    RENEW_MUTEX = "../companion.lua" then "renew.lua";
    RELEASE_MUTEX = "release.lua";
}

/// When a lease ends.
///
/// A lock until midnight (UTC), so that a report is written at most once a day:
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
    /// So long after the server has taken the lock: 1 ms to 24 h, counted in milliseconds, rounded
    /// up.
    After(Duration),
    /// At this moment, in milliseconds, rounded up. The server's clock judges it: it may not be
    /// past there, and at most 24 h ahead.
    At(SystemTime),
}

/// Takes the lock if it is free, or ours already. Never waits.
///
/// `Ok(None)`: somebody else has it. Sent again with the same token while it is held, it is granted
/// again with the same fencing token; the end is set anew, but never earlier than it was. A lock
/// that this token took without a fencing token, by [`try_acquire_unfenced`] or by
/// [`simple`](super::simple), gets one.
///
/// One round trip; two when the server has forgotten the script.
///
/// # Errors
/// - [`Error::Invalid`]: the name is empty, longer than 512 bytes, ends in `:lease`, or has braces
///   other than one non-empty `{tag}`; the lease is not between 1 ms and 24 h; or the end is past
///   or more than 24 h ahead by the server's clock, whether the lock is free or not. Nothing was
///   done.
/// - [`Error::Unknown`]: no answer came, so the lock may be held by [`Error::token`] until its end.
///   Send it again with the same token, or [`release`] it, on another connection.
/// - [`Error::WrongKind`]: the key is no string, so it is no lock of this kind, or what stands
///   beside it is no companion. Nothing was changed.
/// - [`Error::Redis`]: the server refused; the lock was not taken.
///
/// # Example
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
    let (hold, lease) = end.of(Hold::mutex(name, token)?)?;
    let call = acquiring(&hold, lease, Refusal::Bare);
    hold.acquire(conn, "mutex::try_acquire", Duration::ZERO, &call)
}

/// Takes the lock, waiting up to `acquire_timeout` for it.
///
/// As [`try_acquire`], looking again after 1 to 10 ms, at random. There is always one try, even for
/// a wait of nothing; `Duration::MAX` waits for ever. `Ok(None)`: somebody else had it all the
/// time. The token is the same in every attempt, and an attempt whose answer does not come in time
/// is sent again while the connection is open.
///
/// One round trip an attempt.
///
/// # Errors
/// As [`try_acquire`]. An [`End::At`] that passes during the wait, and a key that is no lock of
/// this kind, end it at once.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::mutex::{self, End}};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (token, wait) = (Token::random(), Duration::from_secs(5));
/// let granted = mutex::acquire(&mut conn, "report", &token, wait, End::After(Duration::from_secs(60)))?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    acquire_timeout: Duration,
    end: End,
) -> Result<Option<Grant>> {
    let (hold, lease) = end.of(Hold::mutex(name, token)?)?;
    let call = acquiring(&hold, lease, Refusal::Bare);
    hold.acquire(conn, "mutex::acquire", acquire_timeout, &call)
}

/// Takes the lock by the bare `SET … NX PX`, without a fencing token. Never waits.
///
/// `Ok(false)`: the key is there, whoever's it is and whatever it holds. That may also be our own
/// lock: after [`Error::Unknown`] do not send it again, but [`release`] the token, or take the lock
/// by [`try_acquire`] with it.
///
/// The lease is counted in milliseconds, rounded up, from the moment at which the server takes the
/// lock. One round trip, always.
///
/// # Errors
/// - [`Error::Invalid`]: the name, as for [`try_acquire`], or a lease that is not between 1 ms and
///   24 h. Nothing was sent.
/// - [`Error::Unknown`]: no answer came, so the lock may be held by [`Error::token`] until the
///   lease ends.
/// - [`Error::Redis`]: the server refused; the lock was not taken.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::mutex};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let token = Token::random();
/// let is_ours = mutex::try_acquire_unfenced(&mut conn, "report", &token, Duration::from_secs(10))?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire_unfenced(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let lock = LockName::new(name)?;
    let set = set_if_free(lock.key(), token.as_str(), lease_millis("lease", lease)?);
    let operation = Operation::new("mutex::try_acquire_unfenced", name);
    ask(&set, conn).map_err(|error| operation.unanswered(Some(token), error))
}

/// Sets the end of the lease anew, never earlier. `Ok(false)`: the lock is not ours any more.
///
/// The lease is counted in milliseconds, rounded up, from the moment at which the server renews it.
/// A lock of ours that has no end ([`acquire_lock`](super::simple::acquire_lock)) keeps none.
///
/// One round trip; two when the server has forgotten the script.
///
/// # Errors
/// - [`Error::Invalid`]: the name, or the lease, as for [`try_acquire_unfenced`]. Nothing was sent.
/// - [`Error::Unknown`]: no answer came. It may be sent again.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was renewed.
///
/// # Example
/// ```no_run
/// # use std::time::Duration;
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// if !leasehold::recipes::mutex::renew(&mut conn, "report", &token, Duration::from_secs(10))? {
///     println!("the lock is not ours any more: stop");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew(conn: &mut Connection, name: &str, token: &Token, lease: Duration) -> Result<bool> {
    let call = renewing(&Hold::mutex(name, token)?, lease_millis("lease", lease)?);
    call.asks_for(Operation::new("mutex::renew", name), conn)
}

/// Gives the lock back, if it is still ours. `Ok(false)`: it was not ours any more, and nothing was
/// deleted.
///
/// One round trip; two when the server has forgotten the script.
///
/// # Errors
/// - [`Error::Invalid`]: the name, as for [`try_acquire`]. Nothing was sent.
/// - [`Error::Unknown`]: no answer came. It may be sent again: `Ok(false)` then means that it had
///   been done, or that the lease had ended.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was given back.
///
/// # Example
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours_to_the_end = leasehold::recipes::mutex::release(&mut conn, "report", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release(conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
    let call = releasing(LockName::new(name)?.key(), token);
    call.asks_for(Operation::new("mutex::release", name), conn)
}

impl End {
    /// The hold that ends then, and its lease in milliseconds, which does not count for a moment.
    fn of(self, hold: Hold) -> Result<(Hold, u64)> {
        match self {
            Self::After(lease) => Ok((hold, lease_millis("lease", lease)?)),
            Self::At(moment) => match epoch_millis(moment) {
                ends_at @ Some(_) => Ok((Hold { ends_at, ..hold }, 0)),
                None => Err(Error::invalid(
                    "end",
                    "it has to lie between 1970 and the year 9999",
                )),
            },
        }
    }
}

/// Answers the fencing token, and the number of reserved ones if any were asked for, or nil if
/// somebody else has the lock; where it is wanted unless the work has been run, who ran it and
/// when.
///
/// Without a fencing token it answers 1 or nil, and is first sent as the bare command, which
/// answers OK. That does not recognise its own token, so whatever comes after it is the script.
pub(super) fn acquiring(hold: &Hold, lease_millis: u64, refusal: Refusal) -> Call {
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
        // The last ones are left out where they say nothing: each costs the server a little.
        let reserved = (hold.reserved > 0 || hold.ends_at.is_some()).then_some(hold.reserved);
        call.arg(hold.owner.as_str())
            .arg(refusal.flag())
            .arg(reserved)
            .arg(hold.ends_at)
    } else {
        call.arg(refusal.flag())
    };
    call.arg(hold.period_millis)
}

/// The shortest way to take a lock.
fn set_if_free(key: &str, token: &str, lease_millis: u64) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(&[key, token, "NX", "PX"]).arg(lease_millis);
    set
}

/// Answers whether the lock is ours, and now lasts at least so long. The plain functions may have
/// taken a lock that has no companion, though this hold is to have one.
pub(super) fn renewing(hold: &Hold, lease_millis: u64) -> Call {
    let lock = &hold.lock;
    let call = if hold.is_fenced {
        RENEW_MUTEX.on([lock.key(), &lock.companion()])
    } else {
        RENEW_MUTEX.on([lock.key()])
    };
    call.arg(hold.token.as_str()).arg(lease_millis)
}

/// Answers whether the lock at this key was ours until now.
pub(super) fn releasing(key: &str, token: &Token) -> Call {
    RELEASE_MUTEX.on([key]).arg(token.as_str())
}
