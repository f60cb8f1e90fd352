//! A history of holds, as JSON lines: who took a lock and when, for how long, and when it was given back or lost.

use std::{
    fs::File,
    io::Write,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use leasehold::{
    Events,
    event::{Acquired, Lost, Released, Renewed},
};
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Entry {
    /// Which part of the history: each is drawn by itself.
    pub(crate) scene: String,
    /// When, in milliseconds after the scene's first entry or before it.
    pub(crate) at_ms: u64,
    pub(crate) holder: String,
    #[serde(flatten)]
    pub(crate) happened: Happened,
}

/// What happened to a holder's lock.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Happened {
    /// It asks for the lock and has to wait.
    Waits,
    /// It holds the lock, for so long unless it is renewed; without an end if that is missing.
    Acquired {
        lease_ms: Option<u64>,
        /// A reader: it may share the lock with other readers.
        #[serde(default)]
        reader: bool,
    },
    /// The lease ends so long from now.
    Renewed { lease_ms: u64 },
    /// Somebody or something ended its lock on the server, and it does not know.
    TakenAway,
    /// It was told that the lock is lost, and stops.
    Lost,
    /// It gives the lock back, or believes to.
    Released,
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

    /// For another scene in the same file, which begins now.
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
            at_ms: self.started.elapsed().as_millis().try_into()?,
            holder: holder.to_owned(),
            happened,
        };
        let line = serde_json::to_string(&entry)? + "\n";
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())?;
        Ok(())
    }

    /// Hooks for [`leasehold::Options::events`] that write down what happens to the locks of one holder.
    pub(crate) fn events(&self, holder: &str, lease_ms: u64) -> Arc<dyn Events> {
        Arc::new(HoldsOf {
            recorder: self.clone(),
            holder: holder.to_owned(),
            lease_ms,
        })
    }
}

struct HoldsOf {
    recorder: Recorder,
    holder: String,
    lease_ms: u64,
}

impl HoldsOf {
    fn record(&self, happened: Happened) {
        // A hook has nobody to tell that the disk is full.
        let _ = self.recorder.record(&self.holder, happened);
    }
}

impl Events for HoldsOf {
    fn acquired(&self, _acquired: &Acquired<'_>) {
        self.record(Happened::Acquired {
            lease_ms: Some(self.lease_ms),
            reader: false,
        });
    }

    fn renewed(&self, renewed: &Renewed<'_>) {
        let lease_ms = renewed.remaining().as_millis().try_into();
        self.record(Happened::Renewed {
            lease_ms: lease_ms.unwrap_or(u64::MAX),
        });
    }

    fn lost(&self, _lost: &Lost<'_>) {
        self.record(Happened::Lost);
    }

    fn released(&self, _released: &Released<'_>) {
        self.record(Happened::Released);
    }
}
