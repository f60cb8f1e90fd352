//! How a lock is waited for.
//!
//! [`Lock`](super::Lock) calls [`acquire`] on the caller's thread. A try without a wait is [one
//! attempt](Wait::try_once) by a connection of the pool. A wait begins with such an attempt where
//! nobody of this process waits already and no other process has to be let go first, and then takes
//! a place in the queue of its lock ([`head`]). Only the head of a queue asks the server, by the
//! connection that all heads share, when its place says so: the server has told of a change, the
//! lock was released here, whoever had it has to be gone, or a pause after a failure is over.
//! [`Attempts`] judges each reply; its table says what each answer leads to.
//!
//! Where there are several servers, the key may have moved to another one. Then the wait goes on in
//! the queue there, by the same token and to the same deadline ([`moves`]).
//!
//! Nothing is locked here while the server is asked, except the connection by which all heads ask,
//! inside of [`ask_for_head`](crate::server::Server::ask_for_head). A place locks the queues, and a
//! lease that begins locks the keeper, each for a moment and never within the other.
//!
//! However it ends, nothing is left behind: the place is given up, a writer's intent is taken back,
//! a lock that was handed over meanwhile is taken, what too few replicas had is given back, and
//! what an attempt without an answer may have taken is given back by the watchdog's thread.

mod head;
mod moves;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    attempts::{Attempts, Outcome},
    lease::{Grant, Lease},
    options::Settings,
    stack::Stack,
    stacks::Stacks,
};
use crate::{
    error::{Error, Operation, Result},
    event::{Acquired, AlreadyRun, Contended},
    recipes::{
        hold::{Hold, LockKind},
        once::LastRun,
    },
    renewing::keeper::Handle,
    script::Refusal,
    server::Patience,
    time::{Backoff, Deadline},
    waiting::Leaving,
};

/// How long to try to take back an intent that ends by itself soon.
const QUITTING: Duration = Duration::from_millis(50);
/// How long a try that may not wait waits for a connection, when all are lent to others for a
/// moment.
const LENT_TO_OTHERS: Duration = Duration::from_millis(200);
/// The same for a wait that is shorter: after it there may be an intent to take back, and a wait
/// ends at its time and 250 ms.
const LENT_WHILE_WAITING: Duration = Duration::from_millis(100);

/// Between attempts where a shard of a cluster is down, or has no master yet.
const LONGEST_DOUBT: Duration = Duration::from_millis(250);

/// What has become of a place in a queue.
enum Asked {
    /// The lock is granted, and the next in the queue asks at that moment.
    Granted(Grant, Instant),
    /// It was not to be had in time, or is not wanted any more.
    InVain,
    /// The key has moved: the wait goes on in the queue of the server that has the key now.
    Moved,
}

/// One wait for one lock.
struct Wait<'a> {
    operation: Operation<'a>,
    stacks: &'a Stacks,
    /// The stack of the server that has the key, as far as is known.
    stack: Arc<Stack<Lease>>,
    /// How often in a row the key was said to be elsewhere.
    hops: u32,
    /// The pauses between attempts while a shard is down, or its master is not known. They go on
    /// growing whichever shard is asked.
    doubts: Backoff,
    /// The epoch of the stack's server, a moment before the last attempt was sent.
    epoch: u64,
    settings: &'a Settings,
    hold: Arc<Hold>,
    lease_millis: u64,
    started: Instant,
    deadline: Deadline,
    /// False for a try, which may not wait.
    waits: bool,
    attempts: Attempts<'a>,
}

/// What a wait has come to.
pub(crate) enum Waited {
    Lease(Lease),
    /// Somebody else had it all the time.
    Contended(Error),
    /// It was wanted for work that has been done within the period.
    AlreadyRun(LastRun),
}

/// Waits for the lock, at least one attempt long.
pub(crate) fn acquire(
    operation: Operation<'_>,
    stacks: &Stacks,
    settings: &Settings,
    hold: Hold,
    timeout: Duration,
) -> Result<Waited> {
    let lease_millis = settings.checked()?;
    settings.check_wait(stacks.limits.answer)?;
    if settings.is_cancelled() {
        return Err(operation.cancelled());
    }
    let hold = if settings.fencing {
        hold
    } else {
        hold.unfenced()
    };
    let hold = hold.reserving(settings.reserved());
    let hold = Arc::new(hold.confirmed_by(settings.replicas));
    let clock = stacks.clock;
    let started = clock.now();
    let deadline = clock.at(started.checked_add(timeout));
    let stack = first_stack(stacks, hold.lock_name().key(), settings, deadline)?;
    let skew = settings.skew_on(&*stack.server);
    let mut wait = Wait {
        operation,
        stacks,
        epoch: stack.server.epoch(),
        stack,
        hops: 0,
        doubts: Backoff::between(
            settings.backoff.first,
            settings.backoff.last.max(LONGEST_DOUBT),
        ),
        settings,
        attempts: Attempts::new(operation, settings, skew, Arc::clone(&hold)),
        hold,
        lease_millis,
        started,
        deadline,
        waits: !timeout.is_zero(),
    };
    let acquired = if wait.waits {
        wait.in_turn(timeout)
    } else {
        wait.try_once()
    };
    let acquired = acquired.map_err(|error| wait.attempts.ended_by(error));
    let latest = timeout.saturating_add(stacks.limits.answer);
    wait.abandon_what_is_out(&acquired, clock.at(started.checked_add(latest)));
    if settings.is_cancelled() {
        // The lock may have been granted, or handed over, just before the cancel. The caller does
        // not get it: it is given back.
        drop(acquired.ok().flatten().map(Lease::declined));
        return Err(operation.cancelled());
    }
    let acquired = acquired?;
    let found_run = wait.attempts.found_run();
    wait.report(acquired.as_ref(), found_run.is_some());
    if let Some(run) = found_run {
        return Ok(Waited::AlreadyRun(run));
    }
    Ok(match acquired {
        Some(lease) => Waited::Lease(lease),
        None => Waited::Contended(wait.contended()),
    })
}

/// The stack of a key. On a cluster, until the deadline, as soon as a node says whose the key is.
fn first_stack(
    stacks: &Stacks,
    key: &str,
    settings: &Settings,
    deadline: Deadline,
) -> Result<Arc<Stack<Lease>>> {
    let mut pauses = Backoff::between(settings.backoff.first, LONGEST_DOUBT);
    loop {
        let longest = deadline.remaining().max(stacks.limits.connect);
        let stack = stacks.of(key, Deadline::after(longest));
        let may_pass = stack.as_ref().err().is_some_and(Error::may_pass);
        if !may_pass || settings.is_cancelled() || !pauses.pause(deadline) {
            return stack;
        }
    }
}

impl Wait<'_> {
    /// One attempt, which keeps nobody out when it is refused.
    fn try_once(&mut self) -> Result<Option<Lease>> {
        match self.ask_by_the_pool(false)? {
            Outcome::Granted { grant, .. } => Ok(self.lease(grant)),
            Outcome::Refused { .. } | Outcome::AlreadyRun => Ok(None),
            Outcome::Failed | Outcome::Moved => self.attempts.last_failure().map_or(Ok(None), Err),
        }
    }

    /// In the queue, behind the threads of this process that came before.
    fn in_turn(&mut self, timeout: Duration) -> Result<Option<Lease>> {
        // Who enters a reentrant lock again must not wait behind others who wait for it to leave.
        let asks_after = self.stack.queues.asks_after(self.key(), timeout);
        if let Some(pause) = asks_after
            && !pause.is_zero()
        {
            thread::sleep(pause);
        }
        if asks_after.is_some() || self.hold.kind() == LockKind::Reentrant {
            // The intent of a writer that waits is written by the head of the queue alone.
            let leaves_intent = self.nobody_waits();
            match self.ask_by_the_pool(leaves_intent) {
                Ok(Outcome::Granted { grant, .. }) => return Ok(self.lease(grant)),
                Ok(Outcome::AlreadyRun) => return Ok(None),
                Ok(Outcome::Refused { .. } | Outcome::Failed | Outcome::Moved) => {}
                Err(failure) => return Err(failure),
            }
        }
        loop {
            let shared = Arc::clone(&self.stack);
            let place = shared.queues.join(self.key(), self.takes());
            let waited = self.ask_as_head(&place);
            if let Ok(Asked::Granted(grant, next_asks_at)) = waited {
                place.leave(self.leaving(), next_asks_at);
                return Ok(self.lease(grant).map(Lease::having_stood_in_queue));
            }
            let goes_on = matches!(waited, Ok(Asked::Moved));
            if !goes_on {
                self.take_back_intent(waited.as_ref().err());
            }
            if let Some(handed) = place.quit() {
                return Ok(Some(handed.claimed()));
            }
            if !goes_on {
                return waited.map(|_| None);
            }
        }
    }

    /// By a connection of the pool, which is given back at once.
    fn ask_by_the_pool(&mut self, leaves_intent: bool) -> Result<Outcome> {
        let mut call = (self.hold).acquiring(self.lease_millis, leaves_intent, Refusal::Bare);
        let lent = if self.waits {
            LENT_WHILE_WAITING
        } else {
            LENT_TO_OTHERS
        };
        let mut patience = Patience {
            lent: self.deadline.remaining().max(lent),
            tells_of_moves: true,
            cancel: self.settings.cancel.as_ref(),
            ..Patience::USUAL
        };
        loop {
            self.attempts.made += 1;
            self.epoch = self.stack.server.epoch();
            let reply = match self.stack.server.ask(&call, patience) {
                Ok(reply) => reply,
                Err(error) if self.waits && error.may_pass() => {
                    self.attempts.was_not_sent(error);
                    return Ok(Outcome::Failed);
                }
                Err(error) => return Err(error),
            };
            match self.judge(reply)? {
                Outcome::Moved => {}
                outcome => return Ok(outcome),
            }
            let longest = self.deadline.remaining().max(self.stacks.limits.answer);
            patience
                .answer
                .get_or_insert_with(|| Deadline::after(longest));
            patience = patience.left();
            // The lock may be ours there.
            call = call.again();
        }
    }

    /// Takes back a writer's intent before the next thread of the queue asks, which it might keep
    /// out. Nothing is sent to a server that has not answered: the intent ends by itself within a
    /// second.
    fn take_back_intent(&self, failure: Option<&Error>) {
        let is_silent = matches!(failure, Some(Error::Unknown { .. } | Error::Pool { .. }));
        if let Some(call) = self.hold.quitting().filter(|_| !is_silent) {
            self.stack.server.send_unawaited(&call, QUITTING);
        }
    }

    /// Gives back what an attempt may have taken, or may still take, unless that is for the lease
    /// that has been granted to release. What the server has answered to is given back here, so
    /// that nothing is left if the process ends at once; otherwise the watchdog's thread does it.
    fn abandon_what_is_out(&self, acquired: &Result<Option<Lease>>, latest: Deadline) {
        let is_ours = |lease: &Lease| Arc::ptr_eq(lease.hold(), &self.hold);
        let is_held = matches!(acquired, Ok(Some(lease)) if is_ours(lease));
        let (comes_late, may_be_ours) = (self.attempts.is_out(), self.attempts.may_be_ours());
        if !(comes_late || may_be_ours) || is_held {
            return;
        }
        let is_answered = matches!(
            acquired,
            Err(Error::TooFewReplicas { .. } | Error::Redis { .. })
        );
        let is_given_back = may_be_ours && is_answered && self.give_back_by(latest);
        if comes_late || !is_given_back {
            self.stack.keeper.abandon(&self.hold, comes_late);
        }
    }

    /// False: the lock may still be ours.
    fn give_back_by(&self, latest: Deadline) -> bool {
        let patience = Patience {
            lent: LENT_TO_OTHERS.min(latest.remaining()),
            whole: latest.remaining(),
            answer: Some(latest),
            ..Patience::USUAL
        };
        let reply = (self.stack.server).ask(&self.hold.giving_back(), patience);
        reply.is_ok_and(|reply| reply.answer.is_ok() && !reply.again)
    }

    fn lease(&self, grant: Grant) -> Option<Lease> {
        let keep = |lease_state, terms| Some(Handle::keep(&self.stack.keeper, lease_state, terms));
        let lease = Lease::begin(&self.stack, self.settings, &self.hold, grant, keep);
        self.stack.server.want();
        if self.has_another_master() {
            // All leases were looked at when that server became the master, and this one was not
            // kept yet.
            self.stack.keeper.changed(self.key());
        }
        lease.map(Lease::claimed)
    }

    /// Tells the hooks what the wait has come to. Of a failure [`Lock`](super::Lock) tells.
    fn report(&self, acquired: Option<&Lease>, already_run: bool) {
        let Some(events) = &self.settings.events else {
            return;
        };
        let (lock, made) = (self.operation.lock, self.attempts.made);
        let waited = self.stack.clock.since(self.started);
        let fence = acquired.and_then(Lease::fencing_token);
        events.answered(|events| match acquired {
            Some(_) => events.acquired(&Acquired::new(lock, waited, made, fence)),
            None if already_run => events.already_run(&AlreadyRun::new(lock, waited)),
            None => events.contended(&Contended::new(lock, waited, made)),
        });
        if let Some(lease) = acquired {
            lease.report_loss();
        }
    }

    /// What is known of the lock without asking once more.
    fn contended(&self) -> Error {
        let end = self.attempts.busy_until();
        let left = end.map(|end| end.saturating_duration_since(self.now()));
        Error::Contended {
            context: self.operation.context(),
            waited: Some(self.stack.clock.since(self.started)),
            holder: self.stack.keeper.holder_of(self.key()),
            remaining: left.filter(|left| !left.is_zero()),
        }
    }

    /// How a lock that is handed over would be held, if it is to be.
    fn takes(&self) -> Option<Settings> {
        // Only the server knows whether work that is to be done once has been done meanwhile.
        let asks = self.hold.kind() != LockKind::Mutex || self.hold.finishing().is_some();
        let takes = self.settings.hands_over() && !asks;
        takes.then(|| self.settings.clone().of(self.hold.owner()))
    }

    fn leaving(&self) -> Leaving {
        match self.hold.kind() {
            LockKind::Mutex | LockKind::Write => Leaving::Exclusive,
            LockKind::Reentrant | LockKind::Read => Leaving::Shared,
        }
    }

    fn nobody_waits(&self) -> bool {
        self.stack.queues.waiting(self.key()) == 0
    }

    fn now(&self) -> Instant {
        self.stack.clock.now()
    }

    fn key(&self) -> &str {
        self.hold.lock_name().key()
    }
}
