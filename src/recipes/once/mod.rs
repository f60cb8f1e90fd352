//! Work that is done once in a period: the mark that a run leaves beside its lock.

use std::time::{Duration, SystemTime};

use redis::{RedisResult, Value};

use super::{number, text};
use crate::{
    error::makes_no_sense,
    name::{LockName, Owner},
    token::Token,
    wire::{Call, scripts},
};

scripts! {
    FINISH_RUN = "mark.lua" then "finish.lua";
    LAST_RUN = "mark.lua" then "last_run.lua";
}

/// Answers 1 if the lock was ours until now: the run is marked, and the lock is free.
pub(super) fn finishing(
    lock: &LockName,
    (token, who): (&Token, &Owner),
    period_millis: u64,
) -> Call {
    FINISH_RUN
        .on([lock.key(), &lock.run_mark()])
        .arg(&[token.as_str(), who.as_str()])
        .arg(period_millis.saturating_mul(2))
}

/// Answers who ran it last and when, or nil.
pub(crate) fn last_run(lock: &LockName) -> Call {
    LAST_RUN.on([&lock.run_mark()])
}

/// Who did some work last under a lock, and when. See [`Lock::run_once`](crate::Lock::run_once) and
/// [`Lock::last_run`](crate::Lock::last_run).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    at: SystemTime,
    by: Option<Owner>,
    ago: Duration,
}

impl LastRun {
    /// When it had succeeded, by the server's clock.
    #[must_use]
    pub fn at(&self) -> SystemTime {
        self.at
    }

    /// The time since then, when the server was asked, by its clock. Nothing if that clock has been
    /// set back.
    #[must_use]
    pub fn ago(&self) -> Duration {
        self.ago
    }

    /// Who ran it: host, process and thread, or what [`Options::owner`](crate::Options::owner)
    /// named. `None`: the mark says nothing that could be an owner.
    #[must_use]
    pub fn by(&self) -> Option<&Owner> {
        self.by.as_ref()
    }
}

/// Reads the mark, if this is the answer of a script that has read one.
pub(crate) fn understood(answer: &Value) -> RedisResult<Option<LastRun>> {
    let Value::Array(parts) = answer else {
        return Ok(None);
    };
    let [ran, at, by, now] = &parts[..] else {
        return Ok(None);
    };
    if text(ran) != Some("ran") {
        return Ok(None);
    }
    let (at, now) = number(at).zip(number(now)).ok_or_else(makes_no_sense)?;
    let at = Duration::from_millis(at);
    Ok(Some(LastRun {
        at: SystemTime::UNIX_EPOCH
            .checked_add(at)
            .ok_or_else(makes_no_sense)?,
        by: text(by).and_then(|by| Owner::new(by).ok()),
        ago: Duration::from_millis(now).saturating_sub(at),
    }))
}
