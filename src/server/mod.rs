//! The `Server` trait: everything that locks need from Redis. The test stand-in implements it too.
//!
//! [`redis`](self::redis) implements it for a real server. It sends calls on the pool's connections
//! and on three connections of its own. The heads of the queues use the one in [`waiters`], the
//! keeper renews on the one in [`renewals`], and the [`listener`] receives notifications of changes
//! of the keys that were read on these two, which are [`tracked`]. The listener's thread also
//! keeps the [watch on the master](master_watch), whether or not the server lets it listen. Calls
//! that many threads send at once share a write: [`outbox`]. [`cluster`] has one such server for
//! each shard of a Redis Cluster.
//!
//! The callers are `locks` on the callers' threads, `renewing` on the renewing thread, and the
//! listener's thread.
//!
//! # Locks
//! A connection that several threads use is locked while it is used: `slot` in [`tracked`]. The
//! listener's `subscription` and the letters of an [`outbox`] are locked after `slot`, and the
//! stage of a letter after the letters. The values of a [`PerServer`] are locked briefly, and while
//! one is made, which opens no connection. A thread unlocks `slot` and `subscription` before it
//! calls an [`Observer`], which locks the queues or the keeper.

#[cfg(feature = "cluster")]
mod cluster;
mod listener;
mod master_watch;
mod outbox;
mod redis;
mod renewals;
mod tracked;
mod waiters;

#[cfg(feature = "cluster")]
use std::sync::Arc;
use std::{
    sync::Weak,
    time::{Duration, Instant},
};

use ::redis::{RedisError, RedisResult, Value};

#[cfg(feature = "cluster")]
pub(crate) use cluster::Servers;
pub(crate) use listener::{redirect_to, subscribe};
pub(crate) use redis::RedisServer;
#[cfg(feature = "testing")]
pub(crate) use renewals::renewal_reply;
pub(crate) use renewals::{RenewalAnswer, RenewalError, Renewals, RenewalsConnection, Replies};

#[cfg(feature = "cluster")]
use crate::cluster::{Nodes, PerShard, ShardId};
use crate::{
    cancel::Cancel,
    error::{Result, is_unconfirmed, no_answer, wrong_key},
    pool::{Connector, Limits, PooledConnection},
    time::{self, Clock, Deadline},
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

    /// Returns a connector for connections like its own. `None`: this is a stand-in.
    fn connector(&self) -> Option<Connector> {
        None
    }

    /// Lends a connection for transactions on the data that the lock of this key protects.
    fn lend(&self, key: &str) -> Result<PooledConnection>;

    /// True if this refusal means that the key is on another server, or is being moved to one. The
    /// call had no effect, and another connection [lent](Self::lend) for the key may lead to that
    /// server.
    fn is_elsewhere(&self, _refusal: &RedisError) -> bool {
        false
    }

    /// The maximum by which the clock of a server that replaces this one may be ahead.
    fn clock_skew(&self) -> Duration;

    /// Sends a call that may be sent twice, on a lent connection. Resends it on another connection
    /// if the first turns out to be closed, or if another server became the master before the
    /// reply.
    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply>;

    /// Sends calls as [`ask`](Self::ask) does, in one write. None of them waits for replicas.
    fn ask_all(&self, calls: &[Call], patience: Patience<'_>) -> Vec<Result<Reply>> {
        calls.iter().map(|call| self.ask(call, patience)).collect()
    }

    /// Sends a call that may not be sent twice, on a lent connection that has just answered a
    /// `PING`. The outer `Err` means that it was not sent.
    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>>;

    /// Sends a head's call on the connection that all heads share, in one write with other calls,
    /// so that the server notifies the listener of a change of the key. Waits one I/O time-out for
    /// the reply, and one more to connect if necessary. `None`: the call was not sent before the
    /// deadline or the cancel, and never will be.
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

    /// Sets the observer that is notified of changes after
    /// [`start_notifications`](Self::start_notifications). May start a thread.
    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()>;

    /// Starts the notifications, on which callers rely from now on.
    fn start_notifications(&self);

    /// Ends the notifications.
    fn close(&self);
}

/// The limits on the waits for one reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience<'a> {
    /// The longest wait for a connection while all are lent.
    pub(crate) wait_while_all_lent: Duration,
    /// The deadline for the connection and the reply, if it is sooner than the pool's time-outs.
    /// With a deadline, a call that a replica refuses is sent again until then; without one, once.
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
    /// The time of the reply, or a little earlier. Times in the reply count from this moment.
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

    /// A reply that came just now, on a connection that may be tracked.
    pub(crate) fn now(answer: RedisResult<Value>, sent: Instant, is_tracked: bool) -> Self {
        Self {
            answered: time::now(),
            tracked: is_tracked && answer.is_ok(),
            ..Self::untracked(answer, sent, false)
        }
    }

    /// The result of a write. If it was sent twice, an error from the second does not tell whether
    /// the first took effect. An error about the kind of the key is kept: it describes the key as
    /// it is now.
    pub(crate) fn write_result(self) -> RedisResult<Value> {
        let is_refusal = |error: &RedisError| !is_unconfirmed(error) && wrong_key(error).is_none();
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
    fn needs_notifications(&self) -> bool;
    /// Handles an action of a user's test on the stand-in.
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

/// One value for the only server, or one for each shard of a cluster, made at the first use of the
/// shard: a silent shard does not delay another.
#[derive(Clone)]
pub(crate) enum PerServer<T> {
    One(T),
    #[cfg(feature = "cluster")]
    Shards(Arc<Shards<T>>),
}

/// The shards of a cluster, with a value for each that has been used.
#[cfg(feature = "cluster")]
pub(crate) struct Shards<T> {
    servers: Arc<Servers>,
    values: PerShard<T>,
    make: Box<MakeForShard<T>>,
}

#[cfg(feature = "cluster")]
type MakeForShard<T> = dyn Fn(&Arc<Servers>, ShardId) -> Result<T> + Send + Sync;

#[cfg(feature = "cluster")]
impl<T> Shards<T> {
    pub(crate) fn nodes(&self) -> &Nodes {
        self.servers.nodes()
    }
}

impl<T: Clone> PerServer<T> {
    #[cfg(feature = "cluster")]
    pub(crate) fn of_shards(
        nodes: &Nodes,
        make: impl Fn(&Arc<Servers>, ShardId) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self::Shards(Arc::new(Shards {
            servers: Servers::new(nodes),
            values: PerShard::default(),
            make: Box::new(make),
        }))
    }

    /// Returns the value of the server that has this key. On a cluster this may ask the nodes for
    /// the shard of the key, until the deadline.
    ///
    /// Must not be called in a forked child.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(
            unused_variables,
            clippy::unnecessary_wraps,
            reason = "one server has all keys"
        )
    )]
    pub(crate) fn of(&self, key: &str, deadline: Deadline) -> Result<T> {
        match self {
            Self::One(value) => Ok(value.clone()),
            #[cfg(feature = "cluster")]
            Self::Shards(shards) => {
                let shard = shards.servers.nodes().shard_for(key, deadline)?;
                let make = || (shards.make)(&shards.servers, shard);
                shards.values.get_or_make(shard, make)
            }
        }
    }

    /// Returns true if a key can move to another server.
    pub(crate) fn are_many(&self) -> bool {
        !matches!(self, Self::One(_))
    }

    /// Returns the values of all servers that have been used.
    pub(crate) fn all(&self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value.clone()],
            #[cfg(feature = "cluster")]
            Self::Shards(shards) => shards.values.all(),
        }
    }
}
