//! The watchdog's connection: one batch of renewals, one round trip.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Connection, ErrorKind, RedisError, RedisResult, Value};

use super::{
    Answer, Failure, RenewalReply, Renewals, Replies,
    listener::Listener,
    tracked::{For, InUse, Tracked},
};
use crate::{
    connection::Connector,
    error::is_wrong_type,
    event::shielded,
    exchange::{Finished, next_reply},
    script::{Call, Replicas, is_unknown_script},
    time::{self, Deadline},
};

/// A batch is given up after a third of the shortest lease if the connection has answered before,
/// but not sooner than this.
pub(super) const SHORTEST_PATIENCE: Duration = Duration::from_millis(250);

/// The watchdog's connection, and what is known of it.
pub(crate) struct RenewalsConnection {
    tracked: Arc<Tracked>,
    /// It has answered a batch.
    proven: bool,
    /// The server may not know our scripts: each is sent whole once in the next batch.
    teach: bool,
    /// It was open after the last batch.
    pub(super) is_left_open: bool,
}

impl RenewalsConnection {
    /// One for which the server does not track the keys: nobody is told of their changes.
    pub(crate) fn untracked(connector: Connector) -> Self {
        Self::on(Arc::new(Tracked::new(For::Leases, connector, None)))
    }

    /// One for which the server tells the listener of changes of the keys.
    pub(super) fn on(tracked: Arc<Tracked>) -> Self {
        Self {
            tracked,
            proven: false,
            teach: true,
            is_left_open: false,
        }
    }

    /// Whether it is open. `None`: the listener's thread, which looks after it, had it until the
    /// deadline.
    pub(super) fn is_open_by(&self, deadline: Deadline) -> Option<bool> {
        let is_open = self.tracked.using(deadline, |used| used.is_open());
        is_open.unwrap_or(Some(false))
    }

    pub(super) fn tracked(connector: Connector, listener: Arc<Listener>) -> Arc<Tracked> {
        Arc::new(Tracked::new(For::Leases, connector, Some(listener)))
    }
}

impl Renewals for RenewalsConnection {
    fn is_open(&self) -> bool {
        self.is_open_by(Deadline::after(Duration::MAX)) == Some(true)
    }

    fn open(&mut self) -> Result<(), Arc<Failure>> {
        let opened = caught(|| {
            let open = |used: &mut InUse<'_>| {
                if used.is_open() {
                    // The listener's thread was faster.
                    return Ok(());
                }
                used.open().map_err(Failure::Unsent)
            };
            self.tracked.using(Deadline::after(Duration::MAX), open)
        });
        match opened {
            Ok(Ok(Some(Ok(())) | None)) => {}
            Ok(Ok(Some(Err(failure)))) => return Err(Arc::new(failure)),
            Ok(Err(forked)) => return Err(Arc::new(Failure::Unsent(forked))),
            Err(panicked) => return Err(Failure::sent(panicked)),
        }
        self.proven = false;
        self.teach = true;
        Ok(())
    }

    fn send(&mut self, renewals: &[Call], orphans: &[Call], shortest_lease: Duration) -> Replies {
        let judged = self.send_batch(&Batch { renewals, orphans }, shortest_lease);
        let orphans = judged.orphans.into_iter();
        Replies {
            renewals: judged.renewals,
            orphans: orphans.map(|(answer, _)| answer).collect(),
            broken: !self.is_left_open,
        }
    }
}

/// What is sent in one round trip.
pub(super) struct Batch<'a> {
    pub(super) renewals: &'a [Call],
    pub(super) orphans: &'a [Call],
}

/// What has become of each.
#[derive(Default)]
pub(super) struct Judged {
    pub(super) renewals: Vec<RenewalReply>,
    pub(super) orphans: Vec<RenewalReply>,
}

/// What the server has said: fewer values than were asked for, if the conversation broke off.
struct Said {
    values: Vec<Value>,
    failure: Option<Arc<Failure>>,
    /// A moment before it was asked.
    sent: Instant,
    /// Each script was sent whole once.
    taught: bool,
}

impl Batch<'_> {
    fn len(&self) -> usize {
        self.renewals.len() + self.orphans.len()
    }

    /// Sends it by a connection that is there for this alone, and waits no longer for all answers.
    /// A failure says why some are missing; the connection must not be used again then.
    #[cfg(feature = "cluster")]
    pub(super) fn send_by(
        &self,
        connection: &mut Connection,
        limit: Duration,
    ) -> (Judged, Option<Finished>) {
        let sent = time::now();
        let mut values = Vec::with_capacity(self.replies());
        let packed = self.packed(true);
        let limit = limit + self.wait();
        let conversation =
            caught(|| converse(connection, &packed, limit, self.replies(), &mut values))
                .and_then(|conversation| conversation);
        let by_answer = values.iter().find_map(Finished::by_answer);
        let finished = conversation.is_err().then_some(Finished::Broken);
        let said = Said {
            values,
            failure: conversation.err().map(Failure::sent),
            sent,
            taught: true,
        };
        (self.judged(said), finished.or(by_answer))
    }

    /// The replicas that have to have the whole batch, if any.
    fn replicas(&self) -> Option<Replicas> {
        let replicas = self.renewals.iter().filter_map(Call::replicas);
        replicas.reduce(Replicas::or_more)
    }

    fn wait(&self) -> Duration {
        self.replicas()
            .map_or(Duration::ZERO, |replicas| replicas.wait)
    }

    fn packed(&self, teaching: bool) -> Vec<u8> {
        let calls: Vec<&Call> = self.renewals.iter().chain(self.orphans).collect();
        let mut packed = packed(&calls, teaching);
        // One question for all, behind all of them.
        if let Some(replicas) = self.replicas() {
            packed.extend(replicas.question().get_packed_command());
        }
        packed
    }

    fn replies(&self) -> usize {
        self.len() + usize::from(self.replicas().is_some())
    }

    fn judged(&self, said: Said) -> Judged {
        let Said {
            mut values,
            failure,
            sent,
            taught,
        } = said;
        let had =
            (self.replicas()).and_then(|_| values.split_off(self.len().min(values.len())).pop());
        let mut values = values.into_iter();
        let renewals = self
            .renewals
            .iter()
            .map(|call| match (values.next(), call.replicas()) {
                (Some(value), None) => judged(value, sent, taught),
                (Some(value), Some(replicas)) if failure.is_none() => {
                    let had = had.clone().unwrap_or(Value::Nil);
                    confirmed(judged(value, sent, taught), replicas.check(had))
                }
                _ => (Answer::Unanswered, failure.clone()),
            });
        let renewals = renewals.collect();
        let orphans = self.orphans.iter().map(|_| match values.next() {
            Some(Value::Int(1..)) => (Answer::Ours(sent), None),
            Some(value) => judged(value, sent, taught),
            None => (Answer::Unanswered, failure.clone()),
        });
        Judged {
            orphans: orphans.collect(),
            renewals,
        }
    }
}

impl RenewalsConnection {
    /// Sends all in one round trip.
    pub(super) fn send_batch(&mut self, batch: &Batch<'_>, shortest_lease: Duration) -> Judged {
        self.tracked.check_the_master();
        let taught = std::mem::take(&mut self.teach);
        let mut limit = self.tracked.io_timeout();
        if self.proven {
            limit = limit.min(SHORTEST_PATIENCE.max(shortest_lease / 3));
        }
        limit += batch.wait();
        let packed = batch.packed(taught);
        // The lease's clock starts before the first byte is sent.
        let sent = time::now();
        let mut values = Vec::with_capacity(batch.replies());
        let (conversation, is_open) = self.converse(batch, &packed, limit, &mut values);
        self.is_left_open = is_open;
        self.proven = conversation.is_ok();
        let judged = batch.judged(Said {
            values,
            failure: conversation.err().map(Failure::sent),
            sent,
            taught,
        });
        for failure in judged
            .renewals
            .iter()
            .filter_map(|(_, failure)| failure.as_deref())
        {
            if let Failure::Sent(error) = failure {
                self.tracked.was_refused(error);
            }
        }
        let mut replies = judged.renewals.iter().chain(&judged.orphans);
        self.teach |= replies.any(|(answer, _)| *answer == Answer::Forgotten);
        judged
    }

    /// Sends the batch and reads the answers. Closes the connection after an error, or an answer
    /// that finishes it. Says whether it is open after that. The listener's thread may have it, and
    /// open it anew: that is waited for no longer than for the answers.
    fn converse(
        &self,
        batch: &Batch<'_>,
        packed: &[u8],
        limit: Duration,
        values: &mut Vec<Value>,
    ) -> (RedisResult<()>, bool) {
        let used = self.tracked.using(Deadline::after(limit), |used| {
            let asked = used.ask(Some(limit), |connection, _| {
                caught(|| converse(connection, packed, limit, batch.replies(), values))?
            });
            if asked.is_err() {
                used.close(Finished::Broken);
            }
            if let Some(finished) = values.iter().find_map(Finished::by_answer) {
                used.close(finished);
            }
            (asked, used.is_open())
        });
        let no_connection = || (Err((ErrorKind::Io, "no connection").into()), false);
        used.ok().flatten().unwrap_or_else(no_connection)
    }
}

/// What an answer means. `taught`: the script was sent whole, so that the server knows it.
pub(crate) fn judged(value: Value, sent: Instant, taught: bool) -> RenewalReply {
    let refusal: RedisError = match value {
        Value::Int(1) => return (Answer::Ours(sent), None),
        Value::Int(0) => return (Answer::NotOurs, None),
        Value::ServerError(error) => error.into(),
        _ => (ErrorKind::UnexpectedReturnType, "neither 0 nor 1").into(),
    };
    if is_unknown_script(&refusal) && !taught {
        return (Answer::Forgotten, None);
    }
    refused(refusal)
}

/// What a reply means for a lease that replicas have to have: whether so many have the renewal.
pub(crate) fn confirmed(reply: RenewalReply, had: RedisResult<()>) -> RenewalReply {
    match (reply, had) {
        // Renewed on the master alone: for us the lease ends when it ends on the replicas.
        ((Answer::Ours(_), _), Err(error)) => (Answer::Refused, Some(Failure::sent(error))),
        (reply, _) => reply,
    }
}

/// What a refusal means for the lease.
pub(crate) fn refused(refusal: RedisError) -> RenewalReply {
    if is_another_kind(&refusal) {
        return (Answer::NotOurs, None);
    }
    (Answer::Refused, Some(Failure::sent(refusal)))
}

/// Whether the lock's key holds something else by now. If only the companion does, the lock is
/// still ours.
fn is_another_kind(refusal: &RedisError) -> bool {
    match refusal.code() {
        Some("COMPANION") => false,
        Some("WRONGKIND") => true,
        _ => is_wrong_type(refusal),
    }
}

/// The batch in bytes. Where the server may not know the scripts, the first call of each carries it
/// whole.
fn packed(calls: &[&Call], teaching: bool) -> Vec<u8> {
    let (mut packed, mut taught) = (Vec::new(), Vec::new());
    for call in calls {
        if teaching && !taught.contains(&call.script()) {
            taught.push(call.script());
            call.whole().write_packed_command(&mut packed);
        } else {
            call.command().write_packed_command(&mut packed);
        }
    }
    packed
}

/// Sends the batch and reads the answers, all before one deadline. After an error the connection
/// must not be used again.
fn converse(
    connection: &mut Connection,
    packed: &[u8],
    limit: Duration,
    replies: usize,
    values: &mut Vec<Value>,
) -> RedisResult<()> {
    let deadline = Deadline::after(limit);
    connection.set_write_timeout(Some(limit))?;
    connection.send_packed_command(packed)?;
    while values.len() < replies {
        let remaining = deadline.remaining();
        if remaining.is_zero() {
            return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        }
        connection.set_read_timeout(Some(remaining))?;
        values.push(next_reply(connection)?);
    }
    Ok(())
}

/// Turns a panic of redis-rs into a failure of the connection: it would end the thread that renews
/// everything.
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
    use crate::connection::Pool;

    /// The listener's thread may be opening it, and what is on its way holds up whoever gives a
    /// lease back.
    #[test]
    fn a_batch_does_not_wait_for_another_thread_beyond_its_own_time() {
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
            let soon = Deadline::after(Duration::from_millis(100));
            assert_eq!(renewals.is_open_by(soon), None);
            assert!(renewals.send(&[], &[], Duration::MAX).broken);
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
    fn a_panic_whose_payload_panics_is_a_failure_of_the_connection() {
        let error = caught(|| resume_unwind(Box::new(Bomb))).unwrap_err();
        assert!(error.is_io_error());
    }
}
