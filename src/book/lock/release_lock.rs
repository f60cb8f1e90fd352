//! The book's `release_lock`.

use redis::{Connection, Pipeline, Value};

use crate::{
    error::{Operation, Result},
    name::LockName,
    recipes::{Proof, WatchedConnection},
    token::Token,
};

/// The maximum number of attempts of a release, which is retried if the lock changes between its
/// two round trips.
const RELEASE_ATTEMPTS: u32 = 100;

/// Releases a lock if it is still ours. `Ok(false)`: it was no longer ours, and nothing was
/// deleted.
///
/// Waits only for the server. Two round trips: `WATCH` and `GET`, then `MULTI`, `DEL`, `EXEC`. If
/// the lock changes in between (a waiter gives it an end), the release is retried, at most 100
/// times.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for
///   [`acquire_lock`](crate::acquire_lock). Nothing was sent.
/// - [`Error::Unknown`](crate::Error::Unknown): the `EXEC` got no reply. The call can be repeated:
///   `Ok(false)` may then mean that the first call released the lock.
/// - [`Error::Contended`](crate::Error::Contended): the lock changed in each of 100 attempts. It is
///   still ours.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): the lock
///   was not released.
///
/// # Examples
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
    Operation::new("release_lock", lock_name).run(|operation| {
        let lock = LockName::new(lock_name)?;
        let key = [lock.key()];
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
    })
}
