//! A recorded commit, for a test to inspect.

/// A commit that the stand-in executed: a job's writes in one transaction under a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// The name of the lock or, for a set, all names: `a, b`.
    pub lock: String,
    /// The commands with their arguments, as sent: `["SET", "report:text", "all is well"]`. Bytes
    /// that are not UTF-8 are replaced by U+FFFD.
    pub commands: Vec<Vec<String>>,
}
