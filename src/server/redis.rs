//! A real server: the pool, the waiters' connection, the watchdog's, and the listener.

use std::{
    mem,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use redis::{RedisError, RedisResult, Value};

use super::{
    Line, Observer, Patience, Renewals, RenewalsConnection, Reply, Server, Unsent,
    combining::{Came, Combiner, Terms, Turn},
    line::OwnLine,
    listener::Listener,
    tracked::Tracked,
    waiters::WaitersConnection,
};
use crate::{
    connection::{Connector, Limits, Out, Pool, PooledConnection},
    error::{Error, Result},
    exchange::{Finished, is_interrupted, next_reply},
    script::{Call, is_unknown_script},
    time::{self, Clock, Deadline},
};

/// A server that a pool leads to.
pub(crate) struct RedisServer {
    pool: Pool,
    combiner: Combiner,
    connector: Connector,
    waiters: WaitersConnection,
    line: OwnLine,
    leases: Arc<Tracked>,
    listener: Arc<Listener>,
}

impl RedisServer {
    pub(crate) fn new(pool: &Pool) -> Self {
        let connector = pool.connector();
        let listener = Listener::new(connector.clone());
        Self {
            pool: pool.clone(),
            combiner: Combiner::default(),
            waiters: WaitersConnection::new(connector.clone(), Arc::clone(&listener)),
            line: OwnLine::new(connector.clone(), Arc::clone(&listener)),
            leases: RenewalsConnection::tracked(connector.clone(), Arc::clone(&listener)),
            connector,
            listener,
        }
    }

    /// The watchdog's connection.
    pub(super) fn renewals_connection(&self) -> RenewalsConnection {
        RenewalsConnection::on(Arc::clone(&self.leases))
    }

    /// Sends a call by a connection that is lent for it alone. `before`: its reply on a connection that turned out to be closed.
    fn ask_alone(
        &self,
        call: &Call,
        patience: Patience<'_>,
        deadline: Deadline,
        mut before: Option<Reply>,
    ) -> Result<Reply> {
        loop {
            let mut conn =
                match self
                    .pool
                    .get_here(patience.lent, deadline.remaining(), patience.cancel)
                {
                    Ok(conn) => conn,
                    Err(error) => return before.ok_or(error),
                };
            let (sent, again) = (time::now(), before.is_some());
            let out = self.begin(&conn, call);
            let answer = answered_by(&mut conn, (call, again), patience, self.limits().answer);
            out.end(&answer);
            match answer.as_ref().err().and_then(Finished::by_error) {
                Some(finished) => self.finish(&mut conn, finished),
                None => (self.combiner.crowd).took(time::now().saturating_duration_since(sent), 1),
            }
            let reply = untracked(answer, sent, again);
            if again || !was_closed(&reply.answer) {
                return Ok(reply);
            }
            before = Some(reply);
        }
    }

    /// In one write with others.
    fn ask_together(
        &self,
        call: &Call,
        patience: Patience<'_>,
        deadline: Deadline,
    ) -> Result<Came> {
        let io_timeout = self.limits().answer;
        let sooner = patience.answer.filter(|end| end.remaining() < io_timeout);
        let terms = Terms {
            io_timeout,
            unsent: patience.lent.min(patience.whole),
            until: sooner.and_then(Deadline::moment),
        };
        self.combiner.ask(call.first(), terms, |turn| {
            loop {
                let mut conn =
                    self.pool
                        .get_here(patience.lent, deadline.remaining(), patience.cancel)?;
                // A caller may have found out meanwhile that another is the master, and takes the answer for that one's.
                let is_of_the_master = || conn.epoch() == self.connector.epoch();
                if !turn.gather(is_of_the_master) {
                    conn.close(Finished::Replica);
                    continue;
                }
                if let Some(finished) = answer_all(turn, &mut conn, &self.connector) {
                    self.finish(&mut conn, finished);
                }
                return Ok(());
            }
        })
    }

    /// The call is about to be sent by this connection. A server that waits for replicas is not silent.
    fn begin(&self, conn: &PooledConnection, call: &Call) -> Out<'_> {
        match call.replicas() {
            None => self.connector.begin(conn.epoch()),
            Some(_) => Out::default(),
        }
    }

    /// Whether the connection answers; if not, it is closed.
    fn answers(&self, conn: &mut PooledConnection) -> bool {
        let answer = self.connector.ask_at(conn.epoch(), || {
            redis::cmd("PING").query::<Value>(conn.connection())
        });
        let finished = answer.err().as_ref().and_then(Finished::by_error);
        if let Some(finished) = finished {
            conn.close(finished);
        }
        finished.is_none()
    }

    /// The connection is not lent again. If the server is a replica by now, the tracked connections lead there as well, and
    /// a replica goes on answering what does not write.
    fn finish(&self, conn: &mut PooledConnection, finished: Finished) {
        conn.close(finished);
        if finished == Finished::Replica {
            self.waiters.leave_the_replica();
            self.line.leave_the_replica();
            self.leases.leave_the_replica();
        }
    }
}

impl Server for RedisServer {
    fn clock(&self) -> Clock {
        Clock::REAL
    }

    fn limits(&self) -> Limits {
        self.connector.limits()
    }

    fn lend(&self, _key: &str) -> Result<PooledConnection> {
        self.pool.get_for_ourselves()
    }

    fn stores_data(&self) -> Result<()> {
        Ok(())
    }

    fn is_watched(&self) -> bool {
        self.connector.is_watched()
    }

    fn epoch(&self) -> u64 {
        self.connector.epoch()
    }

    fn look_for_another_master(&self, epoch: u64, deadline: Deadline) {
        self.connector.look_for_another_master(epoch, deadline);
    }

    fn follows_a_silence(&self, epoch: u64, sent: Instant) -> bool {
        self.connector.follows_a_silence(epoch, sent)
    }

    fn clock_skew(&self) -> Duration {
        self.connector.clock_skew()
    }

    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        let deadline = Deadline::after(patience.whole);
        let inside = self.combiner.crowd.enter();
        // Replicas are asked by the connection that has written, and waited for. In a write with others, a wait that is called
        // off would go on until they have a connection.
        let must_go_alone = call.replicas().is_some() || patience.cancel.is_some();
        if must_go_alone || inside.goes_alone(self.pool.size()) {
            return self.ask_alone(call, patience, deadline, None);
        }
        let Came::Answer((answer, sent)) = self.ask_together(call, patience, deadline)? else {
            return self.ask_alone(call, patience, deadline, None);
        };
        let was_closed = was_closed(&answer);
        let is_unknown = answer.as_ref().is_err_and(is_unknown_script);
        let reply = untracked(answer, sent, false);
        match (was_closed, is_unknown) {
            (true, _) => self.ask_alone(call, patience, deadline, Some(reply)),
            (_, true) => self.ask_alone(call, patience, deadline, None),
            _ => Ok(reply),
        }
    }

    fn go_together_always(&self) {
        self.combiner.crowd.go_together_always();
    }

    fn unsent_calls(&self) -> usize {
        self.combiner.waiting()
    }

    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>> {
        let mut conn = self.pool.get()?;
        if !self.answers(&mut conn) {
            // Such as one that stood idle when the server was started again.
            drop(conn);
            conn = self.pool.get()?;
            if !self.answers(&mut conn) {
                return Err(Error::Pool {
                    reason: String::from("the connections that were lent do not answer"),
                    source: None,
                });
            }
        }
        let out = self.begin(&conn, call);
        let answer = call.send(conn.connection());
        out.end(&answer);
        if let Some(finished) = answer.as_ref().err().and_then(Finished::by_error) {
            self.finish(&mut conn, finished);
        }
        Ok(answer)
    }

    fn ask_for_head(
        &self,
        call: &Call,
        looks_first: bool,
        deadline: Deadline,
    ) -> Result<Reply, Unsent> {
        self.waiters.ask(call, looks_first, deadline)
    }

    fn line<'a>(&'a self, key: &'a str) -> Option<Box<dyn Line + 'a>> {
        self.line.take(key)
    }

    fn send_unawaited(&self, call: &Call, patience: Duration) {
        if self.waiters.send(call, patience) {
            return;
        }
        let soon = Patience {
            lent: patience,
            whole: patience,
            answer: Some(Deadline::after(2 * patience)),
            ..Patience::USUAL
        };
        // Nobody waits for what becomes of it.
        let _ = self.ask_alone(call, soon, Deadline::after(patience), None);
    }

    fn renewals(&self) -> Box<dyn Renewals> {
        Box::new(self.renewals_connection())
    }

    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()> {
        let waiters = self.waiters.tracked();
        (self.listener).start(observer, waiters, self.leases.clone())
    }

    fn want(&self) {
        self.listener.want();
    }

    fn close(&self) {
        self.listener.close();
    }
}

/// What came of sending on a connection of the pool.
pub(super) fn untracked(answer: RedisResult<Value>, sent: Instant, again: bool) -> Reply {
    Reply {
        answer,
        sent,
        answered: sent,
        tracked: false,
        again,
        has_moved: false,
    }
}

/// The connection turned out to have been closed: what was sent on it may be sent again by another.
fn was_closed(answer: &RedisResult<Value>) -> bool {
    answer
        .as_ref()
        .is_err_and(RedisError::is_connection_dropped)
}

/// Sends what was gathered, and gives each caller its answer; if an answer does not come, all callers that are left get the
/// reason. Says whether the connection is finished.
fn answer_all(
    turn: &mut Turn<'_>,
    conn: &mut PooledConnection,
    connector: &Connector,
) -> Option<Finished> {
    let (io_timeout, epoch) = (connector.limits().answer, conn.epoch());
    let mut out = Out::default();
    let sent = within(turn, conn, io_timeout, true).and_then(|()| {
        if turn.owed() > 0 {
            out = connector.begin(epoch);
        }
        conn.connection().send_packed_command(turn.packed())
    });
    let mut finished = sent.as_ref().err().and_then(Finished::by_error);
    let mut broken = sent.err();
    while turn.owed() > 0 {
        let answer = match &broken {
            Some(error) => Err(error.clone()),
            None => within(turn, conn, io_timeout, false)
                .and_then(|()| next_reply(conn.connection()))
                .and_then(Value::extract_error),
        };
        // Before anybody judges an answer.
        if turn.owed() > 1 {
            out.hear(&answer);
        } else {
            mem::take(&mut out).end(&answer);
        }
        if let Err(error) = &answer
            && let Some(why) = Finished::by_error(error)
        {
            finished.get_or_insert(why);
            // After a signal the answers of the others are still to come, and on a replica as well.
            if why != Finished::Replica && !is_interrupted(error) {
                broken.get_or_insert_with(|| error.clone());
            }
        }
        turn.answer(answer);
    }
    finished
}

/// Sees to it that all answers together are waited for no longer than one.
fn within(
    turn: &Turn<'_>,
    conn: &mut PooledConnection,
    io_timeout: Duration,
    is_first: bool,
) -> RedisResult<()> {
    let remaining = turn.remaining();
    if remaining.is_zero() {
        return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    }
    // The socket's own time-out is as good while hardly any time has passed.
    if remaining < io_timeout / 8 * 7 {
        let limit = remaining.max(Duration::from_millis(1));
        conn.set_read_timeout(Some(limit))?;
        if is_first {
            conn.set_write_timeout(Some(limit))?;
        }
    }
    Ok(())
}

fn answered_by(
    conn: &mut PooledConnection,
    (call, again): (&Call, bool),
    patience: Patience<'_>,
    io_timeout: Duration,
) -> RedisResult<Value> {
    if let Some(limit) = patience.answer.map(Deadline::remaining)
        && limit < io_timeout
    {
        let limit = limit.max(Duration::from_millis(1));
        conn.set_read_timeout(Some(limit))?;
        conn.set_write_timeout(Some(limit))?;
    }
    call.ask(conn.connection(), !again)
}
