//! At most N holders at once: a sorted set of tokens, each with its own end.
//!
//! The key `lock:NAME` is a sorted set. A member is a holder's token, and its score the end of that
//! holder's permit in milliseconds by the server's clock. So each holder has its own lease: the
//! permit of a crashed holder is free once its lease has ended, even if others renew theirs, and a
//! release removes only its own permit. The companion, a hash, has a field for each permit: it
//! marks the set as ours, since other programs have sorted sets too, and shows operators who holds
//! permits and since when. Both keys are deleted with the last permit. If the companion is lost,
//! holders renew and release as before, and nobody gets a new permit until the last of them has
//! ended.
//!
//! # The number of permits
//!
//! Each acquire passes the number, and is granted if fewer permits than that are held. The server
//! stores no limit for all: to change the number, start the new program alongside the old one.
//! Until all callers pass the new number, each is judged by its own, and [`holders`] shows the
//! number that each holder passed. If more permits are held than a caller's number allows, no one
//! loses a permit: that caller waits.
//!
//! One acquire is one permit. To acquire several at once would need an order among the waiters:
//! without one, a caller that wants many may wait forever while others take one at a time.
//!
//! A permit has no fencing token, since the holders have no order. If a late holder must not write,
//! protect the resource with a [`mutex`](super::mutex), or write through
//! [`Lease::commit`](crate::Lease::commit) or [`Lease::transaction`](crate::Lease::transaction),
//! which check the permit in the same step.
//!
//! The cost on the server grows with the logarithm of the number of holders.
//!
//! # Guarantees
//!
//! On one server that loses no data, at most N permits are held at once by the server's clock, if
//! all callers pass the same number. A permit lasts until it is released or its lease ends. A
//! permit that is released twice frees one. A renewal never restores a lost permit, and never
//! shortens one. Not guaranteed: that a holder notices the end of its lease, or that waiters are
//! served in order.
//!
//! # Source
//!
//! *Redis in Action*, section 6.3.
//!
//! # Differences from the book
//!
//! - The score is the end of the permit instead of the time of its request. So each holder has its
//!   own lease, and the timeout of one caller cannot end the permit of another.
//! - The server's clock decides, in one script. A caller with a slow clock cannot take a permit
//!   from a holder, so the book's counter is not needed.
//! - A refused caller writes nothing.
//! - A renewal requires that the permit still exists.
//! - The keys expire. The book's stay forever.

use std::time::Duration;

use redis::Connection;

use super::{
    hold::{Hold, LockKind},
    inspect::{Found, Holder, inspecting, read_inspection},
};
use crate::{
    error::{Operation, Result, ensure},
    name::LockName,
    token::Token,
    wire::{BusyReply, Call, Script, scripts},
};

scripts! {
    ACQUIRE_SEMAPHORE = "../companion.lua" then "permits.lua" then "acquire.lua";
    RENEW_SEMAPHORE = "../companion.lua" then "permits.lua" then "renew.lua";
    RELEASE_SEMAPHORE = "../companion.lua" then "permits.lua" then "release.lua";
}

const MOST_PERMITS: u32 = 10_000;

/// Acquires a permit if fewer than `permits` are held. Never waits.
///
/// `Ok(false)`: none is free. If repeated with the same token, it is granted again and still has
/// one permit; the lease is extended but never shortened. `permits` is 1 to 10,000. The lease is 1
/// ms to 24 h and counts from when the server grants it, rounded up to milliseconds.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is empty, longer than 512 bytes, ends in
///   `:lease` or `:lease:ran`, or has braces other than one non-empty `{tag}`; or the number of
///   permits or the lease is out of range. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so [`Error::token`](crate::Error)
///   may hold a permit until the lease ends. Release it, or repeat the call, on another connection.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is not a semaphore of this kind (it may
///   be one of the book's or another program's), or its companion key is lost or not a companion.
///   Nothing was changed.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; no permit was acquired.
///
/// # Examples
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
    Operation::new("semaphore::try_acquire", name).run(|operation| {
        let hold = Hold::semaphore(name, token)?.among(permits)?;
        let granted = hold.acquire(conn, operation, Duration::ZERO, lease)?;
        Ok(granted.is_some())
    })
}

/// Acquires a permit, waiting up to `timeout` while none is free.
///
/// Like [`try_acquire`], but retries after a random 1 to 10 ms. Tries at least once, even if
/// `timeout` is zero; `Duration::MAX` waits forever. `Ok(false)`: none was free until the
/// deadline. All attempts use the same token, and an attempt without a timely reply is repeated
/// while the connection is open.
///
/// One round trip per attempt.
///
/// # Errors
/// As [`try_acquire`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::semaphore};
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// let (token, wait) = (Token::random(), Duration::from_secs(30));
/// let lease = Duration::from_secs(10);
/// let granted = semaphore::acquire(&mut conn, "partner-api", 3, &token, wait, lease)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire(
    conn: &mut Connection,
    name: &str,
    permits: u32,
    token: &Token,
    timeout: Duration,
    lease: Duration,
) -> Result<bool> {
    Operation::new("semaphore::acquire", name).run(|operation| {
        let hold = Hold::semaphore(name, token)?.among(permits)?;
        let granted = hold.acquire(conn, operation, timeout, lease)?;
        Ok(granted.is_some())
    })
}

/// Extends the permit's lease to `lease` from now, but never shortens it. `Ok(false)`: the permit
/// is no longer ours, and is not restored.
///
/// The lease counts from when the server renews it, rounded up to milliseconds; a lease of 1 ms
/// only checks the permit. One round trip, or two if the script is not in the server's cache.
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
/// use leasehold::recipes::semaphore;
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// if !semaphore::renew(&mut conn, "partner-api", &token, Duration::from_secs(10))? {
///     println!("the permit is no longer ours: stop");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew(conn: &mut Connection, name: &str, token: &Token, lease: Duration) -> Result<bool> {
    Operation::new("semaphore::renew", name)
        .run(|operation| Hold::semaphore(name, token)?.renew(conn, operation, lease))
}

/// Releases the permit if it is still ours. `Ok(false)`: it was no longer ours, and no permit was
/// freed.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for [`try_acquire`].
///   Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. The call can be repeated:
///   `Ok(false)` then means that the first call released the permit, or that its lease had ended.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was released.
///
/// # Examples
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours = leasehold::recipes::semaphore::release(&mut conn, "partner-api", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release(conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
    Operation::new("semaphore::release", name).run(|operation| {
        let call = releasing(&Hold::semaphore(name, token)?);
        call.asks_for(operation, conn)
    })
}

/// Returns the holders of the permits, in the order in which their leases end.
///
/// The result holds only for the moment of the query. One round trip; changes nothing.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for [`try_acquire`].
///   Nothing was sent.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is not a semaphore.
/// - [`Error::Redis`](crate::Error::Redis): the server refused or did not reply.
///
/// # Examples
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// for holder in leasehold::recipes::semaphore::holders(&mut conn, "partner-api")? {
///     println!("{:?}, for another {:?}", holder.owner(), holder.remaining());
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn holders(conn: &mut Connection, name: &str) -> Result<Vec<Holder>> {
    Operation::new("semaphore::holders", name).run(|operation| {
        let answer = inspecting(&LockName::new(name)?).send(conn);
        let (found, holders) =
            (answer.and_then(read_inspection)).map_err(|it| operation.failed(it))?;
        match found {
            Found::Nothing | Found::Permits => Ok(holders),
            _ => Err(operation.wrong_kind("something that is not a semaphore")),
        }
    })
}

impl Hold {
    /// Sets the number of permits, before an acquire.
    pub(crate) fn among(self, permits: u32) -> Result<Self> {
        let is_sensible = (1..=MOST_PERMITS).contains(&permits);
        ensure(is_sensible, "permits", "it must be between 1 and 10,000")?;
        let kind = LockKind::Semaphore { permits };
        Ok(Self { kind, ..self })
    }
}

/// Acquires a permit: the reply is 1 plus the number of free permits, or { 1, milliseconds until
/// one is free }. If none is free for us, it is nil, or { milliseconds until one is free }.
pub(super) fn acquiring(hold: &Hold, lease_millis: u64, busy_reply: BusyReply) -> Call {
    on(&ACQUIRE_SEMAPHORE, hold)
        .arg(lease_millis)
        .arg(hold.most_holders())
        .arg(hold.owner.as_str())
        .arg(busy_reply.flag())
}

/// Renews the lease: the reply is 1 if the permit is still ours, and now lasts at least this long.
pub(super) fn renewing(hold: &Hold, lease_millis: u64) -> Call {
    on(&RENEW_SEMAPHORE, hold).arg(lease_millis)
}

/// Releases the permit: the reply is 1 if it was ours until now.
pub(super) fn releasing(hold: &Hold) -> Call {
    on(&RELEASE_SEMAPHORE, hold)
}

fn on(script: &'static Script, hold: &Hold) -> Call {
    let keys = [hold.lock.key(), &hold.lock.companion()];
    script.on(keys).arg(hold.token.as_str())
}
