//! The watchdog's connection: one batch of renewals, one round trip.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Connection, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::{
    Answer, Failure, Link, Replies, Reply,
    listener::{Listener, Redirect},
};
use crate::{
    connection::Beside,
    error::is_wrong_type,
    exchange::next_reply,
    script::{Call, is_unknown_script},
    time::{self, Deadline},
};

/// A connection that has answered before is taken for dead after a third of the shortest lease, but not sooner.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(250);

/// A connection that is opened anew whenever it has failed.
pub(crate) struct RedisLink {
    beside: Beside,
    connection: Option<Connection>,
    /// It has answered a batch.
    proven: bool,
    /// The server may not know our scripts: each is sent whole once in the next batch.
    teach: bool,
    /// Who is told of what happens to the leases that are asked about.
    listener: Option<Arc<Listener>>,
    redirect: Redirect,
}

impl RedisLink {
    /// Nobody is told of what happens to the leases.
    pub(crate) fn untold(beside: Beside) -> Self {
        Self::new(beside, None)
    }

    pub(crate) fn new(beside: Beside, listener: Option<Arc<Listener>>) -> Self {
        Self {
            beside,
            listener,
            redirect: Redirect::default(),
            connection: None,
            proven: false,
            teach: false,
        }
    }
}

impl Link for RedisLink {
    fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    fn open(&mut self) -> Result<(), Arc<Failure>> {
        let opened = match caught(|| self.beside.open()) {
            Ok(opened) => opened.map_err(|error| Arc::new(Failure::Unsent(error)))?,
            Err(panicked) => return Err(Failure::sent(panicked)),
        };
        self.connection = Some(opened);
        self.proven = false;
        self.teach = true;
        self.redirect = Redirect::default();
        Ok(())
    }

    fn send(&mut self, calls: &[Call], questions: usize, shortest_lease: Duration) -> Replies {
        let teaching = std::mem::take(&mut self.teach);
        let packed = packed(calls, teaching);
        let mut limit = self.beside.io_timeout();
        if self.proven {
            limit = limit.min(SHORTEST_PATIENCE.max(shortest_lease / 3));
        }

        // The lease's clock starts before the first byte is sent.
        let sent = time::now();
        let mut values = Vec::with_capacity(calls.len());
        let conversation = match &mut self.connection {
            Some(connection) => caught(|| {
                if let Some(listener) = &self.listener {
                    connection.set_read_timeout(Some(limit))?;
                    self.redirect.point(connection, listener)?;
                }
                converse(connection, &packed, limit, calls.len(), &mut values)
            })
            .and_then(|conversation| conversation),
            None => Err((ErrorKind::Io, "no connection").into()),
        };
        let mut replies: Vec<Reply> = values
            .into_iter()
            .enumerate()
            .map(|(n, value)| match value {
                Value::Int(1..) if n >= questions => (Answer::Ours(sent), None),
                value => self.understood(value, sent, teaching),
            })
            .collect();
        self.proven = conversation.is_ok();
        if let Err(error) = conversation {
            self.connection = None;
            let failure = Failure::sent(error);
            replies.resize_with(calls.len(), || {
                (Answer::Unanswered, Some(Arc::clone(&failure)))
            });
        }
        Replies {
            replies,
            broken: self.connection.is_none(),
        }
    }
}

impl RedisLink {
    fn understood(&mut self, value: Value, sent: Instant, taught: bool) -> Reply {
        let refusal: RedisError = match value {
            Value::Int(1) => return (Answer::Ours(sent), None),
            Value::Int(0) => return (Answer::NotOurs, None),
            Value::ServerError(error) => error.into(),
            _ => (ErrorKind::UnexpectedReturnType, "neither 0 nor 1").into(),
        };
        if is_unknown_script(&refusal) && !taught {
            self.teach = true;
            return (Answer::Forgotten, None);
        }
        if refusal.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
            // A replica by now: the address may lead to the new master.
            self.connection = None;
        }
        refused(refusal)
    }
}

/// What a refusal means for the lease.
pub(crate) fn refused(refusal: RedisError) -> Reply {
    if is_another_kind(&refusal) {
        return (Answer::NotOurs, None);
    }
    (Answer::Refused, Some(Failure::sent(refusal)))
}

/// The lock's key holds something else by now. What is wrong with the companion alone leaves the lock ours.
fn is_another_kind(refusal: &RedisError) -> bool {
    match refusal.code() {
        Some("COMPANION") => false,
        Some("WRONGKIND") => true,
        _ => is_wrong_type(refusal),
    }
}

/// The batch; each script is sent whole the first time, where the server may not know it.
fn packed(calls: &[Call], teaching: bool) -> Vec<u8> {
    let (mut packed, mut taught) = (Vec::new(), Vec::new());
    for call in calls {
        packed.extend(if teaching && !taught.contains(&call.script()) {
            taught.push(call.script());
            call.whole().get_packed_command()
        } else {
            call.by_hash().get_packed_command()
        });
    }
    packed
}

/// Sends and reads with one deadline for everything. After an error the connection must not be used again.
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

/// A panic of redis-rs is one more failure of the connection, not the end of all renewing.
fn caught<T>(run: impl FnOnce() -> T) -> RedisResult<T> {
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|_| (ErrorKind::Io, "the client library panicked").into())
}
