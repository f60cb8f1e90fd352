//! A trade is a listing or a purchase: a transaction that reads, decides and writes, with or
//! without a lock.

use std::time::Duration;

use redis::{Connection, ErrorKind, Pipeline, RedisError, Value};

use super::offer::MARKET;
use crate::{
    book::lock::{run_with_lock, wanted},
    error::{Error, Operation, Result, with_text},
    name::LockName,
    recipes::{Transaction, WatchedConnection},
    wire::command,
};

/// The lock for the whole market. The book's two editions name it differently.
///
/// **The two do not exclude each other.** All programs that trade in one market under a market lock
/// must use the same one.
///
/// ```
/// use leasehold::MarketLock;
///
/// assert_eq!(MarketLock::Article.name(), "market"); // the key `lock:market`
/// assert_eq!(MarketLock::Book.name(), "market:"); // the key `lock:market:`
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarketLock {
    /// `lock:market`, used by `purchaseItemWithLock` of the Jedis article.
    Article,
    /// `lock:market:`, used by `purchase_item_with_lock` of the book's Python.
    Book,
}

impl MarketLock {
    /// Returns the lock's name, for [`acquire_lock`](crate::acquire_lock).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Article => "market",
            Self::Book => MARKET,
        }
    }
}

/// The maximum time that a trade waits for its lock.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// The lease of its lock.
const LOCK_MILLIS: u64 = 10_000;
/// The time within which a trade under a lock restarts: half the lease, so that it gives up before
/// it loses the lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// The way in which a trade keeps other clients from changing the data between its read and write.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// `WATCH` alone: if one of the keys has changed, the trade restarts at once, until this time
    /// has passed. It makes at least one attempt.
    Watch(Duration),
    /// `WATCH` and the operation's lock, which is acquired before the first attempt, as by
    /// [`transaction_with_lock`](crate::transaction_with_lock), and released in the transaction of
    /// the trade.
    Lock,
}

/// One attempt at a trade: it reads the keys, decides, and puts either all writes into the pipeline
/// or none. The last two writes move the item; each replies with the number of items that it moved.
pub(super) struct TradeAttempt<'a, 'c> {
    pub(super) operation: Operation<'a>,
    conn: &'a mut WatchedConnection<'c>,
    writes: &'a mut Pipeline,
    /// The number of attempts that were aborted before this one.
    pub(super) retries: u32,
}

impl TradeAttempt<'_, '_> {
    pub(super) fn read<const N: usize>(&mut self, commands: [&[&str]; N]) -> Result<[Value; N]> {
        let mut reads = Pipeline::with_capacity(N + 1);
        for words in commands {
            reads.add_command(command(words));
        }
        let values: Vec<Value> = reads.query(self.conn)?;
        values.try_into().map_err(|_| self.operation.unreadable())
    }

    pub(super) fn write(&mut self, words: &[&str]) {
        self.writes.add_command(command(words));
    }
}

/// Repeats a trade until an attempt is not aborted by a change of one of the keys. `contended`
/// gives the outcome if the lock was not acquired (0 retries) or every attempt was aborted.
///
/// # Errors
/// `Partial`: the item did not move from exactly one place to exactly one other. Someone traded in
/// another way between the read and the write, and changed a key that was not watched.
pub(super) fn trade<T>(
    conn: &mut Connection,
    operation: Operation<'_>,
    way: Way,
    keys: &[&str],
    contended: impl Fn(u32) -> T,
    attempt: impl Fn(&mut TradeAttempt<'_, '_>) -> Result<T>,
) -> Result<T> {
    let mut made = 0;
    let once = |conn: &mut WatchedConnection<'_>, writes: &mut Pipeline| {
        made += 1;
        attempt(&mut TradeAttempt {
            operation,
            conn,
            writes,
            retries: made - 1,
        })
    };
    let traded = match way {
        Way::Watch(patience) => {
            let traded = Transaction::new(operation, keys, patience).run(conn, once);
            traded.map(|traded| traded.map(Some))
        }
        Way::Lock => {
            let lock = LockName::new(operation.lock)?;
            let wanted = wanted(lock, ACQUIRE_TIMEOUT, LOCK_MILLIS);
            let transaction = Transaction::new(operation, keys, PATIENCE);
            run_with_lock(conn, transaction, &wanted, once)
        }
    };
    match traded {
        Ok(Ok(Some((outcome, results)))) if has_moved(&results) => Ok(outcome),
        Ok(Ok(Some(_))) => Err(operation.partial(not_moved())),
        Ok(Ok(None)) => Ok(contended(0)),
        Err(Error::Contended { .. }) => Ok(contended(made)),
        Ok(Err(error)) | Err(error) => Err(explain_cluster_error(error)),
    }
}

/// Returns true if the last two commands moved one item each, or nothing was written.
fn has_moved(results: &[Value]) -> bool {
    let mut movements = results.iter().rev().take(2);
    movements.all(|moved| *moved == Value::Int(1))
}

/// Explains why a trade fails on a cluster: its keys are in different slots.
fn explain_cluster_error(error: Error) -> Error {
    match error {
        Error::Redis { context, source }
            if matches!(source.code(), Some("MOVED" | "ASK" | "CROSSSLOT")) =>
        {
            let reason = "the market's keys are in many slots of a Redis Cluster, and a trade changes \
                          several: use a single server";
            let source = with_text(&source, reason);
            Error::Redis { context, source }
        }
        error => error,
    }
}

fn not_moved() -> RedisError {
    let found =
        "someone traded in another way meanwhile: the item is in two places, or was paid for twice";
    RedisError::from((ErrorKind::Client, found))
}
