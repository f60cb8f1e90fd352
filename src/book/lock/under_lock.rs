//! Runs work under a lock of the book: its `try … finally`, and transactions that check the lock.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use redis::{Connection, FromRedisValue, Pipeline, RedisError, Value};

use super::{
    acquire_lock::{acquire, wanted},
    release_lock::release_lock,
};
use crate::{
    error::{Error, Operation, Result, code},
    name::LockName,
    ran::Ran,
    recipes::{
        Attempted, Executed, HeldCommit, LockState, Proof, Transaction, WantedLock,
        WatchedConnection, was_interrupted,
    },
    time::lease_millis,
    token::Token,
};

/// The maximum number of attempts to release a lock while signals interrupt them.
const RELEASES: u32 = 100;

/// Runs a closure under the book's lock and releases the lock, even on a panic.
///
/// This is the book's `try … finally`. `Ok(None)`: another holder had the lock until the deadline,
/// and `run` was not called.
///
/// The wait, the lease and the release are those of
/// [`acquire_lock_with_timeout`](crate::acquire_lock_with_timeout) and
/// [`release_lock`](crate::release_lock). Nothing is renewed: choose a lease longer than the work,
/// or use [`Lock::run`](crate::Lock::run). `run` gets the connection to work on, and the token for
/// [`commit_while_held`](crate::commit_while_held) and [`transaction_while_held`]. Three round
/// trips.
///
/// After `run` the result is a [`Ran`] with its value, even if the lock was lost:
/// [`Ran::unless_lost`] converts a loss to an error. If the release got no reply, or the lock has
/// moved to another node of a cluster, `released` is [`Error::Unknown`](crate::Error::Unknown) with
/// the [token](crate::Error::token), to release it elsewhere. If that happens after a panic, the
/// lock ends with its lease. A `MULTI` that `run` leaves open on the connection is discarded.
///
/// # Errors
/// As [`acquire_lock_with_timeout`](crate::acquire_lock_with_timeout): `run` was not called.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{redis::Commands, with_lock};
///
/// let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let (wait, lease) = (Duration::from_secs(90), Duration::from_secs(60));
/// let Some(ran) = with_lock(&mut conn, "report", wait, lease, |conn, _token| {
///     conn.set::<_, _, ()>("report:text", "all is well")
/// })?
/// else {
///     anyhow::bail!("another process is writing the report");
/// };
/// ran.unless_lost()??;
/// # anyhow::Ok(())
/// ```
pub fn with_lock<T>(
    conn: &mut Connection,
    lock_name: &str,
    acquire_timeout: Duration,
    lock_timeout: Duration,
    run: impl FnOnce(&mut Connection, &Token) -> T,
) -> Result<Option<Ran<T>>> {
    Operation::new("with_lock", lock_name).run(|operation| {
        let lock = LockName::new(lock_name)?;
        let lease = lease_millis("lock_timeout", lock_timeout)?;
        let Some(token) = acquire(conn, operation, &lock, acquire_timeout, Some(lease))? else {
            return Ok(None);
        };
        let value = catch_unwind(AssertUnwindSafe(|| run(conn, &token)));
        let was_released = send_release(conn, &lock, &token);
        let value = value.unwrap_or_else(|panic| resume_unwind(panic));
        let released = released_as(operation, &token, was_released);
        Ok(Some(Ran { value, released }))
    })
}

/// Converts the result of a release for the caller of the whole operation.
pub(super) fn released_as(
    operation: Operation<'_>,
    token: &Token,
    was_released: Result<bool>,
) -> Result<()> {
    match was_released {
        Ok(true) => Ok(()),
        Ok(false) => Err(operation.lost()),
        // The caller has no other way to learn the token.
        Err(Error::Unknown { source, .. }) => Err(operation.unknown(Some(token), source)),
        Err(Error::Redis { source, .. }) if is_elsewhere(&source) => {
            Err(operation.unknown(Some(token), source))
        }
        Err(error) => Err(error),
    }
}

/// Executes a transaction only while the lock is still ours. Does not release the lock.
///
/// `build` adds the commands; it is called once, before anything is sent. If the lock changes but
/// stays ours (by a renewal, or a waiter that gives it an end), the commit is retried at once, for
/// up to 5 s. Otherwise it waits only for the server. Two round trips: `WATCH` and `GET`, then
/// `MULTI`, the commands, `EXEC`.
///
/// Returns the result of the pipeline: a tuple or a `Vec` with one value per command, except those
/// marked [`ignore`](redis::Pipeline::ignore). `()` drops them; then the call has to name the type,
/// as below. An empty pipeline only checks that the lock is still ours.
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
/// - [`Error::Reply`](crate::Error::Reply): everything was written, but the replies do not fit `T`.
/// - [`Error::Contended`](crate::Error::Contended): the lock kept changing for 5 s. Nothing
///   was written.
/// - [`Error::WrongKind`](crate::Error::WrongKind), [`Error::Redis`](crate::Error::Redis): nothing
///   was written.
///
/// # Examples
/// ```no_run
/// # let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// # let mut conn = pool.get()?;
/// # let token = leasehold::Token::random();
/// use leasehold::commit_while_held;
///
/// let (edition,): (u64,) = commit_while_held(&mut conn, "report", &token, |pipe| {
///     pipe.set("report:text", "all is well").ignore();
///     pipe.incr("report:editions", 1);
/// })?;
/// // No result is wanted: without `::<()>` this does not compile.
/// commit_while_held::<()>(&mut conn, "report", &token, |pipe| {
///     pipe.set("report:text", "all is still well");
/// })?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn commit_while_held<T: FromRedisValue>(
    conn: &mut Connection,
    lock_name: &str,
    token: &Token,
    build: impl FnOnce(&mut Pipeline),
) -> Result<T> {
    Operation::new("commit_while_held", lock_name).run(|operation| {
        let lock = LockName::new(lock_name)?;
        let commit = HeldCommit::new(operation, Proof::by_value(&lock, token), build)?;
        let results = commit.send(conn)?.unwrap_or_default();
        commit.answer(results)
    })
}

/// Reads, decides and writes in one transaction while the lock is still ours. Does not release it.
///
/// The lock must have been acquired with this token, by any function. Otherwise like
/// [`Lease::transaction`](crate::Lease::transaction), which documents `attempt`. Two round trips if
/// `attempt` reads once.
///
/// # Errors
/// As [`Lease::transaction`](crate::Lease::transaction), except
/// [`Error::Pool`](crate::Error::Pool).
///
/// # Examples
/// ```no_run
/// use leasehold::{redis::Commands, transaction_while_held};
///
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// # let token = leasehold::Token::random();
/// let paid = transaction_while_held(&mut conn, "order:4711", &token, &["wallet:7"], |conn, pipe| {
///     let funds: Option<i64> = conn.get("wallet:7")?;
///     if funds.unwrap_or(0) < 5 {
///         return Ok(false); // nothing is written
///     }
///     pipe.decr("wallet:7", 5).incr("wallet:8", 5);
///     Ok(true)
/// })?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn transaction_while_held<T>(
    conn: &mut Connection,
    lock_name: &str,
    token: &Token,
    keys: &[&str],
    attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
) -> Result<T> {
    Operation::new("transaction_while_held", lock_name).run(|operation| {
        let lock = LockName::new(lock_name)?;
        let proof = Proof::by_value(&lock, token);
        let transaction = Transaction::while_held(operation, keys, &proof);
        Ok(transaction.run(conn, attempt)??.0)
    })
}

/// Acquires the book's lock, reads, decides and writes in one transaction, and releases the lock in
/// it.
///
/// The book's market works this way. `Ok(None)`: another holder had the lock until the deadline,
/// and nothing was done.
///
/// Waits up to `acquire_timeout` for the lock and holds it for at most `lock_timeout`. `attempt`
/// may be called before the lock is acquired: its first read on the connection acquires it.
/// Otherwise like [`Lease::transaction`](crate::Lease::transaction), except that it is retried for
/// half of the lease. On every exit, including a panic, nothing stays watched, and a lock that may
/// be ours is released.
///
/// **Two round trips in all** on a free lock, if `attempt` reads once: `SET`, `WATCH` and the
/// reads; then `MULTI`, the writes, `DEL` and `EXEC`.
///
/// # Errors
/// - [`Error::Unknown`](crate::Error::Unknown) with a [token](crate::Error::token): it failed
///   before the transaction, and the lock may be held; on a cluster it may have moved to another
///   node. Without a token: the transaction got no reply.
/// - All others as [`acquire_lock_with_timeout`](crate::acquire_lock_with_timeout) and
///   [`Lease::transaction`](crate::Lease::transaction).
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{redis::Commands, transaction_with_lock};
///
/// # let mut conn = leasehold::Pool::connect("redis://127.0.0.1/")?.get()?;
/// let (wait, lease) = (Duration::from_secs(30), Duration::from_secs(10));
/// let keys = ["wallet:7", "wallet:8"];
/// let left = transaction_with_lock(&mut conn, "order:4711", wait, lease, &keys, |conn, pipe| {
///     let funds: i64 = conn.get("wallet:7")?;
///     if funds >= 5 {
///         pipe.decr("wallet:7", 5).incr("wallet:8", 5);
///     }
///     Ok(funds - 5)
/// })?;
/// match left {
///     None => println!("someone else holds this order"),
///     Some(0..) => println!("paid"),
///     Some(short) => println!("{short} are missing"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn transaction_with_lock<T>(
    conn: &mut Connection,
    lock_name: &str,
    acquire_timeout: Duration,
    lock_timeout: Duration,
    keys: &[&str],
    attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
) -> Result<Option<T>> {
    Operation::new("transaction_with_lock", lock_name).run(|operation| {
        let lock = LockName::new(lock_name)?;
        let lease = lease_millis("lock_timeout", lock_timeout)?;
        let transaction = Transaction::new(operation, keys, lock_timeout / 2);
        let wanted = wanted(lock, acquire_timeout, lease);
        let executed = run_with_lock(conn, transaction, &wanted, attempt)??;
        Ok(executed.map(|(value, _)| value))
    })
}

/// Acquires a lock of the book in the first round trip of the transaction, or waits for it, and
/// deletes it in the transaction. Releases it on an error of the closure. `None`: another holder
/// had it until the deadline.
pub(in crate::book) fn run_with_lock<T>(
    conn: &mut Connection,
    transaction: Transaction<'_>,
    wanted: &WantedLock,
    attempt: impl FnMut(&mut WatchedConnection<'_>, &mut Pipeline) -> Result<T>,
) -> Attempted<Option<Executed<T>>> {
    let (lock, token) = (&wanted.lock, &wanted.token);
    let proof = Proof::by_value(lock, token);
    let transaction = transaction.proving(&proof);
    let mut state = LockState::Wanted;
    let attempted = catch_unwind(AssertUnwindSafe(|| {
        transaction.run_taking(conn, Some((wanted, &mut state)), attempt)
    }));
    let is_left = match &attempted {
        Ok(Ok(ended)) => ended.is_err(),
        Ok(Err(met)) => must_release(met),
        Err(_panic) => true,
    };
    let is_held = is_left && state == LockState::Held;
    let was_released = is_held.then(|| send_release(conn, lock, token));
    match attempted.unwrap_or_else(|panic| resume_unwind(panic)) {
        Ok(ended) => Ok(ended.map(Some)),
        Err(_) if state == LockState::Busy => Ok(Ok(None)),
        // The lock has moved with its slot, so it cannot be released here.
        Err(Error::Redis { source, .. })
            if is_elsewhere(&source) && was_released.is_some_and(has_moved) =>
        {
            Err(transaction.operation.unknown(Some(token), source))
        }
        Err(met) => Err(met),
    }
}

/// Returns true if the lock must still be released here. False after a loss, if the transaction may
/// have deleted it, and if the connection is closed or silent.
fn must_release(error: &Error) -> bool {
    match error {
        interrupted if was_interrupted(interrupted) => true,
        Error::Lost { .. } | Error::Unknown { .. } => false,
        Error::Redis { source, .. } => !source.is_io_error(),
        _ => true,
    }
}

/// Releases a lock, and retries if a signal interrupts it. An open `MULTI` of the caller would
/// block the release, so it is discarded first. A lock that cannot be released ends with its lease.
pub(super) fn send_release(conn: &mut Connection, lock: &LockName, token: &Token) -> Result<bool> {
    let mut tries = 1;
    loop {
        let released = release_lock(conn, lock.text(), token);
        let goes_on = match &released {
            // The server is alive and may have deleted the lock: a repeated release does no harm.
            Err(error) if was_interrupted(error) => true,
            Err(Error::Redis { source, .. }) if !source.is_io_error() => {
                discard_open_transaction(conn)
            }
            _ => false,
        };
        if !goes_on || tries == RELEASES {
            return released;
        }
        tries += 1;
    }
}

/// Discards an open transaction. Returns false if none was open.
fn discard_open_transaction(conn: &mut Connection) -> bool {
    matches!(redis::cmd("DISCARD").query(conn), Ok(Value::Okay))
}

/// Returns true if the lock's slot is moving, or has moved, to another node of the cluster.
fn is_elsewhere(error: &RedisError) -> bool {
    matches!(code(error), "MOVED" | "ASK" | "TRYAGAIN")
}

fn has_moved(was_released: Result<bool>) -> bool {
    matches!(was_released, Err(Error::Redis { source, .. }) if is_elsewhere(&source))
}
