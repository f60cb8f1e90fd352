//! A commit on a server to which no connection leads: a stand-in for tests.

use redis::{Pipeline, RedisResult, Value};

use crate::{error::Result, wire::Call};

/// Executes commits in place of a connection. Called on the holder's thread, with nothing locked.
pub(crate) trait Committer {
    /// Executes it, if the lock is still the caller's. An error beside the outcome: it did not get
    /// through.
    fn commit(&self, request: &CommitRequest<'_>) -> Result<RedisResult<CommitOutcome>>;
}

/// A transaction to execute while a lock is held.
pub(crate) struct CommitRequest<'a> {
    /// The name of the lock.
    pub(crate) lock: &'a str,
    /// Answers 1 while the lock is the caller's.
    pub(crate) look: &'a Call,
    pub(crate) writes: &'a Pipeline,
    /// Lets go of the lock in the same transaction.
    pub(crate) release: Option<&'a Call>,
    /// The key that says that it has been executed before, and for how many milliseconds it does.
    pub(crate) mark: Option<(&'a str, u64)>,
}

/// The outcome of a commit.
#[derive(Debug)]
pub(crate) enum CommitOutcome {
    /// With one answer for each command.
    Executed(Vec<Value>),
    /// It was marked before. Nothing was executed.
    Before,
    /// The lock is not the caller's. Nothing was executed.
    Lost,
}
