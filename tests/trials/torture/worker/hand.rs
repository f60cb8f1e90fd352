//! One thread of a worker: its records, and its behaviour while it holds a lock.

use std::{thread, time::Duration};

use leasehold::{Error, Locks, Options, PooledConnection, Watchdog};

use super::{
    Plan,
    foreign::{Notes, Python},
    reach::{Lent, Reach},
};
use crate::{
    clock::{Nanos, kept_ready, millis, nanos, now},
    history::{Asked, Granted, Mode, Record, Writer},
    options::Topology,
    resource::Resource,
};

/// The usual lease of a round: short, so that much happens to it.
pub(crate) const LEASE: Duration = Duration::from_millis(400);
/// The time by which it ends sooner for a holder whose clock may run slow.
const SKEW: Duration = Duration::from_millis(40);
/// A lease longer than a failover.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(4);

pub(crate) struct Hand {
    pub(crate) plan: Plan,
    pub(crate) job: &'static str,
    pub(crate) locks: Locks,
    pub(crate) random: fastrand::Rng,
    pub(crate) python: Option<Python>,
    pub(crate) notes: Option<Notes>,
    pub(crate) watchdog: Option<Watchdog>,
    /// The next hold lasts for most of a long lease.
    pub(crate) stays: bool,
    reach: Reach,
    writer: Writer,
    resource: Option<Resource>,
    next: u64,
    /// The id of this thread's last attempt, and [`kept_ready`] at that time.
    asked: (u64, Nanos),
    /// The time since which this turn has had a connection of the pool.
    lent_since: Option<Nanos>,
}

/// Shorter delays of a thread by others are not recorded.
const USUAL: Nanos = millis(20);

impl Hand {
    pub(super) fn new(
        plan: &Plan,
        job: &'static str,
        number: usize,
        locks: Locks,
        reach: Reach,
        writer: Writer,
    ) -> Self {
        let thread = u64::try_from(number).unwrap_or(0);
        Self {
            plan: plan.clone(),
            job,
            locks,
            random: fastrand::Rng::with_seed(plan.seed.wrapping_add(thread)),
            python: None,
            notes: None,
            watchdog: None,
            stays: false,
            reach,
            writer,
            resource: Resource::at(plan.resource).ok(),
            next: u64::from(plan.worker) << 40 | thread << 32,
            asked: (0, 0),
            lent_since: None,
        }
    }

    /// Returns a connection to the server of a lock.
    pub(crate) fn connection(&self, lock: &str) -> leasehold::Result<PooledConnection> {
        self.reach.connection(lock)
    }

    /// Returns one for the rest of this turn.
    pub(crate) fn lend(&mut self, lock: &'static str) -> leasehold::Result<Lent> {
        let lent = self.reach.lend(lock)?;
        self.keeps_a_connection();
        Ok(lent)
    }

    /// Notes that this thread has a connection of the pool for the rest of this turn.
    pub(crate) fn keeps_a_connection(&mut self) {
        self.lent_since = Some(now());
    }

    /// Ends a turn. In a pool with one connection, other threads of this process may have waited
    /// for it.
    pub(super) fn gives_its_connection_back(&mut self) {
        if let Some(from) = self.lent_since.take().filter(|_| self.plan.pool == 1) {
            let (worker, to) = (self.plan.worker, now());
            self.writer.write(&Record::Lent { worker, from, to });
        }
    }

    pub(crate) fn fresh_locks(&self) -> leasehold::Result<Locks> {
        self.reach.locks()
    }

    pub(crate) fn start_watchdog(&mut self) -> leasehold::Result<()> {
        if self.watchdog.is_none() {
            self.watchdog = Some(self.reach.watchdog()?);
        }
        Ok(())
    }

    pub(crate) fn chance(&mut self, in_so_many: u32) -> bool {
        self.random.u32(..in_so_many) == 0
    }

    /// Sleeps for up to this many milliseconds.
    pub(crate) fn pause(&mut self, most: u64) {
        thread::sleep(Duration::from_micros(self.random.u64(..=most * 1_000)));
    }

    pub(crate) fn options(&mut self) -> Options {
        let renewal = !self.chance(4);
        let lease = if self.plan.has_bug("long-lease") {
            LEASE * 10
        } else {
            LEASE
        };
        let options = Options::new().lease(lease).renewal(renewal);
        if self.plan.has_own_clock {
            return options.clock_skew(SKEW);
        }
        options
    }

    /// If a master can fail, one lease in four is longer than a failover, and half of these are not
    /// renewed.
    pub(crate) fn options_and_lease(&mut self) -> (Options, Duration) {
        let options = self.options();
        if self.plan.topology == Topology::One || !self.chance(4) {
            return (options, LEASE);
        }
        self.stays = self.chance(4);
        let renewal = self.chance(2);
        (options.lease(LONG_LEASE).renewal(renewal), LONG_LEASE)
    }

    /// Picks a time to wait for a lock.
    pub(crate) fn timeout(&mut self) -> Duration {
        match self.random.u32(..8) {
            0 => Duration::ZERO,
            1 => Duration::from_millis(self.random.u64(1..50)),
            _ => Duration::from_millis(self.random.u64(500..3_000)),
        }
    }

    /// Picks a time to hold one: mostly short, sometimes past the lease.
    pub(crate) fn hold_for(&mut self) -> Duration {
        let most = if std::mem::take(&mut self.stays) {
            4_000
        } else if self.chance(self.plan.long_in) {
            700
        } else {
            8
        };
        Duration::from_micros(self.random.u64(..most * 1_000))
    }

    pub(crate) fn ask(
        &mut self,
        lock: &str,
        mode: Mode,
        owner: Option<String>,
        lease: Duration,
        timeout: Option<Duration>,
    ) -> u64 {
        self.next += 1;
        self.asked = (self.next, kept_ready());
        let asked = Asked {
            id: self.next,
            worker: self.plan.worker,
            job: self.job.to_owned(),
            lock: lock.to_owned(),
            mode,
            owner,
            lease: nanos(lease),
            timeout: timeout.map(nanos),
            at: now(),
        };
        self.writer.write(&Record::Asked(asked));
        self.next
    }

    pub(crate) fn granted(&mut self, id: u64, fence: Option<u64>, token: Option<String>) {
        let at = now();
        self.writer.write(&Record::Granted(Granted {
            id,
            at,
            fence,
            token,
        }));
        self.note_how_long_it_was_kept_ready(id);
    }

    pub(crate) fn refused(&mut self, id: u64, error: Option<&Error>) {
        let at = now();
        let unknown = !matches!(
            error,
            None | Some(Error::Contended { .. } | Error::Invalid { .. } | Error::Cancelled { .. })
        );
        self.writer.write(&Record::Refused { id, at, unknown });
        self.note_how_long_it_was_kept_ready(id);
        if let Some(error) = error {
            self.failed_with(error);
        }
    }

    /// The attempt has ended without a grant, but may have held the lock for a while before.
    pub(crate) fn gave_up(&mut self, id: u64) {
        let (at, unknown) = (now(), true);
        self.writer.write(&Record::Refused { id, at, unknown });
    }

    fn note_how_long_it_was_kept_ready(&mut self, id: u64) {
        let by = kept_ready().saturating_sub(self.asked.1);
        if self.asked.0 == id && by > USUAL {
            self.writer.write(&Record::KeptReady { id, by });
        }
    }

    pub(crate) fn ended(&mut self, id: u64, released: bool) {
        let at = now();
        self.writer.write(&Record::Ended {
            id,
            at,
            released: released.then_some(at),
        });
    }

    /// The holder is sure at this moment, which is before it asked.
    pub(crate) fn held(&mut self, id: u64, at: Nanos) {
        self.writer.write(&Record::Held { id, at });
    }

    /// Holds a lock for a while: writes at the resource, checks the lock repeatedly, and writes
    /// once more. Returns true if it was held to the end.
    pub(crate) fn hold(
        &mut self,
        id: u64,
        lock: &str,
        fence: Option<u64>,
        mut is_held: impl FnMut() -> bool,
    ) -> bool {
        let end = now() + nanos(self.hold_for());
        self.write_at_the_resource(id, lock, fence);
        let was_held = loop {
            let at = now();
            if !is_held() {
                break false;
            }
            self.held(id, at);
            if at >= end {
                break true;
            }
            thread::sleep(Duration::from_millis(self.random.u64(1..4)));
        };
        // A holder that does not check before it writes.
        if !was_held || self.chance(4) {
            self.write_at_the_resource(id, lock, fence);
        }
        was_held
    }

    pub(crate) fn write_at_the_resource(&mut self, id: u64, lock: &str, fence: Option<u64>) {
        let Some(fence) = fence else {
            return;
        };
        let is_stale = self.plan.has_bug("stale-number") || self.plan.has_bug("stale-accepted");
        let sent = if is_stale && self.chance(3) {
            fence - 1_000_000
        } else {
            fence
        };
        let Some(resource) = self.resource.as_mut() else {
            return;
        };
        if let Ok(answer) = resource.write(lock, sent, &fence.to_string()) {
            let (at, lock) = (now(), lock.to_owned());
            self.writer.write(&Record::Wrote {
                id,
                lock,
                fence: sent,
                at,
                nth: answer.nth,
                accepted: answer.accepted,
            });
        }
    }

    /// Pretends a hold that was never granted, for the bugs that checks must find.
    pub(crate) fn pretend(&mut self, lock: &str, mode: Mode, millis_long: u64) {
        let id = self.ask(lock, mode, None, LEASE, None);
        self.granted(id, None, None);
        let end = now() + millis(millis_long);
        while now() < end {
            self.held(id, now());
            thread::sleep(Duration::from_millis(1));
        }
        self.ended(id, true);
    }

    /// The last wait was cancelled at this moment.
    pub(crate) fn called_off(&mut self, at: Nanos) {
        let id = self.next;
        self.writer.write(&Record::CalledOff { id, at });
    }

    pub(crate) fn added(&mut self, number: &str, done: Option<bool>) {
        let number = number.to_owned();
        self.writer.write(&Record::Added { number, done });
    }

    pub(crate) fn ran(&mut self, ran: &Record) {
        self.writer.write(ran);
    }

    pub(crate) fn made(&mut self, kind: &str) {
        let kind = kind.to_owned();
        self.writer.write(&Record::Made { kind, at: now() });
    }

    pub(crate) fn broken(&mut self, checker: &str, lock: &str, what: &str) {
        self.writer.write(&Record::Broken {
            checker: checker.to_owned(),
            lock: lock.to_owned(),
            at: now(),
            what: what.to_owned(),
        });
    }

    pub(crate) fn failed(&mut self, error: &anyhow::Error) {
        match error.downcast_ref::<Error>() {
            Some(error) => self.failed_with(error),
            None => self.note_failure("not a lock"),
        }
    }

    pub(crate) fn failed_with(&mut self, error: &Error) {
        let what = match error {
            Error::Contended { .. } => "contended",
            Error::Lost { .. } => "lost",
            Error::Unknown { .. } => "unknown",
            Error::Redis { .. } => "refused",
            Error::Partial { .. } => "partial",
            Error::Reply { .. } => "reply",
            Error::WrongKind { .. } => "wrong kind",
            Error::Pool { .. } => "no connection",
            Error::Thread { .. } => "no thread",
            Error::Cancelled { .. } => "called off",
            Error::TooFewReplicas { .. } => "too few replicas",
            _ => "other",
        };
        self.note_failure(what);
    }

    fn note_failure(&mut self, what: &str) {
        let what = format!("{}: {what}", self.job);
        self.writer.write(&Record::Failed { what });
    }

    /// Records the totals when the thread's time is over.
    pub(super) fn finish(&mut self) {
        self.python = None;
        self.notes = None;
        self.watchdog = None;
        self.resource = None;
    }
}
