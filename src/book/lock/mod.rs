//! The book's lock: [`acquire_lock`], [`acquire_lock_with_timeout`], [`release_lock`],
//! [`commit_while_held`]; and the book's `try … finally` around them: [`with_lock`],
//! [`transaction_while_held`], [`transaction_with_lock`].
//!
//! From section 6.2 of *Redis in Action*. The key is `lock:NAME` and its value the holder's token,
//! as in the book's code in any language, so programs that use the book's functions and programs
//! that use these exclude each other.
//!
//! # Guarantees
//!
//! While `lock:NAME` holds a token, no one else gets the lock through these functions, or the
//! book's in any language.
//! - [`acquire_lock`]: the lock outlives a holder that dies.
//! - [`acquire_lock_with_timeout`]: on one server that loses no data, there is at most one holder
//!   at a time, by the server's clock, and the lock is free at most `lock_timeout` after it was
//!   acquired. Not guaranteed: that a holder notices the end of its lease.
//! - [`release_lock`] deletes the lock only while it holds our token. It leaves no `WATCH` on the
//!   connection if the server replies.
//! - [`commit_while_held`] executes the commands at a moment when the lock holds our token, or not
//!   at all. They must go to the server that has the lock: for any other resource use a fencing
//!   token.
//!
//! # Source
//!
//! The book's `acquire_lock` and `release_lock` (section 6.2.3) and `acquire_lock_with_timeout`
//! (6.2.5), which the Jedis article calls `acquireLock`, `releaseLock` and
//! `acquireLockWithTimeout`. [`commit_while_held`] is not in the book, whose callers never check
//! before a write that they still hold the lock: it applies the `WATCH` of `release_lock` to the
//! writes.
//!
//! # Differences from the book
//!
//! - One `SET … NX`, with `PX` for a lease, replaces `SETNX` and `EXPIRE`: a crash between the two
//!   cannot leave a lock without an end.
//! - A wait of zero tries once; in the book it does not try at all.
//! - The clock is monotonic, and a sleep never passes the deadline. The Jedis article sleeps whole
//!   seconds.
//! - A key of another type is an error, not a lock that stays busy forever.
//! - An attempt whose reply was lost is repeated with the *same* token while the connection is
//!   open, so that a lock that it acquired is recognised.
//! - A wait cannot be interrupted: use a deadline. The article swallows the interrupt and then
//!   polls without a pause.
//! - A lease is in milliseconds, not whole seconds. The book's Java rounds a lease under a second
//!   to `EXPIRE 0`, which deletes the key.
//! - One script checks for an end and sets it, so no one can release and acquire the lock between
//!   the check and the `EXPIRE`. As in the book the end is the waiter's `lock_timeout`, not the
//!   holder's. The printed book renews any lock with less than half a second left (`not
//!   conn.ttl()`); the erratum and this function do not.
//! - A release takes two round trips instead of four or five, and its loop is bounded. It returns
//!   `false` also if the `DEL` found nothing to delete, and sends `UNWATCH` after every path that
//!   does not reach `EXEC`, including errors.

mod several;
mod under_lock;

use std::{mem, time::Duration};

use redis::{Cmd, Connection, FromRedisValue, Pipeline, RedisResult, Value};

use crate::{
    error::{Operation, Result, makes_no_sense},
    name::LockName,
    recipes::{HeldCommit, Proof, WantedLock, WatchedConnection},
    time::lease_millis,
    token::Token,
    wire::{Call, ask, scripts, until_granted},
};

scripts! {
    ACQUIRE_SIMPLE = "acquire.lua";
}

pub use several::with_locks;
pub(crate) use under_lock::run_with_lock;
pub use under_lock::{transaction_while_held, transaction_with_lock, with_lock};

/// The maximum number of attempts of a release, which is retried if the lock changes between its
/// two round trips.
const RELEASE_ATTEMPTS: u32 = 100;

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
///   `:lease`, or has braces other than one non-empty `{tag}`. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so
///   [`Error::token`](crate::Error::token) may hold the lock forever. Release it with that token on
///   another connection.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is not a string, so it is not a lock of
///   this kind.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; the lock was not acquired.
///
/// # Example
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
    let lock = LockName::new(lock_name)?;
    let operation = Operation::new("acquire_lock", lock_name);
    acquire(conn, operation, &lock, acquire_timeout, None)
}

/// Acquires a lock that expires after `lock_timeout`, waiting up to `acquire_timeout` for it.
///
/// Waits like [`acquire_lock`]. The lease counts from when the server grants the lock, rounded up
/// to milliseconds. When it ends, anyone may acquire the lock, even if its holder has not finished:
/// choose a lease longer than the work, and check the result of [`release_lock`], or write through
/// [`commit_while_held`].
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
/// # Example
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
    let lock = LockName::new(lock_name)?;
    let lease = lease_millis("lock_timeout", lock_timeout)?;
    let operation = Operation::new("acquire_lock_with_timeout", lock_name);
    acquire(conn, operation, &lock, acquire_timeout, Some(lease))
}

/// Releases a lock if it is still ours. `Ok(false)`: it was no longer ours, and nothing was
/// deleted.
///
/// Waits only for the server. Two round trips: `WATCH` and `GET`, then `MULTI`, `DEL`, `EXEC`. If
/// the lock changes in between (a waiter gives it an end), the release is retried, at most 100
/// times.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for [`acquire_lock`].
///   Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): the `EXEC` got no reply. The call can be repeated:
///   `Ok(false)` may then mean that the first call released the lock.
/// - [`Error::Contended`](crate::Error::Contended): the lock changed in each of 100 attempts. It is
///   still ours.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): the lock
///   was not released.
///
/// # Example
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// // A token may come from another process, as text.
/// let token = std::env::var("LOCK_TOKEN").unwrap_or_default().parse()?;
/// let mut conn = pool.get()?;
/// if !leasehold::release_lock(&mut conn, "report", &token)? {
///     eprintln!("the lease ended before the work did");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release_lock(conn: &mut Connection, lock_name: &str, token: &Token) -> Result<bool> {
    let lock = LockName::new(lock_name)?;
    let (operation, key) = (Operation::new("release_lock", lock_name), [lock.key()]);
    let proof = Proof::by_value(&lock, token);
    let mut delete = Pipeline::new();
    delete.cmd("DEL").arg(lock.key());
    for _ in 0..RELEASE_ATTEMPTS {
        let mut watched = WatchedConnection::new(conn, operation, (&key, Some(&proof)), None);
        if !watched.is_ours()? {
            return Ok(false);
        }
        if let Some(results) = watched.commit(delete.clone(), None)? {
            return Ok(results == [Value::Int(1)]);
        }
    }
    Err(operation.contended())
}

/// Executes a transaction only while the lock is still ours. Does not release the lock.
///
/// `build` adds the commands; it is called once, before anything is sent. If the lock changes but
/// stays ours (by a renewal, or a waiter that gives it an end), the commit is retried, at most 8
/// times. Waits only for the server. Two round trips: `WATCH` and `GET`, then `MULTI`, the
/// commands, `EXEC`.
///
/// Returns the result of the pipeline: a tuple or a `Vec` with one value per command, except those
/// marked [`ignore`](redis::Pipeline::ignore). An empty pipeline only checks that the lock is still
/// ours.
///
/// # Errors
/// - [`Error::Lost`](crate::Error::Lost): the lock is no longer ours. Nothing was written.
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, or a command would end the
///   transaction or change the connection (`MULTI`, `EXEC`, `WATCH`, `SUBSCRIBE`, `CLIENT`, …).
///   Nothing was sent.
/// - [`Error::Partial`](crate::Error::Partial): a command inside `EXEC` was refused; the others
///   were executed. Redis does not roll back.
/// - [`Error::Unknown`](crate::Error::Unknown): the `EXEC` got no reply. Either everything was
///   written or nothing.
/// - [`Error::Reply`](crate::Error::Reply): it was written, but the replies do not fit `T`.
/// - [`Error::Contended`](crate::Error::Contended): the lock kept changing for 5 s. Nothing
///   was written.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was written.
///
/// # Example
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let (edition,): (u64,) = leasehold::commit_while_held(&mut conn, "report", &token, |pipe| {
///     pipe.set("report:text", "all is well").ignore();
///     pipe.incr("report:editions", 1);
/// })?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn commit_while_held<T: FromRedisValue>(
    conn: &mut Connection,
    lock_name: &str,
    token: &Token,
    build: impl FnOnce(&mut Pipeline),
) -> Result<T> {
    let lock = LockName::new(lock_name)?;
    let operation = Operation::new("commit_while_held", lock_name);
    let commit = HeldCommit::new(operation, Proof::by_value(&lock, token), build)?;
    let results = commit.send(conn)?.unwrap_or_default();
    commit.answer(results)
}

/// Runs the book's loop, for a lock with a lease or without an end.
pub(crate) fn acquire(
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
fn take_or_set_end(lock: &LockName, token: &Token, lease_millis: Option<u64>) -> Call {
    ACQUIRE_SIMPLE
        .on([lock.key()])
        .arg(token.as_str())
        .arg(lease_millis.unwrap_or(0))
}

/// Returns a lock of the book for the first round trip of a transaction to acquire.
pub(crate) fn wanted(lock: LockName, acquire_timeout: Duration, lease_millis: u64) -> WantedLock {
    let token = Token::random();
    WantedLock {
        first: set(&lock, &token, Some(lease_millis)),
        again: take_or_set_end(&lock, &token, Some(lease_millis)),
        lock,
        token,
        acquire_timeout,
    }
}
