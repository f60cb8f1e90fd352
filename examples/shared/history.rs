//! A history of holds as JSON lines: which holder took a lock, when and for how long, and when it
//! gave the lock back or lost it.

use std::{
    fs::File,
    io::Write,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use leasehold::{
    Events,
    event::{Acquired, Lost, Released, Renewed},
};
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Entry {
    /// The part of the history that the entry belongs to. Each scene is drawn separately.
    pub(crate) scene: String,
    /// The time since the scene's first entry or earlier, in milliseconds.
    pub(crate) at_ms: u64,
    pub(crate) holder: String,
    #[serde(flatten)]
    pub(crate) happened: Happened,
}

/// The event of a holder's lock.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Happened {
    /// It waits for the lock.
    Waits,
    /// It holds the lock for this lease unless it renews; `None`: forever.
    Acquired {
        lease_ms: Option<u64>,
        /// A reader, which may share the lock with other readers.
        #[serde(default)]
        reader: bool,
    },
    /// The lease now ends this long from now.
    Renewed { lease_ms: u64 },
    /// Another deleted its lock, and it does not know.
    Deleted,
    /// It learned that the lock is lost, and stops.
    Lost,
    /// It releases the lock, or thinks that it does.
    Released,
}

impl Happened {
    pub(crate) const fn acquired(lease_ms: u64) -> Self {
        Self::Acquired {
            lease_ms: Some(lease_ms),
            reader: false,
        }
    }
}

/// Writes entries to a file.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    file: Arc<Mutex<File>>,
    scene: String,
    started: Instant,
}

impl Recorder {
    pub(crate) fn create(file: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            file: Arc::new(Mutex::new(File::create(file)?)),
            scene: String::new(),
            started: Instant::now(),
        })
    }

    /// Creates a recorder for another scene in the same file, which starts now.
    pub(crate) fn of_scene(&self, scene: &str) -> Self {
        Self {
            file: self.file.clone(),
            scene: scene.to_owned(),
            started: Instant::now(),
        }
    }

    pub(crate) fn record(&self, holder: &str, happened: Happened) -> anyhow::Result<()> {
        let entry = Entry {
            scene: self.scene.clone(),
            at_ms: millis(self.started.elapsed()),
            holder: holder.to_owned(),
            happened,
        };
        let line = serde_json::to_string(&entry)? + "\n";
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())?;
        Ok(())
    }

    /// Returns hooks for [`leasehold::Options::events`] that record what happens to one holder's
    /// locks.
    pub(crate) fn events(&self, holder: &str, lease: Duration) -> Arc<dyn Events> {
        Arc::new(HoldsOf {
            recorder: self.clone(),
            holder: holder.to_owned(),
            lease,
        })
    }
}

struct HoldsOf {
    recorder: Recorder,
    holder: String,
    lease: Duration,
}

impl HoldsOf {
    fn record(&self, happened: Happened) {
        // A hook has no way to report that the disk is full.
        let _ = self.recorder.record(&self.holder, happened);
    }
}

impl Events for HoldsOf {
    fn acquired(&self, _acquired: &Acquired<'_>) {
        self.record(Happened::acquired(millis(self.lease)));
    }

    fn renewed(&self, renewed: &Renewed<'_>) {
        self.record(Happened::Renewed {
            lease_ms: millis(renewed.remaining()),
        });
    }

    fn lost(&self, _lost: &Lost<'_>) {
        self.record(Happened::Lost);
    }

    fn released(&self, _released: &Released<'_>) {
        self.record(Happened::Released);
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
