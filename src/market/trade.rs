//! What listing and purchasing share: a transaction that reads, decides and writes, by itself or
//! under a lock.

use std::{ops::Range, time::Duration};

use redis::{Cmd, Connection, ErrorKind, Pipeline, RedisError, Value};

use super::offer::MARKET;
use crate::{
    error::{Error, Operation, Result, told_otherwise},
    name::LockName,
    recipes::transaction::{Attempted, Done, Entry, Transaction, WatchedConnection},
    time::lease_millis,
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

const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a trade under a lock starts again: half the lease, so that it gives up before it loses
/// the lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// A listing or a purchase, whichever way it goes.
pub(super) trait Trade {
    type Outcome;

    /// What an attempt reads while it watches.
    fn reads(&self) -> Pipeline;

    /// Whether the trade can be made, by what was read: one value for each read. `retries` is how
    /// many attempts were aborted.
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
    /// Puts the item into one place and takes it from the other. Each answers how many items it has
    /// moved.
    pub(super) item: [Cmd; 2],
}

impl<T> Decision<T> {
    pub(super) fn refused(outcome: T) -> Self {
        let writes = None;
        Self { outcome, writes }
    }

    fn written_to(self, pipe: &mut Pipeline) -> Decided<T> {
        let mut movements = 0..0;
        if let Some(Writes { money, item }) = self.writes {
            for payment in money.into_iter().flatten() {
                pipe.add_command(payment);
            }
            movements = pipe.len()..pipe.len() + item.len();
            for movement in item {
                pipe.add_command(movement);
            }
        }
        (self.outcome, movements)
    }
}

/// Trades by `WATCH` alone: starts again, at once, whenever one of the keys has changed, for so
/// long and at least once.
pub(super) fn by_watch<T: Trade>(
    conn: &mut Connection,
    operation: Operation<'_>,
    patience: Duration,
    keys: &[&str],
    trade: &T,
) -> Result<T::Outcome> {
    let mut attempts = Attempts::of(operation, trade);
    let traded = Transaction::new(operation, keys, patience)
        .run(conn, |conn, pipe| attempts.one_more(conn, pipe));
    attempts.outcome(traded.map(|traded| traded.map(Some)))
}

/// Trades under a lock, as [`transaction_with_lock`](crate::transaction_with_lock) does: takes the
/// lock, attempts the trade until none of the keys has changed meanwhile, and gives the lock back
/// in the transaction of the trade.
pub(super) fn under_lock<T: Trade>(
    conn: &mut Connection,
    function: &'static str,
    lock: &str,
    keys: &[&str],
    trade: &T,
) -> Result<T::Outcome> {
    let operation = Operation::new(function, lock);
    let lease = lease_millis("lock_timeout", LOCK_TIMEOUT)?;
    let entry = Entry::new(LockName::new(lock)?, ACQUIRE_TIMEOUT, lease);
    let mut attempts = Attempts::of(operation, trade);
    let traded =
        Transaction::new(operation, keys, PATIENCE)
            .run_with_lock(conn, entry, |conn, pipe| attempts.one_more(conn, pipe));
    attempts.outcome(traded)
}

/// What is tried until nothing comes between.
struct Attempts<'a, T> {
    operation: Operation<'a>,
    trade: &'a T,
    made: u32,
}

/// The outcome of a trade, and which of its commands move the item.
type Decided<T> = (T, Range<usize>);

impl<'a, T: Trade> Attempts<'a, T> {
    fn of(operation: Operation<'a>, trade: &'a T) -> Self {
        Self {
            operation,
            trade,
            made: 0,
        }
    }

    /// Reads and decides.
    fn one_more(
        &mut self,
        conn: &mut WatchedConnection<'_>,
        pipe: &mut Pipeline,
    ) -> Result<Decided<T::Outcome>> {
        let retries = self.made;
        self.made += 1;
        let values: Vec<Value> = self.trade.reads().query(conn)?;
        let decision = self.trade.decide(self.operation, &values, retries)?;
        Ok(decision.written_to(pipe))
    }

    /// # Errors
    /// `Partial` if the item was not moved from one place to one other: only `WATCH` would have
    /// told, and who trades in another way may have been there in between.
    fn outcome(self, traded: Attempted<Option<Done<Decided<T::Outcome>>>>) -> Result<T::Outcome> {
        match traded {
            Ok(Ok(Some(Done { value, results }))) => {
                let (outcome, movements) = value;
                let counts = results.get(movements).unwrap_or_default();
                if counts.iter().all(|count| *count == Value::Int(1)) {
                    Ok(outcome)
                } else {
                    Err(self.operation.partial(not_moved()))
                }
            }
            Ok(Ok(None)) => Ok(T::contended(0)),
            Err(Error::Contended { .. }) => Ok(T::contended(self.made)),
            Ok(Err(error)) | Err(error) => Err(naming_the_cluster(error)),
        }
    }
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
