//! Opens and closes the connections of a pool for r2d2, and keeps the state of each, idle or lent.

use std::{
    fmt, mem,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{FairMutex, Mutex};
use redis::{Connection, ConnectionLike, ErrorKind, RedisResult};

use super::{
    connector::{Connector, Epoch, Opened},
    dial::{is_forbidden, set_timeouts},
    reasons::no_answer,
};
use crate::{
    error::{Error, Result},
    time::{self, Deadline},
    wire::{Bounds, Finished, Lending, ask, bounding},
};

/// A connection that was idle for longer is sent a `PING` before it is lent.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(30);
/// With sentinels, a connection is lent only if they were asked within this time.
const SAID_LATELY: Duration = Duration::from_secs(1);

/// A connection of a pool, idle or lent.
pub(super) struct Lendable {
    pub(super) connection: Connection,
    /// The epoch of its destination: see [`Connector::epoch`].
    pub(super) epoch: Epoch,
    opened: Instant,
    /// The moment at which it was opened or last answered a `PING`.
    proven: Instant,
    lent: Instant,
    /// The errors that its borrower has met since it was lent.
    lending: Lending,
    returned: Instant,
    /// The bounds of a call on it.
    pub(super) bounds: Bounds,
    /// The reason to close it when it comes back, if its borrower has found one.
    pub(super) finished: Option<Finished>,
    /// Its borrower had direct access to it, and may have changed its time-outs.
    pub(super) touched: AtomicBool,
}

/// A connection lent by a [`Pool`](crate::Pool): pass it as `&mut` to any function that takes a
/// `&mut redis::Connection`.
///
/// Dropping it gives it back. It is a full `redis::Connection`, with two restrictions. A read
/// time-out made *shorter* hides from the pool that a reply may be owed (a longer one is fine, and
/// is reset when the connection is lent again). A `MULTI` or `SUBSCRIBE` that is left open affects
/// the next borrower. In a forked child a connection that was lent before the fork must be neither
/// used nor dropped.
///
/// ```no_run
/// use leasehold::redis;
///
/// let pool = leasehold::Pool::connect("redis://127.0.0.1/")?;
/// let mut conn = pool.get()?;
/// let visits: u64 = redis::cmd("INCR").arg("visits").query(&mut conn)?;
/// # anyhow::Ok(())
/// ```
pub struct PooledConnection {
    pub(super) connection: r2d2::PooledConnection<Manager>,
    /// Counts it among the connections lent by [`Pool::get`](crate::Pool::get).
    pub(super) caller: Option<Arc<()>>,
}

impl PooledConnection {
    /// The epoch of its destination: see [`Connector::epoch`].
    pub(crate) fn epoch(&self) -> Epoch {
        self.connection.epoch
    }

    /// Marks it to be closed when it comes back, instead of being lent again.
    pub(crate) fn close_when_returned(&mut self, why: Finished) {
        self.connection.finished = Some(why);
    }

    /// Runs a call of the library on it. Each exchange ends within one I/O time-out, however slowly
    /// the reply comes, unless the connection has just answered another call at once.
    ///
    /// The closure does not change the time-outs, so that these need not be reset.
    pub(crate) fn asked<T>(&mut self, ask: impl FnOnce(&mut Connection) -> T) -> T {
        let Lendable {
            connection, bounds, ..
        } = &mut *self.connection;
        bounding(connection, bounds, ask)
    }

    /// Limits the exchanges of the next call to less than one I/O time-out.
    pub(crate) fn hurry(&mut self, limit: Duration) -> RedisResult<()> {
        *self.connection.touched.get_mut() = true;
        self.connection.bounds.limit = limit;
        set_timeouts(&self.connection.connection, limit)
    }
}

impl Deref for PooledConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.touched.store(true, Ordering::Relaxed);
        &self.connection.connection
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        *self.connection.touched.get_mut() = true;
        &mut self.connection.connection
    }
}

impl fmt::Debug for PooledConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledConnection").finish_non_exhaustive()
    }
}

/// Opens and closes the connections of one pool.
pub(super) struct Manager(pub(super) Arc<PoolState>);

impl r2d2::ManageConnection for Manager {
    type Connection = Lendable;
    type Error = Error;

    /// Called on a thread of r2d2, repeatedly until it succeeds, even if the call that wanted the
    /// connection has given up.
    fn connect(&self) -> Result<Lendable> {
        if Arc::strong_count(&self.0.waiting) == 1 {
            return Err(self.0.no_answer());
        }
        self.0.open().inspect_err(|error| {
            *self.0.failure.lock() = Some((time::now(), error.clone()));
        })
    }

    /// Not used: [`PoolState::prove`] checks connections, within the time of the call that wants
    /// one.
    fn is_valid(&self, _connection: &mut Lendable) -> Result<()> {
        Ok(())
    }

    /// Called when a connection comes back.
    fn has_broken(&self, connection: &mut Lendable) -> bool {
        connection.returned = time::now();
        let finished = connection.finished_by(self.0.connector.limits().answer);
        if let Some(finished) = finished {
            self.0.connector.finished(connection.epoch, finished);
            if finished == Finished::Broken {
                *self.0.broken.lock() = Some(connection.returned);
            }
        }
        finished.is_some()
    }
}

/// The state that all users of a pool share.
pub(super) struct PoolState {
    pub(super) connector: Connector,
    pub(super) get_timeout: Duration,
    /// The moment at which a connection was found broken. Those proven before that are sent a
    /// `PING` before they are lent.
    broken: Mutex<Option<Instant>>,
    /// Each call that waits for a connection has a clone. While there is none, no connection is
    /// opened.
    pub(super) waiting: Arc<()>,
    /// The number of connections that r2d2 was asked to open and that were not lent yet. r2d2 opens
    /// none beyond its limit, and then the number is too high until no call waits.
    pub(super) to_come: AtomicUsize,
    /// While all connections are lent, the call that has waited longest holds this mutex and waits
    /// for a connection to come back. The other calls wait for the mutex, in the order in which
    /// they came.
    pub(super) turns: FairMutex<()>,
    /// The error of the last attempt to connect that failed, with its moment.
    failure: Mutex<Option<(Instant, Error)>>,
}

impl PoolState {
    pub(super) fn new(connector: Connector, get_timeout: Duration) -> Self {
        Self {
            connector,
            get_timeout,
            broken: Mutex::default(),
            waiting: Arc::default(),
            to_come: AtomicUsize::new(0),
            turns: FairMutex::default(),
            failure: Mutex::new(None),
        }
    }

    /// The error of an attempt to connect, if one has failed since this moment.
    pub(super) fn failure_since(&self, moment: Instant) -> Option<Error> {
        let failure = self.failure.lock();
        let (at, error) = failure.as_ref()?;
        (*at >= moment).then(|| error.clone())
    }

    fn open(&self) -> Result<Lendable> {
        let asked = time::now();
        let Opened { connection, epoch } = self.connector.open()?;
        Ok(Lendable {
            connection,
            epoch,
            opened: asked,
            proven: asked,
            lent: asked,
            lending: Lending::now(),
            returned: asked,
            bounds: self.connector.bounds(None),
            finished: None,
            touched: AtomicBool::new(false),
        })
    }

    /// Checks a connection before it is lent, and resets the time-outs that its last user may have
    /// changed.
    pub(super) fn prove(&self, connection: &mut Lendable, deadline: Deadline) -> Result<()> {
        let is_new = connection.returned == connection.opened;
        if is_new {
            let less_one = |count: usize| count.checked_sub(1);
            let relaxed = Ordering::Relaxed;
            let _ = (self.to_come).fetch_update(relaxed, relaxed, less_one);
        }
        connection.lent = time::now();
        connection.lending = Lending::now();
        let idle = connection.lent.duration_since(connection.returned);
        self.connector.check(SAID_LATELY);
        if connection.epoch != self.connector.epoch() {
            connection.finished = Some(Finished::Replica);
            return Err(self.no_answer());
        }
        let doubted = self.broken.lock().is_some_and(|at| connection.proven <= at);
        let io_timeout = self.connector.limits().answer;
        connection.bounds.limit = io_timeout;
        let (mut proof, mut limit) = (Ok(()), io_timeout);
        if doubted || idle >= IDLE_BEFORE_PING {
            connection.proven = connection.lent;
            *connection.touched.get_mut() = true;
            limit = deadline.remaining_up_to(io_timeout);
            connection.bounds.limit = limit;
            let (conn, bounds) = (&mut connection.connection, &mut connection.bounds);
            proof = bounding(conn, bounds, |conn| ping(conn, limit));
            connection.bounds.limit = io_timeout;
            connection.lent = time::now();
        }
        if proof.is_ok() && mem::take(connection.touched.get_mut()) {
            proof = set_timeouts(&connection.connection, io_timeout);
        }
        proof.map_err(|error| {
            connection.finished = Some(Finished::Broken);
            self.connector.failure(limit, error)
        })
    }

    /// The error when no connection came, and no attempt to open one has failed either.
    pub(super) fn no_answer(&self) -> Error {
        no_answer(&self.connector.server(), self.get_timeout, None)
    }
}

impl Lendable {
    /// The reason not to lend it again after it has come back. `None`: it may be lent.
    fn finished_by(&self, io_timeout: Duration) -> Option<Finished> {
        let closed = || (!self.connection.is_open()).then_some(Finished::Broken);
        let lent = self.returned.duration_since(self.lent);
        (self.finished.or_else(closed))
            .or_else(|| self.lending.noted_since())
            // A sixteenth below the time-out, in case the socket's clock runs faster.
            .or_else(|| (lent >= io_timeout / 16 * 15).then_some(Finished::Overdue))
    }
}

/// Sends a `PING`. Any other reply than `PONG` is an error: with an open `MULTI` it is `QUEUED`.
fn ping(connection: &mut Connection, limit: Duration) -> RedisResult<()> {
    set_timeouts(connection, limit)?;
    match ask::<String>(&redis::cmd("PING"), connection) {
        Ok(pong) if pong == "PONG" => Ok(()),
        Ok(_) => Err((ErrorKind::UnexpectedReturnType, "not an answer to PING").into()),
        Err(error) if is_forbidden(&error) => Ok(()),
        Err(error) => Err(error),
    }
}
