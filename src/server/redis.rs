//! A real server: the pool, the waiters' connection, the watchdog's, and the listener.

use std::{
    mem, slice,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{RedisError, RedisResult, Value};

use super::{
    Observer, Patience, Renewals, RenewalsConnection, Reply, Server, listener::Listener,
    master_watch::MasterWatch, outbox::Outbox, renewals::packed, tracked::Tracked,
    waiters::WaitersConnection,
};
use crate::{
    cancel::Cancel,
    error::{Error, Result, no_answer},
    pool::{Connector, Epoch, Limits, Pool, PooledConnection},
    time::{self, Backoff, Deadline},
    wire::{
        Call, Finished, ask, exchange_each, is_from_replica, is_interrupted, is_unknown_script,
    },
};

/// Up to this many calls go alone: with few threads a wake-up costs more than a shared write saves.
const FEW: usize = 4;
/// The number of shared writes under way at a time: with more, fewer calls share one; with fewer, a
/// distant server receives calls too rarely.
const WRITES: usize = 3;

/// A server that a pool leads to.
pub(crate) struct RedisServer {
    pool: Pool,
    outbox: Outbox,
    /// Each call that is under way has a clone.
    under_way: Arc<()>,
    connector: Connector,
    waiters: WaitersConnection,
    leases: Arc<Tracked>,
    listener: Arc<Listener>,
    /// The notifications have started. Each acquire starts them, but only the first has to lock the
    /// listener.
    is_telling: AtomicBool,
}

/// The limits of a call, and the deadlines for getting a pooled connection.
struct Sending<'a> {
    patience: Patience<'a>,
    wait_while_all_lent_by: Deadline,
    whole_by: Deadline,
}

impl RedisServer {
    pub(crate) fn new(pool: &Pool) -> Self {
        let connector = pool.connector();
        let listener = Listener::new(connector.clone());
        Self {
            pool: pool.clone(),
            outbox: Outbox::new(WRITES.min(pool.size()), false),
            under_way: Arc::default(),
            waiters: WaitersConnection::new(connector.clone(), Arc::clone(&listener)),
            leases: RenewalsConnection::tracked(connector.clone(), Arc::clone(&listener)),
            connector,
            listener,
            is_telling: AtomicBool::new(false),
        }
    }

    /// The watchdog's connection.
    pub(super) fn renewals_connection(&self) -> RenewalsConnection {
        RenewalsConnection::on(Arc::clone(&self.leases))
    }

    /// Judges a reply. If another server became the master before the reply came, the reply does
    /// not count: the call is treated as lost on a closed connection. `epoch`: of the connection,
    /// or from before the call was sent.
    fn check_epoch(&self, reply: &mut Reply, epoch: Epoch) {
        if reply.answer.is_ok() && self.connector.epoch() != epoch {
            reply.answer = Err(no_answer());
        }
        if let Err(error) = &reply.answer {
            self.connector.was_refused(error);
            if is_from_replica(error) {
                // The connector must know at once: a thread that shared the write may resend its
                // call before the connection comes back to the pool.
                self.connector.finished(epoch, Finished::Replica);
            }
        }
    }

    /// Sends calls once, in one write: a single call perhaps with those of other threads.
    fn send_each(
        &self,
        calls: &[Call],
        sending: &Sending<'_>,
        teaching: bool,
    ) -> Vec<Result<Reply>> {
        match calls {
            [] => Vec::new(),
            [call] => vec![self.send(call, sending)],
            _ => self.send_all(calls, sending, teaching),
        }
    }

    /// Sends a call alone while few are under way, otherwise in one write with others.
    fn send(&self, call: &Call, sending: &Sending<'_>) -> Result<Reply> {
        if call.replicas().is_some() {
            // `WAIT` has to go on the connection that has written, and would hold up other calls.
            return self.send_alone(call, sending);
        }
        let under_way = Arc::clone(&self.under_way);
        if Arc::strong_count(&under_way) <= 1 + FEW.min(self.pool.size()) {
            return self.send_alone(call, sending);
        }
        let (asks, cancel) = (call.asks_for_a_lock(), sending.patience.cancel);
        let epoch = (self.connector).epoch_for(asks, sending.whole_by, cancel)?;
        match self.send_together(call, sending)? {
            Some(mut reply) if !reply.answer.as_ref().is_err_and(is_unknown_script) => {
                self.check_epoch(&mut reply, epoch);
                Ok(reply)
            }
            // The call alone may carry the script's source, may find a free connection, or gets the
            // pool's error.
            _ => self.send_alone(call, sending),
        }
    }

    /// Sends a call on a pooled connection of its own.
    fn send_alone(&self, call: &Call, sending: &Sending<'_>) -> Result<Reply> {
        let mut conn = self.lend_for(call.asks_for_a_lock(), sending)?;
        let sent = time::now();
        let limited = limit(&mut conn, sending.patience, self.limits().answer);
        let answer = limited.and_then(|_| conn.asked(|conn| call.ask(conn)));
        close_if_finished(&mut conn, answer.as_ref().err());
        let mut reply = Reply::untracked(answer, sent, false);
        self.check_epoch(&mut reply, conn.epoch());
        Ok(reply)
    }

    /// Sends a call in one write with others. `None`: it was not sent within the time for getting a
    /// connection, or it was cancelled.
    fn send_together(&self, call: &Call, sending: &Sending<'_>) -> Result<Option<Reply>> {
        let io_timeout = self.limits().answer;
        let until = (sending.patience.by).filter(|by| by.remaining() < io_timeout);
        let until = until.and_then(Deadline::moment);
        let send_by = sending
            .wait_while_all_lent_by
            .or_sooner(sending.whole_by.moment());
        let letter = (call.command().get_packed_command(), None);
        let cancel = sending.patience.cancel;
        self.outbox.ask(letter, send_by, until, cancel, |write| {
            loop {
                let mut conn = self.lend_for(call.asks_for_a_lock(), sending)?;
                // One of the threads may know by now that another server is the master, and would
                // take the reply for that server's.
                let is_of_the_master = || conn.epoch() == self.connector.epoch();
                if !write.gather(is_of_the_master) {
                    conn.close_when_returned(Finished::Replica);
                    continue;
                }
                let exchanged = conn.asked(|conn| write.exchange(conn, io_timeout, false));
                close_if_finished(&mut conn, exchanged.err().as_ref());
                return Ok(());
            }
        })
    }

    /// Sends calls in one write, on a pooled connection of their own. `teaching`: with the source
    /// of each script.
    fn send_all(
        &self,
        calls: &[Call],
        sending: &Sending<'_>,
        teaching: bool,
    ) -> Vec<Result<Reply>> {
        let asks_for_a_lock = calls.iter().any(Call::asks_for_a_lock);
        let mut conn = match self.lend_for(asks_for_a_lock, sending) {
            Ok(conn) => conn,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
        let (sent, epoch) = (time::now(), conn.epoch());
        let mut replies = Vec::with_capacity(calls.len());
        let mut hear = |answer: RedisResult<Value>| {
            let answer = answer.and_then(Value::extract_error);
            let mut reply = Reply::untracked(answer, sent, false);
            self.check_epoch(&mut reply, epoch);
            replies.push(Ok(reply));
        };
        let limit = limit(&mut conn, sending.patience, self.limits().answer);
        let exchanged = limit.map(|limit| {
            let packed = packed(calls, teaching, None);
            conn.asked(|conn| exchange_each(conn, &packed, calls.len(), limit, &mut hear))
        });
        if let Err(error) = &exchanged {
            for _ in calls {
                hear(Err(error.clone()));
            }
        }
        let error = exchanged.and_then(|exchanged| exchanged).err();
        close_if_finished(&mut conn, error.as_ref());
        replies
    }

    fn lend_for(&self, asks_for_a_lock: bool, sending: &Sending<'_>) -> Result<PooledConnection> {
        self.pool.get_for(
            asks_for_a_lock,
            sending.wait_while_all_lent_by.remaining(),
            sending.whole_by.remaining(),
            sending.patience.cancel,
        )
    }
}

impl Server for RedisServer {
    fn limits(&self) -> Limits {
        self.connector.limits()
    }

    fn connector(&self) -> Option<Connector> {
        Some(self.connector.clone())
    }

    fn lend(&self, _key: &str) -> Result<PooledConnection> {
        self.pool.refuse_forked_child()?;
        self.pool.get_for(false, Duration::MAX, Duration::MAX, None)
    }

    fn is_elsewhere(&self, refusal: &RedisError) -> bool {
        is_from_replica(refusal)
    }

    fn clock_skew(&self) -> Duration {
        self.connector.clock_skew()
    }

    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        let reply = self.ask_all(slice::from_ref(call), patience).pop();
        reply.unwrap_or_else(|| Ok(Reply::untracked(Err(no_answer()), time::now(), false)))
    }

    fn ask_all(&self, calls: &[Call], patience: Patience<'_>) -> Vec<Result<Reply>> {
        let whole_by = Deadline::after(self.pool.get_timeout());
        let sending = Sending {
            patience,
            wait_while_all_lent_by: Deadline::after(patience.wait_while_all_lent),
            whole_by: whole_by.or_sooner(patience.by.and_then(Deadline::moment)),
        };
        let mut replicas = ReplicasMet::new(patience, sending.whole_by);
        let mut replies = self.send_each(calls, &sending, false);
        let mut were_repeated = vec![false; calls.len()];
        loop {
            let refusal =
                |reply: &Result<Reply>| reply.as_ref().ok()?.answer.as_ref().err().cloned();
            let refusals: Vec<_> = replies.iter().map(refusal).collect();
            let met_a_replica = refusals.iter().flatten().any(is_from_replica);
            let goes_on = met_a_replica && replicas.goes_on();
            let goes_again = |(place, refusal): (usize, &Option<RedisError>)| {
                let error = refusal.as_ref()?;
                let was_sent = goes_elsewhere(error);
                let goes = if is_from_replica(error) {
                    goes_on
                } else {
                    let may_have = was_sent || is_unknown_script(error);
                    may_have && !mem::replace(&mut were_repeated[place], true)
                };
                goes.then_some((place, was_sent))
            };
            let goes_again: Vec<_> = refusals.iter().enumerate().filter_map(goes_again).collect();
            if goes_again.is_empty() {
                return replies;
            }
            let again = goes_again.iter().map(|(place, _)| calls[*place].clone());
            let again: Vec<Call> = again.map(Call::again).collect();
            let again = self.send_each(&again, &sending, true);
            for ((place, was_sent), reply) in goes_again.into_iter().zip(again) {
                if let Ok(mut reply) = reply {
                    let before = replies[place].as_ref();
                    reply.again = was_sent || before.is_ok_and(|before| before.again);
                    replies[place] = Ok(reply);
                }
            }
        }
    }

    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>> {
        // The first connection may have been idle when the server restarted.
        for is_first in [true, false] {
            let mut conn = self
                .pool
                .get_for(false, Duration::MAX, Duration::MAX, None)?;
            let pong = conn.asked(|conn| ask::<Value>(&redis::cmd("PING"), conn));
            if close_if_finished(&mut conn, pong.err().as_ref()) {
                continue;
            }
            let answer = conn.asked(|conn| call.send(conn));
            close_if_finished(&mut conn, answer.as_ref().err());
            if is_first && answer.as_ref().is_err_and(is_from_replica) {
                continue;
            }
            return Ok(answer);
        }
        let reason = "two connections of the pool in a row did not answer";
        Err(Error::pool(reason, None))
    }

    fn ask_for_head(
        &self,
        call: &Call,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Reply>> {
        let epoch = (self.connector).epoch_for(call.asks_for_a_lock(), deadline, cancel)?;
        let mut reply = self.waiters.ask(call, deadline, cancel)?;
        if let Some(reply) = &mut reply {
            self.check_epoch(reply, epoch);
        }
        Ok(reply)
    }

    fn renewals(&self) -> Box<dyn Renewals> {
        Box::new(self.renewals_connection())
    }

    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()> {
        let leases = Arc::clone(&self.leases);
        let connector = self.connector.clone();
        let watch = MasterWatch::new(connector, move || leases.check(), observer.clone());
        self.listener.start(observer, watch)
    }

    fn start_notifications(&self) {
        if !self.is_telling.swap(true, Ordering::Relaxed) {
            self.listener.start_notifications();
        }
    }

    fn close(&self) {
        self.listener.close();
    }
}

/// Marks the connection as not to be lent again if this error says so.
fn close_if_finished(conn: &mut PooledConnection, error: Option<&RedisError>) -> bool {
    let Some(finished) = error.and_then(Finished::by_error) else {
        return false;
    };
    conn.close_when_returned(finished);
    true
}

/// Decides whether a call that met a replica is sent again. The replica did nothing, and the next
/// connection may lead to the new master. So the call is sent once more at once; with a deadline,
/// again and again until then.
struct ReplicasMet {
    were_met: bool,
    has_deadline: bool,
    whole_by: Deadline,
    pauses: Backoff,
}

impl ReplicasMet {
    fn new(patience: Patience<'_>, whole_by: Deadline) -> Self {
        Self {
            were_met: false,
            has_deadline: patience.by.is_some(),
            whole_by,
            pauses: Backoff::new(),
        }
    }

    /// Pauses, unless this is the first time.
    fn goes_on(&mut self) -> bool {
        let is_first = !mem::replace(&mut self.were_met, true);
        is_first || self.has_deadline && self.pauses.pause(self.whole_by)
    }
}

/// Returns true if a call that met this error is sent once more, on another connection.
fn goes_elsewhere(error: &RedisError) -> bool {
    error.is_connection_dropped() || is_interrupted(error)
}

/// Returns the longest wait for a reply, after setting it if it is shorter than an I/O time-out.
fn limit(
    conn: &mut PooledConnection,
    patience: Patience<'_>,
    io_timeout: Duration,
) -> RedisResult<Duration> {
    let left = (patience.by).map_or(Duration::MAX, |by| by.remaining_up_to(Duration::MAX));
    if left >= io_timeout {
        return Ok(io_timeout);
    }
    conn.hurry(left)?;
    Ok(left)
}
