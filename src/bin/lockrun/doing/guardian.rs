//! The guardian, a second process that kills the command's family if lockrun cannot end it, because
//! lockrun was killed or is stopped while the lease ends.
//!
//! It leads the command's process group. So the group exists before the command does, and its
//! number is not reused until the guardian has been reaped.

use std::{
    io::{self, BufRead, Write},
    process::{self, ExitCode},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::SigSet,
    unistd::{Pid, getpgid, getppid, setpgid},
};

use crate::doing::{
    family::Family,
    guard::{self, ENDING, READY, Word},
};

/// Later than the end of any lease.
const NO_DEADLINE: u64 = u64::MAX;

pub(crate) fn main() -> ExitCode {
    match watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn watch() -> io::Result<()> {
    // A signal to the group is meant for the command. Only KILL and STOP cannot be blocked.
    SigSet::all().thread_block()?;
    let of_lockrun = getpgid(Some(getppid()))?;
    let mut family = Family::new(group()?, of_lockrun);
    let words = listen()?;
    say(READY)?;
    let mut deadline = NO_DEADLINE;
    loop {
        let left = Duration::from_nanos(deadline.saturating_sub(guard::clock()?));
        match words.recv_timeout(left) {
            Ok(Word::Deadline(moment)) => deadline = moment,
            Ok(Word::Member(process)) => family.remember(process),
            // Its own group then has no members but the command and its descendants. An error means
            // that lockrun is gone, and its group with it.
            Ok(Word::Aside) => drop(setpgid(Pid::from_raw(0), of_lockrun)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    // lockrun may be gone.
    let _ = say(ENDING);
    family.kill();
    Ok(())
}

/// Receives commands from lockrun until it is gone.
fn listen() -> io::Result<Receiver<Word>> {
    let (sender, words) = channel();
    thread::Builder::new().spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let word = Word::read(&line);
            if word.is_none_or(|word| sender.send(word).is_err()) {
                return;
            }
        }
    })?;
    Ok(words)
}

fn say(what: u8) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&[what])?;
    out.flush()
}

/// The group that this process leads or has led.
fn group() -> io::Result<Pid> {
    let number = i32::try_from(process::id()).map_err(io::Error::other)?;
    Ok(Pid::from_raw(number))
}
