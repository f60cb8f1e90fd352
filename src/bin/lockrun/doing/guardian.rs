//! The guardian, a second process that kills the command's family if lockrun cannot end it, because
//! lockrun was killed or is stopped while the lease ends.
//!
//! It leads the command's process group. So the group exists before the command does, and its
//! number is not reused until the guardian has been reaped.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    os::fd::AsFd,
    process::ExitCode,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::SigSet,
    unistd::{Pid, getpgid, getpid, getppid, setpgid},
};

use crate::doing::{
    family::Family,
    guard::{self, ENDING, READY, Word},
};

/// Later than the end of any lease.
const NO_DEADLINE: u64 = u64::MAX;

pub(crate) fn main() -> ExitCode {
    watch().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn watch() -> io::Result<()> {
    // A signal to the group is meant for the command. Only KILL and STOP cannot be blocked.
    SigSet::all().thread_block()?;
    let of_lockrun = getpgid(Some(getppid()))?;
    // The number of this process is that of the group that it leads.
    let mut family = Family::new(getpid(), of_lockrun);
    let mut words = WordsOfLockrun::new()?;
    say(READY)?;
    let mut deadline = NO_DEADLINE;
    while let Some(word) = words.next(deadline) {
        match word {
            Word::Deadline(moment) => deadline = moment,
            Word::Member(process) => family.remember(process),
            // After that the command's group has no members but the command and its descendants. An
            // error means that lockrun and its group are gone.
            Word::Aside => drop(setpgid(Pid::from_raw(0), of_lockrun)),
        }
    }
    // lockrun may be gone.
    let _ = say(ENDING);
    family.kill();
    Ok(())
}

/// The messages from lockrun.
struct WordsOfLockrun(BufReader<File>);

impl WordsOfLockrun {
    fn new() -> io::Result<Self> {
        let pipe = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self(BufReader::new(pipe.into())))
    }

    /// The next message. `None` if lockrun is gone, or has sent nothing by this deadline.
    ///
    /// This process may have been stopped for any length of time. So the deadline is over only if
    /// the pipe is empty after it.
    fn next(&mut self, deadline: u64) -> Option<Word> {
        while self.0.buffer().is_empty() {
            let left = Duration::from_nanos(deadline.saturating_sub(guard::clock().ok()?));
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::NONE);
            let pipe = PollFd::new(self.0.get_ref().as_fd(), PollFlags::POLLIN);
            match poll(&mut [pipe], timeout) {
                Ok(0) if left.is_zero() => return None,
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => break,
                Err(_) => return None,
            }
        }
        // The rest of a line is there, since lockrun writes it at once.
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        Word::read(line.trim_end())
    }
}

fn say(what: u8) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&[what])?;
    out.flush()
}
