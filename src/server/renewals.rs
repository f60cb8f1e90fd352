//! The watchdog's connection: one batch of renewals in one round trip.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{ErrorKind, RedisError, RedisResult, Value};

use super::{
    listener::Listener,
    tracked::{InUse, ReliedOnBy, Tracked},
};
use crate::{
    error::{Error, Operation, Result, WrongKey, wrong_key},
    event::shielded,
    pool::Connector,
    recipes::Evidence,
    time::{self, Deadline},
    wire::{Call, Replicas, exchange_each, is_unknown_script},
};

/// A batch times out after a third of the shortest lease, but not sooner than this.
pub(super) const SHORTEST_PATIENCE: Duration = Duration::from_millis(250);

/// The watchdog's connection, reopened after it has failed.
pub(crate) trait Renewals: Send {
    /// Returns true if the connection is open and still leads to the master.
    fn is_open(&self) -> bool;

    /// The pause after which [`is_open`](Self::is_open) has to be called again while there are
    /// leases, if nobody else watches the master.
    fn watch_pause(&self) -> Option<Duration> {
        None
    }

    /// Opens the connection. Blocks while it connects.
    fn open(&mut self) -> Result<(), Arc<RenewalError>>;

    /// Sends all renewals, and releases of orphans, in one round trip. Takes at most one I/O
    /// time-out, less if a lease is short, plus the wait for replicas.
    fn send(&mut self, calls: &[Call], shortest_lease: Duration) -> Replies;
}

/// The outcome of a renewal, or of the release of an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalAnswer {
    /// Renewed or released. The moment is just before the call was sent.
    Ours(Instant),
    /// Somebody else's, free, or of another kind.
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

/// The outcome of a renewal, with the reason if it failed, or what the key holds instead.
pub(crate) type RenewalReply = (RenewalAnswer, Option<Arc<RenewalError>>);

/// The reason why a renewal failed.
#[derive(Debug)]
pub(crate) enum RenewalError {
    /// There was no connection to send it on.
    Unsent(Error),
    Sent(RedisError),
}

impl RenewalError {
    pub(crate) fn sent(error: RedisError) -> Arc<Self> {
        Arc::new(Self::Sent(error))
    }

    /// The server refused, so an early retry is unlikely to succeed. That the lock's key holds
    /// something else is no refusal: then the lock is gone.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Unsent(Error::Pool { source, .. }) => {
                source.as_ref().is_some_and(|error| !error.is_io_error())
            }
            Self::Unsent(_) => true,
            Self::Sent(error) => {
                let is_gone = matches!(wrong_key(error), Some((WrongKey::Lock, _)));
                !error.is_io_error() && !is_gone
            }
        }
    }

    pub(crate) fn error(&self, operation: Operation<'_>) -> Error {
        match self {
            Self::Unsent(error) => operation.named(error.clone()),
            Self::Sent(error) => operation.unanswered(None, error.clone()),
        }
    }
}

/// The connection that all renewals of a keeper share.
pub(crate) struct RenewalsConnection {
    tracked: Arc<Tracked>,
    /// The server may lack our scripts: the next batch sends the source of each once.
    teach: bool,
}

impl RenewalsConnection {
    /// A connection without tracking: changes of the keys are not notified.
    pub(crate) fn untracked(connector: Connector) -> Self {
        Self::on(Arc::new(Tracked::new(ReliedOnBy::Leases, connector, None)))
    }

    /// A connection with tracking: the server notifies the listener of changes of the keys.
    pub(super) fn on(tracked: Arc<Tracked>) -> Self {
        Self {
            tracked,
            teach: true,
        }
    }

    pub(super) fn tracked(connector: Connector, listener: Arc<Listener>) -> Arc<Tracked> {
        Arc::new(Tracked::new(ReliedOnBy::Leases, connector, Some(listener)))
    }

    /// `None`: the listener's thread, which checks the connection, was using it until the deadline.
    pub(super) fn is_open_by(&self, deadline: Deadline) -> Option<bool> {
        self.tracked.check_the_master();
        let is_open = self.tracked.using(deadline, |used| used.is_open());
        is_open.unwrap_or(Some(false))
    }

    /// Sends all calls in one round trip. `limit` bounds the wait for all replies, to which the
    /// wait for replicas is added.
    pub(super) fn send_within(&mut self, calls: &[Call], limit: Duration) -> Replies {
        let replicas = calls.iter().filter_map(Call::replicas);
        let replicas = replicas.reduce(Replicas::or_more);
        let limit = self.tracked.connector.limits().answer.min(limit)
            + replicas.map_or(Duration::ZERO, |replicas| replicas.wait);
        let taught = mem::take(&mut self.teach);
        let packed = packed(calls, taught, replicas);
        let count = calls.len() + usize::from(replicas.is_some());
        // A lease is counted from before the first byte is sent.
        let sent = time::now();
        let (conversation, is_open, values) = self.converse(&packed, limit, count);
        let failure = conversation.err().map(RenewalError::sent);
        let had = values.get(calls.len()).cloned().unwrap_or(Value::Nil);
        let mut values = values.into_iter();
        let replies = calls.iter().map(|call| match values.next() {
            Some(value) if call.replicas().is_none() => answered(value, sent, taught),
            Some(value) if failure.is_none() => {
                let had = call
                    .replicas()
                    .map_or(Ok(()), |replicas| replicas.check(had.clone()));
                confirmed(answered(value, sent, taught), had)
            }
            _ => (RenewalAnswer::Unanswered, failure.clone()),
        });
        let replies: Vec<RenewalReply> = replies.collect();
        for (answer, failure) in &replies {
            self.teach |= *answer == RenewalAnswer::Forgotten;
            if let Some(RenewalError::Sent(error)) = failure.as_deref() {
                self.tracked.connector.was_refused(error);
            }
        }
        Replies {
            replies,
            broken: !is_open,
        }
    }

    /// Sends the batch and reads the replies. Returns whether the connection is open afterwards,
    /// and the replies that came. The listener's thread may be using or reopening it: the wait for
    /// that has the same limit as the replies.
    fn converse(
        &self,
        packed: &[u8],
        limit: Duration,
        replies: usize,
    ) -> (RedisResult<()>, bool, Vec<Value>) {
        let used = self.tracked.using(Deadline::after(limit), |used| {
            let (mut come, mut is_missing) = (Vec::with_capacity(replies), false);
            let asked = used.ask(Some(limit), |connection, _| {
                // After a missing reply it is not known which call a later one belongs to.
                caught(|| {
                    exchange_each(connection, packed, replies, limit, |reply| match reply {
                        Ok(reply) if !is_missing => come.push(reply),
                        _ => is_missing = true,
                    })
                })?
            });
            // If all replies came, the error only says that they came from a replica, which closes
            // the connection. The replies count.
            let asked = if come.len() < replies { asked } else { Ok(()) };
            (asked, used.is_open(), come)
        });
        let no_connection = || {
            (
                Err((ErrorKind::Io, "no connection").into()),
                false,
                Vec::new(),
            )
        };
        used.ok().flatten().unwrap_or_else(no_connection)
    }
}

impl Renewals for RenewalsConnection {
    fn is_open(&self) -> bool {
        self.is_open_by(Deadline::after(Duration::MAX)) == Some(true)
    }

    fn watch_pause(&self) -> Option<Duration> {
        self.tracked.watch_pause()
    }

    fn open(&mut self) -> Result<(), Arc<RenewalError>> {
        self.teach = true;
        let open = |used: &mut InUse<'_>| used.open();
        match caught(|| self.tracked.using(Deadline::after(Duration::MAX), open)) {
            Ok(Ok(Some(Err(error))) | Err(error)) => Err(Arc::new(RenewalError::Unsent(error))),
            Ok(Ok(Some(Ok(())) | None)) => Ok(()),
            Err(panicked) => Err(RenewalError::sent(panicked)),
        }
    }

    fn send(&mut self, calls: &[Call], shortest_lease: Duration) -> Replies {
        self.send_within(calls, SHORTEST_PATIENCE.max(shortest_lease / 3))
    }
}

/// `taught`: the source of the script was sent, so the server has it.
fn answered(value: Value, sent: Instant, taught: bool) -> RenewalReply {
    let answer = value.extract_error();
    if !taught && answer.as_ref().is_err_and(is_unknown_script) {
        return (RenewalAnswer::Forgotten, None);
    }
    renewal_reply(answer, sent)
}

/// The meaning of a reply for a lease or an orphan.
pub(crate) fn renewal_reply(answer: RedisResult<Value>, sent: Instant) -> RenewalReply {
    let (answer, failure) = match Evidence::of(answer) {
        Evidence::Ours(_) => (RenewalAnswer::Ours(sent), None),
        Evidence::NotOurs => (RenewalAnswer::NotOurs, None),
        Evidence::AnotherKind(found) => (RenewalAnswer::NotOurs, Some(found)),
        Evidence::NotKnown(silence) if silence.is_io_error() => {
            (RenewalAnswer::Unanswered, Some(silence))
        }
        Evidence::NotKnown(refusal) => (RenewalAnswer::Refused, Some(refusal)),
    };
    (answer, failure.map(RenewalError::sent))
}

/// Turns a renewal that too few replicas have into a refusal: our lease is only as long as on the
/// replicas.
fn confirmed(reply: RenewalReply, had: RedisResult<()>) -> RenewalReply {
    match (reply, had) {
        ((RenewalAnswer::Ours(_), _), Err(error)) => {
            (RenewalAnswer::Refused, Some(RenewalError::sent(error)))
        }
        (reply, _) => reply,
    }
}

/// The batch in bytes, with one `WAIT` for all at its end. If the server may lack the scripts, the
/// first call of each carries its source.
pub(super) fn packed(calls: &[Call], teaching: bool, replicas: Option<Replicas>) -> Vec<u8> {
    let (mut packed, mut taught) = (Vec::new(), Vec::new());
    for call in calls {
        if teaching && !taught.contains(&call.script()) {
            taught.push(call.script());
            call.whole().write_packed_command(&mut packed);
        } else {
            call.command().write_packed_command(&mut packed);
        }
    }
    if let Some(replicas) = replicas {
        packed.extend(replicas.question().get_packed_command());
    }
    packed
}

/// Turns a panic of redis-rs into a failure of the connection: it would end the thread that renews
/// all leases.
fn caught<T>(run: impl FnOnce() -> T) -> RedisResult<T> {
    shielded(run).ok_or_else(|| (ErrorKind::Io, "the client library panicked").into())
}

#[cfg(test)]
mod tests {
    use std::{
        panic::resume_unwind,
        sync::{Barrier, mpsc},
        thread,
    };

    use redis::Client;

    use super::*;
    use crate::pool::Pool;

    /// The listener's thread may be opening the connection, and a batch holds up a thread that
    /// releases a lease.
    #[test]
    fn a_batch_waits_for_another_thread_within_its_deadline() {
        let pool = Pool::builder().io_timeout(Duration::from_millis(100));
        let pool = pool.build(&Client::open("redis://127.0.0.1:1/").unwrap());
        let mut renewals = RenewalsConnection::untracked(pool.unwrap().connector());
        let (tracked, is_held) = (Arc::clone(&renewals.tracked), &Barrier::new(2));
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            let other = scope.spawn(move || {
                tracked.using(Deadline::after(Duration::MAX), |_| {
                    is_held.wait();
                    is_done.recv_timeout(Duration::from_secs(20))
                })
            });
            is_held.wait();
            assert!(renewals.send(&[], Duration::MAX).broken);
            done.send(()).unwrap();
            assert_eq!(other.join().unwrap().unwrap(), Some(Ok(())));
        });
    }

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            resume_unwind(Box::new(()));
        }
    }

    #[test]
    fn a_panic_payload_that_panics_is_a_connection_failure() {
        let error = caught(|| resume_unwind(Box::new(Bomb))).unwrap_err();
        assert!(error.is_io_error());
    }
}
