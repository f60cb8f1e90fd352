//! At most N holders at once: a sorted set of tokens, each with an end of its own.
//!
//! The key `lock:NAME` is a sorted set. A member is a holder's token, and its score the end of that
//! holder's permit in milliseconds by the server's clock. So each holder has its own lease: the
//! permit of a holder that crashed is free once its lease has ended, even if others renew theirs,
//! and a release removes only its own. The companion, a hash, tells people who holds and since
//! when. Both keys are gone with the last permit.
//!
//! # The number of permits
//!
//! Each acquire names the number, and is granted if fewer permits than that are held. It is not
//! stored as a rule for others: to change it, start the new program beside the old one. Until all
//! callers name the new number, each is judged by its own, and [`holders`] shows what each of them
//! counts. If more are held than a caller counts, nobody loses a permit: that caller waits.
//!
//! One acquire takes one permit. To take several at once would need an order among those that
//! wait: without one, whoever wants many waits for ever beside those who want one.
//!
//! There is no fencing token: several holders have no order. Where a late holder must not write,
//! protect the resource by a [`mutex`](super::mutex), or write through
//! [`Lease::commit`](crate::Lease::commit) or [`Lease::transaction`](crate::Lease::transaction),
//! which check the permit in the same step.
//!
//! The cost on the server grows with the logarithm of the number of holders.
//!
//! # Guarantees
//!
//! On one server that loses no data, at most N permits are held at once by the server's clock, if
//! all callers name the same number. A permit lasts until it is released or its lease ends. A
//! permit that is released twice frees one. A renewal never takes back a permit that was lost, and
//! never shortens one. Not guaranteed: that a holder notices the end of its lease, or that waiters
//! are served in order.
//!
//! # Source
//!
//! *Redis in Action*, section 6.3.
//!
//! # Differences from the book
//!
//! - The score is the end of the permit instead of the time at which it was asked for. So each
//!   holder has its own lease, and the time-out of one caller cannot end the permit of another.
//! - The server's clock decides, in one script. A caller with a slow clock takes no permit from a
//!   holder, and a counter, which the book needs for that reason, does not exist.
//! - A refused caller writes nothing.
//! - A renewal requires that the permit is still there.
//! - The keys end. The book's stay for ever.

use std::time::Duration;

use redis::Connection;

use super::{
    hold::Hold,
    inspect::{Found, Holder, inspecting, understood},
};
use crate::{
    error::{Operation, Result, ensure},
    name::LockName,
    time::lease_millis,
    token::Token,
    wire::{BusyReply, Call, Script, scripts},
};

scripts! {
    ACQUIRE_SEMAPHORE = "../companion.lua" then "permits.lua" then "acquire.lua";
    RENEW_SEMAPHORE = "../companion.lua" then "permits.lua" then "renew.lua";
    RELEASE_SEMAPHORE = "permits.lua" then "release.lua";
}

const MOST_PERMITS: u32 = 10_000;

/// Takes a permit if fewer than `permits` are held. Never waits.
///
/// `Ok(false)`: none is free. If sent again with the same token, it is granted again and still has
/// one permit; the end is set again, but never to an earlier time. `permits` is 1 to 10,000. The
/// lease is 1 ms to 24 h and counts from when the server grants it, rounded up to milliseconds.
///
/// One round trip, or two if the server has lost the script.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is empty, longer than 512 bytes, ends in
///   `:lease`, or has braces other than one non-empty `{tag}`; or the
///   number of permits, or the lease. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so [`Error::token`](crate::Error)
///   may hold a permit until the lease ends. Release it, or send the same again, on another
///   connection.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is no semaphore of this kind, such as
///   one of the book's, or the key beside it is no companion. Nothing was changed.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; no permit was taken.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::semaphore};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (token, lease) = (Token::random(), Duration::from_secs(10));
/// if semaphore::try_acquire(&mut conn, "partner-api", 3, &token, lease)? {
///     // one of at most three
///     semaphore::release(&mut conn, "partner-api", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire(
    conn: &mut Connection,
    name: &str,
    permits: u32,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let hold = Hold::semaphore(name, token)?.among(permits)?;
    let call = acquiring(&hold, lease_millis("lease", lease)?, BusyReply::No);
    let granted = hold.acquire(conn, "semaphore::try_acquire", Duration::ZERO, &call)?;
    Ok(granted.is_some())
}

/// Takes a permit, waiting up to `acquire_timeout` while none is free.
///
/// Like [`try_acquire`], but retries after a random 1 to 10 ms. It tries at least once, even if
/// `acquire_timeout` is zero; `Duration::MAX` waits for ever. `Ok(false)`: none was free until the
/// deadline. All attempts have the same token, and an attempt without a timely reply is sent again
/// while the connection is open.
///
/// One round trip per attempt.
///
/// # Errors
/// As [`try_acquire`].
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::semaphore};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (token, wait) = (Token::random(), Duration::from_secs(5));
/// let lease = Duration::from_secs(10);
/// let granted = semaphore::acquire(&mut conn, "partner-api", 3, &token, wait, lease)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire(
    conn: &mut Connection,
    name: &str,
    permits: u32,
    token: &Token,
    acquire_timeout: Duration,
    lease: Duration,
) -> Result<bool> {
    let hold = Hold::semaphore(name, token)?.among(permits)?;
    let call = acquiring(&hold, lease_millis("lease", lease)?, BusyReply::No);
    let granted = hold.acquire(conn, "semaphore::acquire", acquire_timeout, &call)?;
    Ok(granted.is_some())
}

/// Extends the permit's lease to `lease` from now, but never shortens it. `Ok(false)`: the permit
/// is no longer ours, and is not taken back.
///
/// The lease counts from when the server renews it, rounded up to milliseconds; a lease of 1 ms
/// only checks the permit. One round trip, or two if the server has lost the script.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name, or the lease, as for [`try_acquire`].
///   Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. It may be sent again.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was renewed.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::recipes::semaphore;
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// if !semaphore::renew(&mut conn, "partner-api", &token, Duration::from_secs(10))? {
///     println!("the permit is not ours any more: stop");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew(conn: &mut Connection, name: &str, token: &Token, lease: Duration) -> Result<bool> {
    let call = renewing(
        &Hold::semaphore(name, token)?,
        lease_millis("lease", lease)?,
    );
    call.asks_for(Operation::new("semaphore::renew", name), conn)
}

/// Releases the permit if it is still ours. `Ok(false)`: it was no longer ours, and none was freed.
///
/// One round trip, or two if the server has lost the script.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name, as for [`try_acquire`]. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. It may be sent again: `Ok(false)`
///   then means that the permit had been released, or that its lease had ended.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was released.
///
/// # Example
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours = leasehold::recipes::semaphore::release(&mut conn, "partner-api", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release(conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
    let call = releasing(&Hold::semaphore(name, token)?);
    call.asks_for(Operation::new("semaphore::release", name), conn)
}

/// Returns the holders of the permits, the one whose lease ends first at the beginning.
///
/// The result is true for the moment of the query only. One round trip; changes nothing.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name, as for [`try_acquire`]. Nothing was sent.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is no semaphore.
/// - [`Error::Redis`](crate::Error::Redis): the server refused or did not reply.
///
/// # Example
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// for holder in leasehold::recipes::semaphore::holders(&mut conn, "partner-api")? {
///     println!("{:?}, for another {:?}", holder.owner(), holder.remaining());
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn holders(conn: &mut Connection, name: &str) -> Result<Vec<Holder>> {
    let operation = Operation::new("semaphore::holders", name);
    let answer = inspecting(&LockName::new(name)?).send(conn);
    let (found, holders) = (answer.and_then(understood)).map_err(|it| operation.failed(it))?;
    match found {
        Found::Nothing | Found::Permits => Ok(holders),
        _ => Err(operation.wrong_kind("something that is no semaphore")),
    }
}

impl Hold {
    /// Sets the number of permits, before an acquire.
    pub(crate) fn among(self, permits: u32) -> Result<Self> {
        let is_sensible = (1..=MOST_PERMITS).contains(&permits);
        ensure(is_sensible, "permits", "there have to be 1 to 10,000")?;
        Ok(Self { permits, ..self })
    }
}

/// Returns 1 more than the number of permits that are still free, or { 1, milliseconds until there
/// is one }; nil or { milliseconds until there is one } if there is none for us.
pub(super) fn acquiring(hold: &Hold, lease_millis: u64, busy_reply: BusyReply) -> Call {
    on(&ACQUIRE_SEMAPHORE, hold)
        .arg(lease_millis)
        .arg(hold.permits)
        .arg(hold.owner.as_str())
        .arg(busy_reply.flag())
}

/// Returns 1 if the permit is still ours, and now lasts at least this long.
pub(super) fn renewing(hold: &Hold, lease_millis: u64) -> Call {
    on(&RENEW_SEMAPHORE, hold).arg(lease_millis)
}

/// Returns 1 if the permit was ours until now.
pub(super) fn releasing(hold: &Hold) -> Call {
    on(&RELEASE_SEMAPHORE, hold)
}

fn on(script: &'static Script, hold: &Hold) -> Call {
    let keys = [hold.lock.key(), &hold.lock.companion()];
    script.on(keys).arg(hold.token.as_str())
}
