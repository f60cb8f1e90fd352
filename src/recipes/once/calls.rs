//! The scripts beside this file that take no lock, one typed call each.

use crate::{
    name::{LockName, Owner},
    script::{Call, scripts},
    token::Token,
};

scripts! {
    FINISH_RUN = "mark.lua" then "finish.lua";
    LAST_RUN = "mark.lua" then "last_run.lua";
}

/// Answers 1 if the lock was ours until now: the run is marked, and the lock is free.
pub(crate) fn finish(lock: &LockName, token: &Token, who: &Owner, kept_millis: u64) -> Call {
    FINISH_RUN
        .on([lock.key(), &lock.run_mark()])
        .arg(token.as_str())
        .arg(who.as_str())
        .arg(kept_millis)
}

/// Answers who ran it last and when, or nil.
pub(crate) fn last_run(lock: &LockName) -> Call {
    LAST_RUN.on([&lock.run_mark()])
}
