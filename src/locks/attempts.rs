//! The attempts to acquire one lock, as a plain value: no mutex, no clock, no I/O.
//!
//! All attempts of one wait use one token, so an attempt that is executed twice counts once.
//! [`judge`](Attempts::judge) alone decides what a reply means:
//!
//! - **Granted**: the lease begins. If the reply took longer than the lease, try again.
//! - **Done within the period** (`run_once`): the wait is over.
//! - **Someone else holds the lock**: try again when that holder's lease has ended. An earlier
//!   attempt without a reply did not take the lock.
//! - **No reply, or an unexpected one**: try again; at the deadline return `Unknown`.
//! - **A temporary refusal**, such as `LOADING` or `OOM`: try again; at the deadline return it.
//! - **The key has moved to another server**: try again there.
//! - **Granted, but too few replicas have it**: try again; at the deadline release the lock and
//!   return that error.
//! - **Any other refusal**: return it; after an attempt without a reply, return `Unknown`.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use redis::RedisError;

use super::lease::LeaseGrant;
use crate::{
    error::{
        Error, Operation, Result, WrongKey, is_unconfirmed, may_pass, refusal, timed_out, wrong_key,
    },
    options::settings::Settings,
    recipes::{Attempt, Hold, LastRun, LockKind},
    server::Reply,
    token::FencingToken,
    waiting::{ASKS_AGAIN, Leaving},
};

/// A waiting writer asks again after this time, to renew its intent: the intent lasts one second,
/// and the script renews it when less than 500 ms are left.
const INTENT: Duration = Duration::from_millis(600);
/// A writer's intent lasts at most this long unless the writer renews it.
const INTENT_ENDS: Duration = Duration::from_secs(1);
/// The watchdog looks at a lease for the first time this long after the grant. That look makes the
/// server report a loss from then on.
pub(super) const ARMED_WITHIN: Duration = Duration::from_millis(20);

/// The state of the lock, as far as the attempts so far show it.
#[derive(Debug)]
pub(super) enum Standing {
    /// No reply has named its holder.
    Nothing,
    /// A reply named another holder. All leases of the holders end at this moment, if it is known.
    Busy(Option<Instant>),
    /// The lock may be ours: an attempt got no reply, or its lease was over when the reply came, or
    /// too few replicas have the lock. No later reply has named another holder.
    InDoubt,
    /// The work of `run_once` was done within the period, so the lock is not needed.
    Done(LastRun),
}

/// The attempts of one wait, and what their replies mean.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    operation: Operation<'a>,
    settings: &'a Settings,
    hold: Arc<Hold>,
    /// A lease ends earlier by our clock than on the server, by this much.
    skew: Duration,
    /// The key may move to another server.
    may_move: bool,
    /// The number of attempts sent to the server.
    pub(super) made: u32,
    pub(super) standing: Standing,
    /// An attempt got no reply: it may still be executed, whatever later replies say.
    pub(super) is_out: bool,
    /// The failure of the last attempt, if it failed.
    pub(super) failure: Option<Error>,
}

/// The outcome of an attempt.
#[derive(Debug)]
pub(super) enum AttemptOutcome {
    Granted {
        grant: LeaseGrant,
        /// The way this thread leaves its queue.
        leaving: Leaving,
        /// The moment at which the next thread in the queue asks, unless an event wakes it earlier.
        next_asks_at: Instant,
    },
    /// Someone else holds the lock.
    Refused {
        /// The time to ask again: the end of the holder's lease, or earlier in case the server's
        /// notification is lost. `None`: the server sends no notifications.
        ask_again_at: Option<Instant>,
    },
    /// The work is done, so the lock is not needed: see [`Standing::Done`].
    AlreadyRun,
    /// Try again.
    Failed,
    /// Try again at once, on the server that has the key now.
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
            standing: Standing::Nothing,
            is_out: false,
            failure: None,
        }
    }

    /// Returns the outcome of this reply. An error ends the whole wait.
    pub(super) fn judge(&mut self, reply: Reply, now: Instant) -> Result<AttemptOutcome> {
        self.is_out |= reply.again;
        let attempt = match reply
            .answer
            .and_then(|answer| self.hold.read_attempt(&answer))
        {
            Ok(attempt) => attempt,
            Err(error) if self.may_move && error.code() == Some("MOVED") => {
                if reply.again {
                    self.standing = Standing::InDoubt;
                }
                self.failure = Some(self.operation.told(error));
                return Ok(AttemptOutcome::Moved);
            }
            Err(error) => return self.failed(error, reply.again),
        };
        self.failure = None;
        match attempt {
            Attempt::Granted {
                fence,
                number,
                next_in,
            } => {
                let (sent, answered) = (reply.sent, reply.answered);
                let next_at = next_in.map(|next| answered + self.longest_pause(Some(next)));
                Ok(self.granted(
                    (fence, number),
                    next_at,
                    (sent, answered),
                    reply.tracked,
                    now,
                ))
            }
            Attempt::AlreadyRun(run) => {
                // If one of our earlier attempts acquired the lock, it has lost it: only another
                // holder can have written the mark.
                self.standing = Standing::Done(run);
                Ok(AttemptOutcome::AlreadyRun)
            }
            Attempt::Busy(longest) => {
                // A waiting writer keeps readers out too, and its intent is no lease.
                let is_reader = self.hold.kind == LockKind::Read;
                let lease = longest.filter(|longest| !is_reader || *longest > INTENT_ENDS);
                let until = lease.and_then(|lease| reply.answered.checked_add(lease));
                self.standing = Standing::Busy(until);
                let ask_again_at = reply.answered + self.longest_pause(longest);
                Ok(AttemptOutcome::Refused {
                    ask_again_at: reply.tracked.then_some(ask_again_at),
                })
            }
        }
    }

    fn granted(
        &mut self,
        (fence, number): (Option<FencingToken>, u64),
        next_at: Option<Instant>,
        (sent, answered): (Instant, Instant),
        tracked: bool,
        now: Instant,
    ) -> AttemptOutcome {
        let end = sent + self.settings.longest_at_first().saturating_sub(self.skew);
        if end <= now {
            // The next attempt takes the lock again, or finds its holder.
            self.standing = Standing::InDoubt;
            return AttemptOutcome::Failed;
        }
        let turns = self.settings.turns(number, sent);
        let grant = LeaseGrant {
            fence,
            since: sent,
            terms: (self.settings).terms(sent, end, Some(now + ARMED_WITHIN), self.skew),
            turns: turns.filter(|_| self.hold.kind == LockKind::Mutex),
            unanswered_before: self.is_out,
        };
        let next_asks_at = if tracked {
            next_at.unwrap_or(end).min(now + ASKS_AGAIN)
        } else {
            now + self.settings.backoff.last
        };
        let shared = |more| Leaving::Shared { more, answered };
        let leaving = match self.hold.kind {
            LockKind::Mutex | LockKind::Write => Leaving::Exclusive,
            LockKind::Semaphore { .. } => shared(u32::try_from(number).unwrap_or(u32::MAX)),
            LockKind::Read => shared(u32::MAX),
            // The next waiter may have the same owner.
            LockKind::Reentrant => shared(1),
        };
        AttemptOutcome::Granted {
            grant,
            leaving,
            next_asks_at,
        }
    }

    /// Returns true if an attempt may have acquired the lock.
    pub(super) fn may_be_ours(&self) -> bool {
        matches!(self.standing, Standing::InDoubt)
    }

    /// Returns the error of a wait that ends at its deadline. `None`: someone else holds the lock.
    pub(super) fn last_failure(&mut self) -> Option<Error> {
        match (self.may_be_ours(), self.failure.take()) {
            (false, failure) => failure,
            (true, Some(failure @ (Error::Unknown { .. } | Error::TooFewReplicas { .. }))) => {
                Some(failure)
            }
            (true, _) => Some(self.unknown()),
        }
    }

    /// Returns the result of a wait that `error` ends: `error` itself, unless the lock may be ours.
    /// Then one that means "nothing was done" becomes the cause of an `Unknown`.
    pub(super) fn ended_by(&self, error: Error) -> Error {
        match error {
            Error::Pool { .. } | Error::TooOld { .. } | Error::Thread { .. }
                if self.may_be_ours() =>
            {
                self.unknown_then(&error.to_string())
            }
            error => error,
        }
    }

    fn failed(&mut self, error: RedisError, again: bool) -> Result<AttemptOutcome> {
        let (passes, is_unconfirmed) = (may_pass(&error), is_unconfirmed(&error));
        let (names_its_key, refusal) = (
            matches!(wrong_key(&error), Some((WrongKey::Mark, _))),
            refusal(&error),
        );
        let error = self.operation.unanswered(Some(&self.hold.token), error);
        let is_unknown = matches!(error, Error::Unknown { .. });
        if again || is_unknown {
            (self.standing, self.is_out) = (Standing::InDoubt, true);
        }
        if passes || is_unknown {
            if is_unconfirmed {
                self.standing = Standing::InDoubt;
            }
            self.failure = Some(error);
            return Ok(AttemptOutcome::Failed);
        }
        if self.may_be_ours() {
            // A refusal does not tell whether an earlier attempt without a reply took the lock.
            return Err(self.unknown_then(&format!("Redis {refusal}")));
        }
        if is_unconfirmed {
            self.standing = Standing::InDoubt;
        }
        match error {
            Error::WrongKind { found, .. } if !names_its_key => Err(self.with_keys(&found)),
            error => Err(error),
        }
    }

    fn unknown(&self) -> Error {
        self.operation.unknown(Some(&self.hold.token), timed_out())
    }

    /// Returns the error of a wait in which an attempt got no reply, and which this later text
    /// ended.
    fn unknown_then(&self, later: &str) -> Error {
        let cause = io::Error::other(format!("then {later}"));
        self.operation.unknown(Some(&self.hold.token), cause.into())
    }

    /// Adds the keys to the error: an operator must find the value that is not a lock, and it may
    /// be at either key.
    fn with_keys(&self, found: &str) -> Error {
        let lock = &self.hold.lock;
        let found = match (lock.key(), lock.companion()) {
            (key, companion) if self.hold.has_companion() => {
                format!("{found}, at `{key}` or `{companion}`")
            }
            (key, _) => format!("{found}, at `{key}`"),
        };
        self.operation.wrong_kind(found)
    }

    /// Returns the time until the next attempt if no notification comes, for holders whose leases
    /// end after `longest`. A writer asks sooner, to renew its intent.
    fn longest_pause(&self, longest: Option<Duration>) -> Duration {
        let most = match self.hold.kind {
            LockKind::Write => INTENT,
            _ => ASKS_AGAIN,
        };
        longest.map_or(most, |longest| most.min(longest + Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests;
