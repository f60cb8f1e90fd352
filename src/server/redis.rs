//! A real server: the pool, the waiters' connection, the watchdog's, and the listener.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use redis::{RedisError, RedisResult, Value};

use super::{
    Observer, Patience, Renewals, RenewalsConnection, Reply, Server, Unsent, listener::Listener,
    tracked::Tracked, waiters::WaitersConnection,
};
use crate::{
    connection::{Connector, Limits, Pool, PooledConnection},
    error::{Error, Result},
    exchange::Finished,
    script::Call,
    time::{self, Clock, Deadline},
};

/// A server that a pool leads to.
pub(crate) struct RedisServer {
    pool: Pool,
    connector: Connector,
    waiters: WaitersConnection,
    leases: Arc<Tracked>,
    listener: Arc<Listener>,
}

impl RedisServer {
    pub(crate) fn new(pool: &Pool) -> Self {
        let connector = pool.connector();
        let listener = Listener::new(connector.clone());
        Self {
            pool: pool.clone(),
            waiters: WaitersConnection::new(connector.clone(), Arc::clone(&listener)),
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
            let answer = answered_by(&mut conn, (call, again), patience, self.limits().answer);
            let _ = (answer.as_ref()).inspect_err(|error| self.connector.was_refused(error));
            if let Some(finished) = answer.as_ref().err().and_then(Finished::by_error) {
                self.finish(&mut conn, finished);
            }
            let reply = untracked(answer, sent, again);
            if again || !was_closed(&reply.answer) {
                return Ok(reply);
            }
            before = Some(reply);
        }
    }

    /// Whether the connection answers; if not, it is closed.
    fn answers(&self, conn: &mut PooledConnection) -> bool {
        let answer = redis::cmd("PING").query::<Value>(conn.connection());
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

    fn epoch(&self) -> u64 {
        self.connector.epoch()
    }

    fn clock_skew(&self) -> Duration {
        self.connector.clock_skew()
    }

    fn ask(&self, call: &Call, patience: Patience<'_>) -> Result<Reply> {
        self.ask_alone(call, patience, Deadline::after(patience.whole), None)
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
        let answer = call.send(conn.connection());
        if let Some(finished) = answer.as_ref().err().and_then(Finished::by_error) {
            self.finish(&mut conn, finished);
        }
        Ok(answer)
    }

    fn ask_for_head(&self, call: &Call, deadline: Deadline) -> Result<Reply, Unsent> {
        self.waiters.ask(call, deadline)
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
