//! The book's fair semaphore: the clients' clocks do not decide who gets a permit.

use std::time::Duration;

use redis::{Connection, RedisResult, Value};

use super::{acquire, in_one_slot, wanting};
use crate::{
    error::{Operation, Result},
    name::{LockName, check_size},
    token::Token,
    wire::{scripts, until_granted, yes_or_no},
};

scripts! {
    ACQUIRE_FAIR_SEMAPHORE = "look.lua" then "owners.lua" then "acquire_fair_semaphore.lua";
    REFRESH_FAIR_SEMAPHORE = "look.lua" then "owners.lua" then "refresh_fair_semaphore.lua";
    RELEASE_FAIR_SEMAPHORE = "release_fair_semaphore.lua";
}

/// The time that [`acquire_semaphore_with_lock`] waits for the lock, as in the book.
const LOCK_WAIT: Duration = Duration::from_millis(10);
/// The lease in milliseconds for a lock that has no end: ten seconds, the book's default.
const LOCK_END: u64 = 10_000;

/// The names of a fair semaphore's keys.
struct FairKeys {
    owner: String,
    counter: String,
}

impl FairKeys {
    fn new(semname: &str) -> Result<Self> {
        check_size("semname", semname)?;
        Ok(Self {
            owner: [semname, ":owner"].concat(),
            counter: [semname, ":counter"].concat(),
        })
    }
}

/// Acquires one of `limit` permits. `Ok(None)`: none is free. Never waits.
///
/// First removes the permits of all holders that were acquired or refreshed more than `timeout`
/// ago: a permit has no end of its own, so all programs must use the same `timeout`. A holder whose
/// work may take longer must call [`refresh_fair_semaphore`] in time.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is empty or longer than 512 bytes; the
///   limit is 0 or more than 10,000; the timeout is not between 1 ms and 24 h; or, on a Redis
///   Cluster, the name has no `{tag}`. Nothing was done.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came, so
///   [`Error::token`](crate::Error::token) may hold a permit until the timeout. Release it with
///   that token on another connection.
/// - [`Error::WrongKind`](crate::Error::WrongKind): a key holds something else, or a score that is
///   no time in seconds or no count. Nothing was changed.
/// - [`Error::Redis`](crate::Error::Redis): the server refused; no permit was acquired.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{acquire_fair_semaphore, refresh_fair_semaphore, release_fair_semaphore};
///
/// let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let (name, timeout) = ("semaphore:remote", Duration::from_secs(10));
/// if let Some(token) = acquire_fair_semaphore(&mut conn, name, 5, timeout)? {
///     for part in 1..=100 {
///         // … one part of the work, well within ten seconds …
///         if !refresh_fair_semaphore(&mut conn, name, &token)? {
///             println!("the permit was lost before part {part} was done");
///             break;
///         }
///     }
///     release_fair_semaphore(&mut conn, name, &token)?;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_fair_semaphore(
    conn: &mut Connection,
    semname: &str,
    limit: u32,
    timeout: Duration,
) -> Result<Option<Token>> {
    Operation::new("acquire_fair_semaphore", semname).run(|operation| {
        let keys = FairKeys::new(semname)?;
        let script = ACQUIRE_FAIR_SEMAPHORE.on([semname, &keys.owner, &keys.counter]);
        acquire(conn, operation, script, limit, timeout)
    })
}

/// Releases a permit. `Ok(false)`: it was already released, or lost because it was not refreshed in
/// time.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for
///   [`acquire_fair_semaphore`]. Nothing was done.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. The call can be repeated:
///   `Ok(false)` may then mean that the first call had released the permit.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was released.
///
/// # Examples
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// # let token = leasehold::Token::random();
/// let was_ours_to_the_end =
///     leasehold::release_fair_semaphore(&mut conn, "semaphore:remote", &token)?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn release_fair_semaphore(conn: &mut Connection, semname: &str, token: &Token) -> Result<bool> {
    Operation::new("release_fair_semaphore", semname).run(|operation| {
        let keys = FairKeys::new(semname)?;
        let script = RELEASE_FAIR_SEMAPHORE.on([semname, &keys.owner]);
        in_one_slot(script.arg(token.as_str()).asks_for(operation, conn))
    })
}

/// Restarts the timeout of a permit. `Ok(false)`: the permit is lost, and nothing was written.
///
/// A permit older than its timeout is still held, and can be refreshed, until another caller
/// removes it.
///
/// One round trip, or two if the script is not in the server's cache.
///
/// # Errors
/// - [`Error::Invalid`](crate::Error::Invalid): the name is invalid, as for
///   [`acquire_fair_semaphore`]. Nothing was done.
/// - [`Error::Unknown`](crate::Error::Unknown): no reply came. The call can be repeated.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was refreshed.
///
/// # Examples
/// ```no_run
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// # let token = leasehold::Token::random();
/// if !leasehold::refresh_fair_semaphore(&mut conn, "semaphore:remote", &token)? {
///     println!("the permit is no longer ours: stop");
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn refresh_fair_semaphore(conn: &mut Connection, semname: &str, token: &Token) -> Result<bool> {
    Operation::new("refresh_fair_semaphore", semname).run(|operation| {
        let keys = FairKeys::new(semname)?;
        let script = REFRESH_FAIR_SEMAPHORE.on([semname, &keys.owner, &keys.counter]);
        in_one_slot(script.arg(token.as_str()).asks_for(operation, conn))
    })
}

/// Acquires one of `limit` permits while no one holds the book's lock `lock:semname`.
///
/// In the book the lock prevents two callers from being granted the last permit. Here one script
/// prevents that. Use this function in place of [`acquire_fair_semaphore`] if programs that use the
/// book's `acquire_semaphore_with_lock` share the semaphore: while one of them holds the lock, this
/// function waits up to 10 ms, as the book's does. It never acquires the lock, so it leaves none
/// behind. A lock without an end gets one, ten seconds from now, since its holder may have died.
///
/// One round trip on a free lock, then one per retry.
///
/// # Errors
/// - [`Error::Contended`](crate::Error::Contended): another program held the lock for the whole
///   wait. No permit was acquired, though one may be free.
/// - [`Error::Invalid`](crate::Error::Invalid): as for [`acquire_fair_semaphore`], or
///   [`acquire_lock`](crate::acquire_lock) refuses the name.
/// - [`Error::Unknown`](crate::Error::Unknown), [`Error::WrongKind`](crate::Error::WrongKind),
///   [`Error::Redis`](crate::Error::Redis): as for [`acquire_fair_semaphore`].
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{acquire_semaphore_with_lock, release_fair_semaphore};
///
/// let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let (name, timeout) = ("semaphore:remote", Duration::from_secs(10));
/// match acquire_semaphore_with_lock(&mut conn, name, 5, timeout) {
///     Ok(Some(token)) => {
///         // … at most five at a time call the partner …
///         release_fair_semaphore(&mut conn, name, &token)?;
///     }
///     Ok(None) => println!("all five permits are in use"),
///     Err(error) if error.is_contended() => println!("try again"),
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn acquire_semaphore_with_lock(
    conn: &mut Connection,
    semname: &str,
    limit: u32,
    timeout: Duration,
) -> Result<Option<Token>> {
    Operation::new("acquire_semaphore_with_lock", semname).run(|operation| {
        let (keys, lock) = (FairKeys::new(semname)?, LockName::new(semname)?);
        let token = Token::random();
        let script = ACQUIRE_FAIR_SEMAPHORE.on([semname, &keys.owner, &keys.counter, lock.key()]);
        let call = wanting(script, &token, limit, timeout)?.arg(LOCK_END);
        let decided = until_granted(operation, &token, LOCK_WAIT, || {
            call.send(conn).and_then(|answer| decision(&answer))
        });
        let busy = || operation.contended_after(Some(LOCK_WAIT));
        let is_ours = in_one_slot(decided)?.ok_or_else(busy)?;
        Ok(is_ours.then_some(token))
    })
}

/// Returns true for a permit. `None`: another program holds the lock.
fn decision(answer: &Value) -> RedisResult<Option<bool>> {
    match answer {
        Value::Nil => Ok(None),
        answer => yes_or_no(answer).map(Some),
    }
}
