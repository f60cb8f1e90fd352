//! Work that runs once per period: the mark that a run leaves.
//!
//! The period is that of the caller who reads the mark, and may be longer than that of the run. So
//! every mark is kept for longer than the longest period.

use std::time::{Duration, SystemTime};

use redis::{RedisResult, Value};

use super::{number, text};
use crate::{
    error::makes_no_sense,
    name::{LockName, Owner},
    time::{MAX_PERIOD, whole_millis},
    token::Token,
    wire::{Call, scripts},
};

/// The time for which a mark is kept: a day longer than any period.
const KEPT: Duration = MAX_PERIOD.saturating_add(Duration::from_hours(24));

scripts! {
    FINISH_RUN = "mark.lua" then "finish.lua";
    LAST_RUN = "mark.lua" then "last_run.lua";
}

/// Marks the run and releases the lock: the reply is 1 if the lock was ours.
pub(super) fn finishing(lock: &LockName, (token, who): (&Token, &Owner)) -> Call {
    FINISH_RUN
        .on([lock.key(), &lock.run_mark()])
        .arg(&[token.as_str(), who.as_str()])
        .arg(whole_millis(KEPT))
}

/// Reads the mark: the reply is the owner and the time of the last run, or nil.
pub(crate) fn last_run(lock: &LockName) -> Call {
    LAST_RUN.on([&lock.run_mark()])
}

/// An earlier run: its time and its owner.
///
/// The last successful run of [`Lock::run_once`](crate::Lock::run_once), or the call of
/// [`Lease::commit_once`](crate::Lease::commit_once) that executed the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    at: SystemTime,
    by: Option<Owner>,
    ago: Duration,
}

impl LastRun {
    /// Creates a run. Both times are milliseconds since 1970, by the server's clock. `None`: too
    /// far in the future for this machine.
    pub(crate) fn new(at: u64, by: Option<&str>, now: u64) -> Option<Self> {
        let at = Duration::from_millis(at);
        Some(Self {
            at: SystemTime::UNIX_EPOCH.checked_add(at)?,
            by: by.and_then(|by| Owner::new(by).ok()),
            ago: Duration::from_millis(now).saturating_sub(at),
        })
    }

    /// Returns the time at which the run succeeded or the commit was executed, by the server's
    /// clock.
    #[must_use]
    pub fn at(&self) -> SystemTime {
        self.at
    }

    /// Returns the time from the run to this query, by the server's clock; zero if that clock was
    /// set back.
    #[must_use]
    pub fn ago(&self) -> Duration {
        self.ago
    }

    /// Returns the owner that did the work: host, process and thread, or the name set by
    /// [`Options::owner`](crate::Options::owner). `None`: the mark has no valid owner.
    #[must_use]
    pub fn by(&self) -> Option<&Owner> {
        self.by.as_ref()
    }
}

/// Reads the mark. `None`: this is not a reply with a mark.
pub(crate) fn read_mark(answer: &Value) -> RedisResult<Option<LastRun>> {
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
    let run = LastRun::new(at, text(by), now).ok_or_else(makes_no_sense)?;
    Ok(Some(run))
}
