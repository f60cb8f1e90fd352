//! The functions for readers and for writers.

use std::time::Duration;

use redis::Connection;

use super::{Grant, Side, releasing};
use crate::{
    error::{Error, Operation, Result},
    recipes::hold::Hold,
    token::Token,
};

/// Acquires the lock for reading if no writer holds it or waits. Never waits.
///
/// The lease is 1 ms to 24 h and counts from when the server grants it, rounded up to milliseconds.
/// When the lease ends, the hold is over, even if the reader has not finished: check the result of
/// [`release_read`], or renew in time.
///
/// If repeated with the same token it counts once: the second attempt extends the lease, and never
/// shortens it. `Ok(false)`: a writer holds the lock or waits. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name is empty, longer than 512 bytes, ends in `:lease` or
///   `:lease:ran`, or has braces other than one non-empty `{tag}`; the lease is not between 1 ms
///   and 24 h. Nothing was sent. Or the token holds this lock for writing; nothing was changed.
/// - [`Error::Unknown`]: no reply came, so the token may hold the lock until the lease ends.
///   Release it, or repeat the call, on another connection.
/// - [`Error::WrongKind`]: the key is not a read-write lock of this kind. Nothing was changed.
/// - [`Error::Redis`]: the server refused; nothing was changed.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let token = Token::random();
/// if read_write::try_acquire_read(&mut conn, "prices", &token, Duration::from_secs(10))? {
///     // … read them …
///     read_write::release_read(&mut conn, "prices", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire_read(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    Operation::new("read_write::try_acquire_read", name).run(|operation| {
        let granted = Hold::read(name, token)?.acquire(conn, operation, Duration::ZERO, lease)?;
        Ok(granted.is_some())
    })
}

/// Acquires the lock for reading, waiting up to `timeout` for the writers.
///
/// Retries after a random 1 to 10 ms, so that waiters do not retry in step. Tries at least once,
/// even if `timeout` is zero; `Duration::MAX` waits forever. `Ok(false)`: a writer held the
/// lock or waited until the deadline. Otherwise like [`try_acquire_read`], with the same token for
/// all attempts. One round trip on a free lock, and one per retry.
///
/// # Errors
/// As [`try_acquire_read`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, wait, lease) = (Token::random(), Duration::from_secs(30), Duration::from_secs(10));
/// if read_write::acquire_read(&mut conn, "prices", &token, wait, lease)? {
///     // … read them …
///     read_write::release_read(&mut conn, "prices", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_read(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    timeout: Duration,
    lease: Duration,
) -> Result<bool> {
    Operation::new("read_write::acquire_read", name).run(|operation| {
        let granted = Hold::read(name, token)?.acquire(conn, operation, timeout, lease)?;
        Ok(granted.is_some())
    })
}

/// Extends a reader's lease to `lease` from now, but never shortens it. `Ok(false)`: the hold is no
/// longer ours.
///
/// A hold whose lease has ended is not ours and is not restored, even if the lock is still free.
/// Waiting writers do not prevent a renewal; they get the lock when the reader stops renewing.
/// Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name or the lease is invalid, as for [`try_acquire_read`]. Nothing was
///   sent.
/// - [`Error::Unknown`]: no reply came; the hold has the new end or the old one.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// use leasehold::recipes::read_write;
///
/// if !read_write::renew_read(&mut conn, "prices", &token, Duration::from_secs(10))? {
///     // … too late: a writer may have started, so the data read may be half old, half new …
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew_read(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    Operation::new("read_write::renew_read", name)
        .run(|operation| Hold::read(name, token)?.renew(conn, operation, lease))
}

/// Releases a reader's hold. `Ok(false)`: its lease had ended, so a writer may have held the lock
/// since then.
///
/// The last release deletes the key. Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name is invalid, as for [`try_acquire_read`]. Nothing was sent.
/// - [`Error::Unknown`]: no reply came; the hold is over now or at the end of its lease. If
///   repeated, `Ok(false)` may mean that the first call succeeded.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Examples
/// ```no_run
/// use leasehold::recipes::read_write;
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours_to_the_end = read_write::release_read(&mut conn, "prices", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release_read(conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
    Operation::new("read_write::release_read", name).run(|operation| {
        let call = releasing(&Hold::read(name, token)?, Side::Reader);
        call.asks_for(operation, conn)
    })
}

/// Acquires the lock for writing if no one holds it. Never waits, and does not keep readers out
/// when it is refused.
///
/// The lease is 1 ms to 24 h and counts from when the server grants it, rounded up to milliseconds.
/// When the lease ends, anyone may acquire the lock, even if the writer has not finished: check the
/// result of [`release_write`], renew in time, and pass the grant's fencing token to the protected
/// resource.
///
/// If repeated with the same token it counts once, with the same fencing token, and the lease is
/// never shortened. `Ok(None)`: another holder has it. Other waiting writers do not matter. One
/// round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name is empty, longer than 512 bytes, ends in `:lease` or
///   `:lease:ran`, or has braces other than one non-empty `{tag}`; the lease is not between 1 ms
///   and 24 h. Nothing was sent. Or the token holds this lock for reading; nothing was changed.
/// - [`Error::Unknown`]: no reply came, so the lock may be held by [`Error::token`] until the lease
///   ends. Release it, or repeat the call, on another connection.
/// - [`Error::WrongKind`]: the key is not a read-write lock of this kind, or its companion has no
///   fencing token. Nothing was changed.
/// - [`Error::Redis`]: the server refused; nothing was changed.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, lease) = (Token::random(), Duration::from_secs(10));
/// if let Some(grant) = read_write::try_acquire_write(&mut conn, "prices", &token, lease)? {
///     println!("storing the prices as edition {}", grant.fencing_token());
///     read_write::release_write(&mut conn, "prices", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn try_acquire_write(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<Option<Grant>> {
    Operation::new("read_write::try_acquire_write", name)
        .run(|operation| Hold::write(name, token)?.acquire(conn, operation, Duration::ZERO, lease))
}

/// Acquires the lock for writing, waiting up to `timeout` and keeping new readers out
/// meanwhile.
///
/// Retries after a random 1 to 10 ms, so that waiters do not retry in step. Tries at least once,
/// even if `timeout` is zero, which does not keep readers out; `Duration::MAX` waits
/// forever. `Ok(None)`: another holder had it until the deadline. Otherwise like
/// [`try_acquire_write`], with the same token for all attempts.
///
/// From its first refusal until this function returns, no new reader is granted the lock; after an
/// [`Error::Unknown`], or if the program dies, for up to a second more.
///
/// One round trip on a free lock, one per retry, and one to admit readers again if the wait fails.
///
/// # Errors
/// As [`try_acquire_write`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, wait, lease) = (Token::random(), Duration::from_secs(30), Duration::from_secs(10));
/// if let Some(grant) = read_write::acquire_write(&mut conn, "prices", &token, wait, lease)? {
///     println!("storing the prices as edition {}", grant.fencing_token());
///     read_write::release_write(&mut conn, "prices", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_write(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    timeout: Duration,
    lease: Duration,
) -> Result<Option<Grant>> {
    Operation::new("read_write::acquire_write", name).run(|operation| {
        let hold = Hold::write(name, token)?;
        let granted = hold.acquire(conn, operation, timeout, lease);
        if !timeout.is_zero() && has_given_up(&granted) {
            // If this fails, the intent expires within a second.
            let _ = releasing(&hold, Side::Intent).asks(conn);
        }
        granted
    })
}

/// Extends the writer's lease to `lease` from now, but never shortens it. `Ok(false)`: the hold is
/// no longer ours.
///
/// A hold whose lease has ended is not ours and is not restored, even if the lock is still free.
/// The fencing token stays the same. Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name or the lease is invalid, as for [`try_acquire_write`]. Nothing
///   was sent.
/// - [`Error::Unknown`]: no reply came; the hold has the new end or the old one.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// use leasehold::recipes::read_write;
///
/// if !read_write::renew_write(&mut conn, "prices", &token, Duration::from_secs(10))? {
///     // … too late: someone else may hold the lock, so stop writing …
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew_write(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    Operation::new("read_write::renew_write", name)
        .run(|operation| Hold::write(name, token)?.renew(conn, operation, lease))
}

/// Releases the writer's hold. `Ok(false)`: its lease had ended, so someone else may have held the
/// lock since then.
///
/// Waits only for the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name is invalid, as for [`try_acquire_write`]. Nothing was sent.
/// - [`Error::Unknown`]: no reply came; the hold is over now or at the end of its lease. If
///   repeated, `Ok(false)` may mean that the first call succeeded.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Examples
/// ```no_run
/// use leasehold::recipes::read_write;
///
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours_to_the_end = read_write::release_write(&mut conn, "prices", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release_write(conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
    Operation::new("read_write::release_write", name).run(|operation| {
        let call = releasing(&Hold::write(name, token)?, Side::Writer);
        call.asks_for(operation, conn)
    })
}

/// Returns true if a wait has ended and the connection still responds. After an unknown outcome it
/// may not respond, and another command could take one more time-out. For invalid arguments nothing
/// was sent.
fn has_given_up<T>(granted: &Result<Option<T>>) -> bool {
    !matches!(
        granted,
        Ok(Some(_)) | Err(Error::Unknown { .. } | Error::Invalid { .. })
    )
}
