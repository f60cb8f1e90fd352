//! The functions for a writer.

use std::time::Duration;

use redis::Connection;

use super::{Grant, Side, acquiring_write, releasing, renewing};
use crate::{
    error::{Error, Operation, Result},
    recipes::hold::Hold,
    time::lease_millis,
    token::Token,
    wire::Refusal,
};

/// Takes the lock for writing, if nobody is in. Never waits, and keeps no reader out when it is
/// refused.
///
/// The lease, 1 ms to 24 h, is counted in milliseconds, rounded up, from when the server takes the
/// lock. After it anybody may come in, whether the writer has finished or not: check what
/// [`release_write`] says, renew in time, and hand the grant's fencing token to whatever the lock
/// protects.
///
/// Sent twice with the same token it is granted once, with the same fencing token, and the lease is
/// never shortened. `Ok(None)`: somebody is in. Another writer's waiting is no obstacle. One round
/// trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name is empty, longer than 512 bytes, ends in `:lease`, or has braces
///   other than one non-empty `{tag}`; the lease is not between 1 ms and 24 h. Nothing was sent. Or
///   the token holds this lock for reading; nothing was changed.
/// - [`Error::Unknown`]: no answer came, so the lock may be held by [`Error::token`] until the
///   lease ends. Release it, or send the same again, on another connection.
/// - [`Error::WrongKind`]: the key is no read-write lock of this kind, or its companion holds no
///   fencing token. Nothing was changed.
/// - [`Error::Redis`]: the server refused; nothing was changed.
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let token = Token::random();
/// if let Some(grant) = read_write::try_acquire_write(&mut conn, "prices", &token, Duration::from_secs(10))? {
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
    let hold = Hold::write(name, token)?;
    let call = acquiring_write(&hold, lease_millis("lease", lease)?, false, Refusal::Bare);
    hold.acquire(conn, "read_write::try_acquire_write", Duration::ZERO, &call)
}

/// Takes the lock for writing, waiting up to `acquire_timeout` for everybody to leave, and keeping
/// new readers out meanwhile.
///
/// Looks again after 1 to 10 ms, at random so that waiters do not march in step. There is always
/// one try, even for a wait of nothing, which keeps nobody out; `Duration::MAX` waits for ever.
/// `Ok(None)`: somebody was in all the time. Otherwise as [`try_acquire_write`], with the same
/// token throughout.
///
/// From its first refusal on no new reader comes in, until this function returns; after an
/// [`Error::Unknown`], or if the program dies, for up to a second more.
///
/// One round trip on a free lock, then one an attempt, and one to let the readers in again after
/// waiting in vain.
///
/// # Errors
/// As [`try_acquire_write`].
///
/// # Example
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Token, recipes::read_write};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let (token, wait, lease) = (Token::random(), Duration::from_secs(5), Duration::from_secs(10));
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
    acquire_timeout: Duration,
    lease: Duration,
) -> Result<Option<Grant>> {
    let hold = Hold::write(name, token)?;
    let waits = !acquire_timeout.is_zero();
    let call = acquiring_write(&hold, lease_millis("lease", lease)?, waits, Refusal::Bare);
    let granted = hold.acquire(conn, "read_write::acquire_write", acquire_timeout, &call);
    if waits && has_given_up(&granted) {
        // If this fails the intent ends by itself, within the second.
        let _ = releasing(&hold, Side::Intent).asks(conn);
    }
    granted
}

/// Lets the writer's hold end `lease` from now, but never earlier than it does. `Ok(false)`: it is
/// not ours any more.
///
/// A hold whose lease has ended is not ours, even if nobody has come in since: it is not brought
/// back. The fencing token stays the same. Waits for nothing but the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name or the lease, as for [`try_acquire_write`]. Nothing was sent.
/// - [`Error::Unknown`]: no answer came; the hold ends now or when it would have.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Example
/// ```no_run
/// # use std::time::Duration;
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// use leasehold::recipes::read_write;
///
/// if !read_write::renew_write(&mut conn, "prices", &token, Duration::from_secs(10))? {
///     // … too late: somebody else may have come in, so stop writing …
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew_write(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let (hold, lease) = (Hold::write(name, token)?, lease_millis("lease", lease)?);
    renewing(&hold, Side::Writer, lease)
        .asks_for(Operation::new("read_write::renew_write", name), conn)
}

/// Ends the writer's hold. `Ok(false)`: its lease had ended before, so that somebody else may have
/// come in meanwhile.
///
/// Waits for nothing but the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`]: the name, as for [`try_acquire_write`]. Nothing was sent.
/// - [`Error::Unknown`]: no answer came; the hold is over now or at the end of its lease. Sent
///   again, `Ok(false)` may mean that the first was executed.
/// - [`Error::WrongKind`], [`Error::Redis`]: nothing was changed.
///
/// # Example
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours_to_the_end = leasehold::recipes::read_write::release_write(&mut conn, "prices", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release_write(conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
    let call = releasing(&Hold::write(name, token)?, Side::Writer);
    call.asks_for(Operation::new("read_write::release_write", name), conn)
}

/// True if it stops waiting on a connection that still answers. After an unknown outcome it may
/// not, and asking again could take another time-out.
fn has_given_up<T>(granted: &Result<Option<T>>) -> bool {
    !matches!(granted, Ok(Some(_)) | Err(Error::Unknown { .. }))
}
