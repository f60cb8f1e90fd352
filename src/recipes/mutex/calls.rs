//! The scripts beside this file, one typed call each.

use crate::{
    name::{LockName, Owner},
    script::{Call, Packed, Refusal, scripts},
    token::Token,
};

scripts! {
    ACQUIRE_MUTEX = "acquire.lua";
    ACQUIRE_UNFENCED_MUTEX = "acquire_unfenced.lua";
    ACQUIRE_MUTEX_UNLESS_RUN = "../once/unless_run.lua" then "acquire.lua";
    ACQUIRE_UNFENCED_MUTEX_UNLESS_RUN = "../once/unless_run.lua" then "acquire_unfenced.lua";
    RENEW_MUTEX = "../companion.lua" then "renew.lua";
    RELEASE_MUTEX = "release.lua";
}

/// Answers the fencing token, or nil if somebody else has the lock. Of the end, the part that is 0 does not count. Where
/// more fencing tokens are to be reserved, at most so many, it answers how many are.
pub(crate) fn acquire(
    lock: &LockName,
    token: &Token,
    (lease_millis, end_millis): (u64, u64),
    who: &Owner,
    refusal: Refusal,
    reserved: u64,
) -> Call {
    let call = ACQUIRE_MUTEX.on([lock.key(), &lock.companion()]);
    let lease = (lease_millis, end_millis);
    with_arguments(call, token, lease, who, refusal, reserved)
}

/// The same for a lease of so many milliseconds, unless the last run was less than so many milliseconds ago: then it answers
/// who ran it and when.
pub(crate) fn acquire_unless_run(
    lock: &LockName,
    token: &Token,
    lease_millis: u64,
    who: &Owner,
    refusal: Refusal,
    (reserved, period_millis): (u64, u64),
) -> Call {
    let call = ACQUIRE_MUTEX_UNLESS_RUN.on([lock.key(), &lock.companion(), &lock.run_mark()]);
    with_arguments(call, token, (lease_millis, 0), who, refusal, reserved).arg(period_millis)
}

fn with_arguments(
    call: Call,
    token: &Token,
    (lease_millis, end_millis): (u64, u64),
    who: &Owner,
    refusal: Refusal,
    reserved: u64,
) -> Call {
    let call = call.arg(token.as_str()).arg(lease_millis).arg(who.as_str());
    // What comes last is left out where it says nothing: each argument costs the server a little.
    match (refusal, reserved, end_millis) {
        (Refusal::Bare, 0, 0) => call,
        (_, 0, 0) => call.arg(refusal.flag()),
        (_, _, 0) => call.arg(refusal.flag()).arg(reserved),
        _ => call.arg(refusal.flag()).arg(reserved).arg(end_millis),
    }
}

/// Without a fencing token: answers 1, or nil if somebody else has the lock. First sent as the bare command, which answers OK;
/// that does not recognise its own token, so whatever comes after it is the script.
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
pub(super) fn set_if_free(key: &str, token: &Token, lease_millis: u64) -> Packed {
    Packed::command("SET")
        .arg([key, token.as_str(), "NX", "PX"])
        .arg(lease_millis)
}

/// Answers whether the lock is ours, and now lasts at least so long.
pub(crate) fn renew(lock: &LockName, token: &Token, lease_millis: u64) -> Call {
    RENEW_MUTEX
        .on([lock.key(), &lock.companion()])
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
