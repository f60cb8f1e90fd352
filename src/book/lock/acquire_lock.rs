//! The book's `acquire_lock` and `acquire_lock_with_timeout`.

use std::{mem, time::Duration};

use redis::{Cmd, Connection, RedisResult, Value};

use crate::{
    error::{Operation, Result, makes_no_sense},
    name::LockName,
    recipes::WantedLock,
    time::lease_millis,
    token::Token,
    wire::{Call, ask, scripts, until_granted},
};

scripts! {
    ACQUIRE_SIMPLE = "acquire_lock.lua";
}

/// Acquires the book's lock, **which has no end**: if its holder dies, it stays until it is
/// deleted.
///
/// Waits up to `acquire_timeout` while another holder has the lock, and retries after a random 1 to
/// 10 ms, so that waiters do not retry in step. Tries at least once, even if `acquire_timeout` is
/// zero; `Duration::MAX` waits forever. `Ok(None)`: another holder had the lock until the deadline.
/// Unless you port the book's code, use [`acquire_lock_with_timeout`].
///
/// One round trip on a free lock, two for the first attempt on a held one, then one per retry.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is empty, longer than 512 bytes, ends in
///   `:lease` or `:lease:ran`, or has braces other than one non-empty `{tag}`. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so
///   [`Error::token`](crate::Error::token) may hold the lock forever. Release it with that token on
///   another connection.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is not a string, so it is not a lock of
///   this kind.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; the lock was not acquired.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// if let Some(token) = leasehold::acquire_lock(&mut conn, "report", Duration::from_secs(10))? {
///     // … no one else writes the report now …
///     leasehold::release_lock(&mut conn, "report", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_lock(
    conn: &mut Connection,
    lock_name: &str,
    acquire_timeout: Duration,
) -> Result<Option<Token>> {
    Operation::new("acquire_lock", lock_name).run(|operation| {
        let lock = LockName::new(lock_name)?;
        acquire(conn, operation, &lock, acquire_timeout, None)
    })
}

/// Acquires a lock that expires after `lock_timeout`, waiting up to `acquire_timeout` for it.
///
/// Waits like [`acquire_lock`]. The lease counts from when the server grants the lock, rounded up
/// to milliseconds. When it ends, anyone may acquire the lock, even if its holder has not finished:
/// choose a lease longer than the work, and check the result of
/// [`release_lock`](crate::release_lock), or write through
/// [`commit_while_held`](crate::commit_while_held).
///
/// If the lock has a holder and no end (after [`acquire_lock`], or from a program that died between
/// `SETNX` and `EXPIRE`), this call sets its end to `lock_timeout` from now, so that it does not
/// stay forever. An existing end is never changed.
///
/// One round trip on a free lock, two for the first attempt on a held one, then one per retry.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for [`acquire_lock`], or
///   `lock_timeout` is not between 1 ms and 24 h. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so the lock may be held by
///   [`Error::token`](crate::Error::token) until the lease ends.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): as for
///   [`acquire_lock`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{acquire_lock_with_timeout, release_lock};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (wait, lease) = (Duration::from_secs(90), Duration::from_secs(60));
/// if let Some(token) = acquire_lock_with_timeout(&mut conn, "report", wait, lease)? {
///     // … less than a minute of work …
///     let was_ours_to_the_end = release_lock(&mut conn, "report", &token)?;
///     assert!(was_ours_to_the_end);
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_lock_with_timeout(
    conn: &mut Connection,
    lock_name: &str,
    acquire_timeout: Duration,
    lock_timeout: Duration,
) -> Result<Option<Token>> {
    Operation::new("acquire_lock_with_timeout", lock_name).run(|operation| {
        let lock = LockName::new(lock_name)?;
        let lease = lease_millis("lock_timeout", lock_timeout)?;
        acquire(conn, operation, &lock, acquire_timeout, Some(lease))
    })
}

/// Runs the book's loop, for a lock with a lease or without an end.
pub(super) fn acquire(
    conn: &mut Connection,
    operation: Operation<'_>,
    lock: &LockName,
    acquire_timeout: Duration,
    lease_millis: Option<u64>,
) -> Result<Option<Token>> {
    let token = Token::random();
    let mut first = true;
    let granted = until_granted(operation, &token, acquire_timeout, || {
        let is_ours = mem::take(&mut first) && set_if_absent(conn, lock, &token, lease_millis)?
            || take_or_set_end(lock, &token, lease_millis).asks(conn)?;
        Ok(is_ours.then_some(()))
    })?;
    Ok(granted.map(|()| token))
}

fn set_if_absent(
    conn: &mut Connection,
    lock: &LockName,
    token: &Token,
    lease_millis: Option<u64>,
) -> RedisResult<bool> {
    match ask(&set(lock, token, lease_millis), conn)? {
        Value::Okay => Ok(true),
        Value::Nil => Ok(false),
        _ => Err(makes_no_sense()),
    }
}

/// Returns the first attempt: the book's `SETNX` and `EXPIRE` in one command, so that a crash
/// cannot come between them.
fn set(lock: &LockName, token: &Token, lease_millis: Option<u64>) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(lock.key()).arg(token.as_str()).arg("NX");
    if let Some(millis) = lease_millis {
        set.arg("PX").arg(millis);
    }
    set
}

/// Returns a retry: it acquires the lock if it is free or already ours, and sets an end if it has
/// none. It replies true if the lock is ours.
pub(super) fn take_or_set_end(lock: &LockName, token: &Token, lease_millis: Option<u64>) -> Call {
    ACQUIRE_SIMPLE
        .on([lock.key()])
        .arg(token.as_str())
        .arg(lease_millis.unwrap_or(0))
}

/// Returns a lock of the book for the first round trip of a transaction to acquire.
pub(in crate::book) fn wanted(
    lock: LockName,
    acquire_timeout: Duration,
    lease_millis: u64,
) -> WantedLock {
    let token = Token::random();
    WantedLock {
        first: set(&lock, &token, Some(lease_millis)),
        again: take_or_set_end(&lock, &token, Some(lease_millis)),
        lock,
        token,
        timeout: acquire_timeout,
    }
}
