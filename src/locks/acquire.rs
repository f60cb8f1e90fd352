//! The wait for a lock.
//!
//! [`Lock`](super::Lock) calls [`begin`], [`acquire`](Wait::acquire) and [`end`](Wait::end) on the
//! caller's thread. A call with no time-out makes [one attempt](Wait::try_once) on a connection of
//! the pool. A call that waits starts with such an attempt too, unless threads of this process
//! already wait or it is the turn of another process; a reentrant lock always does, since its owner
//! may be the caller. A [`LockSet`](super::LockSet) sends the first attempts of its waits
//! [together](ask_together_first). If the attempt fails or is skipped, the wait joins the queue of
//! its lock: [`in_turn`]. [`Attempts`] judges each reply; its header lists the outcomes.
//!
//! On a cluster the key may move to another server. Then the wait continues in the queue there,
//! with the same token and deadline. The first attempt follows up to [`HOPS`] moves at once. A head
//! looks up the server of the key after each failure: the previous one may be gone and never reply.
//!
//! No mutex is locked here during a round trip, except the one in
//! [`ask_for_head`](crate::server::Server::ask_for_head), for the connection that all heads share.
//! A place locks the queues, and the start of a lease locks the keeper: each briefly, and neither
//! within the other. While the queues are locked, the wait for a lock of a set also locks the list
//! of the locks that the set holds, and within it the facts of each.
//!
//! Every wait cleans up at its end. It leaves the queue, takes a lock that was handed over
//! meanwhile, and removes a writer's intent. It releases a lock that a cancelled wait was granted,
//! or that too few replicas have. If an attempt without a reply may have acquired the lock, the
//! watchdog's thread releases it.

mod in_turn;
mod together;

use std::{
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    attempts::{AttemptOutcome, Attempts, Standing},
    lease::{Lease, LeaseGrant},
    release::let_go_all,
    set_wait::SetWait,
    stack::Stack,
    stacks::Stacks,
};
use crate::{
    cancel::Cancel,
    error::{Error, Operation, Result},
    event::{Acquired, AlreadyRun, Contended, Retrying},
    options::settings::Settings,
    pool::{HOPS, Limits},
    recipes::{Hold, LastRun, LockKind},
    server::{Patience, Reply},
    time::{Backoff, Deadline},
    wire::{BusyReply, Call},
};

pub(super) use together::ask_together_first;

/// The longest wait for a pooled connection in a call with no time-out, and in the clean-up after a
/// wait.
const WAIT_WHILE_ALL_LENT: Duration = Duration::from_millis(100);
/// The longest pause after a failure, unless the settings allow a longer one.
const LONGEST_DOUBT: Duration = Duration::from_millis(250);
/// Outside a queue no cancel wakes a thread, so it looks for one at this interval.
const SEES_CANCEL_WITHIN: Duration = Duration::from_millis(50);

/// One wait for one lock, from its first attempt to its result.
pub(super) struct Wait<'a> {
    operation: Operation<'a>,
    stacks: &'a Stacks,
    /// The stack of the server that last had the key.
    stack: Arc<Stack<Lease>>,
    /// The pauses after a refusal by a server that sends no notifications.
    pauses: Backoff,
    /// The pauses after a failure. They keep growing when the wait moves to another shard.
    failure_pauses: Backoff,
    settings: &'a Settings,
    hold: Arc<Hold>,
    lease_millis: u64,
    started: Instant,
    deadline: Deadline,
    /// False for a call with no time-out.
    waits: bool,
    /// The pause before the attempt that precedes the queue. `None`: the wait begins in the queue.
    asks_after: Option<Duration>,
    /// The outcome of a first attempt that was sent together with others.
    first: Option<Result<AttemptOutcome>>,
    attempts: Attempts<'a>,
    /// An attempt has left a writer's intent, which may not have ended.
    has_intent: bool,
    part: &'a SetWait<'a>,
    /// The caller's `Cancel`, or the loss of a held lock of the set.
    cancel: Option<Cancel>,
}

/// Prepares a wait for the lock. On a cluster this may ask the nodes for its shard.
pub(super) fn begin<'a>(
    operation: Operation<'a>,
    stacks: &'a Stacks,
    settings: &'a Settings,
    hold: Hold,
    timeout: Duration,
    part: &'a SetWait<'a>,
) -> Result<Wait<'a>> {
    let lease_millis = settings.checked()?;
    settings.check_wait(stacks.limits.answer)?;
    if settings.is_cancelled() {
        return Err(operation.cancelled());
    }
    let cancel = part.cancel(settings.cancel.as_ref());
    let hold = Arc::new(settings.demanded_of(hold));
    let clock = stacks.clock;
    let started = clock.now();
    let deadline = clock.at(started.checked_add(timeout));
    let report =
        |error: &Error| report_retry(operation, settings, clock.since(started), Some(error));
    let pauses = Backoff::between(settings.backoff.first, LONGEST_DOUBT);
    let key = hold.lock.key();
    let stack = first_stack(stacks, key, pauses, (deadline, cancel.as_ref()), report);
    // If a lock of the set was lost meanwhile, that loss is the error.
    let stack = stack.or_else(|error| part.check(operation.name).and(Err(error)))?;
    let skew = settings.skew_on(&*stack.server);
    let (first, last) = (settings.backoff.first, settings.backoff.last);
    let waits = !timeout.is_zero();
    let asks_after = if waits {
        stack.queues.asks_after(key, timeout)
    } else {
        Some(Duration::ZERO)
    };
    Ok(Wait {
        operation,
        stacks,
        stack,
        pauses: Backoff::between(first, last),
        failure_pauses: Backoff::between(first, last.max(LONGEST_DOUBT)),
        settings,
        attempts: Attempts::new(
            operation,
            settings,
            skew,
            stacks.per_server.are_many(),
            Arc::clone(&hold),
        ),
        hold,
        lease_millis,
        started,
        deadline,
        waits,
        asks_after,
        first: None,
        has_intent: false,
        part,
        cancel,
    })
}

/// Reports an attempt that did not get the lock. `failure`: `None` if someone else holds it.
fn report_retry(
    operation: Operation<'_>,
    settings: &Settings,
    waited: Duration,
    failure: Option<&Error>,
) {
    if let Some(events) = &settings.events {
        let failure = failure.map(|failure| operation.named(failure.clone()));
        let retrying = Retrying::new(operation.lock, waited, failure.as_ref());
        events.tell(|it| it.retrying(&retrying));
    }
}

/// Returns the stack of a key. On a cluster, asks the nodes for its shard until the deadline, and
/// reports each failure before it asks again.
fn first_stack(
    stacks: &Stacks,
    key: &str,
    mut pauses: Backoff,
    (deadline, cancel): (Deadline, Option<&Cancel>),
    report: impl Fn(&Error),
) -> Result<Arc<Stack<Lease>>> {
    loop {
        let longest = deadline.remaining().max(stacks.limits.connect);
        let stack = stacks.per_server.of(key, Deadline::after(longest));
        let failure = stack.as_ref().err().filter(|error| error.may_pass());
        if let Some(failure) = failure.filter(|_| !deadline.has_passed()) {
            report(failure);
        }
        let is_cancelled = || cancel.is_some_and(Cancel::is_cancelled);
        if failure.is_none() || is_cancelled() || !pauses.pause(deadline) {
            return stack;
        }
    }
}

impl Wait<'_> {
    /// Asks for the lock at least once, and waits for it.
    pub(super) fn acquire(&mut self) -> Result<Option<Lease>> {
        // The set may hold more locks than when this wait was prepared.
        self.cancel = self.part.cancel(self.settings.cancel.as_ref());
        if self.part.is_over {
            return Ok(None);
        }
        if !self.waits {
            return self.try_once();
        }
        if let Some(pause) = self.asks_after
            && !pause.is_zero()
        {
            thread::sleep(pause);
        }
        // An owner that acquires a reentrant lock again must not queue behind threads that wait for
        // it to release. Only the server knows whether another owner holds the lock.
        if self.asks_after.is_some() || self.hold.kind == LockKind::Reentrant {
            // Only the head of the queue writes the intent of waiting writers.
            let leaves_intent = self.stack.queues.waiting(self.key()) == 0;
            self.has_intent = leaves_intent;
            let outcome = self.ask_on_pooled(leaves_intent)?;
            match self.again_ahead_of_the_queue(outcome)? {
                AttemptOutcome::Granted { grant, .. } => return Ok(Some(self.lease(grant))),
                AttemptOutcome::AlreadyRun => return Ok(None),
                _ => {}
            }
        }
        self.in_turn()
    }

    /// Ends the wait: cleans up, and reports the outcome. The inner error: the work of `run_once`
    /// was already done within the period.
    pub(super) fn end(mut self, acquired: Result<Option<Lease>>) -> Result<Result<Lease, LastRun>> {
        let acquired = acquired.map_err(|error| self.attempts.ended_by(error));
        self.release_outstanding(&acquired);
        (self.part.is_silent).set(acquired.as_ref().is_err_and(Error::is_silence));
        if self.settings.is_cancelled() {
            // If the lock was granted or handed over just before, it is released.
            if let Ok(Some(lease)) = acquired {
                let by = (self.part).releases_by(self.deadline, self.stacks.limits.answer);
                let_go_all(&mut [lease.declined()], self.operation.name, by);
            }
            return Err(self.operation.cancelled());
        }
        if !matches!(acquired, Ok(Some(_))) {
            self.part.check(self.operation.name)?;
        }
        let acquired = acquired?;
        self.report(acquired.as_ref());
        match (
            acquired,
            mem::replace(&mut self.attempts.standing, Standing::Nothing),
        ) {
            (Some(lease), _) => Ok(Ok(lease)),
            (None, Standing::Done(run)) => Ok(Err(run)),
            (None, standing) => Err(self.contended(&standing)),
        }
    }

    /// Makes one attempt, without a writer's intent.
    fn try_once(&mut self) -> Result<Option<Lease>> {
        match self.ask_for_the_last_time()? {
            AttemptOutcome::Granted { grant, .. } => Ok(Some(self.lease(grant))),
            _ => Ok(None),
        }
    }

    /// Makes an attempt after which the wait is over: a failure is its result.
    fn ask_for_the_last_time(&mut self) -> Result<AttemptOutcome> {
        match self.ask_on_pooled(false)? {
            AttemptOutcome::Failed | AttemptOutcome::Moved => {
                let refused = AttemptOutcome::Refused { ask_again_at: None };
                self.attempts.last_failure().map_or(Ok(refused), Err)
            }
            outcome => Ok(outcome),
        }
    }

    /// Asks for a reentrant lock again after each failure, until the server says that another owner
    /// holds it. For any other lock the first attempt decides whether the wait joins the queue.
    fn again_ahead_of_the_queue(&mut self, first: AttemptOutcome) -> Result<AttemptOutcome> {
        let mut outcome = first;
        loop {
            let has_failed = match outcome {
                AttemptOutcome::Granted { .. } | AttemptOutcome::AlreadyRun => return Ok(outcome),
                AttemptOutcome::Refused { .. } => false,
                AttemptOutcome::Failed | AttemptOutcome::Moved => true,
            };
            self.report_retry();
            if !(has_failed && self.hold.kind == LockKind::Reentrant) {
                return Ok(outcome);
            }
            let pause = self.failure_pauses.next_pause(self.deadline.remaining());
            let pause = Deadline::after(pause);
            while !pause.has_passed() && !self.is_cancelled() {
                thread::sleep(pause.remaining().min(SEES_CANCEL_WITHIN));
            }
            if self.is_cancelled() || self.deadline.has_passed() {
                return self.attempts.last_failure().map_or(Ok(outcome), Err);
            }
            self.follow(self.deadline)?;
            outcome = self.ask_on_pooled(false)?;
        }
    }

    /// Returns the call of an attempt ahead of the queue.
    fn first_call(&self, leaves_intent: bool) -> Call {
        (self.hold).acquiring(self.lease_millis, leaves_intent, BusyReply::No)
    }

    /// Returns the limits of an attempt ahead of the queue.
    fn patience(&self) -> Patience<'_> {
        Patience {
            wait_while_all_lent: self.deadline.remaining().max(WAIT_WHILE_ALL_LENT),
            tells_of_moves: true,
            cancel: self.cancel.as_ref(),
            ..Patience::USUAL
        }
    }

    /// Returns the outcome of an attempt ahead of the queue.
    fn judge(&mut self, reply: Result<Reply>) -> Result<AttemptOutcome> {
        self.attempts.made += 1;
        match reply {
            Ok(reply) => self.attempts.judge(reply, self.stack.clock.now()),
            Err(error) if self.waits && error.may_pass() => {
                self.attempts.failure = Some(error);
                Ok(AttemptOutcome::Failed)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes an attempt on a connection of the pool, unless the first was made already, and follows
    /// the key to another server.
    fn ask_on_pooled(&mut self, leaves_intent: bool) -> Result<AttemptOutcome> {
        let mut call = self.first_call(leaves_intent);
        let (mut hops, mut by) = (0, None);
        loop {
            let outcome = if let Some(first) = self.first.take() {
                first?
            } else {
                let patience = Patience {
                    by,
                    ..self.patience()
                };
                let reply = self.stack.server.ask(&call, patience);
                self.judge(reply)?
            };
            let Limits { connect, answer } = self.stacks.limits;
            let longest = Deadline::after(self.deadline.remaining().max(connect.max(answer)));
            let has_moved = matches!(outcome, AttemptOutcome::Moved) && hops < HOPS;
            if !has_moved || !self.follow(longest)? {
                return Ok(outcome);
            }
            hops += 1;
            by.get_or_insert(longest);
            // An earlier attempt may have acquired the lock on that server.
            call = call.again();
        }
    }

    /// Returns true if the server may grant this hold while it refuses that of another thread. A
    /// mutex is granted to one thread and refused to all others. But callers of a semaphore name
    /// their own numbers of permits, a reader may share where a writer may not, and a reentrant
    /// lock may be this owner's. For `run_once` only the server knows whether the work was done
    /// meanwhile.
    fn is_judged_alone(&self) -> bool {
        self.hold.kind != LockKind::Mutex || self.hold.finishing().is_some()
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Switches to the stack that has the key now. Returns false if no node can name it.
    fn follow(&mut self, deadline: Deadline) -> Result<bool> {
        match self.stacks.per_server.of(self.hold.lock.key(), deadline) {
            Ok(stack) => self.stack = stack,
            Err(error @ Error::Thread { .. }) => return Err(error),
            Err(error) => {
                // If the server has refused an attempt, that error says more than this one.
                self.attempts.failure.get_or_insert(error);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// If an attempt may have acquired the lock, or may still do so, leaves the release to the
    /// watchdog's thread, which retries until the server replies. Does nothing if the wait returns
    /// a lease of this hold: that lease releases it. If the server is replying, a release is also
    /// sent here, in case the process exits at once.
    fn release_outstanding(&self, acquired: &Result<Option<Lease>>) {
        let is_out = self.attempts.is_out;
        let is_ours = |lease: &Lease| Arc::ptr_eq(lease.hold(), &self.hold);
        let is_held = matches!(acquired, Ok(Some(lease)) if is_ours(lease));
        if !(is_out || self.attempts.may_be_ours()) || is_held {
            return;
        }
        if let Err(Error::TooFewReplicas { .. } | Error::Redis { .. }) = acquired {
            self.send_unheeded(&self.hold.releasing());
        }
        self.stack.keeper.abandon(&self.hold, is_out);
    }

    /// Sends a call and ignores the result. Waits only briefly for a connection.
    fn send_unheeded(&self, call: &Call) {
        let patience = Patience {
            wait_while_all_lent: WAIT_WHILE_ALL_LENT,
            ..Patience::USUAL
        };
        let _ = self.stack.server.ask(call, patience);
    }

    fn lease(&self, grant: LeaseGrant) -> Lease {
        // At most one hold exists at a time.
        let earlier = grant.fence.and_then(|fence| fence.before(1));
        if let Some(end) = grant.terms.end {
            (self.hold).note_ended(earlier, end, self.stack.clock.now());
        }
        Lease::begin(&self.stack, self.settings, &self.hold, grant).claimed()
    }

    fn report_retry(&self) {
        let waited = self.stack.clock.since(self.started);
        let failure = self.attempts.failure.as_ref();
        report_retry(self.operation, self.settings, waited, failure);
    }

    /// Reports the end of the wait to the hooks. [`Lock`](super::Lock) reports failures.
    fn report(&self, acquired: Option<&Lease>) {
        let Some(events) = &self.settings.events else {
            return;
        };
        let (lock, made) = (self.operation.lock, self.attempts.made);
        let waited = self.stack.clock.since(self.started);
        let already_run = matches!(self.attempts.standing, Standing::Done(_));
        events.answered(|events| match acquired {
            Some(lease) => {
                let (hold, fence) = (lease.lease_state().number, lease.fencing_token());
                events.acquired(&Acquired::new(lock, hold, waited, made, fence));
            }
            None if already_run => events.already_run(&AlreadyRun::new(lock, waited)),
            None => events.contended(&Contended::new(lock, waited, made)),
        });
        if let Some(lease) = acquired {
            lease.report_loss();
        }
    }

    /// Builds the error from the last reply, without another round trip.
    fn contended(&self, standing: &Standing) -> Error {
        let now = self.stack.clock.now();
        let busy_until = match standing {
            Standing::Busy(until) => *until,
            _ => None,
        };
        let left = busy_until.map(|end| end.saturating_duration_since(now));
        Error::Contended {
            context: self.operation.context(),
            waited: Some(now.saturating_duration_since(self.part.since)),
            holder: (self.stack.keeper).holder_against(self.key(), self.hold.kind),
            remaining: left.filter(|left| !left.is_zero()),
        }
    }

    fn key(&self) -> &str {
        self.hold.lock.key()
    }
}
