//! The waiters' connection: the heads of all queues share it, one at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::RedisError;

use super::{
    Reply, Unsent,
    listener::Listener,
    tracked::{For, InUse, Tracked},
};
use crate::{
    connection::Connector,
    error::Result,
    script::Call,
    time::{self, Deadline},
};

/// The waiters' connection, and whether its last use has failed.
pub(crate) struct WaitersConnection {
    tracked: Arc<Tracked>,
    has_failed: AtomicBool,
}

impl WaitersConnection {
    pub(crate) fn new(connector: Connector, listener: Arc<Listener>) -> Self {
        Self {
            tracked: Arc::new(Tracked::new(For::Waiters, connector, Some(listener))),
            has_failed: AtomicBool::new(false),
        }
    }

    pub(super) fn tracked(&self) -> Arc<Tracked> {
        Arc::clone(&self.tracked)
    }

    /// Asks once.
    pub(crate) fn ask(&self, call: &Call, deadline: Deadline) -> Result<Reply, Unsent> {
        let asked = |used: &mut InUse<'_>| asked(used, call);
        let used = self.tracked.using(deadline, asked);
        let Some(reply) = used.map_err(Unsent::NoConnection)? else {
            let has_failed = self.has_failed.load(Ordering::SeqCst);
            return Err(Unsent::InUse { has_failed });
        };
        // A refusal is an answer.
        let has_failed = match &reply {
            Ok(reply) => reply.answer.as_ref().is_err_and(RedisError::is_io_error),
            Err(_) => true,
        };
        self.has_failed.store(has_failed, Ordering::SeqCst);
        reply.map_err(Unsent::NoConnection)
    }

    /// Sends what nobody waits for, but not in a child of a fork. False: the connection is not open, or was not free so soon.
    pub(crate) fn send(&self, call: &Call, patience: Duration) -> bool {
        let sent = self.tracked.using(Deadline::after(patience), |used| {
            let is_open = used.is_open();
            if is_open {
                // Whoever relies on the connection is told if it is finished.
                let _ = used.ask(None, |connection, _| call.counts(connection));
            }
            is_open
        });
        !matches!(sent, Ok(None | Some(false)))
    }

    /// The server is a replica by now, as somebody has found out elsewhere.
    pub(crate) fn leave_the_replica(&self) {
        self.tracked.leave_the_replica();
    }
}

fn asked(used: &mut InUse<'_>, call: &Call) -> Result<Reply> {
    if !used.is_open() {
        used.open()?;
    }
    let mut sent = time::now();
    let mut is_tracked = false;
    let answer = used.ask(None, |connection, tracked| {
        (sent, is_tracked) = (time::now(), tracked);
        call.ask(connection, false)
    });
    Ok(Reply {
        tracked: is_tracked && answer.is_ok(),
        answer,
        sent,
        answered: time::now(),
        again: false,
        has_moved: false,
    })
}
