//! What listing and purchasing share: `WATCH`, read, decide, `MULTI` … `EXEC`, by itself or under a lock.

use std::time::Duration;

use redis::{Cmd, Connection, ErrorKind, Pipeline, RedisError, Value};

use crate::{
    error::{Error, Operation, Result},
    exchange::is_interrupted,
    name::LockName,
    recipes::simple::{acquire, release_lock},
    time::{Deadline, lease_millis},
    token::Token,
    transaction::{Watched, command, watch},
};

/// The lock of the Jedis article: one for the whole market.
pub(super) const MARKET_LOCK: &str = "market";

const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a trade under a lock starts again: half the lease, so that it gives up before it loses the lock.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried to give a lock back while signals interrupt it.
const RELEASES: u32 = 100;

/// A listing or a purchase, whichever way it goes.
pub(super) trait Trade {
    type Outcome;

    /// What an attempt reads while it watches.
    fn reads(&self) -> Pipeline;

    /// Whether the trade can be made, by what was read: one value for each read. `retries` is how many attempts were aborted.
    fn decide(
        &self,
        operation: Operation<'_>,
        values: &[Value],
        retries: u32,
    ) -> Result<Decision<Self::Outcome>>;

    /// The lock was not to be had (`retries` is 0), or every attempt was aborted.
    fn contended(retries: u32) -> Self::Outcome;
}

/// What was decided.
pub(super) struct Decision<T> {
    pub(super) outcome: T,
    /// All of it is to be written, or nothing; `None` if the trade is refused.
    pub(super) writes: Option<Writes>,
}

pub(super) struct Writes {
    /// Takes the price from one user and gives it to the other, if this is a purchase.
    pub(super) money: Option<[Cmd; 2]>,
    /// Puts the item into one place and takes it from the other. Each answers how many items it has moved.
    pub(super) item: [Cmd; 2],
}

impl<T> Decision<T> {
    pub(super) fn refused(outcome: T) -> Self {
        let writes = None;
        Self { outcome, writes }
    }
}

/// Trades by `WATCH` alone: starts again, at once, whenever one of the keys has changed, for so long and at least once.
pub(super) fn by_watch<T: Trade>(
    conn: &mut Connection,
    operation: Operation<'_>,
    patience: Duration,
    keys: &[&str],
    trade: &T,
) -> Result<T::Outcome> {
    let (outcome, retries) = until_committed(patience, |retries| {
        let (watched, values) = watch(conn, operation, keys, &trade.reads())?;
        let decision = trade.decide(operation, &values, retries)?;
        commit(operation, watched, decision, None)
    })?;
    Ok(outcome.unwrap_or_else(|| T::contended(retries)))
}

/// Trades under a lock: the book's `try … finally`. Takes the lock, attempts the trade until none of the keys has changed
/// meanwhile, and gives the lock back: in the transaction of the trade, or after it if there was none.
pub(super) fn under_lock<T: Trade>(
    conn: &mut Connection,
    function: &'static str,
    lock: &str,
    keys: &[&str],
    trade: &T,
) -> Result<T::Outcome> {
    let operation = Operation::new(function, lock);
    let lock = LockName::new(lock)?;
    let lease = lease_millis("lock_timeout", LOCK_TIMEOUT)?;
    let Some(token) = acquire(conn, operation, &lock, ACQUIRE_TIMEOUT, Some(lease))? else {
        return Ok(T::contended(0));
    };
    let keys = [&[lock.key()], keys].concat();
    let result = until_committed(PATIENCE, |retries| {
        let mut reads = trade.reads();
        reads.add_command(command(&["GET", lock.key()]));
        let (watched, mut values) = watch(conn, operation, &keys, &reads)?;
        if !token.is_value(values.pop().as_ref()) {
            return Err(operation.lost());
        }
        let decision = trade.decide(operation, &values, retries)?;
        commit(operation, watched, decision, Some(&lock))
    });
    let is_still_locked = match &result {
        Ok((outcome, _)) => outcome.is_none(),
        Err(error) => leaves_a_lock(error),
    };
    if is_still_locked {
        give_back(conn, &lock, &token);
    }
    let (outcome, retries) = result?;
    Ok(outcome.unwrap_or_else(|| T::contended(retries)))
}

/// Attempts a trade, at once again whenever something came between, for so long and at least once.
///
/// `None` if something always came between; and how often something did.
fn until_committed<T>(
    patience: Duration,
    mut attempt: impl FnMut(u32) -> Result<Option<T>>,
) -> Result<(Option<T>, u32)> {
    let deadline = Deadline::after(patience);
    let mut retries = 0;
    loop {
        if let Some(outcome) = attempt(retries)? {
            return Ok((Some(outcome), retries));
        }
        retries += 1;
        if deadline.has_passed() {
            return Ok((None, retries));
        }
    }
}

/// Writes what was decided, and deletes the lock if there is one, in one transaction. `None`: a watched key has changed.
///
/// # Errors
/// `Partial` if the item was not moved from one place to one other: only `WATCH` would have told, and who trades in another
/// way may have been there in between.
fn commit<T>(
    operation: Operation<'_>,
    watched: Watched<'_, '_>,
    decision: Decision<T>,
    lock: Option<&LockName>,
) -> Result<Option<T>> {
    let mut writes = Pipeline::with_capacity(5);
    let mut movements = 0..0;
    if let Some(Writes { money, item }) = decision.writes {
        for payment in money.into_iter().flatten() {
            writes.add_command(payment);
        }
        movements = writes.len()..writes.len() + item.len();
        for movement in item {
            writes.add_command(movement);
        }
    }
    if let Some(lock) = lock {
        writes.add_command(command(&["DEL", lock.key()]));
    }
    if writes.is_empty() {
        return Ok(Some(decision.outcome));
    }
    let Some(results) = watched.commit(&writes)? else {
        return Ok(None);
    };
    let counts = results.get(movements).unwrap_or_default();
    if counts.iter().all(|count| *count == Value::Int(1)) {
        Ok(Some(decision.outcome))
    } else {
        Err(operation.partial(not_moved()))
    }
}

fn not_moved() -> RedisError {
    let found = "another way of trading came between: the item is in two places, or was paid twice";
    RedisError::from((ErrorKind::Client, found))
}

/// What went wrong is the answer; a lock that cannot be given back ends by itself.
fn give_back(conn: &mut Connection, lock: &LockName, token: &Token) {
    for _ in 0..RELEASES {
        match release_lock(conn, lock.text(), token) {
            // The server is there, and has not or has deleted what is ours: asked again, it does no harm.
            Err(error) if was_interrupted(&error) => {}
            _ => return,
        }
    }
}

/// Of a lock that was lost, or may be gone with what was written, there is nothing to give back; and on a connection
/// that is gone or silent no way to.
fn leaves_a_lock(error: &Error) -> bool {
    match error {
        interrupted if was_interrupted(interrupted) => true,
        Error::Lost { .. } | Error::Unknown { .. } => false,
        Error::Redis { source, .. } => !source.is_io_error(),
        _ => true,
    }
}

fn was_interrupted(error: &Error) -> bool {
    match error {
        Error::Redis { source, .. } | Error::Unknown { source, .. } => is_interrupted(source),
        _ => false,
    }
}
