//! The second process, which ends the command when the first cannot: it was killed, or is stopped
//! while the lease ends.
//!
//! It leads the command's process group, which therefore exists before the command does, and whose
//! number nobody else can be given while the guardian has not been reaped.

use std::{
    io::{self, BufRead, Write},
    process::{self, ExitCode},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{SigSet, Signal, killpg},
    unistd::{Pid, getpgid, getppid, setpgid},
};

use crate::guard::{self, ENDING, READY, Word};

/// Further away than any lease.
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
    let words = listen()?;
    say(READY)?;
    let mut deadline = NO_DEADLINE;
    loop {
        let left = Duration::from_nanos(deadline.saturating_sub(guard::clock()?));
        match words.recv_timeout(left) {
            Ok(Word::Deadline(moment)) => deadline = moment,
            Ok(Word::Aside) => step_aside()?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    // Nobody may be there to hear it.
    let _ = say(ENDING);
    Ok(killpg(group()?, Signal::SIGKILL)?)
}

/// Reads the words of lockrun, until it is gone.
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

/// Into lockrun's own group, so that ours has no member but the command and what it has started.
fn step_aside() -> io::Result<()> {
    Ok(setpgid(Pid::from_raw(0), getpgid(Some(getppid()))?)?)
}

/// The group that this process leads, or has led.
fn group() -> io::Result<Pid> {
    let number = i32::try_from(process::id()).map_err(io::Error::other)?;
    Ok(Pid::from_raw(number))
}
