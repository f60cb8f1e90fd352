//! Dead and stopped processes, read from `/proc` on Linux. Elsewhere none are reported.

use std::fs;

use nix::{
    sys::{
        signal::Signal,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{Pid, getpid},
};

/// A process, as it was when `/proc` was read.
struct Seen {
    process: i32,
    parent: i32,
    group: i32,
    is_dead: bool,
}

impl Seen {
    /// Parses `/proc/PID/stat`. The name in it may contain blanks and parentheses.
    fn read(stat: &str) -> Option<Self> {
        let (process, _) = stat.split_once(' ')?;
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<_> = fields.split(' ').collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        Some(Self {
            process: process.parse().ok()?,
            parent: number(1)?,
            group: number(2)?,
            // If only the main thread has ended, the process still runs.
            is_dead: ["Z", "X"].contains(fields.first()?) && number(17)? <= 1,
        })
    }
}

fn all() -> Option<impl Iterator<Item = Seen>> {
    let stats = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        Seen::read(&stat)
    });
    Some(stats)
}

/// True if all processes of a group are dead, whether or not their parents have reaped them.
pub(crate) fn are_dead(group: i32) -> bool {
    all().is_some_and(|mut all| all.all(|seen| seen.group != group || seen.is_dead))
}

/// Reaps all dead children except these. The first process of a container becomes the parent of all
/// orphans.
pub(crate) fn reap_all_but(known: &[u32]) {
    let us = getpid().as_raw();
    for seen in all().into_iter().flatten() {
        let is_known = u32::try_from(seen.process).is_ok_and(|process| known.contains(&process));
        if seen.parent == us && seen.is_dead && !is_known {
            let _ = waitpid(Pid::from_raw(seen.process), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// The signal that has stopped a child since the last call.
pub(crate) fn stopped_by(child: u32) -> Option<Signal> {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::wait::{Id, WaitStatus, waitid};

        let child = Id::Pid(Pid::from_raw(i32::try_from(child).ok()?));
        match waitid(child, WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
            _ => None,
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = child;
        None
    }
}
