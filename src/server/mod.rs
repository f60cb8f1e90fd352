//! The `Server` trait: all that locks need of a server. The stand-in for tests implements it too.
//!
//! [`redis`](self::redis) is a real server. It asks by the pool's connections, and has three
//! connections of its own: the heads of the queues ask by that of [`waiters`], the keeper renews by
//! that of [`renewals`], and on the third the [`listener`] hears of changes of the keys that were
//! read on these two, which are [`tracked`]. Where many threads ask at the same time, by the pool
//! or as heads, their calls go in one write: [`outbox`]. [`cluster`] has one such server for each
//! shard of a Redis Cluster.
//!
//! Called by `locks` on the callers' threads, by `renewing` on the renewing thread, and by the
//! listener's own thread.
//!
//! # Locks
//! A connection that several threads use is locked while it is used: `slot` in [`tracked`]. The
//! listener's `ear` comes after it, and so does an [`outbox`], with the stage of a letter within
//! it. Whoever tells the queues or the keeper of news, which locks them, has unlocked `slot` and
//! `ear` before.

#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "testing")]
mod committer;
mod listener;
mod outbox;
mod redis;
mod renewals;
mod tracked;
mod waiters;

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use ::redis::{RedisError, RedisResult, Value};

#[cfg(feature = "cluster")]
pub(crate) use cluster::Servers;
#[cfg(feature = "testing")]
pub(crate) use committer::{CommitOutcome, CommitRequest, Committer};
pub(crate) use redis::RedisServer;
pub(crate) use renewals::RenewalsConnection;
#[cfg(feature = "testing")]
pub(crate) use renewals::renewal_reply;

use crate::{
    cancel::Cancel,
    error::{Error, Operation, Result, is_unconfirmed, is_wrong_kind, no_answer},
    pool::{Limits, PooledConnection},
    time::{Clock, Deadline},
    wire::Call,
};

/// A server, as locks know it: it runs scripts, and tells of changes.
///
/// Callers have made sure that this process is no child of a fork before they made the call.
pub(crate) trait Server: Send + Sync + 'static {
    /// The clock by which its leases end.
    fn clock(&self) -> Clock {
        Clock::REAL
    }

    fn limits(&self) -> Limits;

    /// A connection for transactions with the data that the lock of this key protects.
    ///
    /// # Errors
    /// Also where nothing but locks is stored.
    fn lend(&self, key: &str) -> Result<PooledConnection>;

    /// True if this refusal says that the key is on another server by now, or on its way to one.
    /// Nothing was done then, and another connection that is [lent](Self::lend) for it may lead
    /// there.
    fn is_elsewhere(&self, _refusal: &RedisError) -> bool {
        false
    }

    /// Executes commits where no connection leads to the server. `None`: they go by one that is
    /// [lent](Self::lend).
    #[cfg(feature = "testing")]
    fn committer(&self) -> Option<&dyn Committer> {
        None
    }

    /// An error if no connection that somebody else has opened can send a transaction that looks at
    /// a lock of this server.
    fn stores_data(&self) -> Result<()> {
        Ok(())
    }

    /// The most that the clock of a server that takes its place may be ahead.
    fn clock_skew(&self) -> Duration;

    /// Sends a call that may be sent twice, by a connection that is lent for it; once more by
    /// another connection if the first turns out to have been closed, or another server has become
    /// the master before the answer.
    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply>;

    /// Sends a call that may not be sent twice, by a connection that is lent for it and has just
    /// answered a `PING`. The outer `Err`: it was not sent.
    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>>;

    /// Sends a head's call by the connection that all heads share, in one write with those of
    /// others, so that the server tells of a change of the key. It is sent by the deadline, and not
    /// after a cancel. Then its answer is waited for, one I/O time-out, and one more to connect
    /// where that is needed. `None`: it was not sent.
    ///
    /// # Errors
    /// It was not sent: there is no connection, or the server did not answer others.
    fn ask_for_head(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>>;

    /// A connection for renewals.
    fn renewals(&self) -> Box<dyn Renewals>;

    /// From now on this observer is told of changes, once they are [wanted](Self::start_telling). Starts a
    /// thread if that takes one.
    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()>;

    /// From now on somebody relies on being told.
    fn start_telling(&self);

    /// Ends the telling.
    fn close(&self);
}

/// The longest waits for one answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience<'a> {
    /// For a connection, while all are lent to others.
    pub(crate) wait_while_all_lent: Duration,
    /// For a connection and the answer, where that is sooner than the time-outs of the pool.
    pub(crate) by: Option<Deadline>,
    /// The caller wants to know that the key is on another server by now. Otherwise that one is
    /// asked.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(dead_code, reason = "only shards have moves")
    )]
    pub(crate) tells_of_moves: bool,
    /// Calls the wait for a connection off, while all are lent to others.
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Patience<'_> {
    /// As the pool allows.
    pub(crate) const USUAL: Self = Self {
        wait_while_all_lent: Duration::MAX,
        by: None,
        tells_of_moves: false,
        cancel: None,
    };

    /// Until a deadline, if that is sooner.
    pub(crate) fn until(deadline: Deadline) -> Self {
        Self {
            by: Some(deadline),
            ..Self::USUAL
        }
    }
}

/// The answer to a call that was sent.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The server's words, or why none came.
    pub(crate) answer: RedisResult<Value>,
    /// A moment before it was sent.
    pub(crate) sent: Instant,
    /// When it was answered, or a little earlier: times in the answer count from then.
    pub(crate) answered: Instant,
    /// The server tells the listener of the next change of what was read.
    pub(crate) tracked: bool,
    /// The call was sent twice, and nobody knows what came of the first.
    pub(crate) again: bool,
}

impl Reply {
    /// By a connection on which nothing is told of.
    pub(crate) fn untracked(answer: RedisResult<Value>, sent: Instant, again: bool) -> Self {
        Self {
            answer,
            sent,
            answered: sent,
            tracked: false,
            again,
        }
    }

    /// The result of a write. If it was sent twice, a refusal of the second does not tell whether
    /// the first took effect. That the key is of another kind stays the answer: it says what stands
    /// there now.
    pub(crate) fn of_both(self) -> RedisResult<Value> {
        let is_refusal = |error: &RedisError| !is_unconfirmed(error) && !is_wrong_kind(error);
        match self.answer {
            Err(error) if self.again && is_refusal(&error) => Err(no_answer()),
            answer => answer,
        }
    }
}

/// Who is told of changes on the server: the queues of those who wait, and the keeper of the
/// leases.
pub(crate) trait Observer: Send + Sync {
    /// A key was written, deleted or has expired.
    fn changed(&self, key: &str);
    /// Any key may have been changed without our being told: the heads of all queues have to ask
    /// again, and all leases have to be looked at.
    fn all_may_have_changed(&self);
    /// The answers that those who wait have got are forgotten: the heads of all queues have to ask
    /// again.
    fn ask_again(&self);
    /// Another server may answer the watchdog by now, which has not got all that the one before has
    /// answered: all leases have to be looked at, and renewed for what is left of them.
    fn renew_again(&self);
    /// True while somebody waits, or has a lease, and relies on being told.
    fn relies(&self) -> bool;
    /// A test of the library's users has done this.
    #[cfg(feature = "testing")]
    fn disturbed(&self, disturbance: Disturbance);
}

/// A stand-in's users do this to it, and it follows for those who rely on it.
#[cfg(feature = "testing")]
#[derive(Clone, Copy)]
pub(crate) enum Disturbance {
    /// Threads that sleep until a moment have to look at the clock again.
    ClockMoved,
    /// Threads that pause before they try the server again need not.
    Reachable,
    /// Nothing: wait until all that is due has been done, at most so long.
    Settle(Duration),
}

/// The watchdog's connection, opened anew whenever it has failed.
pub(crate) trait Renewals: Send {
    fn is_open(&self) -> bool;

    /// Takes as long as connecting takes.
    fn open(&mut self) -> Result<(), Arc<Failure>>;

    /// Sends all in one round trip: renewals, and releases of orphans. Takes no longer than one I/O
    /// time-out, and less where a lease is short; longer by what replicas are waited for.
    fn send(&mut self, calls: &[Call], shortest_lease: Duration) -> Replies;
}

/// The outcome of a renewal, or of the release of an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalAnswer {
    /// Renewed, or released. The moment lies before the call was sent.
    Ours(Instant),
    NotOurs,
    /// The server has forgotten the script: the next batch carries it whole.
    Forgotten,
    /// The server refused this one renewal, which leaves open whether the lock is ours.
    Refused,
    Unanswered,
}

/// The outcome of a batch.
pub(crate) struct Replies {
    /// One for each call.
    pub(crate) replies: Vec<RenewalReply>,
    /// The connection broke, or was silent for too long, and is closed.
    pub(crate) broken: bool,
}

/// The outcome of a renewal, and the reason where it failed.
pub(crate) type RenewalReply = (RenewalAnswer, Option<Arc<Failure>>);

/// Why a renewal got no answer, or not the one it wanted.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There was no connection to send it on.
    Unsent(Error),
    Sent(RedisError),
}

impl Failure {
    pub(crate) fn sent(error: RedisError) -> Arc<Self> {
        Arc::new(Self::Sent(error))
    }

    /// The server has refused, so that another attempt soon makes little sense.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Unsent(Error::Pool { source, .. }) => {
                source.as_ref().is_some_and(|error| !error.is_io_error())
            }
            Self::Unsent(_) => true,
            Self::Sent(error) => !error.is_io_error(),
        }
    }

    pub(crate) fn error(&self, operation: Operation<'_>) -> Error {
        match self {
            Self::Unsent(error) => error.clone(),
            Self::Sent(error) => operation.unanswered(None, error.clone()),
        }
    }
}
