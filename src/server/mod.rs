//! The `Server` trait: everything that locks need from Redis. The test stand-in implements it too.
//!
//! [`redis`](self::redis) implements it for a real server. It sends calls on the pool's connections
//! and on three connections of its own. The heads of the queues use the one in [`waiters`], the
//! keeper renews on the one in [`renewals`], and the [`listener`] receives notifications of changes
//! of the keys that were read on these two, which are [`tracked`]. Calls that many threads send at
//! once share a write: [`outbox`]. [`cluster`] has one such server for each shard of a Redis
//! Cluster.
//!
//! The callers are `locks` on the callers' threads, `renewing` on the renewing thread, and the
//! listener's thread.
//!
//! # Locks
//! A connection that several threads use is locked while it is used: `slot` in [`tracked`]. The
//! listener's `ear` and the letters of an [`outbox`] are locked after `slot`, and the stage of a
//! letter after the letters. A thread unlocks `slot` and `ear` before it calls an [`Observer`],
//! which locks the queues or the keeper.

#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "testing")]
mod committer;
mod listener;
mod outbox;
mod per_server;
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
pub(crate) use per_server::PerServer;
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

/// A server, as locks see it: it runs scripts and notifies of changes.
///
/// Callers make sure first that this process is not a forked child.
pub(crate) trait Server: Send + Sync + 'static {
    /// The clock by which its leases end.
    fn clock(&self) -> Clock {
        Clock::REAL
    }

    fn limits(&self) -> Limits;

    /// Lends a connection for transactions on the data that the lock of this key protects.
    ///
    /// # Errors
    /// Also if the server stores nothing but locks.
    fn lend(&self, key: &str) -> Result<PooledConnection>;

    /// True if this refusal means that the key is on another server, or is being moved to one. The
    /// call had no effect, and another connection [lent](Self::lend) for the key may lead to that
    /// server.
    fn is_elsewhere(&self, _refusal: &RedisError) -> bool {
        false
    }

    /// Executes commits for a server that has no connections. `None`: a commit uses a connection
    /// that is [lent](Self::lend).
    #[cfg(feature = "testing")]
    fn committer(&self) -> Option<&dyn Committer> {
        None
    }

    /// An error if a transaction on a connection of the caller's own cannot check a lock of this
    /// server.
    fn stores_data(&self) -> Result<()> {
        Ok(())
    }

    /// The maximum by which the clock of a server that replaces this one may be ahead.
    fn clock_skew(&self) -> Duration;

    /// Sends a call that may be sent twice, on a lent connection. Resends it on another connection
    /// if the first turns out to be closed, or if another server became the master before the
    /// reply.
    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply>;

    /// Sends a call that may not be sent twice, on a lent connection that has just answered a
    /// `PING`. The outer `Err` means that it was not sent.
    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>>;

    /// Sends a head's call on the connection that all heads share, in one write with other calls,
    /// so that the server notifies the listener of a change of the key. The call is sent before the
    /// deadline and the cancel, or not at all. The reply is awaited for one I/O time-out, and one
    /// more to connect if necessary. `None`: the call was not sent.
    ///
    /// # Errors
    /// The call was not sent: there is no connection, or the server did not answer earlier calls.
    fn ask_for_head(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>>;

    /// A connection for renewals.
    fn renewals(&self) -> Box<dyn Renewals>;

    /// Sets the observer that is notified of changes after [`start_telling`](Self::start_telling).
    /// May start a thread.
    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()>;

    /// Starts the notifications: from now on somebody relies on them.
    fn start_telling(&self);

    /// Ends the notifications.
    fn close(&self);
}

/// The limits on the waits for one reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience<'a> {
    /// The longest wait for a connection while all are lent.
    pub(crate) wait_while_all_lent: Duration,
    /// The deadline for the connection and the reply, if it is sooner than the pool's time-outs.
    pub(crate) by: Option<Deadline>,
    /// If the key has moved to another server, return the refusal instead of asking that server.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(dead_code, reason = "only shards have moves")
    )]
    pub(crate) tells_of_moves: bool,
    /// Ends the wait for a connection while all are lent.
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Patience<'_> {
    /// The time-outs of the pool.
    pub(crate) const USUAL: Self = Self {
        wait_while_all_lent: Duration::MAX,
        by: None,
        tells_of_moves: false,
        cancel: None,
    };

    /// The time-outs of the pool, or this deadline if it is sooner.
    pub(crate) fn until(deadline: Deadline) -> Self {
        Self {
            by: Some(deadline),
            ..Self::USUAL
        }
    }
}

/// The reply to a call that was sent.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The server's reply, or the reason why there is none.
    pub(crate) answer: RedisResult<Value>,
    /// Taken just before the call was sent.
    pub(crate) sent: Instant,
    /// When the reply came, or a little earlier. Times in the reply count from this moment.
    pub(crate) answered: Instant,
    /// The server will notify the listener of the next change of the keys that were read.
    pub(crate) tracked: bool,
    /// The call was sent twice, and the outcome of the first is unknown.
    pub(crate) again: bool,
}

impl Reply {
    /// A reply that came on a connection without tracking.
    pub(crate) fn untracked(answer: RedisResult<Value>, sent: Instant, again: bool) -> Self {
        Self {
            answer,
            sent,
            answered: sent,
            tracked: false,
            again,
        }
    }

    /// The result of a write. If it was sent twice, an error from the second does not tell whether
    /// the first took effect. An error about the kind of the key is kept: it describes the key as
    /// it is now.
    pub(crate) fn of_both(self) -> RedisResult<Value> {
        let is_refusal = |error: &RedisError| !is_unconfirmed(error) && !is_wrong_kind(error);
        match self.answer {
            Err(error) if self.again && is_refusal(&error) => Err(no_answer()),
            answer => answer,
        }
    }
}

/// Receives notifications of changes on the server: the queues and the keeper.
pub(crate) trait Observer: Send + Sync {
    /// A key was written, deleted or has expired.
    fn changed(&self, key: &str);
    /// Notifications may have been missed: the heads of all queues have to ask again, and all
    /// leases have to be checked.
    fn all_may_have_changed(&self);
    /// The waiters' connection is gone, and its tracking with it: the heads of all queues have to
    /// ask again.
    fn ask_again(&self);
    /// The watchdog has a new connection, perhaps to a server that lacks the last renewals: all
    /// leases have to be checked, and renewed for the time that is left of them.
    fn renew_again(&self);
    /// True while there is a waiter or a lease, which relies on notifications.
    fn relies(&self) -> bool;
    /// A user's test has done this to the stand-in.
    #[cfg(feature = "testing")]
    fn disturbed(&self, disturbance: Disturbance);
}

/// An action of a test on the stand-in that the queues and the keeper have to react to.
#[cfg(feature = "testing")]
#[derive(Clone, Copy)]
pub(crate) enum Disturbance {
    /// Threads that sleep until a moment have to read the clock again.
    ClockMoved,
    /// Threads that pause before a retry can retry now.
    Reachable,
    /// Nothing has changed: wait until everything that is due is done, at most this long.
    Settle(Duration),
}

/// The watchdog's connection, reopened after it has failed.
pub(crate) trait Renewals: Send {
    fn is_open(&self) -> bool;

    /// Takes as long as connecting takes.
    fn open(&mut self) -> Result<(), Arc<Failure>>;

    /// Sends all renewals, and releases of orphans, in one round trip. Takes at most one I/O
    /// time-out, less if a lease is short, plus the wait for replicas.
    fn send(&mut self, calls: &[Call], shortest_lease: Duration) -> Replies;
}

/// The outcome of a renewal, or of the release of an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalAnswer {
    /// Renewed or released. The moment is just before the call was sent.
    Ours(Instant),
    NotOurs,
    /// The server does not have the script: the next batch sends its source.
    Forgotten,
    /// The server refused this renewal; the lock may or may not be ours.
    Refused,
    Unanswered,
}

/// The outcome of a batch.
pub(crate) struct Replies {
    /// One for each call.
    pub(crate) replies: Vec<RenewalReply>,
    /// The connection broke or timed out, and is closed.
    pub(crate) broken: bool,
}

/// The outcome of a renewal, with the reason if it failed.
pub(crate) type RenewalReply = (RenewalAnswer, Option<Arc<Failure>>);

/// The reason why a renewal failed.
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

    /// The server refused, so an early retry is unlikely to succeed.
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
