//! A job that runs the program lockrun with a lock of its own.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::hand::Hand;
use crate::{
    clock::now,
    history::{Asked, Granted, Mode, Record, Writer},
    role::Role,
};

const LEASE: Duration = Duration::from_secs(1);

/// The settings of a command under lockrun.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnderLockrun {
    id: u64,
    worker: u32,
    folder: PathBuf,
    millis: u64,
}

impl UnderLockrun {
    /// Holds the lock for a while. If the lock is lost, lockrun ends this command, which then
    /// records nothing more.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let path = self.folder.join(format!("lockrun-{}.history", self.id));
        let mut writer = Writer::create(&path)?;
        let fence = std::env::var("LEASEHOLD_FENCING_TOKEN").context("no fencing token")?;
        writer.write(&Record::Asked(Asked {
            id: self.id,
            worker: self.worker,
            job: "lockrun".to_owned(),
            lock: "l0".to_owned(),
            mode: Mode::Exclusive,
            owner: None,
            lease: crate::clock::nanos(LEASE),
            timeout: None,
            at: now(),
        }));
        writer.write(&Record::Granted(Granted {
            id: self.id,
            at: now(),
            fence: fence.parse().ok(),
            token: None,
        }));
        let end = now() + crate::clock::millis(self.millis);
        while now() < end {
            writer.write(&Record::Held {
                id: self.id,
                at: now(),
            });
            thread::sleep(Duration::from_millis(2));
        }
        writer.write(&Record::Ended {
            id: self.id,
            at: now(),
            released: None,
        });
        Ok(())
    }
}

pub(super) fn run(hand: &mut Hand) -> anyhow::Result<()> {
    let Some(lockrun) = hand.plan.programs.get("lockrun").cloned() else {
        hand.pause(1_000);
        return Ok(());
    };
    let under = UnderLockrun {
        id: (1 << 62) | hand.random.u64(..1 << 60),
        worker: hand.plan.worker,
        folder: hand.plan.folder.clone(),
        millis: hand.random.u64(5..300),
    };
    let (name, role) = Role::UnderLockrun(under).for_a_child()?;
    Command::new(lockrun)
        .args(["--url", &hand.plan.url, "--name", "l0", "--quiet"])
        .args(["--wait", "2s", "--lease", "1s", "--grace", "200ms", "--"])
        .arg(std::env::current_exe()?)
        .env(name, role)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    hand.pause(300);
    Ok(())
}
