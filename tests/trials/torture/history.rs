//! The records that workers write while they work. Each is written at once, so that it survives a
//! kill of the worker.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;

/// The mode of a hold, which decides who else may hold the lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    /// One of this many permits.
    Permit(u32),
}

/// An attempt to acquire a lock, recorded before it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Unique among the attempts of a round.
    pub(crate) id: u64,
    pub(crate) worker: u32,
    pub(crate) job: String,
    pub(crate) lock: String,
    pub(crate) mode: Mode,
    /// The owner of a reentrant lock, who may hold it more than once.
    pub(crate) owner: Option<String>,
    pub(crate) lease: Nanos,
    /// The longest wait. `None`: a client of another kind, which promises nothing.
    pub(crate) timeout: Option<Nanos>,
    pub(crate) at: Nanos,
}

/// The result of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) id: u64,
    pub(crate) at: Nanos,
    pub(crate) fence: Option<u64>,
    pub(crate) token: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Record {
    Asked(Asked),
    Granted(Granted),
    /// Not granted. `unknown`: it may hold the lock anyway, for a while.
    Refused {
        id: u64,
        at: Nanos,
        unknown: bool,
    },
    /// The waiting thread was runnable for this long without a free core.
    KeptReady {
        id: u64,
        by: Nanos,
    },
    /// A wait was cancelled at this moment, or had ended before.
    CalledOff {
        id: u64,
        at: Nanos,
    },
    /// The holder asked after this moment, and was told that it holds the lock.
    Held {
        id: u64,
        at: Nanos,
    },
    /// The hold has ended. `released`: when the release succeeded.
    Ended {
        id: u64,
        at: Nanos,
        released: Option<Nanos>,
    },
    /// A write at the resource.
    Wrote {
        id: u64,
        lock: String,
        fence: u64,
        at: Nanos,
        /// The position among the writes at the resource.
        nth: u64,
        accepted: bool,
    },
    /// The effect of a commit under the lock on a number. `None`: unknown.
    Added {
        number: String,
        done: Option<bool>,
    },
    /// Once-only work was done. The times of its request, its start and its end, and the latest
    /// time of its mark, if any.
    Ran {
        lock: String,
        period: Nanos,
        asked: Nanos,
        begun: Nanos,
        over: Nanos,
        marked: Option<Nanos>,
    },
    /// A fault that a worker caused itself.
    Made {
        kind: String,
        at: Nanos,
    },
    /// A broken promise that the worker itself noticed.
    Broken {
        checker: String,
        lock: String,
        at: Nanos,
        what: String,
    },
    /// An expected failure, counted by its text.
    Failed {
        what: String,
    },
    /// A thread that only pings the server had to wait for it.
    Stalled {
        worker: u32,
        from: Nanos,
        to: Nanos,
    },
    /// A job of a worker with a single connection kept it for this long, while it waited for a lock
    /// and held it.
    Lent {
        worker: u32,
        from: Nanos,
        to: Nanos,
    },
    /// The file descriptors of a worker at its end, beyond those at its start.
    Left {
        worker: u32,
        files: u64,
    },
}

/// A file of records.
#[derive(Debug)]
pub(crate) struct Writer(File);

impl Writer {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(file))
    }

    /// Writes a record with one system call, so that a killed worker leaves whole lines.
    pub(crate) fn write(&mut self, record: &Record) {
        let Ok(mut line) = serde_json::to_vec(record) else {
            return;
        };
        line.push(b'\n');
        // A worker that cannot write has no way to report it.
        let _ = self.0.write_all(&line);
    }
}

/// Reads all records of a folder. Those of one file are in order.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == "history") {
            let text = std::fs::read_to_string(path)?;
            // The last line of a killed worker may be incomplete.
            records.extend(
                text.lines()
                    .filter_map(|line| serde_json::from_str(line).ok()),
            );
        }
    }
    Ok(records)
}
