//! The scripts beside this file, one typed call each.

use redis::Cmd;

use crate::{
    name::{LockName, Owner},
    script::{Call, Refusal, scripts},
    token::Token,
};

scripts! {
    ACQUIRE_MUTEX = "acquire.lua";
    ACQUIRE_UNFENCED_MUTEX = "acquire_unfenced.lua";
    ACQUIRE_MUTEX_UNLESS_RUN = "../once/mark.lua" then "../once/unless_run.lua" then "acquire.lua";
    ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN = "../once/mark.lua" then "../once/unless_run.lua" then "acquire_unfenced.lua";
    RENEW_MUTEX = "../companion.lua" then "renew.lua";
    RELEASE_MUTEX = "release.lua";
}

/// When a lock ends, as the script takes it: so many milliseconds from now, or since 1970.
#[derive(Clone, Copy)]
pub(crate) enum EndMillis {
    After(u64),
    At(u64),
}

/// What an attempt with a fencing token asks for.
pub(crate) struct Request<'a> {
    pub(crate) token: &'a Token,
    pub(crate) end: EndMillis,
    pub(crate) who: &'a Owner,
    pub(crate) refusal: Refusal,
    /// How many more fencing tokens to reserve, at the most.
    pub(crate) reserved: u64,
}

/// Answers the fencing token, and how many more are reserved if any were asked for, or nil if
/// somebody else has the lock.
pub(crate) fn acquire(lock: &LockName, request: &Request<'_>) -> Call {
    request.of(ACQUIRE_MUTEX.on([lock.key(), &lock.companion()]))
}

/// The same for a lease of a length, unless the last run was less than so many milliseconds ago:
/// then it answers who ran it and when.
pub(crate) fn acquire_unless_run(
    lock: &LockName,
    request: &Request<'_>,
    period_millis: u64,
) -> Call {
    let keys = [lock.key(), &lock.companion(), &lock.run_mark()];
    request
        .of(ACQUIRE_MUTEX_UNLESS_RUN.on(keys))
        .arg(period_millis)
}

impl Request<'_> {
    /// The call with these arguments. What comes last is left out where it says nothing: each
    /// argument costs the server a little.
    fn of(&self, call: Call) -> Call {
        let (lease, moment) = match self.end {
            EndMillis::After(lease) => (lease, None),
            EndMillis::At(moment) => (0, Some(moment)),
        };
        let call = call
            .arg(self.token.as_str())
            .arg(lease)
            .arg(self.who.as_str());
        let (refusal, reserved) = (self.refusal.flag(), self.reserved);
        match (self.refusal, reserved, moment) {
            (Refusal::Bare, 0, None) => call,
            (_, 0, None) => call.arg(refusal),
            (_, _, None) => call.arg(refusal).arg(reserved),
            (_, _, Some(moment)) => call.arg(refusal).arg(reserved).arg(moment),
        }
    }
}

/// Without a fencing token: answers 1, or nil if somebody else has the lock. First sent as the bare
/// command, which answers OK; that does not recognise its own token, so whatever comes after it is
/// the script.
pub(crate) fn acquire_unfenced(
    lock: &LockName,
    token: &Token,
    lease_millis: u64,
    refusal: Refusal,
) -> Call {
    ACQUIRE_UNFENCED_MUTEX
        .on([lock.key()])
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(refusal.flag())
        .first_as(set_if_free(lock.key(), token, lease_millis))
}

/// The same unless the last run was less than so many milliseconds ago, always as a script.
pub(crate) fn acquire_unfenced_unless_run(
    lock: &LockName,
    token: &Token,
    lease_millis: u64,
    refusal: Refusal,
    period_millis: u64,
) -> Call {
    ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN
        .on([lock.key(), &lock.run_mark()])
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(refusal.flag())
        .arg(period_millis)
}

/// The shortest way to take a lock.
pub(super) fn set_if_free(key: &str, token: &Token, lease_millis: u64) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(&[key, token.as_str(), "NX", "PX"])
        .arg(lease_millis);
    set
}

/// Answers whether the lock is ours, and now lasts at least so long.
///
/// A lock of the plain functions may have no companion.
pub(crate) fn renew(lock: &LockName, token: &Token, lease_millis: u64) -> Call {
    RENEW_MUTEX
        .on([lock.key(), &lock.companion()])
        .arg(token.as_str())
        .arg(lease_millis)
}

/// Renews a lock without a companion.
pub(crate) fn renew_unfenced(lock: &LockName, token: &Token, lease_millis: u64) -> Call {
    RENEW_MUTEX
        .on([lock.key()])
        .arg(token.as_str())
        .arg(lease_millis)
}

/// Answers whether the lock was ours until now.
pub(crate) fn release(lock: &LockName, token: &Token) -> Call {
    release_key(lock.key(), token)
}

/// The same of whatever key a lock of this format stands at.
pub(crate) fn release_key(key: &str, token: &Token) -> Call {
    RELEASE_MUTEX.on([key]).arg(token.as_str())
}
