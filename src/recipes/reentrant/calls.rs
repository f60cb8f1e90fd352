//! The scripts beside this file, one typed call each.

use crate::{
    name::{LockName, Owner},
    script::{Call, Refusal, scripts},
    token::Token,
};

scripts! {
    ACQUIRE_REENTRANT = "../companion.lua" then "levels.lua" then "acquire.lua";
    RENEW_REENTRANT = "../companion.lua" then "levels.lua" then "renew.lua";
    RELEASE_REENTRANT = "../companion.lua" then "levels.lua" then "release.lua";
}

/// Answers the fencing token and how often the owner holds the lock now, or nil if another owner
/// has it.
pub(crate) fn acquire(
    lock: &LockName,
    owner: &Owner,
    token: &Token,
    lease_millis: u64,
    refusal: Refusal,
) -> Call {
    ACQUIRE_REENTRANT
        .on([lock.key(), &lock.companion()])
        .arg(owner.as_str())
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(refusal.flag())
}

/// Which levels of a reentrant lock a token may stand for.
#[derive(Clone, Copy)]
pub(crate) enum Levels {
    /// The acquisition that was counted with it.
    Counted,
    /// Also one that a program on the notes' scripts took, which counts without tokens.
    AlsoOfTheNotes,
}

impl Levels {
    fn flag(self) -> u8 {
        u8::from(matches!(self, Self::Counted))
    }
}

/// Answers whether the acquisition is ours, and now lasts at least so long.
pub(crate) fn renew(
    lock: &LockName,
    owner: &Owner,
    token: &Token,
    lease_millis: u64,
    levels: Levels,
) -> Call {
    RENEW_REENTRANT
        .on([lock.key(), &lock.companion()])
        .arg(owner.as_str())
        .arg(token.as_str())
        .arg(lease_millis)
        .arg(levels.flag())
}

/// Answers how often the owner held the lock until now.
pub(crate) fn release(lock: &LockName, owner: &Owner, token: &Token, levels: Levels) -> Call {
    RELEASE_REENTRANT
        .on([lock.key(), &lock.companion()])
        .arg(owner.as_str())
        .arg(token.as_str())
        .arg(levels.flag())
}
