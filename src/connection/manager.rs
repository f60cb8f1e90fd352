//! How r2d2 opens and closes the connections of a pool, and what the pool knows of each.

use std::{
    fmt, mem,
    ops::Deref,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Connection, ConnectionLike, ErrorKind, RedisResult};

use super::{
    connector::{Connector, Opened},
    dial::{is_forbidden, set_timeouts},
    process::Process,
};
use crate::{
    error::{Error, Result},
    exchange::{Finished, Mark},
    time::{self, Deadline},
};

/// A connection that lay idle for longer is sent a `PING` before it is lent.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(30);
/// Where there are sentinels, a connection is lent only if they were asked within this time.
const SAID_LATELY: Duration = Duration::from_secs(1);

/// r2d2's pool, to which all copies of a [`Pool`](super::Pool) lead.
///
/// In the child of a fork it is not dropped: to end its threads a mutex is locked, which one of
/// them may have locked at the fork.
pub(super) struct Connections {
    pool: r2d2::Pool<Manager>,
    process: Process,
}

impl Connections {
    pub(super) fn new(pool: r2d2::Pool<Manager>, process: Process) -> Self {
        Self { pool, process }
    }
}

impl Deref for Connections {
    type Target = r2d2::Pool<Manager>;

    fn deref(&self) -> &Self::Target {
        &self.pool
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        if self.process.is_forked_child() {
            mem::forget(self.pool.clone());
        }
    }
}

/// A connection of a pool, idle or lent.
pub(super) struct Lendable {
    pub(super) connection: Connection,
    /// Where it leads: see [`Connector::epoch`].
    pub(super) epoch: u64,
    opened: Instant,
    /// When it was opened or last answered a `PING`.
    proven: Instant,
    lent: Instant,
    /// The state of the thread's notes when it was lent: it tells whether the borrower has met a
    /// replica since, a key that has moved, or bytes that are no answer.
    met: Mark,
    returned: Instant,
    /// Why it is to be closed when it comes back, if its borrower has found a reason.
    pub(super) finished: Option<Finished>,
    /// Its borrower had it in hand, and may have changed its time-outs.
    pub(super) touched: AtomicBool,
}

/// Opens and closes the connections of one pool.
pub(super) struct Manager(pub(super) Arc<PoolState>);

impl r2d2::ManageConnection for Manager {
    type Connection = Lendable;
    type Error = NotOpened;

    /// Called on a thread of r2d2, again and again until it succeeds, even if the call that wanted
    /// the connection has given up.
    fn connect(&self) -> Result<Lendable, NotOpened> {
        if self.0.attempts.lock().waiting == 0 {
            return Err(NotOpened);
        }
        self.0.open().map_err(|error| {
            self.0.attempts.lock().failure = Some((time::now(), error));
            NotOpened
        })
    }

    /// Not used: [`PoolState::prove`] does this, within the time that the call which wants the
    /// connection has.
    fn is_valid(&self, _connection: &mut Lendable) -> Result<(), NotOpened> {
        Ok(())
    }

    /// Called when a connection comes back.
    fn has_broken(&self, connection: &mut Lendable) -> bool {
        connection.returned = time::now();
        if connection.met.has_met_a_move() {
            self.0.connector.moved();
        }
        let finished = connection.finished_by(self.0.connector.limits().answer);
        if let Some(finished) = finished {
            self.0.distrust_others(connection, finished);
        }
        finished.is_some()
    }
}

/// The error that r2d2 gets when no connection was opened. It keeps only the text, so the reason is
/// in [`Attempts`].
#[derive(Debug)]
pub(super) struct NotOpened;

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection was opened")
    }
}

impl std::error::Error for NotOpened {}

/// The state that all users of a pool share.
pub(super) struct PoolState {
    pub(super) connector: Connector,
    pub(super) get_timeout: Duration,
    distrust: Mutex<Distrust>,
    attempts: Mutex<Attempts>,
}

/// Doubts about all connections, which the end of one has raised.
#[derive(Default)]
struct Distrust {
    /// When one was found broken. Those proven before that are sent a `PING` before they are lent.
    broken: Option<Instant>,
    /// When one was found to lead to a replica. Those opened before that may lead there too, and
    /// are closed.
    replica: Option<Instant>,
}

/// The attempts of r2d2 to connect.
#[derive(Default)]
struct Attempts {
    /// How many calls wait for a connection to be opened.
    waiting: usize,
    /// Why the last one failed, and when.
    failure: Option<(Instant, Error)>,
}

/// A call that waits for a connection to be opened, until it is dropped.
pub(super) struct AwaitsOpening<'a> {
    state: &'a PoolState,
    since: Instant,
}

impl AwaitsOpening<'_> {
    /// Why an attempt to connect failed, if one has since the wait began.
    pub(super) fn failure(&self) -> Option<Error> {
        let attempts = self.state.attempts.lock();
        let (at, error) = attempts.failure.as_ref()?;
        (*at >= self.since).then(|| error.clone())
    }
}

impl Drop for AwaitsOpening<'_> {
    fn drop(&mut self) {
        self.state.attempts.lock().waiting -= 1;
    }
}

impl PoolState {
    pub(super) fn new(connector: Connector, get_timeout: Duration) -> Self {
        Self {
            connector,
            get_timeout,
            distrust: Mutex::default(),
            attempts: Mutex::default(),
        }
    }

    pub(super) fn await_opening(&self) -> AwaitsOpening<'_> {
        self.attempts.lock().waiting += 1;
        AwaitsOpening {
            state: self,
            since: time::now(),
        }
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
            met: Mark::now(),
            returned: asked,
            finished: None,
            touched: AtomicBool::new(false),
        })
    }

    /// Makes sure that the connection is there before it is lent, and undoes what its last user did
    /// to its time-outs.
    pub(super) fn prove(&self, connection: &mut Lendable, deadline: Deadline) -> Result<()> {
        connection.lent = time::now();
        connection.met = Mark::now();
        self.connector.check(SAID_LATELY);
        let (doubted, replaced) = {
            let distrust = self.distrust.lock();
            (
                distrust.broken.is_some_and(|at| connection.proven <= at),
                distrust.replica.is_some_and(|at| connection.opened <= at),
            )
        };
        if replaced || connection.epoch != self.connector.epoch() {
            connection.finished = Some(Finished::Replica);
            return Err(self.no_answer());
        }
        let io_timeout = self.connector.limits().answer;
        let (mut proof, mut limit) = (Ok(()), io_timeout);
        if doubted || connection.lent.duration_since(connection.returned) >= IDLE_BEFORE_PING {
            connection.proven = connection.lent;
            *connection.touched.get_mut() = true;
            limit = deadline.remaining_up_to(io_timeout);
            proof = ping(&mut connection.connection, limit);
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

    fn distrust_others(&self, connection: &Lendable, finished: Finished) {
        if matches!(finished, Finished::Broken | Finished::Replica) {
            self.connector.doubt();
        }
        let mut distrust = self.distrust.lock();
        match finished {
            Finished::Broken => distrust.broken = Some(connection.returned),
            // An older connection to a replica is expected: nothing new follows for the others.
            Finished::Replica if distrust.replica.is_none_or(|at| connection.opened > at) => {
                distrust.replica = Some(connection.returned);
            }
            Finished::Replica | Finished::Unreadable | Finished::Overdue => {}
        }
    }

    /// The error when no connection came, and no attempt to open one has failed either.
    pub(super) fn no_answer(&self) -> Error {
        self.connector.no_answer(self.get_timeout)
    }
}

impl Lendable {
    /// Why it must not be lent again after it has come back. `None`: it may be.
    fn finished_by(&self, io_timeout: Duration) -> Option<Finished> {
        let closed = || (!self.connection.is_open()).then_some(Finished::Broken);
        let replica = || self.met.has_met_a_replica().then_some(Finished::Replica);
        let unreadable = || (self.met.has_met_what_is_no_answer()).then_some(Finished::Unreadable);
        let lent = self.returned.duration_since(self.lent);
        (self.finished.or_else(closed))
            .or_else(replica)
            .or_else(unreadable)
            .or_else(|| Finished::by_loan(lent, io_timeout))
    }
}

/// Sends a `PING`. An error as well if a `MULTI` was left open: then the answer is another.
fn ping(connection: &mut Connection, limit: Duration) -> RedisResult<()> {
    set_timeouts(connection, limit)?;
    match redis::cmd("PING").query::<String>(connection) {
        Ok(pong) if pong == "PONG" => Ok(()),
        Ok(_) => Err((ErrorKind::UnexpectedReturnType, "not an answer to PING").into()),
        Err(error) if is_forbidden(&error) => Ok(()),
        Err(error) => Err(error),
    }
}
