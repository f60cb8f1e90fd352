//! A tracked connection: when a key changes that was read on it, the server tells the listener,
//! once. Those who wait share one, the watchdog has another.
//!
//! Both are opened, judged and closed here, by the same rules:
//!
//! - [`Finished`] says after each answer whether the connection goes on. What it had read is
//!   forgotten with it.
//! - Those who relied on that, the heads or the leases, are told at once, by
//!   [`report`](Tracked::report) and by nothing else. The heads of the queues are told when their
//!   connection is gone, since one of them opens the next. The leases are told when there is a new
//!   one: the watchdog opens it, and before that an unanswered question would only put them in
//!   doubt.
//! - A head asks every second, and so finds out by itself that its connection is gone. The leases
//!   are renewed more rarely: once a second the listener's thread [`check`](Tracked::check)s that
//!   theirs is there.
//!
//! Locks: `slot` while the connection is used. It is unlocked before anybody is told, since telling
//! locks the queues or the keeper.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use redis::{Connection, ErrorKind, RedisError, RedisResult};

use super::listener::{Listener, Tracking};
use crate::{
    error::{Error, Result},
    pool::{Connector, Opened},
    time::Deadline,
    wire::Finished,
};

/// The shortest time between two looks for another master, where nobody listens.
const UNTOLD: Duration = Duration::from_secs(1);

/// Who relies on what is read on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReliedOnBy {
    /// The heads of all queues.
    Waiters,
    /// All leases that are kept.
    Leases,
}

/// A connection that is opened anew whenever it is finished.
pub(super) struct Tracked {
    relied_on_by: ReliedOnBy,
    connector: Connector,
    /// `None`: nobody is told of what happens to the keys.
    listener: Option<Arc<Listener>>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    open: Option<Open>,
    /// There has been one before, on which keys were read.
    had_one: bool,
    /// The longest wait of the last user for an answer, if it was not one I/O time-out.
    limit: Option<Duration>,
}

struct Open {
    connection: Connection,
    /// Where it leads: see [`Connector::epoch`].
    epoch: u64,
    /// Of the listener, when it was opened: a connection of an earlier count is closed.
    left_a_replica: u64,
    tracking: Tracking,
    /// It has answered, so that somebody may rely on what was read on it.
    has_answered: bool,
}

/// A tracked connection while it is used.
pub(super) struct InUse<'a> {
    tracked: &'a Tracked,
    slot: &'a mut Slot,
    /// Those who rely on the connection have to be told.
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

    /// Looks whether another server has become the master, where no listener does that each second.
    pub(super) fn check_the_master(&self) {
        if self.listener.is_none() {
            self.connector.check(UNTOLD);
        }
    }

    /// The server has answered this.
    pub(super) fn was_refused(&self, error: &RedisError) {
        self.connector.was_refused(error);
    }

    pub(super) fn io_timeout(&self) -> Duration {
        self.connector.limits().answer
    }

    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub(super) fn refuse_forked_child(&self) -> Result<()> {
        self.connector.process().refuse_forked_child()
    }

    /// False once another server than that of this epoch is known to be the master.
    pub(super) fn leads_to_the_master(&self, epoch: Option<u64>) -> bool {
        epoch == Some(self.connector.epoch())
    }

    /// Uses the connection, as soon as no other thread does. `None`: others used it until the
    /// deadline.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked), before anything is locked.
    pub(super) fn using<T>(
        &self,
        deadline: Deadline,
        run: impl FnOnce(&mut InUse<'_>) -> T,
    ) -> Result<Option<T>> {
        self.refuse_forked_child()?;
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

    fn left_a_replica(&self) -> u64 {
        let listener = self.listener.as_ref();
        listener.map_or(0, |listener| listener.left_a_replica())
    }

    /// The one place that says that this connection is gone, or new.
    fn report(&self) {
        let listener = self.listener.as_ref();
        if let Some(observer) = listener.and_then(|listener| listener.observer()) {
            match self.relied_on_by {
                ReliedOnBy::Waiters => observer.ask_again(),
                ReliedOnBy::Leases => observer.renew_again(),
            }
        }
    }

    /// Finds out whether the connection is still there, and opens the next one if it is not. If
    /// that fails, it is tried again at the next check, or when a lease is due. A thread that uses
    /// the connection finds out by itself.
    pub(super) fn check(&self) {
        let Some(slot) = self.slot.try_lock() else {
            return;
        };
        self.run(slot, |used| {
            if used.is_open() {
                let limit = used.slot.limit;
                let _ = used.ask(limit, |connection, _| redis::cmd("PING").exec(connection));
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

    /// Opens it, unless it is open. Takes as long as connecting takes.
    pub(super) fn open(&mut self) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        let left_a_replica = self.tracked.left_a_replica();
        let opened = match self.tracked.relied_on_by {
            ReliedOnBy::Waiters => self.tracked.connector.open(),
            ReliedOnBy::Leases => self.tracked.connector.open_to_look(),
        };
        if let (Err(error), Some(listener)) = (&opened, &self.tracked.listener)
            && is_full(error)
        {
            listener.make_room();
        }
        let Opened { connection, epoch } = opened?;
        self.slot.open = Some(Open {
            connection,
            epoch,
            left_a_replica,
            tracking: Tracking::default(),
            has_answered: false,
        });
        self.slot.limit = None;
        self.has_news |= self.slot.had_one && self.tracked.relied_on_by == ReliedOnBy::Leases;
        self.slot.had_one = true;
        Ok(())
    }

    /// Asks something on it. The closure learns whether changes of what is read are going to be
    /// told. If the connection is finished by what comes, it is closed.
    ///
    /// With a limit an answer is waited for no longer than this, by whoever uses it next as well.
    pub(super) fn ask<T>(
        &mut self,
        limit: Option<Duration>,
        ask: impl FnOnce(&mut Connection, bool) -> RedisResult<T>,
    ) -> RedisResult<T> {
        // Put back when all is well: a panic of redis-rs leaves no connection behind.
        let mut open = self.slot.open.take().ok_or_else(no_connection)?;
        self.slot.limit = limit;
        let asked = open.ask(self.tracked.listener.as_deref(), limit, ask);
        let _ = (asked.as_ref()).inspect_err(|error| self.tracked.was_refused(error));
        let finished = asked.as_ref().err().and_then(Finished::by_error);
        open.has_answered |= asked.is_ok();
        self.slot.open = Some(open);
        if let Some(finished) = finished {
            self.finish(finished);
        }
        asked
    }

    /// Where it leads: see [`Connector::epoch`].
    pub(super) fn epoch(&self) -> Option<u64> {
        self.slot.open.as_ref().map(|open| open.epoch)
    }

    fn close_if_not_of_the_master(&mut self) {
        let epoch = self.tracked.connector.epoch();
        let left_a_replica = self.tracked.left_a_replica();
        let is_of_before =
            |open: &Open| (open.epoch, open.left_a_replica) != (epoch, left_a_replica);
        if self.slot.open.as_ref().is_some_and(is_of_before) {
            self.close(Finished::Replica);
        }
    }

    /// It is finished by what has come on it.
    pub(super) fn finish(&mut self, finished: Finished) {
        if let (Finished::Replica, Some(listener)) = (finished, &self.tracked.listener) {
            listener.leave_the_replica();
        }
        self.close(finished);
    }

    fn close(&mut self, finished: Finished) {
        if matches!(finished, Finished::Broken | Finished::Replica) {
            self.tracked.connector.doubt();
        }
        let relied_on = (self.slot.open.take()).is_some_and(|closed| closed.has_answered);
        self.has_news |= relied_on && self.tracked.relied_on_by == ReliedOnBy::Waiters;
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
        let is_tracked = match listener {
            Some(listener) => (self.tracking).point(&mut self.connection, self.epoch, listener)?,
            None => false,
        };
        ask(&mut self.connection, is_tracked)
    }
}

/// The server has no room for one connection more. It may hang up before it has said so.
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
