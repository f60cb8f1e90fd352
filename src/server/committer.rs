//! Commits on a server without connections: the stand-in for tests.

use redis::{Pipeline, RedisResult, Value};

use crate::{error::Result, wire::Call};

/// Executes commits in place of a connection. Called on the holder's thread, without a lock held.
pub(crate) trait Committer {
    /// Executes it, if the lock is still the caller's. The outer error: the request did not arrive.
    fn commit(&self, request: &CommitRequest<'_>) -> Result<RedisResult<CommitOutcome>>;
}

/// A transaction to execute while a lock is held.
pub(crate) struct CommitRequest<'a> {
    /// The name of the lock.
    pub(crate) lock: &'a str,
    /// Returns 1 while the lock is the caller's.
    pub(crate) look: &'a Call,
    pub(crate) writes: &'a Pipeline,
    /// Releases the lock in the same transaction.
    pub(crate) release: Option<&'a Call>,
    /// The key that marks an executed commit, and the time for which it does, in milliseconds.
    pub(crate) mark: Option<(&'a str, u64)>,
}

/// The outcome of a commit.
#[derive(Debug)]
pub(crate) enum CommitOutcome {
    /// With one reply for each command.
    Executed(Vec<Value>),
    /// It was marked before. Nothing was executed.
    Before,
    /// The lock is not the caller's. Nothing was executed.
    Lost,
}
