//! Processes, read from `/proc` on Linux. Elsewhere none are reported.

use std::{fmt, fs, process::Child};

#[cfg(target_os = "linux")]
use nix::sys::wait::{Id, WaitStatus, waitid};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{Pid, getpid},
};

/// A process by its number and start, so that a later one with the same number is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pub(crate) number: i32,
    /// The time of its start, in ticks of the system's clock.
    started: u64,
}

/// A process, as it was when `/proc` was read.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) process: ProcessId,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    pub(crate) is_dead: bool,
    is_at_rest: bool,
}

impl ProcessId {
    /// A child that has not been reaped.
    pub(crate) fn of(child: u32) -> Option<Self> {
        Seen::of(child).map(|seen| seen.process)
    }

    /// True if it can start no other process: it has ended, is stopped, or waits for a device or
    /// for a child that shares its memory.
    pub(crate) fn is_at_rest(self) -> bool {
        let seen = Seen::of(self.number);
        seen.is_none_or(|seen| seen.process != self || seen.is_dead || seen.is_at_rest)
    }

    /// True if it has not ended, and we may signal it.
    pub(crate) fn is_alive(self) -> bool {
        let seen = Seen::of(self.number);
        seen.is_some_and(|seen| seen.process == self && !seen.is_dead) && self.is_left()
    }

    /// Returns false if it has ended, or if we may not signal the processes of its user.
    pub(crate) fn send(self, signal: Signal) -> bool {
        kill(Pid::from_raw(self.number), signal).is_ok()
    }

    /// True if we may signal a process of this number.
    pub(crate) fn is_left(self) -> bool {
        kill(Pid::from_raw(self.number), None).is_ok()
    }

    /// Parses the text that `Display` writes.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (number, started) = text.split_once(' ')?;
        Some(Self {
            number: number.parse().ok()?,
            started: started.parse().ok()?,
        })
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, self.started)
    }
}

impl Seen {
    fn of(number: impl fmt::Display) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        Self::read(&stat)
    }

    /// Parses `/proc/PID/stat`. The name in it may contain blanks and parentheses.
    fn read(stat: &str) -> Option<Self> {
        let (process, _) = stat.split_once(' ')?;
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<_> = fields.split(' ').collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        let process = ProcessId {
            number: process.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        };
        Some(Self {
            process,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            // If only the main thread has ended, the process still runs.
            is_dead: ["Z", "X"].contains(fields.first()?) && number(17)? <= 1,
            is_at_rest: ["T", "t", "D"].contains(fields.first()?),
        })
    }
}

/// All processes. `None` without `/proc`.
pub(crate) fn all() -> Option<impl Iterator<Item = Seen>> {
    let stats = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        Seen::read(&stat)
    });
    Some(stats)
}

/// Reaps all dead children except these. The first process of a container becomes the parent of all
/// orphans.
pub(crate) fn reap_all_but(known: &[Pid]) {
    let us = getpid().as_raw();
    for seen in all().into_iter().flatten() {
        let process = Pid::from_raw(seen.process.number);
        if seen.parent == us && seen.is_dead && !known.contains(&process) {
            let _ = waitpid(process, Some(WaitPidFlag::WNOHANG));
        }
    }
}

pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// True if a child has ended. On Linux it is not reaped: it keeps its number, its group and its
/// session, and the processes that it left behind are found by these.
pub(crate) fn has_ended(child: &mut Child) -> bool {
    #[cfg(target_os = "linux")]
    {
        let only_look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(pid(child)), only_look) != Ok(WaitStatus::StillAlive)
    }
    #[cfg(not(target_os = "linux"))]
    !matches!(child.try_wait(), Ok(None))
}

/// The signal that has stopped a child since the last call.
#[cfg(target_os = "linux")]
pub(crate) fn stopped_by(child: &Child) -> Option<Signal> {
    match waitid(
        Id::Pid(pid(child)),
        WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG,
    ) {
        Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn stopped_by(_: &Child) -> Option<Signal> {
    None
}
