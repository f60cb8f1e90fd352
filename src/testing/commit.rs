//! A recorded commit, for a test to inspect.

/// A commit that the stand-in executed: a job's writes in one transaction under a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    lock: String,
    commands: Vec<Vec<String>>,
}

impl Commit {
    pub(super) fn new(lock: &str, commands: Vec<Vec<String>>) -> Self {
        Self {
            lock: lock.to_owned(),
            commands,
        }
    }

    /// Returns the name of the lock or, for a set, all names: `a, b`.
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.lock
    }

    /// Returns the commands with their arguments, as sent: `["SET", "report:text", "all is well"]`.
    /// Bytes that are not UTF-8 are replaced by U+FFFD.
    #[must_use]
    pub fn commands(&self) -> &[Vec<String>] {
        &self.commands
    }
}
