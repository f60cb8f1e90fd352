//! The roles that this program plays when it starts itself again.

use std::{
    env,
    process::{Child, Command, Stdio},
};

use nix::sys::{
    prctl::set_pdeathsig,
    signal::{Signal, kill},
};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::{resource, worker};

const ROLE: &str = "LEASEHOLD_TORTURE_ROLE";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    Worker(worker::Plan),
    Resource {
        accepts_everything: bool,
    },
    /// A command under lockrun: records that it runs, for a while.
    UnderLockrun(worker::UnderLockrun),
}

impl Role {
    /// `None`: a user started the program.
    pub(crate) fn of_this_process() -> anyhow::Result<Option<Self>> {
        match env::var(ROLE) {
            Ok(role) => Ok(Some(serde_json::from_str(&role)?)),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn play(self) -> anyhow::Result<()> {
        // However our parent ends, the kernel kills this process too.
        let _ = set_pdeathsig(Signal::SIGKILL);
        match self {
            Self::Worker(plan) => worker::work(&plan),
            Self::Resource { accepts_everything } => resource::serve(accepts_everything),
            Self::UnderLockrun(plan) => plan.run(),
        }
    }

    /// Returns the environment variable that gives a child this role.
    pub(crate) fn for_a_child(&self) -> anyhow::Result<(&'static str, String)> {
        Ok((ROLE, serde_json::to_string(self)?))
    }

    pub(crate) fn start(&self) -> anyhow::Result<Part> {
        self.start_with(&[])
    }

    /// Starts the role with these additional environment variables.
    pub(crate) fn start_with(&self, environment: &[(&str, String)]) -> anyhow::Result<Part> {
        let (name, role) = self.for_a_child()?;
        let child = Command::new(env::current_exe()?)
            .env(name, role)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Part(child))
    }
}

/// A process with a role; killed when dropped, even if it is halted.
#[derive(Debug)]
pub(crate) struct Part(pub(crate) Child);

impl Part {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX))
    }

    /// Sends a signal. False: the process has ended.
    pub(crate) fn signal(pid: Pid, signal: Signal) -> bool {
        kill(pid, signal).is_ok()
    }

    /// Returns true if the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
