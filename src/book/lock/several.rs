//! Runs work under several locks of the book.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use redis::{Connection, Value};

use super::{
    acquire_lock::{acquire, take_or_set_end},
    under_lock::{released_as, send_release},
};
use crate::{
    error::{Error, Operation, Result, ensure},
    name::LockName,
    ran::Ran,
    recipes::was_interrupted,
    time::{Deadline, lease_millis},
    token::Token,
    wire::{exchange_partly, is_interrupted, releasing},
};

const WITH_LOCKS: &str = "with_locks";

/// Runs a closure under several locks of the book and releases them, even on a panic.
///
/// Calls `run` only if all locks are held. Acquires them one after the other in the order of their
/// keys, whatever the order of the names, so callers of this function never deadlock. `Ok(None)`:
/// another holder had one of them until the deadline, or the deadline passed before all were asked
/// for, and the others were released.
///
/// `acquire_timeout` applies to all locks together, `lock_timeout` to each. An `acquire_timeout` of
/// zero asks for each lock once. While it waits, the locks that are already held are renewed after
/// each third of `lock_timeout`; after that nothing is renewed. `run` gets the connection, and the
/// tokens in the order of the names. Otherwise like [`with_lock`](crate::with_lock). Each lock
/// costs one round trip to acquire, and their release one in all.
///
/// If the connection fails during the release, the remaining locks end with their leases.
///
/// # Errors
/// - As [`acquire_lock_with_timeout`](crate::acquire_lock_with_timeout). `run` was not called. The
///   error names the lock. The locks that were already held are released or, if the connection
///   failed, end with their leases.
/// - [`Error::Invalid`]: there are no names, or one appears twice. Nothing was sent.
/// - [`Error::Lost`]: a lock was lost during the wait for the next one, or the replies together
///   took longer than the lease. `run` was not called.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{redis::Commands, with_locks};
///
/// let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let (wait, lease) = (Duration::from_secs(90), Duration::from_secs(60));
/// let accounts = ["account:4711", "account:4712"];
/// let Some(ran) = with_locks(&mut conn, &accounts, wait, lease, |conn, _tokens| {
///     conn.decr::<_, _, ()>("balance:4711", 5)?;
///     conn.incr::<_, _, ()>("balance:4712", 5)
/// })?
/// else {
///     anyhow::bail!("another process is using one of the accounts");
/// };
/// ran.unless_lost()??;
/// # anyhow::Ok(())
/// ```
pub fn with_locks<T>(
    conn: &mut Connection,
    lock_names: impl IntoIterator<Item = impl AsRef<str>>,
    acquire_timeout: Duration,
    lock_timeout: Duration,
    run: impl FnOnce(&mut Connection, &[Token]) -> T,
) -> Result<Option<Ran<T>>> {
    let names: Vec<_> = lock_names.into_iter().collect();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let (wanted, lease) = Operation::new(WITH_LOCKS, &names.join(", ")).run(|_| {
        Ok((
            in_order(&names)?,
            lease_millis("lock_timeout", lock_timeout)?,
        ))
    })?;
    let mut held = Vec::with_capacity(wanted.len());
    let acquired = acquire_all(conn, &wanted, lease, acquire_timeout, &mut held);
    if !matches!(acquired, Ok(true)) {
        if !acquired.as_ref().is_err_and(is_silent) {
            // The caller gets the reason why the set was not acquired.
            let _ = release_all(conn, &held);
        }
        return acquired.map(|_| None);
    }
    let tokens: Vec<Token> = (names.iter())
        .filter_map(|name| held.iter().find(|(lock, _)| lock.text() == *name))
        .map(|(_, token)| token.clone())
        .collect();
    let value = catch_unwind(AssertUnwindSafe(|| run(conn, &tokens)));
    let released = release_all(conn, &held);
    let value = value.unwrap_or_else(|panic| resume_unwind(panic));
    Ok(Some(Ran { value, released }))
}

type HeldLock = (LockName, Token);

/// Returns true if the connection no longer replies.
fn is_silent(error: &Error) -> bool {
    match error {
        interrupted if was_interrupted(interrupted) => false,
        Error::Unknown { source, .. } | Error::Redis { source, .. } => source.is_io_error(),
        _ => false,
    }
}

/// The lease of the held locks, and the times at which the oldest of them is due for renewal and
/// ends.
struct LeaseTimes {
    millis: u64,
    renew_at: Deadline,
    is_over_at: Deadline,
}

impl LeaseTimes {
    fn from_now(millis: u64) -> Self {
        let length = Duration::from_millis(millis);
        Self {
            millis,
            renew_at: Deadline::after(length / 3),
            is_over_at: Deadline::after(length),
        }
    }
}

/// Returns the locks in the order of their keys.
fn in_order(names: &[&str]) -> Result<Vec<LockName>> {
    ensure(!names.is_empty(), "lock_names", "it must not be empty")?;
    let locks: Result<Vec<_>> = names.iter().map(|name| LockName::new(name)).collect();
    let mut locks = locks?;
    locks.sort_by(|one, other| one.key().cmp(other.key()));
    let is_twice = locks.windows(2).any(|pair| pair[0] == pair[1]);
    ensure(!is_twice, "lock_names", "a name appears twice")?;
    Ok(locks)
}

/// Acquires the locks in this order, and renews those already held after each third of the lease.
/// Returns false if a lock is not acquired in time.
fn acquire_all(
    conn: &mut Connection,
    wanted: &[LockName],
    millis: u64,
    timeout: Duration,
    held: &mut Vec<HeldLock>,
) -> Result<bool> {
    let deadline = Deadline::after(timeout);
    let mut lease = LeaseTimes::from_now(millis);
    for lock in wanted {
        // An attempt may wait for one I/O time-out, so none begins after the time limit.
        if !timeout.is_zero() && !held.is_empty() && deadline.has_passed() {
            return Ok(false);
        }
        let operation = Operation::new(WITH_LOCKS, lock.text());
        loop {
            renew_if_due(conn, held, &mut lease)?;
            let wait = if held.is_empty() {
                deadline.remaining()
            } else {
                deadline.remaining().min(lease.renew_at.remaining())
            };
            if let Some(token) = acquire(conn, operation, lock, wait, Some(millis))? {
                held.push((lock.clone(), token));
                break;
            }
            if deadline.has_passed() {
                return Ok(false);
            }
        }
    }
    renew_if_due(conn, held, &mut lease)?;
    match held.first() {
        Some((lock, _)) if lease.is_over_at.has_passed() => {
            Err(Operation::new(WITH_LOCKS, lock.text()).lost())
        }
        _ => Ok(true),
    }
}

fn renew_if_due(conn: &mut Connection, held: &[HeldLock], lease: &mut LeaseTimes) -> Result<()> {
    if held.is_empty() || !lease.renew_at.has_passed() {
        return Ok(());
    }
    *lease = LeaseTimes::from_now(lease.millis);
    renew_all(conn, held, lease.millis)
}

/// Renews each lock. A lock whose lease has ended meanwhile is acquired again if it is free, since
/// nothing was done under it yet.
fn renew_all(conn: &mut Connection, held: &[HeldLock], lease: u64) -> Result<()> {
    for (lock, token) in held {
        let operation = Operation::new(WITH_LOCKS, lock.text());
        let renewed = take_or_set_end(lock, token, Some(lease)).asks(conn);
        if !renewed.map_err(|error| operation.unanswered(Some(token), error))? {
            return Err(operation.lost());
        }
    }
    Ok(())
}

/// Releases all locks in one round trip, even if one fails, unless the connection fails. The error
/// names all locks that were lost; if none was, it is the first failure.
fn release_all(conn: &mut Connection, held: &[HeldLock]) -> Result<()> {
    if held.is_empty() {
        return Ok(());
    }
    let mut packed = Vec::new();
    for (lock, token) in held {
        let call = releasing(lock.key(), token);
        if packed.is_empty() {
            // The server may not know the script.
            call.whole().write_packed_command(&mut packed);
        } else {
            call.command().write_packed_command(&mut packed);
        }
    }
    let (replies, missing) = exchange_partly(conn, &packed, held.len());
    let mut replies = replies.into_iter();
    let (mut lost, mut failed) = (Vec::new(), Ok(()));
    for (lock, token) in held {
        let operation = Operation::new(WITH_LOCKS, lock.text());
        let was_released = match (replies.next(), &missing) {
            (Some(Value::Int(count)), _) => Ok(count > 0),
            (None, Some(error)) if !is_interrupted(error) => {
                Err(operation.unanswered(Some(token), error.clone()))
            }
            // The script may have released it already.
            (None, Some(error)) => match send_release(conn, lock, token) {
                Ok(false) => Err(operation.unknown(Some(token), error.clone())),
                was_released => was_released,
            },
            // The caller has left a transaction open, or the server refuses the script.
            _ => send_release(conn, lock, token),
        };
        match released_as(operation, token, was_released) {
            Err(Error::Lost { .. }) => lost.push(lock.text()),
            Err(error) if is_silent(&error) => {
                failed = failed.and(Err(error));
                break;
            }
            released => failed = failed.and(released),
        }
    }
    if lost.is_empty() {
        return failed;
    }
    Err(Operation::new(WITH_LOCKS, &lost.join(", ")).lost())
}
