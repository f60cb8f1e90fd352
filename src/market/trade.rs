//! A trade, listing or purchase: a transaction that reads, decides and writes, by itself or
//! under a lock.

use std::time::Duration;

use redis::{Connection, ErrorKind, Pipeline, RedisError, Value};

use super::offer::MARKET;
use crate::{
    error::{Error, Operation, Result, told_otherwise},
    name::LockName,
    recipes::{
        simple::{run_with_lock, wanted},
        transaction::{Transaction, WatchedConnection},
    },
    wire::command,
};

/// Whose lock for the whole market a trade takes: the two editions name it differently.
///
/// **The two do not exclude each other.** All who trade in one market under a market lock have to
/// take the same one.
///
/// ```
/// use leasehold::market::MarketLock;
///
/// assert_eq!(MarketLock::Article.name(), "market"); // the key `lock:market`
/// assert_eq!(MarketLock::Book.name(), "market:"); // the key `lock:market:`
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarketLock {
    /// `lock:market`, which `purchaseItemWithLock` of the Jedis article takes.
    Article,
    /// `lock:market:`, which `purchase_item_with_lock` of the book's Python takes.
    Book,
}

impl MarketLock {
    /// The lock's name, as [`acquire_lock`](crate::acquire_lock) takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Article => "market",
            Self::Book => MARKET,
        }
    }
}

/// A trade waits so long for its lock.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// The lease of its lock.
const LOCK_MILLIS: u64 = 10_000;
/// A trade under a lock starts again for so long: half the lease, so that it gives up before it
/// loses the lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// The way in which a trade keeps others from coming between.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// `WATCH` alone: the trade starts again, at once, whenever one of the keys has changed, for so
    /// long and at least once.
    Watch(Duration),
    /// A lock as well, the operation's: it is taken before the first attempt, as by
    /// [`transaction_with_lock`](crate::transaction_with_lock), and given back in the transaction
    /// of the trade.
    Lock,
}

/// One attempt at a trade: it reads what is watched, decides, and puts all that is to be written
/// into the pipeline, or nothing. The two commands that move the item are written last: each
/// answers how many items it has moved.
pub(super) struct TradeAttempt<'a, 'c> {
    pub(super) operation: Operation<'a>,
    conn: &'a mut WatchedConnection<'c>,
    writes: &'a mut Pipeline,
    /// The number of aborted attempts before.
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

/// Attempts a trade until none of the keys has changed meanwhile. `contended` is the outcome where
/// the lock was not to be had (no retries), or every attempt was aborted.
///
/// # Errors
/// `Partial` if the item was not moved from one place to one other: only `WATCH` would have told,
/// and who trades in another way may have been there in between.
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
        Ok(Err(error)) | Err(error) => Err(naming_the_cluster(error)),
    }
}

/// True if the last two commands have moved one item each, or nothing was written.
fn has_moved(results: &[Value]) -> bool {
    let mut movements = results.iter().rev().take(2);
    movements.all(|moved| *moved == Value::Int(1))
}

/// A node of a cluster has one slot of the market's keys at most, or may not change two at once.
fn naming_the_cluster(error: Error) -> Error {
    match error {
        Error::Redis { context, source }
            if matches!(source.code(), Some("MOVED" | "ASK" | "CROSSSLOT")) =>
        {
            let reason = "the market's keys are in many slots of a Redis Cluster, and a trade changes several: a market stays on one server";
            let source = told_otherwise(&source, reason);
            Error::Redis { context, source }
        }
        error => error,
    }
}

fn not_moved() -> RedisError {
    let found = "another way of trading came between: the item is in two places, or was paid twice";
    RedisError::from((ErrorKind::Client, found))
}
