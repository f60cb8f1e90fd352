//! How a lock is waited for.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{RedisResult, Value};

use crate::{
    error::{Error, Operation, Result, may_pass},
    name::{LockName, Owner},
    recipes::hold::{Attempt, Holding, Kind},
    renewing::handle::Handle,
    script::Refusal,
    time::{Backoff, Deadline},
    token::{FencingToken, Token},
};
use crate::{
    event::{Acquired, Contended, tell},
    locks::{
        lease::{Grant, Lease},
        options::{Options, Pauses},
        shared::Shared,
    },
    server::{HeadAnswer, Patience},
    waiting::{Leaving, Place},
};

/// After so long a waiting writer asks again, so that its intent is written anew: the script does so when less than 500 ms
/// of its second are left.
const INTENT: Duration = Duration::from_millis(600);
/// How long to try to take back an intent that ends by itself soon.
const QUITTING: Duration = Duration::from_millis(50);

/// A loss is told of within this, plus what the network takes, also at the very beginning of a lease.
const ARMED_WITHIN: Duration = Duration::from_millis(20);
/// How long a try that may not wait waits for a connection, when all are lent to others for a moment.
const FIRST: Duration = Duration::from_millis(200);

/// One wait for one lock.
struct Wait<'a> {
    operation: Operation<'a>,
    shared: &'a Arc<Shared<Lease>>,
    options: &'a Options,
    hold: Arc<Holding>,
    lease_millis: u64,
    started: Instant,
    deadline: Deadline,
    attempts: u32,
    /// An attempt whose answer did not come: the lock may be ours until then.
    uncertain: Option<Instant>,
    /// An attempt whose answer did not come may still be executed, whatever was answered since.
    is_out: bool,
    /// Why the last attempt failed.
    failure: Option<Error>,
}

/// What an attempt has come to.
enum Outcome {
    Granted(Granted),
    /// Nobody else in the way stays longer than until then, if anything is known.
    Refused {
        look_again: Option<Instant>,
        tracked: bool,
    },
    /// Worth another attempt.
    Failed,
    /// The line was not free.
    Late,
}

struct Granted {
    fence: Option<FencingToken>,
    /// How many more fencing tokens are for those the lock is handed to.
    reserved: u64,
    /// A moment before the attempt was sent.
    sent: Instant,
    tracked: bool,
}

/// Waits for the lock, at least one attempt long. `None`: somebody else had it all the time.
pub(crate) fn acquire(
    operation: Operation<'_>,
    shared: &Arc<Shared<Lease>>,
    options: &Options,
    kind: Kind,
    lock: LockName,
    owner: Owner,
    timeout: Duration,
) -> Result<Option<Lease>> {
    let lease_millis = options.checked()?;
    let hold = Holding::new(kind, lock, Token::random(), owner);
    let started = shared.clock.now();
    let mut wait = Wait {
        operation,
        shared,
        options,
        hold: Arc::new(hold.reserving(options.reserved())),
        lease_millis,
        started,
        deadline: shared.clock.at(started.checked_add(timeout)),
        attempts: 0,
        uncertain: None,
        is_out: false,
        failure: None,
    };
    let lease = wait.lease(timeout);
    wait.abandon_what_is_out(&lease);
    let lease = lease?;
    let waited = || shared.clock.since(wait.started);
    let Some(lease) = lease else {
        tell(options.events.as_ref(), |events| {
            events.contended(&Contended::new(operation.lock, waited(), wait.attempts));
        });
        return Ok(None);
    };
    lease.tell_of_loss();
    tell(options.events.as_ref(), |events| {
        let fence = lease.fencing_token();
        events.acquired(&Acquired::new(
            operation.lock,
            waited(),
            wait.attempts,
            fence,
        ));
    });
    Ok(Some(lease))
}

impl Wait<'_> {
    fn lease(&mut self, timeout: Duration) -> Result<Option<Lease>> {
        let asks_at_once = self.shared.queues.asks_at_once(self.key(), timeout);
        // Whoever is in already must not wait behind others who wait for it to leave.
        if asks_at_once || timeout.is_zero() || self.hold.kind() == Kind::Reentrant {
            match self.first_attempt(!timeout.is_zero())? {
                Outcome::Granted(granted) => return Ok(self.guard(&granted)),
                Outcome::Refused { .. } | Outcome::Late if timeout.is_zero() => return Ok(None),
                _ if timeout.is_zero() => return Err(self.give_up()),
                _ => {}
            }
        }
        let shared = Arc::clone(self.shared);
        let place = shared.queues.join(self.key(), self.takes());
        let granted = self.in_the_queue(&place);
        if let Ok(Some(granted)) = &granted {
            let end = if granted.tracked {
                granted.sent + Duration::from_millis(self.lease_millis)
            } else {
                self.now() + self.options.backoff.last
            };
            place.leave(self.leaving(), end);
            return Ok(self.guard(granted));
        }
        // A server that has not answered is not asked again: a writer's intent ends by itself within a second.
        if !matches!(granted, Err(Error::Unknown { .. } | Error::Pool { .. })) {
            // Before the next one asks, whom the intent would keep out.
            self.quit();
        }
        if let Some(lease) = place.quit() {
            return Ok(Some(lease.claimed()));
        }
        granted.map(|_| None)
    }

    /// How a lock that is handed over would be held, if it is to be.
    fn takes(&self) -> Option<Options> {
        let takes = self.hold.kind() == Kind::Mutex && self.options.hands_over();
        takes.then(|| self.options.clone())
    }

    /// By a connection of the pool, which is given back at once.
    fn first_attempt(&mut self, waits: bool) -> Result<Outcome> {
        let wait = self.deadline.remaining().max(FIRST);
        self.attempts += 1;
        // The intent of a writer that waits is written by the head of the queue alone.
        let waits = waits && self.shared.queues.waiting(self.key()) == 0;
        let call = (self.hold).acquiring(self.lease_millis, waits, Refusal::Bare);
        let patience = Patience {
            lent: wait,
            ..Patience::USUAL
        };
        let asked = self.shared.server.ask(&call, patience)?;
        if asked.again && asked.answer.is_err() {
            // What was sent before has got no answer.
            self.is_out = true;
            self.uncertain = Some(self.end(asked.sent));
        }
        self.came(asked.answer, asked.sent, asked.sent, false)
    }

    /// As the head of the queue, by the waiters' connection, whenever there is reason to.
    fn in_the_queue(&mut self, place: &Place<'_, Options, Lease>) -> Result<Option<Granted>> {
        let Pauses { first, last } = self.options.backoff;
        let mut pauses = Backoff::between(first, last);
        self.shared.server.want();
        while place.wait(self.deadline) {
            // A server that is silent costs one time-out after the deadline, and not one more for a bell that rang late.
            if self.attempts > 0 && self.deadline.has_passed() {
                break;
            }
            match self.head_attempt()? {
                Outcome::Granted(granted) => return Ok(Some(granted)),
                Outcome::Refused {
                    look_again,
                    tracked: true,
                } => {
                    pauses.start_again();
                    place.refused(look_again);
                }
                Outcome::Refused { tracked: false, .. } => {
                    place.refused(Some(self.now() + pauses.next_pause(Duration::MAX)));
                }
                Outcome::Failed => {
                    let pause = pauses.next_pause(Duration::MAX);
                    place.look_again_at(Some(self.now() + pause));
                }
                Outcome::Late => break,
            }
        }
        if self.uncertain.is_some() || self.failure.is_some() {
            return Err(self.give_up());
        }
        Ok(None)
    }

    fn head_attempt(&mut self) -> Result<Outcome> {
        self.attempts += 1;
        let asked_at = self.now();
        let call = (self.hold).acquiring(self.lease_millis, true, Refusal::WithItsEnd);
        match self.shared.server.ask_for_head(&call, self.deadline) {
            HeadAnswer::Answered {
                answer,
                sent,
                answered,
                tracked,
            } => self.came(Ok(answer), sent, answered, tracked),
            HeadAnswer::Never { has_failed } => {
                if self.failure.is_none() && has_failed {
                    self.failure = Some(Error::Pool {
                        reason: String::from("the server did not answer others who wait"),
                        source: None,
                    });
                }
                Ok(Outcome::Late)
            }
            HeadAnswer::Unsent(error @ (Error::TooOld { .. } | Error::Forked)) => Err(error),
            HeadAnswer::Unsent(error) => {
                self.failure = Some(error);
                Ok(Outcome::Failed)
            }
            HeadAnswer::Failed(error) => self.failed(asked_at, error),
        }
    }

    /// What came of an attempt.
    fn came(
        &mut self,
        answer: RedisResult<Value>,
        sent: Instant,
        answered: Instant,
        tracked: bool,
    ) -> Result<Outcome> {
        match answer.and_then(|answer| self.hold.understood(answer)) {
            Ok(attempt) => Ok(self.understood(&attempt, sent, answered, tracked)),
            Err(error) => self.failed(sent, error),
        }
    }

    fn understood(
        &mut self,
        attempt: &Attempt,
        sent: Instant,
        answered: Instant,
        tracked: bool,
    ) -> Outcome {
        self.failure = None;
        match *attempt {
            Attempt::Granted { .. } if self.end(sent) <= self.now() => {
                // The answer took longer than the lease. The next attempt takes it anew, or finds out who has it.
                self.is_out = true;
                self.uncertain = Some(self.end(self.now()));
                Outcome::Failed
            }
            Attempt::Granted { fence, reserved } => Outcome::Granted(Granted {
                fence,
                reserved,
                sent,
                tracked,
            }),
            Attempt::Busy(longest) => {
                self.uncertain = None;
                let look_again = self.look_again(longest, answered);
                Outcome::Refused {
                    look_again,
                    tracked,
                }
            }
        }
    }

    /// Whether it is worth another attempt, with the same token.
    fn failed(&mut self, sent: Instant, error: redis::RedisError) -> Result<Outcome> {
        let passes = may_pass(&error);
        let error = self.operation.unanswered(Some(self.hold.token()), error);
        if matches!(error, Error::Unknown { .. }) {
            let answered_by = self.now().max(sent);
            self.is_out = true;
            self.uncertain = Some(self.end(answered_by));
        } else if !passes {
            // A refusal says nothing about an attempt before it whose answer did not come.
            let is_certain = self.uncertain.is_none();
            return Err(if is_certain {
                self.naming_keys(error)
            } else {
                self.give_up()
            });
        }
        self.failure = Some(error);
        Ok(Outcome::Failed)
    }

    /// What is not a lock has to be found by somebody, and may be at either key.
    fn naming_keys(&self, error: Error) -> Error {
        let lock = self.hold.lock_name();
        match error {
            Error::WrongKind { found, .. } => self.operation.wrong_kind(format!(
                "{found}, at `{}` or `{}`",
                lock.key(),
                lock.companion()
            )),
            error => error,
        }
    }

    /// The deadline has come with something else than a no.
    fn give_up(&mut self) -> Error {
        match (self.uncertain, self.failure.take()) {
            (None, Some(failure)) | (Some(_), Some(failure @ Error::Unknown { .. })) => failure,
            _ => {
                let silence = std::io::Error::from(std::io::ErrorKind::TimedOut).into();
                self.operation.unknown(Some(self.hold.token()), silence)
            }
        }
    }

    /// Has the watchdog's thread give back what an attempt without an answer may have taken, or may still take, unless that
    /// is for the lease that has been granted to release.
    fn abandon_what_is_out(&self, acquired: &Result<Option<Lease>>) {
        let is_ours = |lease: &Lease| Arc::ptr_eq(lease.hold(), &self.hold);
        let is_held = matches!(acquired, Ok(Some(lease)) if is_ours(lease));
        if self.is_out && !is_held {
            self.shared.keeper.abandon(&self.hold, true);
        }
    }

    /// Lets go of a writer's intent.
    fn quit(&self) {
        if let Some(call) = self.hold.quitting() {
            self.shared.server.send_unawaited(&call, QUITTING);
        }
    }

    /// When to ask again if nothing is heard: when whoever is in the way has to be gone. A writer has to renew its intent.
    fn look_again(&self, longest: Option<Duration>, answered: Instant) -> Option<Instant> {
        let longest = longest.map(|longest| longest + Duration::from_millis(1));
        let longest = match self.hold.kind() {
            Kind::Write => Some(longest.map_or(INTENT, |longest| longest.min(INTENT))),
            _ => longest,
        };
        longest.and_then(|longest| answered.checked_add(longest))
    }

    fn leaving(&self) -> Leaving {
        match self.hold.kind() {
            Kind::Mutex | Kind::Write => Leaving::Exclusive,
            Kind::Reentrant | Kind::Read => Leaving::Shared,
        }
    }

    fn guard(&self, granted: &Granted) -> Option<Lease> {
        let turns = self.options.turns(granted.reserved, granted.sent);
        let grant = Grant {
            fence: granted.fence,
            since: granted.sent,
            end: self.end(granted.sent),
            look_at: Some(self.now() + ARMED_WITHIN),
            turns: turns.filter(|_| self.hold.kind() == Kind::Mutex),
            unanswered_before: self.is_out,
        };
        let keep = |standing, terms| Some(Handle::keep(&self.shared.keeper, standing, terms));
        let lease = Lease::begin(self.shared, self.options, &self.hold, grant, keep);
        self.shared.server.want();
        lease.map(Lease::claimed)
    }

    fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    fn end(&self, sent: Instant) -> Instant {
        let lease = self.options.lease;
        sent + self.options.max_hold.map_or(lease, |max| max.min(lease))
    }

    fn key(&self) -> &str {
        self.hold.lock_name().key()
    }
}
