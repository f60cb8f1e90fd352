//! Opens connections to one server, or to the current master.

use std::{
    fmt, process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redis::{Client, Connection, ProtocolVersion, RedisError};

use super::{
    dial::{self, set_timeouts, speaking, with_address},
    login::Access,
    reasons,
};
use crate::{
    cancel::Cancel,
    error::{Error, Result, is_left_by_replicas},
    time::{self, Deadline},
    wire::{Bounds, Finished, Spares},
};

/// The pause between attempts while the server that is named as the master has not become one, and
/// between two looks at a master that grants no locks yet.
const NOT_YET: Duration = Duration::from_millis(20);
/// No attempt to reach a master starts in this last part of the time, or in its last twentieth.
const TOO_SHORT_TO_CONNECT: Duration = Duration::from_millis(100);
/// The maximum difference between the clocks of a master and its replicas, by default.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_millis(50);

/// Finds the master: by sentinels, or by the nodes of a cluster.
pub(crate) trait MasterLocator: Send + Sync {
    /// Returns the master's address, and asks for it first if it is in doubt. Ends by the deadline.
    ///
    /// # Errors
    /// [`Error::Pool`]: no answer came that can be believed.
    fn locate(&self, deadline: Deadline) -> Result<MasterPlace>;

    /// Returns a number that grows when another server becomes the master: a connection of an
    /// earlier epoch must not be used again.
    fn epoch(&self) -> u64;

    /// Notes that a connection of this epoch was opened to a master.
    fn confirm(&self, epoch: u64);

    /// Notes that a connection to the master has failed, has led to a server that is not a master,
    /// or to one that its replicas have left.
    fn doubt(&self);

    /// Notes that no connection could be opened to the master of this epoch, or that the server is
    /// not a master.
    fn not_reached(&self, _epoch: u64) {
        self.doubt();
    }

    /// Notes that a key has moved: with shards, another one may have it.
    fn moved(&self) {}

    /// Checks whether another server has become the master, unless that was done within this time.
    fn check(&self, unless_within: Duration);

    /// Reads announcements of a failover, if there are any. Takes a moment.
    fn listen(&self) {}

    /// Returns the moment from which locks may be requested from this master, if it has replaced
    /// another.
    ///
    /// # Errors
    /// [`Error::Pool`]: no master is known yet, or those who name it contradict each other.
    fn grants_from(&self) -> Result<Option<Instant>> {
        Ok(None)
    }

    /// Asks all sentinels which master they name. `None`: there are no sentinels.
    fn survey(&self, _master: &Address, _deadline: Deadline) -> Option<Survey> {
        None
    }

    /// Returns the name of the master for errors.
    fn master_name(&self) -> String;
}

/// The answers of all sentinels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) asked: usize,
    pub(crate) answered: usize,
    /// The sentinels that name the known master.
    pub(crate) agreed: usize,
    /// The master that each sentinel names, if not all name the same.
    pub(crate) differing: Option<String>,
}

/// The destination of a connection.
#[derive(Clone, Debug)]
pub(crate) struct MasterPlace {
    pub(crate) address: Address,
    pub(crate) epoch: u64,
}

/// The host and port of a server. An IPv6 address is printed in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        let host = host.to_owned();
        Self { host, port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&reasons::host_and_port(&self.host, self.port))
    }
}

/// The time limits for the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The limit for one attempt to connect.
    pub(crate) connect: Duration,
    /// The limit for a write, or for an answer.
    pub(crate) answer: Duration,
}

/// The process that made a pool, or the locks on it. A forked child has a copy of everything,
/// sockets included, but none of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The current process.
    pub(crate) fn current() -> Self {
        Self(process::id())
    }

    pub(crate) fn id(self) -> u32 {
        self.0
    }

    /// True in a forked child, which has a copy. Takes one system call.
    pub(crate) fn is_forked_child(self) -> bool {
        self != Self::current()
    }

    /// Refuses a forked child. Call it before locking a mutex: in the child the mutex may be locked
    /// forever.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn refuse_forked_child(self) -> Result<()> {
        if self.is_forked_child() {
            return Err(Error::forked());
        }
        Ok(())
    }
}

/// A connection that was just opened.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    /// The epoch of its destination: see [`Connector::epoch`].
    pub(crate) epoch: Epoch,
}

/// The destination of connections. Two connections with the same epoch lead to the same server, as
/// far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// The locator's epoch.
    master: u64,
    /// The number of times that the server at the address had been found to be a replica when the
    /// connection was opened.
    left: u64,
}

/// Opens connections for a pool, and similar ones outside it.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Route>);

struct Route {
    process: Process,
    /// With a `locator`, the address in it is not used.
    access: Access,
    locator: Option<Arc<dyn MasterLocator>>,
    limits: Limits,
    /// The number of times that the server was found to be a replica: each time, its address may
    /// lead to another server.
    left: AtomicU64,
    spares: Spares,
}

impl Connector {
    pub(super) fn new(
        access: Access,
        locator: Option<Arc<dyn MasterLocator>>,
        limits: Limits,
    ) -> Self {
        Self(Arc::new(Route {
            process: Process::current(),
            access,
            locator,
            limits,
            left: AtomicU64::new(0),
            spares: Spares::default(),
        }))
    }

    /// The process that the connections belong to.
    pub(crate) fn process(&self) -> Process {
        self.0.process
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.limits
    }

    /// Opens a connection to a server that is new enough. After a failover it leads to the new
    /// master even before that grants locks: see [`epoch_for`](Self::epoch_for).
    pub(crate) fn open(&self) -> Result<Opened> {
        self.open_by(None)
    }

    /// Opens a connection for messages, with RESP2, in which only messages come unasked.
    pub(crate) fn open_to_listen(&self) -> Result<Opened> {
        self.open_by(Some(ProtocolVersion::RESP2))
    }

    fn open_by(&self, protocol: Option<ProtocolVersion>) -> Result<Opened> {
        let Limits { connect, answer } = self.0.limits;
        let attempt = Deadline::after(connect);
        // Read before the host name is looked up.
        let left = self.0.left.load(Ordering::SeqCst);
        let (connection, master) = self.0.access.open(attempt, |client| {
            let client = match protocol {
                Some(protocol) => &speaking(client, protocol)?,
                None => client,
            };
            match &self.0.locator {
                Some(locator) => self.open_to_master(&**locator, client, attempt),
                None => Ok((dial::open(client, attempt, connect, false)?, 0)),
            }
        })?;
        set_timeouts(&connection, answer).map_err(|error| self.failure(answer, error))?;
        let epoch = Epoch { master, left };
        Ok(Opened { connection, epoch })
    }

    fn open_to_master(
        &self,
        locator: &dyn MasterLocator,
        client: &Client,
        attempt: Deadline,
    ) -> Result<(Connection, u64)> {
        let mut place = locator.locate(attempt)?;
        let mut denied = None;
        loop {
            let epoch = place.epoch;
            let opened = self.open_at(client, &place, attempt);
            let Err(error) = opened else {
                locator.confirm(epoch);
                return opened.map(|connection| (connection, epoch));
            };
            locator.not_reached(epoch);
            let is_denied = matches!(error, Error::Pool { source: None, .. });
            // The last try may have had hardly any time: the role that the server returned before
            // is a better reason than a time-out.
            let error = denied
                .take()
                .filter(|_| is_silence(&error))
                .unwrap_or(error);
            // The caller's own time-out is as long. Without this margin it would come first, and
            // the caller would not learn this reason.
            if attempt.remaining() < TOO_SHORT_TO_CONNECT.min(self.0.limits.connect / 20) {
                return Err(error);
            }
            match locator.locate(attempt) {
                Ok(now) if !attempt.has_passed() => place = now,
                _ => return Err(error),
            }
            if place.epoch == epoch && !is_denied {
                return Err(error);
            } else if place.epoch == epoch {
                // The server is about to become the master, or those who named it are about to
                // learn that it is not.
                denied = Some(error);
                thread::sleep(attempt.remaining().min(NOT_YET));
            }
        }
    }

    fn open_at(
        &self,
        client: &Client,
        place: &MasterPlace,
        attempt: Deadline,
    ) -> Result<Connection> {
        let limit = self.0.limits.connect;
        let client = with_address(client, &place.address.host, place.address.port)
            .map_err(|error| self.failure(limit, error))?;
        dial::open(&client, attempt, limit, true)
    }

    /// Returns the epoch of a connection that is opened now. It changes when another server becomes
    /// the master, and when any connection has met a replica. All connections of an earlier epoch
    /// are distrusted: they must not be used again.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch {
            master: self.0.locator.as_ref().map_or(0, |it| it.epoch()),
            left: self.0.left.load(Ordering::SeqCst),
        }
    }

    /// Returns the master's [epoch](Self::epoch) for a call. If the call asks for a lock, waits
    /// until the master may grant locks, if it has replaced another; the reply counts only if it
    /// came on a connection of this epoch.
    ///
    /// # Errors
    /// [`Error::Pool`]: the master grants no locks by the deadline, or by the cancel.
    pub(crate) fn epoch_for(
        &self,
        asks_for_a_lock: bool,
        by: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Epoch> {
        let Some(locator) = self.0.locator.as_ref().filter(|_| asks_for_a_lock) else {
            return Ok(self.epoch());
        };
        let by = Deadline::after(self.0.limits.connect).or_sooner(by.moment());
        if locator.grants_from().is_err() {
            // Asks the sentinels or nodes again.
            locator.locate(by)?;
        }
        loop {
            // Read before the question below: another server may become the master meanwhile.
            let epoch = self.epoch();
            let moment = locator.grants_from()?;
            let left = moment.map_or(Duration::ZERO, |at| {
                at.saturating_duration_since(time::now())
            });
            if left.is_zero() {
                return Ok(epoch);
            } else if by.has_passed() || cancel.is_some_and(Cancel::is_cancelled) {
                let master = locator.master_name();
                let reason = format!("{master} was just replaced, and grants no locks yet");
                return Err(Error::pool(reason, None));
            }
            thread::sleep(left.min(by.remaining()).min(NOT_YET));
        }
    }

    /// Notes that a connection of this epoch is finished. A connection of an earlier epoch says
    /// nothing about the current server.
    pub(crate) fn finished(&self, epoch: Epoch, why: Finished) {
        if epoch != self.epoch() {
            return;
        }
        match why {
            Finished::Broken => self.doubt(),
            Finished::Replica => {
                let (now, next, order) = (epoch.left, epoch.left + 1, Ordering::SeqCst);
                let _ = self.0.left.compare_exchange(now, next, order, order);
                self.doubt();
            }
            Finished::Moved => self.tell(|locator| locator.moved()),
            Finished::Unreadable | Finished::Overdue => {}
        }
    }

    /// Checks whether another server has become the master, unless that was done within this time.
    /// Does nothing without a locator.
    pub(crate) fn check(&self, unless_within: Duration) {
        self.tell(|locator| locator.check(unless_within));
    }

    /// Reads announcements of a failover, if there are any. Takes a moment.
    pub(crate) fn listen(&self) {
        self.tell(|locator| locator.listen());
    }

    /// Reports an error that the server returned: it may cast doubt on the master.
    pub(crate) fn was_refused(&self, error: &RedisError) {
        if is_left_by_replicas(error) {
            self.doubt();
        }
    }

    fn doubt(&self) {
        self.tell(|locator| locator.doubt());
    }

    fn tell(&self, what: impl FnOnce(&dyn MasterLocator)) {
        if let Some(locator) = &self.0.locator {
            what(&**locator);
        }
    }

    /// Returns the maximum by which the clock of a server that replaces this one may be ahead.
    pub(crate) fn clock_skew(&self) -> Duration {
        (self.0.locator.as_ref()).map_or(Duration::ZERO, |_| CLOCK_SKEW)
    }

    /// Returns the address of the server, or of the current master.
    pub(crate) fn address(&self, deadline: Deadline) -> Result<String> {
        match &self.0.locator {
            Some(locator) => Ok(locator.locate(deadline)?.address.to_string()),
            None => Ok(self.server()),
        }
    }

    /// Returns true if sentinels or cluster nodes name the master.
    pub(crate) fn has_locator(&self) -> bool {
        self.0.locator.is_some()
    }

    /// Asks all sentinels, if there are any.
    pub(crate) fn survey(&self, deadline: Deadline) -> Option<Survey> {
        let locator = self.0.locator.as_ref()?;
        let master = locator.locate(deadline).ok()?.address;
        locator.survey(&master, deadline)
    }

    /// Returns the error for a failed connection.
    pub(super) fn failure(&self, limit: Duration, error: RedisError) -> Error {
        reasons::failure(&self.server(), limit, error)
    }

    /// Returns the bounds of a call on a connection to the server. `limit`: its limit, if that is
    /// not one I/O time-out.
    pub(crate) fn bounds(&self, limit: Option<Duration>) -> Bounds {
        let limit = limit.unwrap_or(self.0.limits.answer);
        Bounds::new(&self.server(), limit, self.0.spares.clone())
    }

    /// Returns the name of the server for errors.
    pub(crate) fn server(&self) -> String {
        match &self.0.locator {
            Some(locator) => locator.master_name(),
            None => reasons::redis_at(self.0.access.address()),
        }
    }
}

fn is_silence(error: &Error) -> bool {
    matches!(error, Error::Pool { source: Some(source), .. } if source.is_timeout())
}
