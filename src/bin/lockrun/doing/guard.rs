//! The process group of the command with the guardian that leads it, and what has left the group.

use std::{
    io::{self, Read, Write},
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, poll},
    sys::signal::{Signal, kill, killpg},
    time::{ClockId, clock_gettime},
    unistd::{Pid, getpgid, getpgrp},
};

use crate::doing::{
    family::Family,
    processes::{self, ProcessId, pid},
    signals::SignalMask,
};

/// The only argument of the guardian.
pub(crate) const GUARDIAN: &str = "--be-the-guardian-of-a-command";
/// Sent by the guardian once it is ready.
pub(crate) const READY: u8 = b'R';
/// Sent by the guardian before it kills the command.
pub(crate) const ENDING: u8 = b'E';
/// The start of the guardian takes at most this many milliseconds.
const START: u16 = 5_000;

/// A message from lockrun to the guardian, one per line. The end of the pipe means that lockrun is
/// gone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    /// Kill the command at this moment, unless a later message changes it.
    Deadline(u64),
    /// End this process with the command, even if the process has left the group.
    Member(ProcessId),
    /// Leave the group.
    Aside,
}

impl Word {
    pub(crate) fn read(line: &str) -> Option<Self> {
        match line {
            "aside" => Some(Self::Aside),
            line => match line.strip_prefix("member ") {
                Some(process) => ProcessId::read(process).map(Self::Member),
                None => line.parse().ok().map(Self::Deadline),
            },
        }
    }

    fn line(self) -> String {
        match self {
            Self::Deadline(moment) => format!("{moment}\n"),
            Self::Member(process) => format!("member {process}\n"),
            Self::Aside => "aside\n".into(),
        }
    }
}

/// Nanoseconds on a clock that all processes of this machine share: on Linux that of `Instant`.
pub(crate) fn clock() -> io::Result<u64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    u64::try_from(now.as_nanos()).map_err(io::Error::other)
}

/// The processes of the command. While this exists, the number of the group is not reused.
#[derive(Debug)]
pub(crate) struct Guard {
    guardian: Child,
    group: Pid,
    family: Family,
    /// `None` once it was reported that the guardian is gone.
    to: Option<ChildStdin>,
    from: ChildStdout,
}

impl Guard {
    /// Starts the guardian and waits until it is ready.
    pub(crate) fn start(started: SignalMask) -> io::Result<Self> {
        let mut guardian = Command::new(this_program()?);
        guardian
            .arg0("lockrun: guardian")
            .arg(GUARDIAN)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let cannot = |why| io::Error::other(format!("cannot start the guardian: {why}"));
        let guardian = started.spawn(&mut guardian);
        let mut guardian = guardian.map_err(|error| cannot(error.to_string()))?;
        let pipes = (guardian.stdin.take(), guardian.stdout.take());
        let (Some(to), Some(mut from)) = pipes else {
            return Err(cannot("it has no pipes".into()));
        };
        let is_ready = poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], START);
        if is_ready != Ok(1) || from.read_exact(&mut [0]).is_err() {
            let _ = guardian.kill().and_then(|()| guardian.wait());
            return Err(cannot("it says nothing".into()));
        }
        // A guardian that is stopped reads nothing.
        fcntl(&to, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let group = pid(&guardian);
        Ok(Self {
            guardian,
            group,
            family: Family::new(group, getpgrp()),
            to: Some(to),
            from,
        })
    }

    /// The number of the group, for a process to join it.
    pub(crate) fn group(&self) -> i32 {
        self.group.as_raw()
    }

    /// Makes the command a known member of the family, since it may leave the group.
    pub(crate) fn take_in(&mut self, command: &Child) -> io::Result<()> {
        ProcessId::of(command.id()).map_or(Ok(()), |command| self.add(command))
    }

    fn add(&mut self, process: ProcessId) -> io::Result<()> {
        self.family.remember(process);
        self.say(Word::Member(process))
    }

    /// Tells the guardian to kill the command when only `margin` of `left` remains, even if lockrun
    /// is stopped or killed meanwhile.
    ///
    /// Reads the clock before it calls `left`: a delay between the two makes the kill earlier,
    /// never later. If the guardian is gone, only the first call is an error.
    pub(crate) fn end_in(
        &mut self,
        left: impl FnOnce() -> Duration,
        margin: Duration,
    ) -> io::Result<()> {
        let now = clock()?;
        let left = left().saturating_sub(margin);
        let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        let said = self.say(Word::Deadline(now.saturating_add(left)));
        said.inspect_err(|_| self.to = None)
    }

    /// Sends a signal to the group, and to a running command that has left it.
    pub(crate) fn send(&self, running: Option<&Child>, signal: Signal) {
        // An error means that no process of the group is left, so there is nothing to signal.
        let _ = killpg(self.group, signal);
        if let Some(command) = running {
            self.send_after(command, signal);
        }
    }

    /// Sends a signal to a command that has left the group, or to the new group that the command
    /// leads.
    ///
    /// May be called only before the command has been reaped: until then its number is not reused.
    fn send_after(&self, command: &Child, signal: Signal) {
        let command = pid(command);
        let _ = match getpgid(Some(command)) {
            Ok(group) if group == self.group => return,
            Ok(group) if group == command => killpg(command, signal),
            _ => kill(command, signal),
        };
    }

    /// Tells the command to end, and every process that has left its group. The command must not
    /// have been reaped. The guardian leaves the group, which then has no members but the command
    /// and its descendants.
    pub(crate) fn end(&mut self, command: &Child, signal: Signal) {
        // If the guardian is dead, it cannot leave the group. Then lockrun kills the group after
        // the grace.
        let _ = self.say(Word::Aside);
        // A process that ends may leave others behind that cannot be found without it.
        let members = self.family.stop();
        for member in &members {
            // If the guardian is gone, lockrun continues alone.
            let _ = self.add(member.process);
        }
        let outside = members.iter().filter(|it| it.group != self.group());
        let outside: Vec<_> = outside.map(|it| it.process).collect();
        // A stopped process handles no signal but KILL. Children are continued before their
        // parents: the kernel hangs up the stopped group of a job as soon as its shell is dead.
        for signal in [signal, Signal::SIGCONT] {
            for process in outside.iter().rev() {
                process.send(signal);
            }
            self.send(outside.is_empty().then_some(command), signal);
        }
    }

    /// Kills the command and every process that has left its group.
    pub(crate) fn kill(&self, running: Option<&Child>) {
        self.family.kill();
        self.send(running, Signal::SIGKILL);
    }

    /// True if every process that ends with the command has ended.
    pub(crate) fn is_empty(&self) -> bool {
        let is_gone = self.family.is_gone();
        if is_gone {
            // A process of the group may have started another during the check.
            self.send(None, Signal::SIGKILL);
        }
        is_gone
    }

    /// Reaps orphans whose parent lockrun has become.
    pub(crate) fn reap_orphans(&self, command: &Child) {
        processes::reap_all_but(&[self.group, pid(command)]);
    }

    /// Ends the guardian. Returns true if it had killed the command.
    pub(crate) fn dismiss(mut self) -> bool {
        let mut said = Vec::new();
        let _ = self.guardian.kill();
        let _ = self.from.read_to_end(&mut said);
        let _ = self.guardian.wait();
        said.contains(&ENDING)
    }

    /// Never waits. A message that does not fit into the pipe is dropped: the pipe is full only if
    /// the guardian has been stopped for some thousand renewals.
    fn say(&mut self, word: Word) -> io::Result<()> {
        let Some(to) = &mut self.to else {
            return Ok(());
        };
        // A pipe takes a line as short as this whole or not at all.
        match to.write_all(word.line().as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            said => said,
        }
    }
}

/// The path of this program. On Linux it stays valid if the file is replaced.
pub(crate) fn this_program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe()
}
