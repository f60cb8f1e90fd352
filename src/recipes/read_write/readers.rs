//! The functions for a reader.

use std::time::Duration;

use redis::Connection;

use super::{Side, acquiring_read, releasing, renewing};
use crate::{
    error::{Operation, Result},
    recipes::hold::Hold,
    time::lease_millis,
    token::Token,
    wire::Refusal,
};

/// Comes in as a reader, if no writer is in or waits. Never waits.
///
/// The lease, 1 ms to 24 h, is counted in milliseconds, rounded up, from when the server takes the
/// hold. After it the hold is over, whether the reader has finished or not: check what
/// [`release_read`] says, or renew in time.
///
/// Sent twice with the same token it is granted once: a reader that is in already is told so, its
/// lease lasts at least as long as asked for now, and it is never shortened. `Ok(false)`: a writer
/// is in or waits. One round trip.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is empty, longer than 512 bytes, ends in
///   `:lease`, or has braces other than one non-empty `{tag}`; the lease is not between 1 ms and 24
///   h. Nothing was sent. Or the token holds this lock for writing; nothing was changed.
/// - [`Error::Unknown`](crate::Error::Unknown): no answer came, so the token may be among the
///   readers until the lease ends. Release it, or send the same again, on another connection.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key is no read-write lock of this kind.
///   Nothing was changed.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; nothing was changed.
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
    let hold = Hold::read(name, token)?;
    let call = acquiring_read(&hold, lease_millis("lease", lease)?, Refusal::Bare);
    let granted = hold.acquire(conn, "read_write::try_acquire_read", Duration::ZERO, &call)?;
    Ok(granted.is_some())
}

/// Comes in as a reader, waiting up to `acquire_timeout` for the writers to leave.
///
/// Looks again after 1 to 10 ms, at random so that waiters do not march in step. There is always
/// one try, even for a wait of nothing; `Duration::MAX` waits for ever. `Ok(false)`: there was a
/// writer all the time. Otherwise as [`try_acquire_read`], with the same token throughout. One
/// round trip on a free lock, then one an attempt.
///
/// # Errors
/// As [`try_acquire_read`].
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
    acquire_timeout: Duration,
    lease: Duration,
) -> Result<bool> {
    let hold = Hold::read(name, token)?;
    let call = acquiring_read(&hold, lease_millis("lease", lease)?, Refusal::Bare);
    let granted = hold.acquire(conn, "read_write::acquire_read", acquire_timeout, &call)?;
    Ok(granted.is_some())
}

/// Lets a reader's hold end `lease` from now, but never earlier than it does. `Ok(false)`: it is
/// not ours any more.
///
/// A hold whose lease has ended is not ours, even if nobody has come in since: it is not brought
/// back. Writers that wait do not keep a reader from renewing; they get their turn when it stops.
/// Waits for nothing but the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name or the lease, as for [`try_acquire_read`].
///   Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no answer came; the hold ends now or when it would
///   have.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was changed.
///
/// # Example
/// ```no_run
/// # use std::time::Duration;
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// use leasehold::recipes::read_write;
///
/// if !read_write::renew_read(&mut conn, "prices", &token, Duration::from_secs(10))? {
///     // … too late: a writer may have come in, so what was read may be half old, half new …
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn renew_read(
    conn: &mut Connection,
    name: &str,
    token: &Token,
    lease: Duration,
) -> Result<bool> {
    let (hold, lease) = (Hold::read(name, token)?, lease_millis("lease", lease)?);
    renewing(&hold, Side::Reader, lease)
        .asks_for(Operation::new("read_write::renew_read", name), conn)
}

/// Ends a reader's hold. `Ok(false)`: its lease had ended before, so that a writer may have come in
/// meanwhile.
///
/// The key goes with the last holder. Waits for nothing but the server. One round trip.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name, as for [`try_acquire_read`]. Nothing was
///   sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no answer came; the hold is over now or at the end
///   of its lease. Sent again, `Ok(false)` may mean that the first was executed.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was changed.
///
/// # Example
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours_to_the_end = leasehold::recipes::read_write::release_read(&mut conn, "prices", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release_read(conn: &mut Connection, name: &str, token: &Token) -> Result<bool> {
    let call = releasing(&Hold::read(name, token)?, Side::Reader);
    call.asks_for(Operation::new("read_write::release_read", name), conn)
}
