//! The wait for a lock.
//!
//! [`Lock`](super::Lock) calls [`acquire`] on the caller's thread. A try without a wait is [one
//! attempt](Wait::try_once) by a connection of the pool. A wait begins with such an attempt where
//! nobody of this process waits already and no other process has to be let go first, and then takes
//! a place in the queue of its lock. Only the [head](Wait::ask_as_head) of a queue asks the server,
//! by the connection that all heads share, when its place says so: the server has told of a change,
//! the lock was released here, whoever had it has to be gone, or a pause after a failure is over.
//! [`Attempts`] judges each reply; its table says what each answer leads to.
//!
//! Where there are several servers, the key may have moved to another one. Then the wait goes on in
//! the queue there, by the same token and to the same deadline. The first attempt follows [`HOPS`]
//! times at once. A head looks after each failure which server has the key by now: the one that had
//! it may be gone, and answer nothing.
//!
//! Nothing is locked here while the server is asked, except the connection by which all heads ask,
//! inside of [`ask_for_head`](crate::server::Server::ask_for_head). A place locks the queues, and a
//! lease that begins locks the keeper, each for a moment and never within the other.
//!
//! However it ends, nothing is left behind: the place is given up, a writer's intent is taken back,
//! a lock that was handed over meanwhile is taken, what too few replicas had is given back, and
//! what an attempt without an answer may have taken is given back by the watchdog's thread.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    attempts::{AttemptOutcome, Attempts},
    lease::{Lease, LeaseGrant},
    options::Settings,
    stack::Stack,
    stacks::Stacks,
};
use crate::{
    error::{Error, Operation, Result, unanswered_ahead},
    event::{Acquired, AlreadyRun, Contended},
    pool::{HOPS, Limits},
    recipes::{
        hold::{Hold, LockKind},
        once::LastRun,
    },
    renewing::keeper::Handle,
    server::Patience,
    time::{Backoff, Deadline},
    waiting::{LastAnswer, Leaving, Place},
    wire::{Call, Refusal},
};

/// The wait for a connection while all are lent to others, of a call that may not wait for the
/// lock, or has something to take back after a wait that ends at its time and 250 ms.
const LENT: Duration = Duration::from_millis(100);
/// At its deadline a thread waits so long for the answer to the one ahead that is asking: a server
/// that is far away is not called silent.
const ANSWERED_AHEAD: Duration = Duration::from_millis(100);
/// The longest pause after a failure, unless the settings have a longer one.
const LONGEST_DOUBT: Duration = Duration::from_millis(250);

/// One wait for one lock.
struct Wait<'a> {
    operation: Operation<'a>,
    stacks: &'a Stacks,
    /// The stack of the server that has the key, as far as is known.
    stack: Arc<Stack<Lease>>,
    /// The pauses where the server refuses, and does not tell of changes.
    pauses: Backoff,
    /// The pauses after a failure. They go on growing whichever shard is asked.
    doubts: Backoff,
    settings: &'a Settings,
    hold: Arc<Hold>,
    lease_millis: u64,
    started: Instant,
    deadline: Deadline,
    /// False for a try, which may not wait.
    waits: bool,
    attempts: Attempts<'a>,
}

/// Waits for the lock, at least one attempt long. The inner error: it was wanted for work that has
/// been done within the period.
pub(super) fn acquire(
    operation: Operation<'_>,
    stacks: &Stacks,
    settings: &Settings,
    hold: Hold,
    timeout: Duration,
) -> Result<Result<Lease, LastRun>> {
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
    let (first, last) = (settings.backoff.first, settings.backoff.last);
    let wait = Wait {
        operation,
        stacks,
        stack,
        pauses: Backoff::between(first, last),
        doubts: Backoff::between(first, last.max(LONGEST_DOUBT)),
        settings,
        attempts: Attempts::new(
            operation,
            settings,
            skew,
            stacks.are_many(),
            Arc::clone(&hold),
        ),
        hold,
        lease_millis,
        started,
        deadline,
        waits: !timeout.is_zero(),
    };
    wait.until_over(timeout)
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
    fn until_over(mut self, timeout: Duration) -> Result<Result<Lease, LastRun>> {
        let acquired = if self.waits {
            self.in_turn(timeout)
        } else {
            self.try_once()
        };
        let acquired = acquired.map_err(|error| self.attempts.ended_by(error));
        self.give_back_what_is_out(&acquired);
        if self.settings.is_cancelled() {
            // The lock may have been granted, or handed over, just before the cancel. The caller
            // does not get it: it is given back.
            drop(acquired.ok().flatten().map(Lease::declined));
            return Err(self.operation.cancelled());
        }
        let acquired = acquired?;
        self.report(acquired.as_ref());
        match (acquired, self.attempts.found_run.take()) {
            (Some(lease), _) => Ok(Ok(lease)),
            (None, Some(run)) => Ok(Err(run)),
            (None, None) => Err(self.contended()),
        }
    }

    /// One attempt, which keeps nobody out when it is refused.
    fn try_once(&mut self) -> Result<Option<Lease>> {
        match self.ask_by_the_pool(false)? {
            AttemptOutcome::Granted { grant, .. } => Ok(self.lease(grant)),
            AttemptOutcome::Refused { .. } | AttemptOutcome::AlreadyRun => Ok(None),
            AttemptOutcome::Failed | AttemptOutcome::Moved => {
                self.attempts.last_failure().map_or(Ok(None), Err)
            }
        }
    }

    /// In the queue, behind the threads of this process that came before.
    fn in_turn(&mut self, timeout: Duration) -> Result<Option<Lease>> {
        let asks_after = self.stack.queues.asks_after(self.key(), timeout);
        if let Some(pause) = asks_after
            && !pause.is_zero()
        {
            thread::sleep(pause);
        }
        // Who enters a reentrant lock again must not wait behind others who wait for it to leave.
        if asks_after.is_some() || self.hold.kind() == LockKind::Reentrant {
            // The intent of a writer that waits is written by the head of the queue alone.
            let leaves_intent = self.stack.queues.waiting(self.key()) == 0;
            match self.ask_by_the_pool(leaves_intent)? {
                AttemptOutcome::Granted { grant, .. } => return Ok(self.lease(grant)),
                AttemptOutcome::AlreadyRun => return Ok(None),
                _ => {}
            }
        }
        loop {
            let shared = Arc::clone(&self.stack);
            let place = shared.queues.join(self.key(), self.takes());
            let outcome = self.ask_as_head(&place);
            if let Ok(AttemptOutcome::Granted {
                grant,
                next_asks_at,
            }) = outcome
            {
                place.leave(self.leaving(), next_asks_at);
                return Ok(self.lease(grant).map(Lease::having_stood_in_queue));
            }
            let goes_on = matches!(outcome, Ok(AttemptOutcome::Moved));
            if !goes_on {
                self.take_back_intent(outcome.as_ref().err());
            }
            if let Some(handed) = place.quit() {
                return Ok(Some(handed.claimed()));
            }
            if !goes_on {
                return outcome.map(|_| None);
            }
        }
    }

    /// By a connection of the pool, which is given back at once.
    fn ask_by_the_pool(&mut self, leaves_intent: bool) -> Result<AttemptOutcome> {
        let mut call = (self.hold).acquiring(self.lease_millis, leaves_intent, Refusal::Bare);
        let mut patience = Patience {
            lent: self.deadline.remaining().max(LENT),
            tells_of_moves: true,
            cancel: self.settings.cancel.as_ref(),
            ..Patience::USUAL
        };
        let mut hops = 0;
        loop {
            self.attempts.made += 1;
            let reply = match self.stack.server.ask(&call, patience) {
                Ok(reply) => reply,
                Err(error) if self.waits && error.may_pass() => {
                    self.attempts.failure = Some(error);
                    return Ok(AttemptOutcome::Failed);
                }
                Err(error) => return Err(error),
            };
            let outcome = self.attempts.judge(reply, self.stack.clock.now())?;
            let Limits { connect, answer } = self.stacks.limits;
            let longest = Deadline::after(self.deadline.remaining().max(connect.max(answer)));
            let has_moved = matches!(outcome, AttemptOutcome::Moved) && hops < HOPS;
            if !has_moved || !self.follow(longest)? {
                return Ok(outcome);
            }
            hops += 1;
            patience.by.get_or_insert(longest);
            // The lock may be ours there.
            call = call.again();
        }
    }

    /// The head of a queue: sleeps until the place says that it is time to ask, asks, and sleeps
    /// again, until the deadline, or until the key has gone to another stack.
    ///
    /// Refused: the lock was not to be had in time, or is not wanted any more.
    fn ask_as_head(&mut self, place: &Place<'_, Settings, Lease, Error>) -> Result<AttemptOutcome> {
        let shared = Arc::clone(&self.stack);
        shared.server.want();
        let cancel = self.settings.cancel.as_ref();
        let waiting = Arc::downgrade(&shared);
        let wake_all = move || {
            if let Some(shared) = waiting.upgrade() {
                shared.queues.wake_all();
            }
        };
        let _woken = cancel.map(|cancel| cancel.wakes(wake_all));
        while place.wait(cancel, self.deadline) {
            // A silent server costs one time-out after the deadline, and not one more for a wake-up
            // that came late.
            if self.attempts.made > 0 && self.deadline.has_passed() {
                break;
            }
            if self.attempts.failure.is_some() {
                self.follow(self.deadline)?;
                if !Arc::ptr_eq(&shared, &self.stack) {
                    return Ok(AttemptOutcome::Moved);
                }
            }
            self.attempts.made += 1;
            let call = (self.hold).acquiring(self.lease_millis, true, Refusal::WithItsEnd);
            let call = call.again();
            let outcome = match (shared.server).ask_for_head(&call, self.deadline, cancel) {
                Ok(Some(reply)) => self.attempts.judge(reply, self.stack.clock.now())?,
                // Others were asked for until the deadline or the cancel.
                Ok(None) => break,
                Err(error) if !error.may_pass() => return Err(error),
                Err(error) => {
                    self.attempts.failure = Some(error);
                    AttemptOutcome::Failed
                }
            };
            match outcome {
                AttemptOutcome::Granted { .. } | AttemptOutcome::AlreadyRun => return Ok(outcome),
                outcome => self.asks_again(&outcome, place),
            }
        }
        self.in_vain(place)
    }

    /// Tells the place when to ask again after this outcome.
    fn asks_again(&mut self, outcome: &AttemptOutcome, place: &Place<'_, Settings, Lease, Error>) {
        let now = self.stack.clock.now();
        match outcome {
            AttemptOutcome::Refused {
                ask_again_at: Some(ask_again_at),
            } => {
                self.pauses.start_again();
                self.doubts.start_again();
                place.refused(Some(*ask_again_at));
            }
            AttemptOutcome::Refused { ask_again_at: None } => {
                place.refused(Some(now + self.pauses.next_pause(Duration::MAX)));
            }
            _ => {
                let pause = self.doubts.next_pause(Duration::MAX);
                place.failed(self.attempts.failure.clone(), now + pause);
            }
        }
    }

    /// The deadline has come. Who has the lock is known by the last attempt of this queue, or else
    /// by an attempt of this thread before it joined. What may be ours is in doubt, whatever others
    /// were told.
    fn in_vain(&mut self, place: &Place<'_, Settings, Lease, Error>) -> Result<AttemptOutcome> {
        let is_cancelled = self.settings.is_cancelled();
        let longest = if is_cancelled {
            Duration::ZERO
        } else {
            ANSWERED_AHEAD
        };
        let last = place.last_answer_by(Deadline::after(longest));
        let in_vain = AttemptOutcome::Refused { ask_again_at: None };
        match last {
            LastAnswer::Busy if !self.attempts.uncertain => return Ok(in_vain),
            LastAnswer::Failed(failure) if !self.attempts.uncertain => {
                return Err(self.operation.failed_as(&failure));
            }
            _ => {}
        }
        match self.attempts.last_failure() {
            Some(failure) => Err(failure),
            None if self.attempts.was_refused => Ok(in_vain),
            None => Err(unanswered_ahead(None)),
        }
    }

    /// Takes the stack that has the key by what the nodes say now. False: nobody knows.
    fn follow(&mut self, deadline: Deadline) -> Result<bool> {
        match self.stacks.of(self.hold.lock_name().key(), deadline) {
            Ok(stack) => self.stack = stack,
            Err(error @ Error::Thread { .. }) => return Err(error),
            Err(error) => {
                // The answer of a server says more.
                self.attempts.failure.get_or_insert(error);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes back a writer's intent before the next thread of the queue asks, which it might keep
    /// out. Nothing is sent to a server that has not answered: the intent ends by itself within a
    /// second.
    fn take_back_intent(&self, failure: Option<&Error>) {
        let is_silent = matches!(failure, Some(Error::Unknown { .. } | Error::Pool { .. }));
        if let Some(call) = self.hold.quitting().filter(|_| !is_silent) {
            self.send_back(&call);
        }
    }

    /// Gives back what an attempt may have taken, or may still take, unless that is for the lease
    /// that has been granted to release. The watchdog's thread does it, until the server answers.
    /// Where the server answers, it is done here as well, so that nothing is left if the process
    /// ends at once.
    fn give_back_what_is_out(&self, acquired: &Result<Option<Lease>>) {
        let Attempts {
            uncertain, is_out, ..
        } = self.attempts;
        let is_ours = |lease: &Lease| Arc::ptr_eq(lease.hold(), &self.hold);
        let is_held = matches!(acquired, Ok(Some(lease)) if is_ours(lease));
        if !(is_out || uncertain) || is_held {
            return;
        }
        if let Err(Error::TooFewReplicas { .. } | Error::Redis { .. }) = acquired {
            self.send_back(&self.hold.giving_back());
        }
        self.stack.keeper.abandon(&self.hold, is_out);
    }

    /// Sends it, if a connection is free soon, to a server that answers.
    fn send_back(&self, call: &Call) {
        let patience = Patience {
            lent: LENT,
            ..Patience::USUAL
        };
        let _ = self.stack.server.ask(call, patience);
    }

    fn lease(&self, grant: LeaseGrant) -> Option<Lease> {
        let keep = |lease_state| Some(Handle::keep(&self.stack.keeper, lease_state));
        let lease = Lease::begin(&self.stack, self.settings, &self.hold, grant, keep);
        self.stack.server.want();
        lease.map(Lease::claimed)
    }

    /// Tells the hooks of the end of the wait. Of a failure [`Lock`](super::Lock) tells.
    fn report(&self, acquired: Option<&Lease>) {
        let Some(events) = &self.settings.events else {
            return;
        };
        let (lock, made) = (self.operation.lock, self.attempts.made);
        let waited = self.stack.clock.since(self.started);
        let already_run = self.attempts.found_run.is_some();
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

    /// Names what is known of the lock without asking once more.
    fn contended(&self) -> Error {
        let now = self.stack.clock.now();
        let left = (self.attempts.busy_until).map(|end| end.saturating_duration_since(now));
        Error::Contended {
            context: self.operation.context(),
            waited: Some(now.saturating_duration_since(self.started)),
            holder: self.stack.keeper.holder_of(self.key()),
            remaining: left.filter(|left| !left.is_zero()),
        }
    }

    /// The settings by which a lock that is handed over would be held, if it is to be.
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

    fn key(&self) -> &str {
        self.hold.lock_name().key()
    }
}
