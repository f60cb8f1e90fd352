//! The attempts at one lock, as a plain value: no lock, no clock, no I/O.
//!
//! All attempts of one wait have one token, so that an attempt which is executed twice counts once.
//! [`judge`](Attempts::judge) is the one place that says what follows from an answer:
//!
//! | the answer | then |
//! |---|---|
//! | granted | the lease begins, unless the answer took longer than the lease: then another attempt |
//! | it has been run within the period | the wait is over |
//! | somebody else has it | another attempt when that one has to be gone; an earlier attempt without an answer was in vain |
//! | no answer, or none that makes sense | another attempt; at the deadline the answer is `Unknown` |
//! | a refusal that passes, such as `LOADING` or `OOM` | another attempt; at the deadline it is the answer |
//! | the key is on another server by now | another attempt there |
//! | granted, but too few replicas have it | another attempt; at the deadline it is given back, and that is the answer |
//! | any other refusal | it is the answer; after an attempt without an answer, `Unknown` is |

use std::{
    io::{Error as IoError, ErrorKind},
    sync::Arc,
    time::{Duration, Instant},
};

use redis::RedisError;

use super::{lease::LeaseGrant, options::Settings};
use crate::{
    error::{Error, Operation, Result, WRONG_MARK, is_unconfirmed, may_pass},
    recipes::{
        hold::{Attempt, Hold, LockKind},
        once::LastRun,
    },
    server::Reply,
    token::FencingToken,
    waiting::LOOKS_AGAIN,
};

/// After so long a waiting writer asks again, so that its intent is written anew: the script does
/// so when less than 500 ms of its second are left.
const INTENT: Duration = Duration::from_millis(600);
/// A loss is told of within this, plus what the network takes, also at the very beginning of a
/// lease.
const ARMED_WITHIN: Duration = Duration::from_millis(20);

/// The attempts of one wait.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact by itself")]
pub(super) struct Attempts<'a> {
    operation: Operation<'a>,
    settings: &'a Settings,
    hold: Arc<Hold>,
    /// A lease ends by our clock sooner than on the server by this.
    skew: Duration,
    /// The key may be on another server by now.
    may_move: bool,
    /// Counts the questions to the server.
    pub(super) made: u32,
    /// An attempt got no answer, or was granted for a lease that was over by then, and none since
    /// has said that somebody else has the lock: it may be ours.
    pub(super) uncertain: bool,
    /// An attempt got no answer: it may still be executed, whatever was answered since.
    pub(super) is_out: bool,
    /// When those who have the lock have to be gone, by the last answer.
    pub(super) busy_until: Option<Instant>,
    /// An answer said that somebody else has it.
    pub(super) was_refused: bool,
    /// Why the last attempt failed, if it did.
    pub(super) failure: Option<Error>,
    /// It has been run within the period.
    pub(super) found_run: Option<LastRun>,
}

/// The consequence of an attempt.
#[derive(Debug)]
pub(super) enum AttemptOutcome {
    Granted {
        grant: LeaseGrant,
        /// The next in the queue asks then, unless something happens before.
        next_asks_at: Instant,
    },
    /// Somebody else has it.
    Refused {
        /// Whoever is in the way has to be gone by then, or the server's message is not relied on
        /// for longer. `None`: the server does not tell of changes.
        ask_again_at: Option<Instant>,
    },
    /// There is nothing to do with the lock: see [`Attempts::found_run`].
    AlreadyRun,
    /// Worth another attempt.
    Failed,
    /// Worth another attempt at once, where the key is now.
    Moved,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(
        operation: Operation<'a>,
        settings: &'a Settings,
        skew: Duration,
        may_move: bool,
        hold: Arc<Hold>,
    ) -> Self {
        Self {
            operation,
            settings,
            hold,
            skew,
            may_move,
            made: 0,
            uncertain: false,
            is_out: false,
            busy_until: None,
            was_refused: false,
            failure: None,
            found_run: None,
        }
    }

    /// The consequence of this reply; an error is the answer of the whole wait.
    pub(super) fn judge(&mut self, reply: Reply, now: Instant) -> Result<AttemptOutcome> {
        self.is_out |= reply.again;
        let attempt = match reply
            .answer
            .and_then(|answer| self.hold.understood(&answer))
        {
            Ok(attempt) => attempt,
            Err(error) if self.may_move && error.code() == Some("MOVED") => {
                self.uncertain |= reply.again;
                self.failure = Some(self.operation.told(error));
                return Ok(AttemptOutcome::Moved);
            }
            Err(error) => return self.failed(error, reply.again),
        };
        self.failure = None;
        match attempt {
            Attempt::Granted { fence, number } => {
                Ok(self.granted(fence, number, reply.sent, reply.tracked, now))
            }
            Attempt::AlreadyRun(run) => {
                // If an earlier attempt of ours has taken the lock, it is lost: otherwise nobody
                // else could have written the mark.
                self.uncertain = false;
                self.found_run = Some(run);
                Ok(AttemptOutcome::AlreadyRun)
            }
            Attempt::Busy(longest) => {
                self.busy_until = longest.and_then(|longest| reply.answered.checked_add(longest));
                self.uncertain = false;
                self.was_refused = true;
                let ask_again_at = reply.answered + self.longest_pause(longest);
                Ok(AttemptOutcome::Refused {
                    ask_again_at: reply.tracked.then_some(ask_again_at),
                })
            }
        }
    }

    fn granted(
        &mut self,
        fence: Option<FencingToken>,
        number: u64,
        sent: Instant,
        tracked: bool,
        now: Instant,
    ) -> AttemptOutcome {
        let end = sent + self.settings.longest_at_first().saturating_sub(self.skew);
        if end <= now {
            // The next attempt takes it anew, or finds out who has it.
            self.uncertain = true;
            return AttemptOutcome::Failed;
        }
        let turns = self.settings.turns(number, sent);
        let grant = LeaseGrant {
            fence,
            since: sent,
            end,
            look_at: Some(now + ARMED_WITHIN),
            turns: turns.filter(|_| self.hold.kind() == LockKind::Mutex),
            unanswered_before: self.is_out,
        };
        let next_asks_at = if tracked {
            end.min(now + LOOKS_AGAIN)
        } else {
            now + self.settings.backoff.last
        };
        AttemptOutcome::Granted {
            grant,
            next_asks_at,
        }
    }

    /// The deadline has come. Returns the error to answer; `None`: a plain no.
    pub(super) fn last_failure(&mut self) -> Option<Error> {
        match (self.uncertain, self.failure.take()) {
            (false, failure) => failure,
            (true, Some(failure @ (Error::Unknown { .. } | Error::TooFewReplicas { .. }))) => {
                Some(failure)
            }
            (true, _) => Some(self.unknown()),
        }
    }

    /// The answer of a wait that ends by this error. One that says that nothing was done is not the
    /// answer where the lock may be ours.
    pub(super) fn ended_by(&self, error: Error) -> Error {
        match error {
            Error::Pool { source, .. } if self.uncertain => match source {
                Some(source) => self.operation.unknown(Some(self.hold.token()), source),
                None => self.unknown(),
            },
            Error::TooOld { .. } | Error::Thread { .. } if self.uncertain => self.unknown(),
            error => error,
        }
    }

    fn failed(&mut self, error: RedisError, again: bool) -> Result<AttemptOutcome> {
        let (passes, is_unconfirmed) = (may_pass(&error), is_unconfirmed(&error));
        let names_its_key = error.code() == Some(WRONG_MARK);
        let error = self.operation.unanswered(Some(self.hold.token()), error);
        let is_unknown = matches!(error, Error::Unknown { .. });
        if again || is_unknown {
            (self.uncertain, self.is_out) = (true, true);
        }
        if passes || is_unknown {
            self.uncertain |= is_unconfirmed;
            self.failure = Some(error);
            return Ok(AttemptOutcome::Failed);
        }
        if self.uncertain {
            // A refusal says nothing about an attempt before it whose answer did not come.
            return Err(self.unknown());
        }
        self.uncertain = is_unconfirmed;
        match error {
            Error::WrongKind { found, .. } if !names_its_key => Err(self.naming_keys(&found)),
            error => Err(error),
        }
    }

    fn unknown(&self) -> Error {
        let silence = IoError::from(ErrorKind::TimedOut).into();
        self.operation.unknown(Some(self.hold.token()), silence)
    }

    /// Names the keys, since what is no lock has to be found by an operator, and may be at either.
    fn naming_keys(&self, found: &str) -> Error {
        let lock = self.hold.lock_name();
        let found = match (lock.key(), lock.companion()) {
            (key, _) if !self.hold.is_fenced() => format!("{found}, at `{key}`"),
            (key, companion) => format!("{found}, at `{key}` or `{companion}`"),
        };
        self.operation.wrong_kind(found)
    }

    /// The longest wait for news, when those in the way may stay for that long. A writer has to
    /// renew its intent meanwhile.
    fn longest_pause(&self, longest: Option<Duration>) -> Duration {
        let most = match self.hold.kind() {
            LockKind::Write => INTENT,
            _ => LOOKS_AGAIN,
        };
        longest.map_or(most, |longest| most.min(longest + Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests;
