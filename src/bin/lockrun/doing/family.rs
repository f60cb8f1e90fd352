//! The family of the command: the processes that end with it.
//!
//! They are its process group and those that have left the group: `timeout`, `su`, `setsid` and a
//! shell with job control start the job in a group or a session of its own. A process belongs to
//! the family if its parent, its group or its session does. A daemon does not: its parent has
//! ended, its group and session are others, and it is meant to outlive the command.
//!
//! Without `/proc` the family is the process group.

use std::{collections::HashSet, thread, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::{Pid, getsid},
};

use crate::doing::processes::{self, ProcessId, Seen};

/// Bounds the search for members that start others meanwhile.
const SEARCHES: usize = 20;
/// Bounds the wait until the members have stopped: a busy machine lets a process stop only in its
/// turn.
const LOOKS: usize = 100;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Family {
    /// The group, which the guardian leads.
    group: Pid,
    /// The group of lockrun. A member may have joined it.
    of_lockrun: Pid,
    /// The command, and the processes that were members when lockrun told the command to end. They
    /// stay members after their parents have ended.
    known: Vec<ProcessId>,
}

impl Family {
    pub(crate) fn new(group: Pid, of_lockrun: Pid) -> Self {
        Self {
            group,
            of_lockrun,
            known: Vec::new(),
        }
    }

    pub(crate) fn remember(&mut self, process: ProcessId) {
        if !self.known.contains(&process) {
            self.known.push(process);
        }
    }

    /// Stops all members and returns them. A member that still runs could start another process and
    /// end: the next search could not find the new process by its parent.
    pub(crate) fn stop(&self) -> Vec<Seen> {
        let mut stopped: Vec<Seen> = Vec::new();
        for _ in 0..SEARCHES {
            let mut new = self.members().unwrap_or_default();
            new.retain(|it| !stopped.iter().any(|known| known.process == it.process));
            if new.is_empty() {
                break;
            }
            stop(new.iter().map(|it| it.process).collect());
            stopped.extend(new);
        }
        stopped
    }

    /// Kills all members, children before their parents: the kernel continues the stopped group of
    /// a job as soon as the shell that started it is dead.
    pub(crate) fn kill(&self) {
        for member in self.stop().into_iter().rev() {
            member.process.send(Signal::SIGKILL);
        }
        // The guardian, which may be the caller, is in the group.
        let _ = killpg(self.group, Signal::SIGKILL);
    }

    /// True if no member but the guardian is alive. Processes that lockrun may not signal, such as
    /// those of other users, do not count.
    pub(crate) fn is_gone(&self) -> bool {
        if killpg(self.group, None).is_err() && !self.known.iter().any(|it| it.is_left()) {
            return true;
        }
        // Asking about one process costs much less than reading all of `/proc`.
        if self.known.iter().any(|it| it.is_alive()) {
            return false;
        }
        let members = self.members();
        members.is_some_and(|members| !members.iter().any(|it| !it.is_dead && it.process.is_left()))
    }

    /// The members without the guardian. A known process is a member even when it is dead: the
    /// processes that it left behind are found by its number. `None` without `/proc`.
    fn members(&self) -> Option<Vec<Seen>> {
        let guardian = self.group.as_raw();
        // These groups and sessions are lockrun's own: a session has the number of its first group.
        // 0 stands for a group outside this PID namespace.
        let ours = [0, self.of_lockrun.as_raw(), getsid(None).ok()?.as_raw()];
        let counts = |it: &Seen| !it.is_dead || self.known.contains(&it.process);
        let all = processes::all()?.filter(|it| counts(it) && it.process.number != guardian);
        let (mut others, mut members): (Vec<_>, _) = (all.collect(), Vec::new());
        let (mut numbers, mut groups) = (HashSet::new(), HashSet::from([guardian]));
        let mut sessions = HashSet::new();
        loop {
            let is_member = |it: &mut Seen| {
                numbers.contains(&it.parent)
                    || groups.contains(&it.group)
                    || sessions.contains(&it.session)
                    || self.known.contains(&it.process)
            };
            let found: Vec<_> = others.extract_if(.., is_member).collect();
            if found.is_empty() {
                return Some(members);
            }
            numbers.extend(found.iter().map(|it| it.process.number));
            let theirs = |number: &i32| !ours.contains(number);
            groups.extend(found.iter().map(|it| it.group).filter(theirs));
            sessions.extend(found.iter().map(|it| it.session).filter(theirs));
            members.extend(found);
        }
    }
}

/// Stops these processes. One of them may be starting another at that moment: the next search finds
/// it, since it begins when all have stopped.
fn stop(mut processes: Vec<ProcessId>) {
    processes.retain(|it| it.send(Signal::SIGSTOP));
    for _ in 0..LOOKS {
        processes.retain(|it| !it.is_at_rest());
        if processes.is_empty() {
            return;
        }
        thread::sleep(PAUSE);
    }
}
