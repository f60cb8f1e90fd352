//! How a lock is waited for.
//!
//! [`Lock`](super::Lock) calls [`acquire`] on the caller's thread. A try without a wait is [one attempt](Wait::try_once) by a
//! connection of the pool. A wait begins with such an attempt where nobody of this process waits already and no other
//! process has to be let go first, and then takes a place in the queue of its lock. Only the head of a queue asks the server,
//! by the connection that all heads share, when its place says so: the server has told of a change, the lock was released
//! here, whoever had it has to be gone, or a pause after a failure is over. [`Attempts`] judges each reply; its table says
//! what each answer leads to.
//!
//! Nothing is locked here while the server is asked, except the shared connection, which is locked inside of
//! [`ask_for_head`](crate::server::Server::ask_for_head). A place locks the queues, and a lease that begins locks the keeper,
//! each for a moment and never within the other.
//!
//! However it ends, nothing is left behind: the place is given up, a writer's intent is taken back, a lock that was handed
//! over meanwhile is taken, and what an attempt without an answer may have taken is given back by the watchdog's thread.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    attempts::{Attempts, Outcome},
    lease::{Grant, Lease},
    options::Pauses,
    settings::Settings,
    stacks::{Stack, Stacks},
};
use crate::{
    error::{Busy, Error, Operation, Result},
    event::{Acquired, Contended, emit},
    recipes::{
        hold::{Holding, Kind},
        once::LastRun,
    },
    renewing::handle::Handle,
    script::{Call, Refusal},
    server::{Line, News, Patience, Unsent},
    time::{Backoff, Deadline},
    waiting::{Leaving, Next, Place},
};

/// How long to try to take back an intent that ends by itself soon.
const QUITTING: Duration = Duration::from_millis(50);
/// A head that was refused by a look, and has heard nothing since, makes an attempt after so long.
const ATTEMPT_AFTER_A_LOOK: Duration = Duration::from_millis(100);
/// How long a try that may not wait waits for a connection, when all are lent to others for a moment.
const LENT_TO_OTHERS: Duration = Duration::from_millis(200);

/// One wait for one lock.
struct Wait<'a> {
    operation: Operation<'a>,
    stack: Stack<'a>,
    settings: &'a Settings,
    hold: Arc<Holding>,
    lease_millis: u64,
    started: Instant,
    deadline: Deadline,
    attempts: Attempts<'a>,
}

/// What a wait has come to.
pub(crate) enum Waited {
    Lease(Lease),
    /// Somebody else had it all the time.
    Contended(Busy),
    /// It was wanted for work that has been done within the period.
    HasBeenRun(LastRun),
}

/// Waits for the lock, at least one attempt long.
pub(crate) fn acquire(
    operation: Operation<'_>,
    stacks: &Stacks,
    settings: &Settings,
    hold: Holding,
    timeout: Duration,
) -> Result<Waited> {
    let lease_millis = settings.checked()?;
    settings.check_wait(stacks.limits().answer)?;
    if settings.is_cancelled() {
        return Err(operation.cancelled());
    }
    let hold = if settings.fencing {
        hold
    } else {
        hold.unfenced()
    };
    let hold = hold.reserving(settings.reserved());
    let hold = Arc::new(hold.confirmed_by(settings.replicas()));
    let clock = stacks.clock();
    let started = clock.now();
    let longest = timeout.max(stacks.limits().connect);
    let stack = stacks.of(hold.lock_name().key(), Deadline::after(longest))?;
    let skew = settings.skew_on(&*stack.server);
    let mut wait = Wait {
        operation,
        stack,
        settings,
        attempts: Attempts::new(operation, settings, skew, Arc::clone(&hold)),
        hold,
        lease_millis,
        started,
        deadline: clock.at(started.checked_add(timeout)),
    };
    let acquired = if timeout.is_zero() {
        wait.try_once()
    } else {
        wait.in_turn(timeout)
    };
    wait.abandon_what_is_out(&acquired);
    if settings.is_cancelled() {
        // Granted, or handed over, at that very moment: nobody has it.
        drop(acquired.ok().flatten().map(Lease::declined));
        return Err(operation.cancelled());
    }
    let acquired = acquired?;
    if let Some(run) = wait.attempts.found_run() {
        return Ok(Waited::HasBeenRun(run));
    }
    wait.report(acquired.as_ref());
    Ok(match acquired {
        Some(lease) => Waited::Lease(lease),
        None => Waited::Contended(wait.busy()),
    })
}

impl Wait<'_> {
    /// One attempt, which keeps nobody out when it is refused.
    fn try_once(&mut self) -> Result<Option<Lease>> {
        match self.ask_by_the_pool(false)? {
            Outcome::Granted { grant, .. } => Ok(self.lease(grant)),
            Outcome::Refused { .. } | Outcome::HasBeenRun => Ok(None),
            Outcome::Failed => self.attempts.last_failure().map_or(Ok(None), Err),
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
        if asks_after.is_some() || self.hold.kind() == Kind::Reentrant {
            // The intent of a writer that waits is written by the head of the queue alone.
            let leaves_intent = self.nobody_waits();
            match self.ask_by_the_pool(leaves_intent) {
                Ok(Outcome::Granted { grant, .. }) => return Ok(self.lease(grant)),
                Ok(Outcome::HasBeenRun) => return Ok(None),
                Ok(Outcome::Refused { .. } | Outcome::Failed) => {}
                // Another server is about to take its place.
                Err(failure @ Error::Pool { .. }) if self.stack.server.is_watched() => {
                    self.attempts.was_not_sent(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        let shared = Arc::clone(&self.stack);
        let place = shared.queues.join(self.key(), self.takes());
        let failure = match self.ask_as_head(&place) {
            Ok(Some((grant, next_asks_at))) => {
                place.leave(self.leaving(), next_asks_at);
                return Ok(self.lease(grant));
            }
            Ok(None) => None,
            Err(failure) => Some(failure),
        };
        self.take_back_intent(failure.as_ref());
        if let Some(handed) = place.quit() {
            return Ok(Some(handed.claimed()));
        }
        failure.map_or(Ok(None), Err)
    }

    /// Sleeps until the place says that it is time to ask, asks, and sleeps again, until the deadline. Answers what was
    /// granted, and when the next in the queue asks.
    fn ask_as_head(
        &mut self,
        place: &Place<'_, Settings, Lease>,
    ) -> Result<Option<(Grant, Instant)>> {
        let Pauses { first, last } = self.settings.backoff;
        let mut pauses = Backoff::between(first, last);
        let (shared, key) = (Arc::clone(&self.stack), self.key().to_owned());
        shared.server.want();
        let cancel = self.settings.cancel.as_ref();
        let waiting = Arc::downgrade(&shared);
        let wake = move || {
            if let Some(shared) = waiting.upgrade() {
                shared.queues.wake_all();
            }
        };
        let _woken = cancel.map(|cancel| cancel.wakes(wake));
        let mut line: Option<Box<dyn Line>> = None;
        while self.waits_until_it_is_time(place, line.as_deref_mut()) {
            // A silent server costs one time-out after the deadline, and not one more for a wake-up that came late.
            if self.attempts.made > 0 && self.deadline.has_passed() {
                break;
            }
            self.attempts.made += 1;
            let call = (self.hold).acquiring(self.lease_millis, true, Refusal::WithItsEnd);
            let looks_first = self.may_look() && place.looks_first();
            line = line.filter(|line| line.is_open());
            if line.is_none() && self.may_listen(&call) && place.is_alone() {
                line = shared.server.line(&key);
            }
            let asked = match &mut line {
                Some(line) => line.ask(&call, looks_first),
                None => (shared.server).ask_for_head(&call, looks_first, self.deadline),
            };
            let reply = match asked {
                Ok(reply) => reply,
                Err(Unsent::NoConnection(error @ (Error::TooOld { .. } | Error::Forked))) => {
                    return Err(error);
                }
                Err(Unsent::NoConnection(error)) => {
                    self.attempts.was_not_sent(error);
                    place.look_again_at(Some(self.now() + pauses.next_pause(Duration::MAX)));
                    continue;
                }
                Err(Unsent::InUse { has_failed }) => {
                    self.others_had_the_connection(has_failed);
                    break;
                }
            };
            match self.attempts.judge(reply, self.now())? {
                Outcome::Granted {
                    grant,
                    next_asks_at,
                } => {
                    // Nobody else is told of what comes on the line.
                    let next_asks_at = line.map_or(next_asks_at, |_| self.now());
                    return Ok(Some((grant, next_asks_at)));
                }
                Outcome::HasBeenRun => return Ok(None),
                Outcome::Refused {
                    ask_again_at,
                    tracked: true,
                } => {
                    pauses.start_again();
                    let look_again = looks_first.then(|| self.now() + ATTEMPT_AFTER_A_LOOK);
                    place.refused(ask_again_at.into_iter().chain(look_again).min());
                }
                Outcome::Refused { tracked: false, .. } => {
                    place.refused(Some(self.now() + pauses.next_pause(Duration::MAX)));
                }
                Outcome::Failed => {
                    place.look_again_at(Some(self.now() + pauses.next_pause(Duration::MAX)));
                }
            }
        }
        self.attempts.last_failure().map_or(Ok(None), Err)
    }

    /// By the line, if it has it, and otherwise by whoever wakes it. False: it leaves.
    fn waits_until_it_is_time(
        &self,
        place: &Place<'_, Settings, Lease>,
        line: Option<&mut (dyn Line + '_)>,
    ) -> bool {
        let Some(line) = line.filter(|line| line.is_open()) else {
            return place.wait_unless(self.settings.cancel.as_ref(), self.deadline);
        };
        loop {
            let until = match place.next_step(self.deadline) {
                Next::Ask => return true,
                Next::Leave => return false,
                Next::Sleep(until) => until,
            };
            match line.listen(until) {
                News::Changed => self.stack.queues.changed(self.key()),
                News::Nothing => {}
                News::Lost => place.look_again_at(Some(self.now())),
            }
        }
    }

    /// Whether it may wait on the line: nothing else may have to wake it, a message that comes while replicas are waited for
    /// would be passed over, and an intent is taken back by the connection that all share.
    fn may_listen(&self, call: &Call) -> bool {
        let can_be_called_off = self.settings.cancel.is_some();
        !can_be_called_off && call.replicas().is_none() && self.hold.quitting().is_none()
    }

    /// Whether a look at the key's end says as much as a refusal would: that of a mutex which is not ours already.
    fn may_look(&self) -> bool {
        self.hold.kind() == Kind::Mutex && !self.attempts.may_be_ours()
    }

    /// By a connection of the pool, which is given back at once.
    fn ask_by_the_pool(&mut self, leaves_intent: bool) -> Result<Outcome> {
        self.attempts.made += 1;
        let call = (self.hold).acquiring(self.lease_millis, leaves_intent, Refusal::Bare);
        let patience = Patience {
            lent: self.deadline.remaining().max(LENT_TO_OTHERS),
            is_here: true,
            ..Patience::USUAL
        };
        let reply = self.stack.server.ask(&call, patience)?;
        self.attempts.judge(reply, self.now())
    }

    /// Until the deadline, so that this one was not asked. If they got no answer, nobody knows who has the lock.
    fn others_had_the_connection(&mut self, has_failed: bool) {
        if has_failed && !self.attempts.has_failed() {
            self.attempts.was_not_sent(Error::Pool {
                reason: String::from("the server did not answer others who wait"),
                source: None,
            });
        }
    }

    /// Before the next one asks, whom a writer's intent would keep out. A server that has not answered is not asked again: the
    /// intent ends by itself within a second.
    fn take_back_intent(&self, failure: Option<&Error>) {
        let is_silent = matches!(failure, Some(Error::Unknown { .. } | Error::Pool { .. }));
        if let Some(call) = self.hold.quitting().filter(|_| !is_silent) {
            self.stack.server.send_unawaited(&call, QUITTING);
        }
    }

    /// Has the watchdog's thread give back what an attempt without an answer may have taken, or may still take, unless that
    /// is for the lease that has been granted to release.
    fn abandon_what_is_out(&self, acquired: &Result<Option<Lease>>) {
        let is_ours = |lease: &Lease| Arc::ptr_eq(lease.hold(), &self.hold);
        let is_held = matches!(acquired, Ok(Some(lease)) if is_ours(lease));
        let comes_late = self.attempts.is_out();
        if (comes_late || self.attempts.may_be_ours()) && !is_held {
            self.stack.keeper.abandon(&self.hold, comes_late);
        }
    }

    fn lease(&self, grant: Grant) -> Option<Lease> {
        let keep = |standing, terms| Some(Handle::keep(&self.stack.keeper, standing, terms));
        let lease = Lease::begin(&self.stack, self.settings, &self.hold, grant, keep);
        self.stack.server.want();
        lease.map(Lease::claimed)
    }

    fn report(&self, acquired: Option<&Lease>) {
        let (lock, made) = (self.operation.lock, self.attempts.made);
        let waited = || self.stack.clock.since(self.started);
        let Some(lease) = acquired else {
            return emit(self.settings.events.as_ref(), |events| {
                events.contended(&Contended::new(lock, waited(), made));
            });
        };
        lease.report_loss();
        emit(self.settings.events.as_ref(), |events| {
            events.acquired(&Acquired::new(lock, waited(), made, lease.fencing_token()));
        });
    }

    /// What is known of the lock without asking once more.
    fn busy(&self) -> Busy {
        let end = self.attempts.busy_until();
        let left = end.map(|end| end.saturating_duration_since(self.now()));
        Busy {
            waited: Some(self.stack.clock.since(self.started)),
            holder: self.stack.keeper.holder_of(self.key()),
            remaining: left.filter(|left| !left.is_zero()),
        }
    }

    /// How a lock that is handed over would be held, if it is to be.
    fn takes(&self) -> Option<Settings> {
        // Only the server knows whether work that is to be done once has been done meanwhile.
        let asks = self.hold.kind() != Kind::Mutex || self.hold.finishing().is_some();
        let takes = self.settings.hands_over() && !asks;
        takes.then(|| self.settings.clone())
    }

    fn leaving(&self) -> Leaving {
        match self.hold.kind() {
            Kind::Mutex | Kind::Write => Leaving::Exclusive,
            Kind::Reentrant | Kind::Read => Leaving::Shared,
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
