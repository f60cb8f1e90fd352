//! A recorded commit, for a test to inspect.

use redis::{Arg, Cmd, Pipeline};

/// A commit that the stand-in has executed: a job's writes in one transaction under a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    lock: String,
    commands: Vec<Vec<String>>,
}

impl Commit {
    pub(super) fn new(lock: &str, writes: &Pipeline) -> Self {
        Self {
            lock: lock.to_owned(),
            commands: writes.cmd_iter().map(words).collect(),
        }
    }

    /// The name of the lock.
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.lock
    }

    /// The commands with their arguments, as sent: `["SET", "report:text", "all is well"]`. Bytes
    /// that are not UTF-8 are replaced by U+FFFD.
    #[must_use]
    pub fn commands(&self) -> &[Vec<String>] {
        &self.commands
    }
}

fn words(command: &Cmd) -> Vec<String> {
    let word = |arg| match arg {
        Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        // The cursor at the start of an iteration.
        _ => "0".to_owned(),
    };
    command.args_iter().map(word).collect()
}
