//! The waiters' connection: the heads of all queues share it, one at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    HeadAnswer,
    listener::Listener,
    tracked::{For, InUse, Tracked},
};
use crate::{
    connection::Connector,
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
    pub(crate) fn ask(&self, call: &Call, deadline: Deadline) -> HeadAnswer {
        let asked = match self.tracked.using(deadline, |used| asked(used, call)) {
            Ok(Some(asked)) => asked,
            Ok(None) => {
                let has_failed = self.has_failed.load(Ordering::SeqCst);
                return HeadAnswer::Never { has_failed };
            }
            Err(error) => return HeadAnswer::Unsent(error),
        };
        let has_failed = !matches!(asked, HeadAnswer::Answered { .. });
        self.has_failed.store(has_failed, Ordering::SeqCst);
        asked
    }

    /// Sends what nobody waits for, if the connection is open and free soon.
    pub(crate) fn send(&self, call: &Call, patience: Duration) {
        let _ = self.tracked.using(Deadline::after(patience), |used| {
            if used.is_open() {
                // Whoever relies on the connection is told if it is finished.
                let _ = used.ask(None, |connection, _| call.counts(connection));
            }
        });
    }

    /// The server is a replica by now, as somebody has found out elsewhere.
    pub(crate) fn leave_the_replica(&self) {
        self.tracked.leave_the_replica();
    }
}

fn asked(used: &mut InUse<'_>, call: &Call) -> HeadAnswer {
    if !used.is_open()
        && let Err(error) = used.open()
    {
        return HeadAnswer::Unsent(error);
    }
    let asked = used.ask(None, |connection, tracked| {
        let sent = time::now();
        let answer = call.send(connection)?;
        Ok(HeadAnswer::Answered {
            answer,
            sent,
            answered: time::now(),
            tracked,
        })
    });
    asked.unwrap_or_else(HeadAnswer::Failed)
}
