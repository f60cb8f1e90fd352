//! How r2d2 opens, checks and closes the connections of a pool, and what the pool knows of each.

use std::{
    fmt, mem,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Connection, ConnectionLike, ErrorKind, RedisError, RedisResult};

use super::{
    Process,
    dial::{is_forbidden, set_timeouts},
    opener::{Opened, Opener},
};
use crate::{
    error::{Error, Result},
    exchange::{Finished, Mark},
    time::{self, Deadline},
};

/// A connection that lay idle for longer is sent a `PING` before it is lent.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(30);
/// By how much the clocks of a master and its replicas may differ, unless somebody says otherwise.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_millis(50);
/// Where there are sentinels, a connection is lent only if they were asked within this time.
const SAID_LATELY: Duration = Duration::from_secs(1);

/// A connection and what is known of it.
pub(super) struct Held {
    pub(super) connection: Connection,
    /// Where it leads: see [`Opener::epoch`].
    pub(super) epoch: u64,
    opened: Instant,
    /// It has not been lent yet.
    is_new: bool,
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

/// Opens, proves and closes the connections of one pool.
pub(super) struct Manager(pub(super) Arc<Shared>);

impl r2d2::ManageConnection for Manager {
    type Connection = Held;
    type Error = NotOpened;

    /// Called on a thread of r2d2, again and again until it succeeds, even if the call that wanted
    /// the connection has given up.
    fn connect(&self) -> Result<Held, NotOpened> {
        if self.0.wanted.lock().waiting == 0 {
            return Err(NotOpened);
        }
        self.0.open().map_err(|error| {
            *self.0.failure.lock() = Some((time::now(), error));
            NotOpened
        })
    }

    /// Not used: [`Shared::prove`] does this, within the time that the call which wants the
    /// connection has.
    fn is_valid(&self, _held: &mut Held) -> Result<(), NotOpened> {
        Ok(())
    }

    /// Called when a connection comes back.
    fn has_broken(&self, held: &mut Held) -> bool {
        held.returned = time::now();
        if held.met.has_met_a_move() {
            self.0.opener.moved();
        }
        let finished = self.0.finished(held);
        if let Some(finished) = finished {
            self.0.distrust_others(held, finished);
        }
        finished.is_some()
    }
}

/// The error that r2d2 gets when no connection was opened. It keeps only the text, so the reason is
/// in [`Shared::failure`].
#[derive(Debug)]
pub(super) struct NotOpened;

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection was opened")
    }
}

impl std::error::Error for NotOpened {}

/// What all users of a pool share.
pub(super) struct Shared {
    pub(super) process: Process,
    opener: Opener,
    pub(super) get_timeout: Duration,
    io_timeout: Duration,
    distrust: Mutex<Distrust>,
    wanted: Mutex<Wanted>,
    /// Why the last attempt to connect failed, and when.
    failure: Mutex<Option<(Instant, Error)>>,
}

/// What the end of one connection means for the others.
#[derive(Default)]
struct Distrust {
    /// When one was found broken. Those proven before that are sent a `PING` before they are lent.
    broken: Option<Instant>,
    /// When one was found to lead to a replica. Those opened before that may lead there too, and
    /// are closed.
    replica: Option<Instant>,
}

/// What is wanted of r2d2.
#[derive(Default)]
struct Wanted {
    /// How many calls wait for a connection to be opened.
    waiting: usize,
    /// How many they have asked for that nobody has taken yet. r2d2 does not say whether it opens
    /// one or has as many as there may be: so this may be too high while somebody waits.
    to_come: usize,
}

/// A call that waits for a connection to be opened, until it is dropped.
pub(super) struct Waiting<'a>(&'a Shared);

impl Waiting<'_> {
    /// Whether all are taken that it and others have asked for.
    pub(super) fn are_all_taken(&self) -> bool {
        self.0.wanted.lock().to_come == 0
    }

    /// It is about to ask for one more.
    pub(super) fn asks_again(&self) {
        self.0.wanted.lock().to_come += 1;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut wanted = self.0.wanted.lock();
        wanted.waiting -= 1;
        if wanted.waiting == 0 {
            wanted.to_come = 0;
        }
    }
}

impl Shared {
    pub(super) fn new(opener: Opener, get_timeout: Duration, io_timeout: Duration) -> Self {
        Self {
            process: Process::current(),
            opener,
            get_timeout,
            io_timeout,
            distrust: Mutex::default(),
            wanted: Mutex::default(),
            failure: Mutex::new(None),
        }
    }

    pub(super) fn wait(&self) -> Waiting<'_> {
        let mut wanted = self.wanted.lock();
        wanted.waiting += 1;
        wanted.to_come += 1;
        Waiting(self)
    }

    /// Why an attempt to connect failed, if one has since then.
    pub(super) fn failure_since(&self, moment: Instant) -> Option<Error> {
        let failure = self.failure.lock();
        let (at, error) = failure.as_ref()?;
        (*at >= moment).then(|| error.clone())
    }

    fn open(&self) -> Result<Held> {
        let asked = time::now();
        let Opened { connection, epoch } = self.connect()?;
        Ok(Held {
            connection,
            epoch,
            opened: asked,
            is_new: true,
            proven: asked,
            lent: asked,
            met: Mark::now(),
            returned: asked,
            finished: None,
            touched: AtomicBool::new(false),
        })
    }

    fn connect(&self) -> Result<Opened> {
        self.ready(self.opener.open()?)
    }

    fn ready(&self, opened: Opened) -> Result<Opened> {
        set_timeouts(&opened.connection, self.io_timeout)
            .map_err(|error| self.opener.failure(self.io_timeout, error))?;
        Ok(opened)
    }

    /// Makes sure that the connection is there before it is lent, and undoes what its last user did
    /// to its time-outs.
    pub(super) fn prove(&self, held: &mut Held, deadline: Deadline) -> Result<()> {
        if mem::take(&mut held.is_new) {
            let mut wanted = self.wanted.lock();
            wanted.to_come = wanted.to_come.saturating_sub(1);
        }
        held.lent = time::now();
        held.met = Mark::now();
        self.opener.check(SAID_LATELY);
        let (doubted, replaced) = {
            let distrust = self.distrust.lock();
            let broken = distrust.broken.is_some_and(|at| held.proven <= at);
            (broken, distrust.replica.is_some_and(|at| held.opened <= at))
        };
        if replaced || held.epoch != self.opener.epoch() {
            held.finished = Some(Finished::Replica);
            return Err(self.no_answer());
        }
        let (mut proof, mut limit) = (Ok(()), self.io_timeout);
        if doubted || held.lent.duration_since(held.returned) >= IDLE_BEFORE_PING {
            held.proven = held.lent;
            *held.touched.get_mut() = true;
            limit = deadline.remaining_up_to(self.io_timeout);
            proof = ping(&mut held.connection, limit);
            held.lent = time::now();
        }
        proof
            .and_then(|()| {
                if mem::take(held.touched.get_mut()) {
                    set_timeouts(&held.connection, self.io_timeout)?;
                }
                Ok(())
            })
            .map_err(|error| {
                held.finished = Some(Finished::Broken);
                self.opener.failure(limit, error)
            })
    }

    /// Why a connection that comes back must not be lent again. `None`: it may be.
    fn finished(&self, held: &Held) -> Option<Finished> {
        let closed = || (!held.connection.is_open()).then_some(Finished::Broken);
        let replica = || held.met.has_met_a_replica().then_some(Finished::Replica);
        let unreadable = || (held.met.has_met_what_is_no_answer()).then_some(Finished::Unreadable);
        let lent = held.returned.duration_since(held.lent);
        (held.finished.or_else(closed))
            .or_else(replica)
            .or_else(unreadable)
            .or_else(|| Finished::by_loan(lent, self.io_timeout))
    }

    fn distrust_others(&self, held: &Held, finished: Finished) {
        if matches!(finished, Finished::Broken | Finished::Replica) {
            self.opener.doubt();
        }
        let mut distrust = self.distrust.lock();
        match finished {
            Finished::Broken => distrust.broken = Some(held.returned),
            // An older connection to a replica is expected: nothing new follows for the others.
            Finished::Replica if distrust.replica.is_none_or(|at| held.opened > at) => {
                distrust.replica = Some(held.returned);
            }
            Finished::Replica | Finished::Unreadable | Finished::Overdue => {}
        }
    }

    /// The error when no connection came, and no attempt to open one has failed either.
    pub(super) fn no_answer(&self) -> Error {
        self.opener.no_answer(self.get_timeout, None)
    }
}

/// An error as well if a `MULTI` was left open: then the answer is another.
fn ping(connection: &mut Connection, limit: Duration) -> RedisResult<()> {
    set_timeouts(connection, limit)?;
    match redis::cmd("PING").query::<String>(connection) {
        Ok(pong) if pong == "PONG" => Ok(()),
        Ok(_) => Err((ErrorKind::UnexpectedReturnType, "not an answer to PING").into()),
        Err(error) if is_forbidden(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// How long the server may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For one attempt to connect.
    pub(crate) connect: Duration,
    /// For a write, or an answer.
    pub(crate) answer: Duration,
}

/// Opens connections like those of a pool, beside it.
#[derive(Clone)]
pub(crate) struct Connector(pub(super) Arc<Shared>);

impl Connector {
    /// The process that the connections belong to.
    pub(crate) fn process(&self) -> Process {
        self.0.process
    }

    pub(crate) fn open(&self) -> Result<Opened> {
        self.0.connect()
    }

    /// A connection to look at leases and to renew them: where the master was replaced, it leads to
    /// the new one before that grants locks.
    pub(crate) fn open_to_look(&self) -> Result<Opened> {
        self.0.ready(self.0.opener.open_to_look()?)
    }

    /// A connection for messages: by the older protocol, in which nothing but messages comes
    /// unasked.
    pub(crate) fn open_to_listen(&self) -> Result<Opened> {
        self.0.opener.to_listen()?.open_to_look()
    }

    /// The epoch of a connection that is opened now. It grows when another server has become the
    /// master; a connection of an earlier epoch must not be used again.
    pub(crate) fn epoch(&self) -> u64 {
        self.0.opener.epoch()
    }

    /// Asks whether another server has become the master, unless that was asked within this time.
    /// Does nothing where no other server can become it.
    pub(crate) fn check(&self, unless_within: Duration) {
        self.0.opener.check(unless_within);
    }

    /// Hears whether another server has become the master, where that is announced. Takes a moment.
    pub(crate) fn listen(&self) {
        self.0.opener.listen();
    }

    /// This is what the server has answered.
    pub(crate) fn was_refused(&self, error: &RedisError) {
        self.0.opener.was_refused(error);
    }

    /// A connection has failed, or leads to a server that is no master.
    pub(crate) fn doubt(&self) {
        self.0.opener.doubt();
    }

    /// Whether another server may take the place of this one.
    fn is_watched(&self) -> bool {
        self.0.opener.is_watched()
    }

    /// How far the clock of a server that takes its place may be ahead: as far as clocks in one
    /// place differ.
    pub(crate) fn clock_skew(&self) -> Duration {
        if self.is_watched() {
            CLOCK_SKEW
        } else {
            Duration::ZERO
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connect: self.0.opener.connect_timeout,
            answer: self.0.io_timeout,
        }
    }
}
