//! What every lesson needs.

pub(crate) use std::time::Duration;

pub(crate) use anyhow::{Context, Result};
pub(crate) use leasehold::{
    Error, Token,
    redis::{self, Connection},
};

pub(crate) use crate::{
    shared::{
        Redis,
        history::Happened,
        scene::{Reply, Scene},
    },
    trap::Trap,
};

/// The lock that most lessons are about: the key `lock:trap`.
pub(crate) const NAME: &str = "trap";
pub(crate) const NO_WAIT: Duration = Duration::ZERO;

pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// What an acquire answered, in a word.
pub(crate) fn granted<T>(answer: Option<&T>) -> &'static str {
    if answer.is_some() {
        "granted"
    } else {
        "refused"
    }
}
