//! The waiters' connection: whatever is read on it, the listener is told about.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use redis::{Connection, RedisError, RedisResult};

use super::wake::{Listener, Redirect};
use crate::{
    Error,
    connection::Beside,
    recipes::holding::{Attempt, Holding},
    script::{Call, Refusal},
    time::{self, Deadline},
};

/// A connection that all heads of all queues share, opened anew whenever it has failed.
pub(super) struct Line {
    beside: Beside,
    listener: Arc<Listener>,
    open: Mutex<Option<Tracked>>,
    /// The last attempt to use it has failed.
    failed: AtomicBool,
}

struct Tracked {
    connection: Connection,
    redirect: Redirect,
}

impl std::fmt::Debug for Tracked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracked").finish_non_exhaustive()
    }
}

/// What has become of an attempt on the line.
pub(super) enum Asked {
    Answered {
        attempt: Attempt,
        /// A moment before it was sent.
        sent: Instant,
        /// The listener is told when something happens to the lock.
        tracked: bool,
    },
    /// Others had the line until the deadline.
    Never,
    /// There is no connection; nothing was sent.
    Unsent(Error),
    /// The server refused, or no answer came.
    Failed(RedisError),
}

impl Line {
    pub(super) fn new(beside: Beside, listener: Arc<Listener>) -> Self {
        Self {
            beside,
            listener,
            open: Mutex::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// Attempts once. Waits for the line until the deadline, then for the server one I/O time-out, and one more time-out
    /// to connect where that is needed. Afterwards says whether it is a new line: what was read on the old one is
    /// forgotten.
    pub(super) fn attempt(
        &self,
        hold: &Holding,
        lease_millis: u64,
        waits: bool,
        deadline: Deadline,
    ) -> (Asked, bool) {
        let Some(mut open) = self.free_by(deadline) else {
            return (Asked::Never, false);
        };
        let is_new = open.is_none();
        let asked = self.ask(&mut open, |connection| {
            let sent = time::now();
            let attempt = hold.attempt(connection, lease_millis, waits, Refusal::WithItsEnd)?;
            Ok((attempt, sent))
        });
        let failed = !matches!(asked, Asked::Answered { .. });
        self.failed.store(failed, Ordering::SeqCst);
        (asked, is_new && !failed)
    }

    /// Sends what nobody waits for, if the line is free soon.
    pub(super) fn send(&self, call: &Call, patience: Duration) {
        if let Some(mut open) = self.free_by(Deadline::after(patience))
            && let Some(Tracked { connection, .. }) = &mut *open
            && call
                .counts(connection)
                .is_err_and(|error| error.is_io_error())
        {
            *open = None;
        }
    }

    /// Asks whether the connection is still there. False: it is not, and whoever waits has to ask again.
    pub(super) fn is_alive(&self) -> bool {
        let Some(mut open) = self.open.try_lock() else {
            return true;
        };
        if let Some(Tracked { connection, .. }) = &mut *open {
            let answer: RedisResult<redis::Value> = redis::cmd("PING").query(connection);
            if answer.is_err_and(|error| error.is_io_error()) {
                *open = None;
                return false;
            }
        }
        true
    }

    /// Whether it could not be used the last time.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    fn free_by(&self, deadline: Deadline) -> Option<MutexGuard<'_, Option<Tracked>>> {
        match deadline.moment() {
            Some(moment) => self.open.try_lock_until(moment),
            None => Some(self.open.lock()),
        }
    }

    fn ask(
        &self,
        open: &mut Option<Tracked>,
        ask: impl FnOnce(&mut Connection) -> RedisResult<(Attempt, Instant)>,
    ) -> Asked {
        let mut tracked = match open.take() {
            Some(tracked) => tracked,
            None => match self.beside.open() {
                Ok(connection) => Tracked {
                    connection,
                    redirect: Redirect::default(),
                },
                Err(error) => return Asked::Unsent(error),
            },
        };
        let Tracked {
            connection,
            redirect,
        } = &mut tracked;
        let pointed = redirect.point(connection, &self.listener);
        match pointed.and_then(|points| Ok((points, ask(connection)?))) {
            Ok((points, (attempt, sent))) => {
                *open = Some(tracked);
                Asked::Answered {
                    attempt,
                    sent,
                    tracked: points,
                }
            }
            Err(error) => {
                if !error.is_io_error() {
                    *open = Some(tracked);
                }
                Asked::Failed(error)
            }
        }
    }
}
