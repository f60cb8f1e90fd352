//! What workers write down while they work, a line for each, so that what was written is there whenever they are killed.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;

/// Who may be in at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    /// As one of so many.
    Permit(u32),
}

/// An attempt to get a lock, before it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Never the same for two attempts of a round.
    pub(crate) id: u64,
    pub(crate) worker: u32,
    pub(crate) job: String,
    pub(crate) lock: String,
    pub(crate) mode: Mode,
    /// Who may be in more than once.
    pub(crate) owner: Option<String>,
    pub(crate) lease: Nanos,
    /// For how long it may wait; `None`: it is no waiter of ours, and promises nothing.
    pub(crate) timeout: Option<Nanos>,
    pub(crate) at: Nanos,
}

/// What became of it.
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
    /// It was not granted. `unknown`: it may be ours all the same, for a while.
    Refused {
        id: u64,
        at: Nanos,
        unknown: bool,
    },
    /// The thread that waited could have run for so long, and no core was free.
    KeptReady {
        id: u64,
        by: Nanos,
    },
    /// A wait was called off at this moment, or had ended before.
    CalledOff {
        id: u64,
        at: Nanos,
    },
    /// The holder was sure that it had the lock, asked after this moment.
    Held {
        id: u64,
        at: Nanos,
    },
    /// It holds no longer; `released`: when the release had been answered well.
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
        /// In the order of the resource.
        nth: u64,
        accepted: bool,
    },
    /// What a commit under the lock did to a number: `None`, nobody knows.
    Added {
        number: String,
        done: Option<bool>,
    },
    /// Work that is to be done once in a period was done: asked for, begun, over, and marked at the latest then, if it was.
    Ran {
        lock: String,
        period: Nanos,
        asked: Nanos,
        begun: Nanos,
        over: Nanos,
        marked: Option<Nanos>,
    },
    /// A fault that a worker made itself.
    Made {
        kind: String,
        at: Nanos,
    },
    /// What must never happen, seen by the worker itself.
    Broken {
        checker: String,
        lock: String,
        at: Nanos,
        what: String,
    },
    /// What failed and may fail, counted by its words.
    Failed {
        what: String,
    },
    /// A worker's thread that only asks the server for a sign of life had to wait for it.
    Stalled {
        worker: u32,
        from: Nanos,
        to: Nanos,
    },
    /// A job of a worker with a pool of one had the connection, for as long as it waited for a lock and held it.
    Lent {
        worker: u32,
        from: Nanos,
        to: Nanos,
    },
    /// A worker at its end: file descriptors more than at its beginning.
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

    /// In one write, so that a process that is killed leaves whole lines.
    pub(crate) fn write(&mut self, record: &Record) {
        let Ok(mut line) = serde_json::to_vec(record) else {
            return;
        };
        line.push(b'\n');
        // A worker that cannot write has nobody to tell.
        let _ = self.0.write_all(&line);
    }
}

/// All records of a folder, those of one file in their order.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == "history") {
            let text = std::fs::read_to_string(path)?;
            // The last line of a worker that was killed may be missing its end.
            records.extend(
                text.lines()
                    .filter_map(|line| serde_json::from_str(line).ok()),
            );
        }
    }
    Ok(records)
}
