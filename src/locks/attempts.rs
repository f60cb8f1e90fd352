//! What the attempts at one lock have come to, as a plain value: no lock, no clock, no I/O.
//!
//! All attempts of one wait have one token, so that an attempt which is executed twice counts once.
//! What each answer leads to:
//!
//! | the answer | then |
//! |---|---|
//! | granted | the lease begins, unless the answer took longer than the lease: then another attempt |
//! | it has been run within the period | the wait is over |
//! | somebody else has it | another attempt when that one has to be gone; an earlier attempt without an answer was in vain |
//! | no answer, or none that makes sense | another attempt; at the deadline the answer is `Unknown` |
//! | a refusal that passes, such as `LOADING` or `OOM` | another attempt; at the deadline it is the answer |
//! | the key is on another server by now | another attempt there |
//! | granted, but another server has become the master meanwhile | another attempt |
//! | granted, but too few replicas have it | another attempt; at the deadline it is given back, and that is the answer |
//! | any other refusal | it is the answer; after an attempt without an answer, `Unknown` is |

use std::{
    io::{Error as IoError, ErrorKind},
    sync::Arc,
    time::{Duration, Instant},
};

use redis::RedisError;

use super::{lease::Grant, options::Settings};
use crate::{
    error::{Error, Operation, Result, WRONG_MARK, is_unconfirmed, may_pass},
    recipes::{
        hold::{Attempt, Hold, LockKind},
        once::LastRun,
    },
    server::Reply,
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
pub(crate) struct Attempts<'a> {
    operation: Operation<'a>,
    settings: &'a Settings,
    hold: Arc<Hold>,
    /// How often the server was asked.
    pub(crate) made: u32,
    /// An attempt got no answer, or was granted for a lease that was over by then, and none since
    /// has said that somebody else has the lock: it may be ours.
    uncertain: bool,
    /// An attempt got no answer: it may still be executed, whatever was answered since.
    is_out: bool,
    /// How much sooner than on the server a lease ends by our clock.
    skew: Duration,
    /// When those who have the lock have to be gone, by the last answer.
    busy_until: Option<Instant>,
    /// An answer said that somebody else has it.
    was_refused: bool,
    /// Why the last attempt failed.
    failure: Option<Error>,
    /// It has been run within the period.
    found_run: Option<LastRun>,
}

/// What an attempt leads to.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted {
        grant: Grant,
        /// The next in the queue asks then, unless something happens before.
        next_asks_at: Instant,
    },
    /// Somebody else has it.
    Refused {
        /// Whoever is in the way has to be gone by then, or the server's message is not relied on
        /// for longer.
        ask_again_at: Instant,
        tracked: bool,
    },
    /// There is nothing to do with the lock: see [`Attempts::found_run`].
    AlreadyRun,
    /// Worth another attempt.
    Failed,
    /// Worth another attempt at once, where the key is now.
    Moved,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(
        operation: Operation<'a>,
        settings: &'a Settings,
        skew: Duration,
        hold: Arc<Hold>,
    ) -> Self {
        Self {
            operation,
            settings,
            hold,
            made: 0,
            uncertain: false,
            is_out: false,
            skew,
            busy_until: None,
            was_refused: false,
            failure: None,
            found_run: None,
        }
    }

    /// Who did the work that was to be done once in a period, and when, if an answer said so.
    pub(crate) fn found_run(&mut self) -> Option<LastRun> {
        self.found_run.take()
    }

    /// What this reply leads to; an error is the answer of the whole wait.
    pub(crate) fn judge(&mut self, reply: Reply, now: Instant) -> Result<Outcome> {
        let Reply { sent, tracked, .. } = reply;
        self.is_out |= reply.again;
        self.uncertain |= reply.has_moved && reply.again;
        if let (true, Err(error)) = (reply.has_moved, &reply.answer) {
            self.failure = Some(self.operation.told(error.clone()));
            return Ok(Outcome::Moved);
        }
        let attempt = match reply
            .answer
            .and_then(|answer| self.hold.understood(&answer))
        {
            Ok(attempt) => attempt,
            Err(error) => return self.failed(error, reply.again),
        };
        self.failure = None;
        let end = sent + self.settings.longest_at_first().saturating_sub(self.skew);
        match attempt {
            Attempt::Granted { .. } if end <= now => {
                // The next attempt takes it anew, or finds out who has it.
                self.uncertain = true;
                Ok(Outcome::Failed)
            }
            Attempt::Granted { fence, number } => {
                let turns = self.settings.turns(number, sent);
                let grant = Grant {
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
                Ok(Outcome::Granted {
                    grant,
                    next_asks_at,
                })
            }
            Attempt::AlreadyRun(run) => {
                // If an earlier attempt of ours has taken the lock, it is lost: otherwise nobody
                // else could have written the mark.
                self.uncertain = false;
                self.found_run = Some(run);
                Ok(Outcome::AlreadyRun)
            }
            Attempt::Busy(longest) => {
                self.busy_until = longest.and_then(|longest| reply.answered.checked_add(longest));
                self.uncertain = false;
                self.was_refused = true;
                Ok(Outcome::Refused {
                    ask_again_at: reply.answered + self.longest_pause(longest),
                    tracked,
                })
            }
        }
    }

    pub(crate) fn busy_until(&self) -> Option<Instant> {
        self.busy_until
    }

    /// The last grant does not count until another attempt confirms it.
    pub(crate) fn is_unconfirmed(&mut self) {
        self.uncertain = true;
    }

    /// Nothing was sent.
    pub(crate) fn was_not_sent(&mut self, failure: Error) {
        self.failure = Some(failure);
    }

    /// The deadline has come. Returns the error to answer; `None`: a plain no.
    pub(crate) fn last_failure(&mut self) -> Option<Error> {
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
    pub(crate) fn ended_by(&self, error: Error) -> Error {
        match error {
            Error::Pool { source, .. } if self.uncertain => match source {
                Some(source) => self.operation.unknown(Some(self.hold.token()), source),
                None => self.unknown(),
            },
            Error::TooOld { .. } | Error::Thread { .. } if self.uncertain => self.unknown(),
            error => error,
        }
    }

    /// Whether an attempt may still be executed, or has been, without our having heard of it.
    pub(crate) fn is_out(&self) -> bool {
        self.is_out
    }

    /// Whether the lock may be ours, as far as the last attempts tell.
    pub(crate) fn may_be_ours(&self) -> bool {
        self.uncertain
    }

    /// Whether the last attempt failed since its server does not know yet whose the key is, or is
    /// not ready for it.
    pub(crate) fn is_in_doubt(&self) -> bool {
        let code = match &self.failure {
            Some(Error::Redis { source, .. }) => source.code(),
            _ => None,
        };
        matches!(
            code,
            Some("CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" | "MOVED")
        )
    }

    /// Whether the last attempt failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Why the last attempt failed, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.clone()
    }

    /// Whether somebody else was seen to have it.
    pub(crate) fn was_refused(&self) -> bool {
        self.was_refused
    }

    fn failed(&mut self, error: RedisError, again: bool) -> Result<Outcome> {
        let (passes, is_unconfirmed) = (may_pass(&error), is_unconfirmed(&error));
        let names_its_key = error.code() == Some(WRONG_MARK);
        let error = self.operation.unanswered(Some(self.hold.token()), error);
        if again || matches!(error, Error::Unknown { .. }) {
            (self.uncertain, self.is_out) = (true, true);
        }
        if !passes && !matches!(error, Error::Unknown { .. }) {
            // A refusal says nothing about an attempt before it whose answer did not come.
            return Err(if self.uncertain {
                self.unknown()
            } else {
                self.uncertain = is_unconfirmed;
                if names_its_key {
                    error
                } else {
                    self.naming_keys(error)
                }
            });
        }
        self.uncertain |= is_unconfirmed;
        self.failure = Some(error);
        Ok(Outcome::Failed)
    }

    fn unknown(&self) -> Error {
        let silence = IoError::from(ErrorKind::TimedOut).into();
        self.operation.unknown(Some(self.hold.token()), silence)
    }

    /// Names the keys, since what is no lock has to be found by an operator, and may be at either.
    fn naming_keys(&self, error: Error) -> Error {
        let (key, companion) = (
            self.hold.lock_name().key(),
            self.hold.lock_name().companion(),
        );
        match error {
            Error::WrongKind { found, .. } if !self.hold.is_fenced() => {
                self.operation.wrong_kind(format!("{found}, at `{key}`"))
            }
            Error::WrongKind { found, .. } => {
                let found = format!("{found}, at `{key}` or `{companion}`");
                self.operation.wrong_kind(found)
            }
            error => error,
        }
    }

    /// How long to wait for news, when those in the way may stay so long. A writer has to renew its
    /// intent meanwhile.
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
