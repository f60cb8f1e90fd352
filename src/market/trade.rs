//! What listing and purchasing share: the lock around them, and numbers as the book stores them.

use std::time::Duration;

use redis::{Connection, ErrorKind, Pipeline, RedisError, Value};

use super::offer::MAX_PRICE;
use crate::{
    error::{Error, Operation, Result},
    exchange::is_interrupted,
    name::LockName,
    recipes::simple::{acquire, release_lock},
    time::{Deadline, lease_millis},
    token::Token,
    transaction::{Watched, watch},
};

/// The lock of the Jedis article: one for the whole market.
pub(super) const MARKET_LOCK: &str = "market";

const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a trade under a lock starts again: half the lease, so that it gives up before it loses the lock.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried to give a lock back while signals interrupt it.
const RELEASES: u32 = 100;
/// No sale carries funds past 2^62, so that not even five hundred sales at one moment overflow `HINCRBY` together.
const MAX_FUNDS: i64 = 1 << 62;

/// What was decided on what was read: this outcome, and these commands for it.
pub(super) struct Decision<T> {
    outcome: T,
    /// None for a refusal. The last two move the item.
    writes: Pipeline,
}

impl<T> Decision<T> {
    /// Nothing is to be written.
    pub(super) fn refused(outcome: T) -> Self {
        let writes = Pipeline::with_capacity(1);
        Self { outcome, writes }
    }

    /// Commands of which the last two take the item from one place and put it into another.
    pub(super) fn agreed(outcome: T, writes: Pipeline) -> Self {
        Self { outcome, writes }
    }

    /// Writes what was decided, and deletes the lock if there is one, in one transaction. `None`: a watched key has
    /// changed.
    ///
    /// # Errors
    /// `Partial` if the item was not moved from one place to one other: only `WATCH` would have told, and who trades in
    /// another way may have been there in between.
    pub(super) fn commit(
        self,
        operation: Operation<'_>,
        watched: Watched<'_, '_>,
        lock: Option<&str>,
    ) -> Result<Option<T>> {
        let mut writes = self.writes;
        let last_two = writes.len().saturating_sub(2)..writes.len();
        if let Some(lock) = lock {
            writes.cmd("DEL").arg(lock);
        }
        if writes.is_empty() {
            return Ok(Some(self.outcome));
        }
        let Some(results) = watched.commit(&writes)? else {
            return Ok(None);
        };
        let moved = results.get(last_two).unwrap_or_default();
        if moved.iter().all(|answer| *answer == Value::Int(1)) {
            Ok(Some(self.outcome))
        } else {
            Err(operation.partial(not_moved()))
        }
    }
}

fn not_moved() -> RedisError {
    let found = "another way of trading came between: the item is in two places, or was paid twice";
    RedisError::from((ErrorKind::Client, found))
}

/// A lock that a trade holds.
pub(super) struct Held<'a> {
    operation: Operation<'a>,
    key: String,
    token: Token,
}

impl Held<'_> {
    /// Watches the lock and the keys, and reads, in one round trip.
    ///
    /// # Errors
    /// `Lost` if the lock is not ours any more.
    pub(super) fn watch<'c>(
        &self,
        conn: &'c mut Connection,
        keys: &[&str],
        mut reads: Pipeline,
    ) -> Result<(Watched<'c, '_>, Vec<Value>)> {
        let keys = [&[self.key.as_str()], keys].concat();
        reads.cmd("GET").arg(&self.key);
        let (watched, mut values) = watch(conn, self.operation, &keys, &reads)?;
        if self.token.is_value(values.pop().as_ref()) {
            Ok((watched, values))
        } else {
            Err(self.operation.lost())
        }
    }

    /// Writes what was decided and gives the lock back, in one transaction. `None`: a watched key has changed.
    pub(super) fn commit<T>(
        &self,
        watched: Watched<'_, '_>,
        decision: Decision<T>,
    ) -> Result<Option<T>> {
        decision.commit(self.operation, watched, Some(&self.key))
    }
}

/// Attempts a trade, at once again whenever something came between, for so long and at least once.
///
/// `None` if something always came between; and how often something did.
pub(super) fn until_committed<T>(
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

/// The book's `try … finally`: takes the lock, attempts the trade until nothing came between, and lets go.
///
/// `None` if the lock was not to be had, or something always came between; and how often something did. An attempt that
/// commits has let go of the lock already.
pub(super) fn with_lock<T>(
    conn: &mut Connection,
    operation: Operation<'_>,
    mut attempt: impl FnMut(&mut Connection, &Held<'_>, u32) -> Result<Option<T>>,
) -> Result<(Option<T>, u32)> {
    let lock = LockName::new(operation.lock)?;
    let lease = lease_millis("lock_timeout", LOCK_TIMEOUT)?;
    let Some(token) = acquire(conn, operation, &lock, ACQUIRE_TIMEOUT, Some(lease))? else {
        return Ok((None, 0));
    };
    let held = Held {
        operation,
        key: lock.key().to_owned(),
        token,
    };
    let result = until_committed(PATIENCE, |retries| attempt(conn, &held, retries));
    let is_left = match &result {
        Ok((outcome, _)) => outcome.is_none(),
        Err(error) => leaves_a_lock(error),
    };
    if is_left {
        give_back(conn, &held);
    }
    result
}

/// What went wrong is the answer; a lock that cannot be given back ends by itself.
fn give_back(conn: &mut Connection, held: &Held<'_>) {
    for _ in 0..RELEASES {
        match release_lock(conn, held.operation.lock, &held.token) {
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

/// A price as the market's score holds it.
pub(super) fn price(operation: Operation<'_>, score: &Value) -> Result<Option<u64>> {
    let score: Option<f64> = match score {
        Value::Nil => return Ok(None),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).parse().ok(),
        Value::Double(score) => Some(*score),
        _ => None,
    };
    let score = score.ok_or_else(|| operation.unreadable())?;
    // A server may write a large score as 4.6e+15; Rust writes each whole number in full.
    match score.to_string().parse() {
        Ok(price) if price <= MAX_PRICE => Ok(Some(price)),
        _ => Err(operation.wrong_kind(format!(
            "the price {score}, which is no whole number from 0 to 2^53"
        ))),
    }
}

/// Whether a set holds an item.
pub(super) fn has(operation: Operation<'_>, is_member: &Value) -> Result<bool> {
    match is_member {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        _ => Err(operation.unreadable()),
    }
}

/// A user's funds, 0 if there are none, and only as `HINCRBY` takes them.
pub(super) fn funds(operation: Operation<'_>, key: &str, field: &Value) -> Result<i64> {
    let Value::BulkString(bytes) = field else {
        return if *field == Value::Nil {
            Ok(0)
        } else {
            Err(operation.unreadable())
        };
    };
    let text = String::from_utf8_lossy(bytes);
    match text.parse::<i64>() {
        Ok(funds) if funds.to_string() == text => Ok(funds),
        _ => Err(operation.wrong_kind(format!(
            "funds at `{key}` that are no whole number below 2^63"
        ))),
    }
}

/// Refuses a sale that the seller has no room for.
pub(super) fn check_room(
    operation: Operation<'_>,
    key: &str,
    funds: i64,
    price: u64,
) -> Result<()> {
    if i128::from(funds) + i128::from(price) > i128::from(MAX_FUNDS) {
        return Err(operation.wrong_kind(format!(
            "funds at `{key}` that the price would carry past 2^62"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a trade makes of a score; -1 for an error.
    fn read(score: &Value) -> Option<i128> {
        match price(Operation::new("a test", "an item"), score) {
            Ok(price) => price.map(i128::from),
            Err(_) => Some(-1),
        }
    }

    fn text(score: &str) -> Option<i128> {
        read(&Value::BulkString(score.into()))
    }

    #[test]
    fn a_price_is_the_same_however_a_server_writes_it() {
        let highest = Some(i128::from(MAX_PRICE));
        assert_eq!(text("35"), Some(35));
        assert_eq!(text("0"), Some(0));
        assert_eq!(text("4.6e+15"), Some(4_600_000_000_000_000));
        assert_eq!(text("9007199254740992"), highest);
        assert_eq!(text("9.007199254740992e15"), highest);
        assert_eq!(read(&Value::Double(9_007_199_254_740_992.0)), highest);
        assert_eq!(read(&Value::Double(35.0)), Some(35));
        assert_eq!(read(&Value::Nil), None);
    }

    #[test]
    fn what_is_no_whole_number_is_no_price() {
        for score in [
            "",
            "x",
            "9.99",
            "-5",
            "nan",
            "inf",
            "-inf",
            "1e17",
            "9007199254740994",
        ] {
            assert_eq!(text(score), Some(-1), "{score}");
        }
        assert_eq!(read(&Value::Double(f64::NAN)), Some(-1));
        assert_eq!(read(&Value::Double(0.5)), Some(-1));
        assert_eq!(read(&Value::Int(5)), Some(-1));
    }
}
