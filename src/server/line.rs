//! The line: a connection on which one waiting thread is told by the server itself.
//!
//! A head that is alone in its queue takes it for as long as it waits, if no other has it. It asks on it, and then reads what the
//! server says on it, by the newer protocol: between a release and the attempt after it there is one switch of threads, where
//! the listener and the waiters' connection take two more. The thread that has the line relies on what it has read there and on
//! nothing else, and no other thread relies on it. So no other thread has to be told when the line is lost, and what comes on it
//! about other keys is passed over.
//!
//! Every other head has the waiters' connection and the listener, and so has everybody where the server or an access list
//! refuses the newer protocol or the tracking.
//!
//! Locks: `seat`, from [`take`](OwnLine::take) until the line is given back. Within it the queues' `by_key` and the listener's `ear`,
//! each for a moment. It is only ever tried, so that nobody waits for it.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{Connection, PushKind, RedisResult, Value};

use super::{Line, News, Reply, Unsent, listener::Listener};
use crate::{
    connection::{Connector, Opened},
    error::{Error, Result},
    exchange::{Finished, is_interrupted},
    script::Call,
    time,
};

/// How long it listens before it looks whether the line still leads to the master.
const LISTEN: Duration = Duration::from_millis(250);
/// A line that is silent for so long may be one that is gone.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After a refusal nobody has the line for so long,
const REFUSED: Duration = Duration::from_secs(60);
/// and after any other failure to open it: meanwhile all have the connection that they share.
const FAILED: Duration = Duration::from_secs(5);
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The line, opened when it is first taken, and anew whenever it has failed.
pub(super) struct OwnLine {
    connector: Connector,
    listener: Arc<Listener>,
    seat: Mutex<Seat>,
    /// Somebody has found out elsewhere that the server is a replica by now.
    leads_to_a_replica: AtomicBool,
}

#[derive(Default)]
struct Seat {
    open: Option<Open>,
    none_until: Option<Instant>,
}

struct Open {
    connection: Connection,
    /// Where it leads: see [`Connector::epoch`].
    epoch: u64,
    /// redis-rs passes over so many replies: it takes each time without a message for a reply that is late.
    passed_over: usize,
    /// When the server was last heard.
    heard: Instant,
}

/// The line of one waiting thread, and the key that it waits for.
struct Taken<'a> {
    line: &'a OwnLine,
    seat: MutexGuard<'a, Seat>,
    key: &'a str,
}

impl OwnLine {
    pub(super) fn new(connector: Connector, listener: Arc<Listener>) -> Self {
        Self {
            connector,
            listener,
            seat: Mutex::default(),
            leads_to_a_replica: AtomicBool::new(false),
        }
    }

    /// For a thread that waits for this key. `None`: another has it, or the server does not allow it.
    pub(super) fn take<'a>(&'a self, key: &'a str) -> Option<Box<dyn Line + 'a>> {
        self.connector.process().refuse_a_copy().ok()?;
        let seat = self.seat.try_lock()?;
        let has_failed = seat.none_until.is_some_and(|until| time::now() < until);
        (!has_failed).then(|| {
            Box::new(Taken {
                line: self,
                seat,
                key,
            }) as Box<dyn Line>
        })
    }

    /// The server is a replica by now.
    pub(super) fn leave_the_replica(&self) {
        self.leads_to_a_replica.store(true, Ordering::SeqCst);
    }

    fn is_left(&self, open: &Open) -> bool {
        self.leads_to_a_replica.swap(false, Ordering::SeqCst)
            || open.epoch != self.connector.epoch()
    }

    fn open(&self) -> Result<Open> {
        // Before, not after: what is found out while the connection is being opened may be about this one.
        self.leads_to_a_replica.store(false, Ordering::SeqCst);
        let Opened { connection, epoch } = self.connector.open_to_wait()?;
        let mut open = Open {
            connection,
            epoch,
            passed_over: 0,
            heard: time::now(),
        };
        open.wait_no_longer_than(self.connector.limits().answer)
            .and_then(|()| {
                let mut tracking = redis::cmd("CLIENT");
                tracking.arg("TRACKING").arg("ON").arg("NOLOOP");
                (self.connector).ask_at(epoch, || tracking.exec(&mut open.connection))
            })
            .map_err(|error| Error::Pool {
                reason: String::from("a waiting thread is not told by the server"),
                source: Some(error),
            })?;
        Ok(open)
    }
}

impl Taken<'_> {
    /// The open line, opened if it is not.
    fn opened(&mut self) -> Result<&mut Open> {
        if self
            .seat
            .open
            .as_ref()
            .is_some_and(|open| self.line.is_left(open))
        {
            self.close(Finished::Replica);
        }
        if self.seat.open.is_none() {
            let opened = self.line.open().inspect_err(|error| {
                let pause = if is_refusal(error) { REFUSED } else { FAILED };
                self.seat.none_until = Some(time::now() + pause);
            })?;
            self.seat.open = Some(opened);
        }
        self.seat.open.as_mut().ok_or_else(|| Error::Pool {
            reason: String::from("the connection was closed"),
            source: None,
        })
    }

    fn close(&mut self, finished: Finished) {
        if matches!(finished, Finished::Broken | Finished::Replica) {
            self.line.connector.doubt();
        }
        if finished == Finished::Replica {
            self.line.listener.leave_the_replica();
        }
        self.seat.open = None;
    }
}

impl Line for Taken<'_> {
    fn is_open(&self) -> bool {
        self.seat.open.is_some()
    }

    fn ask(&mut self, call: &Call, looks_first: bool) -> Result<Reply, Unsent> {
        let connector = &self.line.connector;
        let io_timeout = connector.limits().answer;
        let open = self.opened().map_err(Unsent::NoConnection)?;
        let mut sent = time::now();
        let out = connector.begin(open.epoch);
        let answer = open.catch_up(io_timeout).and_then(|()| {
            if looks_first && let Some(refusal) = call.refusal_by_a_look(&mut open.connection)? {
                return Ok(refusal);
            }
            sent = time::now();
            call.ask(&mut open.connection, false)
        });
        out.end(&answer);
        let answered = time::now();
        open.heard = answered;
        if let Some(finished) = answer.as_ref().err().and_then(Finished::by_error) {
            self.close(finished);
        }
        Ok(Reply {
            tracked: answer.is_ok(),
            answer,
            sent,
            answered,
            again: false,
            has_moved: false,
        })
    }

    fn listen(&mut self, until: Option<Instant>) -> News {
        let io_timeout = self.line.connector.limits().answer;
        loop {
            let Some(open) = &mut self.seat.open else {
                return News::Lost;
            };
            if self.line.is_left(open) {
                self.close(Finished::Replica);
                return News::Lost;
            }
            let now = time::now();
            let left = until.map_or(LISTEN, |until| until.saturating_duration_since(now));
            if left.is_zero() {
                return News::Nothing;
            }
            let heard = if now.saturating_duration_since(open.heard) < HEARTBEAT {
                open.hear(left.min(LISTEN), self.key)
            } else {
                let out = self.line.connector.begin(open.epoch);
                let beat = open.beat(io_timeout, self.key);
                out.end(&beat);
                beat
            };
            match heard {
                Ok(true) => return News::Changed,
                Ok(false) => {}
                Err(error) => {
                    let finished = Finished::by_error(&error);
                    self.close(finished.unwrap_or(Finished::Unreadable));
                    return News::Lost;
                }
            }
        }
    }
}

impl Open {
    fn wait_no_longer_than(&self, limit: Duration) -> RedisResult<()> {
        self.connection.set_read_timeout(Some(limit))?;
        self.connection.set_write_timeout(Some(limit))
    }

    /// Sends what redis-rs passes over the replies to, so that it passes over none that is wanted.
    fn catch_up(&mut self, io_timeout: Duration) -> RedisResult<()> {
        self.connection.set_read_timeout(Some(io_timeout))?;
        let pings = PING.repeat(mem::take(&mut self.passed_over));
        if pings.is_empty() {
            return Ok(());
        }
        self.connection.send_packed_command(&pings)
    }

    /// Whether the server says within this time that the key has changed.
    fn hear(&mut self, limit: Duration, key: &str) -> RedisResult<bool> {
        // Nothing shorter than the system's clock can tell from nothing.
        (self.connection).set_read_timeout(Some(limit.max(Duration::from_micros(100))))?;
        match self.connection.recv_response() {
            Ok(message) => {
                self.heard = time::now();
                Ok(is_about(&message, key))
            }
            Err(error) if error.is_timeout() || is_interrupted(&error) => {
                self.passed_over += 1;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes sure that the server is there. Whether it says meanwhile that the key has changed.
    fn beat(&mut self, io_timeout: Duration, key: &str) -> RedisResult<bool> {
        self.catch_up(io_timeout)?;
        self.connection.send_packed_command(PING)?;
        let mut has_changed = false;
        loop {
            let reply = self.connection.recv_response()?;
            self.heard = time::now();
            if !matches!(reply, Value::Push { .. }) {
                return Ok(has_changed);
            }
            has_changed |= is_about(&reply, key);
        }
    }
}

/// One message names some keys; that of a `FLUSHALL` names none, which means all.
fn is_about(message: &Value, key: &str) -> bool {
    match message {
        Value::Push {
            kind: PushKind::Invalidate,
            data,
        } => match &data[..] {
            [Value::Array(keys)] => (keys.iter())
                .any(|named| matches!(named, Value::BulkString(named) if named == key.as_bytes())),
            _ => true,
        },
        _ => false,
    }
}

/// The server, or an access list, does not allow it.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Pool { source: Some(error), .. } if !error.is_io_error())
}
