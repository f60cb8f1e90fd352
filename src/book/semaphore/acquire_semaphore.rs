//! The book's first semaphore: one ZSET of times.

use std::time::Duration;

use redis::Connection;

use super::acquire;
use crate::{
    error::{Operation, Result},
    name::check_size,
    token::Token,
    wire::{ask, scripts, yes_or_no},
};

scripts! {
    ACQUIRE_BOOK_SEMAPHORE = "look.lua" then "acquire_semaphore.lua";
}

/// Acquires one of `limit` permits. `Ok(None)`: none is free. Never waits.
///
/// First removes the permits of all holders that were acquired more than `timeout` ago: a permit
/// has no end of its own, so all programs must use the same `timeout`, longer than the work. A
/// permit of this semaphore cannot be refreshed; one of
/// [`acquire_fair_semaphore`](crate::acquire_fair_semaphore) can.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is empty or longer than 512 bytes; the
///   limit is 0 or more than 10,000; the timeout is not between 1 ms and 24 h. Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so
///   [`Error::token`](crate::Error::token) may hold a permit until the timeout. Release it with
///   that token on another connection.
/// - [`Error::WrongKind`](crate::Error::WrongKind): the key holds something else, or scores that
///   are not times in seconds. Nothing was changed.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; no permit was acquired.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{acquire_semaphore, release_semaphore};
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let timeout = Duration::from_secs(10);
/// if let Some(token) = acquire_semaphore(&mut conn, "semaphore:remote", 5, timeout)? {
///     // … at most five at a time call the partner …
///     release_semaphore(&mut conn, "semaphore:remote", &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_semaphore(
    conn: &mut Connection,
    semname: &str,
    limit: u32,
    timeout: Duration,
) -> Result<Option<Token>> {
    Operation::new("acquire_semaphore", semname).run(|operation| {
        check_size("semname", semname)?;
        let script = ACQUIRE_BOOK_SEMAPHORE.on([semname]);
        acquire(conn, operation, script, limit, timeout)
    })
}

/// Releases a permit. `Ok(false)`: it was already released, or lost because the work took longer
/// than the timeout or another caller used a shorter one.
///
/// Waits only for the server: one round trip.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for [`acquire_semaphore`].
///   Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. The call can be repeated:
///   `Ok(false)` may then mean that the first call had released the permit.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was released.
///
/// # Examples
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// # let token = leasehold::Token::random();
/// if !leasehold::release_semaphore(&mut conn, "semaphore:remote", &token)? {
///     eprintln!("more than five may have held a permit for a while");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release_semaphore(conn: &mut Connection, semname: &str, token: &Token) -> Result<bool> {
    Operation::new("release_semaphore", semname).run(|operation| {
        check_size("semname", semname)?;
        let mut remove = redis::cmd("ZREM");
        remove.arg(semname).arg(token.as_str());
        ask(&remove, conn)
            .and_then(|removed| yes_or_no(&removed))
            .map_err(|error| operation.unanswered(None, error))
    })
}
