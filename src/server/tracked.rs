//! A tracked connection: when a key that was read on it changes, the server notifies the listener
//! once. The waiters share one, the watchdog has another.
//!
//! Both follow these rules:
//!
//! - [`Finished`] decides after each reply whether the connection stays open. If it is closed, the
//!   server forgets which keys it has read.
//! - [`report`](Tracked::report), and nothing else, informs those who relied on it. The heads of
//!   the queues are informed when their connection is gone, since one of them opens the next. The
//!   leases are informed when the watchdog has opened a new one: a question before that would get
//!   no reply, and only make them doubtful.
//! - A head asks every second, and so finds out by itself that its connection is gone. Leases are
//!   renewed more rarely, so the listener's thread [`check`](Tracked::check)s their connection once
//!   a second.
//!
//! Locks: `slot` while the connection is used. It is unlocked before an observer is called, which
//! locks the queues or the keeper.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use redis::{Connection, ErrorKind, RedisError, RedisResult};

use super::listener::{Listener, Tracking};
use crate::{
    error::{Error, Result},
    pool::{Connector, Epoch, Opened},
    time::Deadline,
    wire::{self, Bounds, Finished, bounding},
};

/// The shortest time between two checks for another master, if there is no listener.
const UNTOLD: Duration = Duration::from_secs(1);

/// The users of the keys that were read on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReliedOnBy {
    /// The heads of all queues.
    Waiters,
    /// All leases of the keeper.
    Leases,
}

/// A connection that is reopened after it is finished.
pub(super) struct Tracked {
    relied_on_by: ReliedOnBy,
    pub(super) connector: Connector,
    /// `None`: changes of the keys are not notified.
    listener: Option<Arc<Listener>>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    open: Option<Open>,
    /// An earlier connection was open, on which keys were read.
    had_one: bool,
    /// The last user's limit on the wait for a reply, if it was not one I/O time-out.
    limit: Option<Duration>,
}

struct Open {
    connection: Connection,
    /// The epoch of its destination: see [`Connector::epoch`].
    epoch: Epoch,
    tracking: Tracking,
    /// The connection has answered, so somebody may rely on the keys that were read on it.
    has_answered: bool,
    /// The bounds of a call on it.
    bounds: Bounds,
}

/// A tracked connection while it is used.
pub(super) struct InUse<'a> {
    tracked: &'a Tracked,
    slot: &'a mut Slot,
    /// Those who rely on the connection have to be informed.
    has_news: bool,
}

impl Tracked {
    pub(super) fn new(
        relied_on_by: ReliedOnBy,
        connector: Connector,
        listener: Option<Arc<Listener>>,
    ) -> Self {
        Self {
            relied_on_by,
            connector,
            listener,
            slot: Mutex::default(),
        }
    }

    /// The pause between two checks for another master, if no listener makes them.
    pub(super) fn watch_pause(&self) -> Option<Duration> {
        let is_unwatched = self.listener.is_none() && self.connector.has_locator();
        is_unwatched.then_some(UNTOLD)
    }

    /// Checks whether another server has become the master, if no listener does that each second.
    pub(super) fn check_the_master(&self) {
        if self.listener.is_none() {
            self.connector.check(UNTOLD);
        }
    }

    /// Uses the connection as soon as it is free. `None`: other threads used it until the deadline.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked), before anything is locked.
    pub(super) fn using<T>(
        &self,
        deadline: Deadline,
        run: impl FnOnce(&mut InUse<'_>) -> T,
    ) -> Result<Option<T>> {
        self.connector.process().refuse_forked_child()?;
        let slot = match deadline.moment() {
            Some(moment) => self.slot.try_lock_until(moment),
            None => Some(self.slot.lock()),
        };
        Ok(slot.map(|slot| self.run(slot, run)))
    }

    fn run<T>(&self, mut slot: MutexGuard<'_, Slot>, run: impl FnOnce(&mut InUse<'_>) -> T) -> T {
        let mut used = InUse {
            tracked: self,
            slot: &mut slot,
            has_news: false,
        };
        used.close_if_not_of_the_master();
        let result = run(&mut used);
        used.close_if_not_of_the_master();
        let has_news = used.has_news;
        drop(slot);
        if has_news {
            self.report();
        }
        result
    }

    /// The only place that reports that this connection is gone, or new.
    fn report(&self) {
        let listener = self.listener.as_ref();
        if let Some(observer) = listener.and_then(|listener| listener.observer()) {
            match self.relied_on_by {
                ReliedOnBy::Waiters => observer.ask_again(),
                ReliedOnBy::Leases => observer.renew_again(),
            }
        }
    }

    /// Checks the connection, and reopens it if it is gone. If that fails, the next check or the
    /// next renewal retries. If another thread is using the connection, there is nothing to do:
    /// that thread finds out.
    pub(super) fn check(&self) {
        let Some(slot) = self.slot.try_lock() else {
            return;
        };
        self.run(slot, |used| {
            if used.is_open() {
                let limit = used.slot.limit;
                let _ = used.ask(limit, |connection, _| {
                    wire::ask::<()>(&redis::cmd("PING"), connection)
                });
            }
            if used.slot.had_one {
                let _ = used.open();
            }
        });
    }
}

impl InUse<'_> {
    pub(super) fn is_open(&self) -> bool {
        self.slot.open.is_some()
    }

    /// Opens the connection if it is closed. Blocks while it connects.
    pub(super) fn open(&mut self) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        let opened = self.tracked.connector.open();
        if let (Err(error), Some(listener)) = (&opened, &self.tracked.listener)
            && is_full(error)
        {
            listener.give_way();
        }
        let Opened { connection, epoch } = opened?;
        self.slot.open = Some(Open {
            connection,
            epoch,
            tracking: Tracking::default(),
            has_answered: false,
            bounds: self.tracked.connector.bounds(None),
        });
        self.slot.limit = None;
        self.has_news |= self.slot.had_one && self.tracked.relied_on_by == ReliedOnBy::Leases;
        self.slot.had_one = true;
        Ok(())
    }

    /// Runs a closure on it, which learns whether the listener will be notified of changes of the
    /// keys that it reads. An error may finish the connection, which is closed then.
    ///
    /// `limit` bounds the wait for a reply, and stays in force for the next user.
    pub(super) fn ask<T>(
        &mut self,
        limit: Option<Duration>,
        ask: impl FnOnce(&mut Connection, bool) -> RedisResult<T>,
    ) -> RedisResult<T> {
        // The connection is put back only after the call: a panic of redis-rs leaves none behind.
        let mut open = self.slot.open.take().ok_or_else(no_connection)?;
        self.slot.limit = limit;
        open.bounds.limit = limit.unwrap_or(self.tracked.connector.limits().answer);
        let asked = open.ask(self.tracked.listener.as_deref(), limit, ask);
        let _ = (asked.as_ref()).inspect_err(|error| self.tracked.connector.was_refused(error));
        let finished = asked.as_ref().err().and_then(Finished::by_error);
        open.has_answered |= asked.is_ok();
        self.slot.open = Some(open);
        if let Some(finished) = finished {
            self.finish(finished);
        }
        asked
    }

    /// Returns the epoch of its destination: see [`Connector::epoch`].
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.slot.open.as_ref().map(|open| open.epoch)
    }

    fn close_if_not_of_the_master(&mut self) {
        let now = self.tracked.connector.epoch();
        if self.epoch().is_some_and(|epoch| epoch != now) {
            self.finish(Finished::Replica);
        }
    }

    /// Closes it because of a reply or an error.
    pub(super) fn finish(&mut self, finished: Finished) {
        let Some(closed) = self.slot.open.take() else {
            return;
        };
        self.tracked.connector.finished(closed.epoch, finished);
        self.has_news |= closed.has_answered && self.tracked.relied_on_by == ReliedOnBy::Waiters;
    }
}

impl Open {
    fn ask<T>(
        &mut self,
        listener: Option<&Listener>,
        limit: Option<Duration>,
        ask: impl FnOnce(&mut Connection, bool) -> RedisResult<T>,
    ) -> RedisResult<T> {
        if limit.is_some() {
            self.connection.set_read_timeout(limit)?;
            self.connection.set_write_timeout(limit)?;
        }
        let Self {
            connection,
            epoch,
            tracking,
            bounds,
            ..
        } = self;
        bounding(connection, bounds, |connection| {
            let is_tracked = match listener {
                Some(listener) => tracking.point(connection, *epoch, listener)?,
                None => false,
            };
            ask(connection, is_tracked)
        })
    }
}

/// True if the server has no room for another connection. It may hang up before it has sent the
/// reason.
fn is_full(error: &Error) -> bool {
    let Error::Pool {
        source: Some(source),
        ..
    } = error
    else {
        return false;
    };
    let said = source.detail().unwrap_or_default();
    let has_hung_up = source.is_connection_dropped() && !source.is_connection_refusal();
    said.contains("max number of clients") || has_hung_up
}

fn no_connection() -> RedisError {
    (ErrorKind::Io, "no connection").into()
}
