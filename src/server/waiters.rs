//! The waiters' connection: whatever is read on it, the listener is told about.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use redis::{Connection, RedisResult};

use super::{
    InLine,
    listener::{Listener, Redirect},
};
use crate::{
    connection::Beside,
    script::Call,
    time::{self, Deadline},
};

/// A connection that all heads of all queues share, opened anew whenever it has failed.
pub(crate) struct Line {
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

impl Line {
    pub(crate) fn new(beside: Beside, listener: Arc<Listener>) -> Self {
        Self {
            beside,
            listener,
            open: Mutex::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// Asks once. Afterwards says whether it is a new line: what was read on the old one is forgotten.
    pub(crate) fn ask(&self, call: &Call, deadline: Deadline) -> InLine {
        if let Err(error) = self.beside.process().refuse_a_copy() {
            return InLine::Unsent(error);
        }
        let Some(mut open) = self.free_by(deadline) else {
            return InLine::Never;
        };
        let asked = self.asked(&mut open, call);
        let failed = !matches!(asked, InLine::Answered { .. });
        self.failed.store(failed, Ordering::SeqCst);
        asked
    }

    /// Sends what nobody waits for, if the line is free soon.
    pub(crate) fn send(&self, call: &Call, patience: Duration) {
        if !self.beside.process().is_a_copy()
            && let Some(mut open) = self.free_by(Deadline::after(patience))
            && let Some(Tracked { connection, .. }) = &mut *open
            && call
                .counts(connection)
                .is_err_and(|error| error.is_io_error())
        {
            *open = None;
        }
    }

    /// Asks whether the connection is still there. False: it is not, and whoever waits has to ask again.
    pub(crate) fn is_alive(&self) -> bool {
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
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    fn free_by(&self, deadline: Deadline) -> Option<MutexGuard<'_, Option<Tracked>>> {
        match deadline.moment() {
            Some(moment) => self.open.try_lock_until(moment),
            None => Some(self.open.lock()),
        }
    }

    fn asked(&self, open: &mut Option<Tracked>, call: &Call) -> InLine {
        let is_new = open.is_none();
        let mut line = match open.take() {
            Some(tracked) => tracked,
            None => match self.beside.open() {
                Ok(connection) => Tracked {
                    connection,
                    redirect: Redirect::default(),
                },
                Err(error) => return InLine::Unsent(error),
            },
        };
        let pointed = line.redirect.point(&mut line.connection, &self.listener);
        let asked = pointed.and_then(|tracked| {
            let sent = time::now();
            let answer = call.send(&mut line.connection)?;
            Ok((tracked, sent, answer))
        });
        match asked {
            Ok((tracked, sent, answer)) => {
                *open = Some(line);
                InLine::Answered {
                    answer,
                    sent,
                    answered: time::now(),
                    tracked,
                    is_new,
                }
            }
            Err(error) => {
                if !error.is_io_error() {
                    *open = Some(line);
                }
                InLine::Failed(error)
            }
        }
    }
}
