//! The outcome of lockrun, and its exit code.

use std::{io, os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use leasehold::{Error, FencingToken, LastRun};
use nix::errno::Errno;

use crate::{deciding::loss::Loss, speaking::busy::Busy};

pub(crate) const USAGE: u8 = 64;
const UNREACHABLE: u8 = 69;
const LOST: u8 = 70;
pub(crate) const SYSTEM: u8 = 71;
pub(crate) const NOT_WRITTEN: u8 = 74;
const BUSY: u8 = 75;
const CANNOT_BE_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The base of the exit code for a signal, to which its number is added, as in shells.
const SIGNALLED: i32 = 128;

/// The outcome.
#[derive(Debug)]
pub(crate) enum Conclusion {
    /// The command has ended.
    Ended(ExitStatus),
    /// The lock was lost.
    Lost(Loss),
    /// The command cannot be run.
    NotRun(io::Error),
    /// A signal arrived before lockrun had the lock.
    Told(i32),
    /// Others held the lock for the whole wait.
    Busy(Busy),
    /// The command was run within the period of `--once-per`.
    AlreadyRun(LastRun),
    /// The lock could not be acquired.
    Failed(Error),
    /// The operating system refused.
    System(io::Error),
}

impl Conclusion {
    /// The outcome if the command could not be started: the command is at fault, or the system is
    /// out of processes, memory or files.
    pub(crate) fn not_started(error: io::Error) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw);
        match errno {
            Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => {
                Self::System(error)
            }
            _ => Self::NotRun(error),
        }
    }
}

/// An outcome with its details.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) outcome: Conclusion,
    pub(crate) waited: Duration,
    pub(crate) held: Option<Duration>,
    /// In the order of `--name`. Empty if the locks were not acquired.
    pub(crate) fencing_tokens: Vec<Option<FencingToken>>,
    /// True if lockrun got TERM or INT while the command ran or the lock was released.
    pub(crate) was_interrupted: bool,
    /// The reason why the release may not have marked the run as completed.
    pub(crate) unmarked: Option<String>,
}

/// The answer to a question: what to print. An empty text is not printed.
#[derive(Debug, Default)]
pub(crate) struct AnswerText {
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The exit code for an error.
pub(crate) fn code_of(error: &Error) -> u8 {
    of_error(error).0
}

/// The word is that of `outcome` in JSON.
pub(crate) fn of_error(error: &Error) -> (u8, &'static str) {
    match error {
        Error::Contended { .. } => (BUSY, "busy"),
        Error::Lost { .. } => (LOST, "lost"),
        Error::Invalid { .. } | Error::WrongKind { .. } => (USAGE, "usage"),
        Error::Thread { .. } => (SYSTEM, "system"),
        _ => (UNREACHABLE, "unreachable"),
    }
}

fn of_signal(signal: i32) -> u8 {
    u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)
}

fn of_status(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| of_signal(status.signal().unwrap_or(0)))
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            outcome: Conclusion::System(io::ErrorKind::Other.into()),
            waited: Duration::ZERO,
            held: None,
            fencing_tokens: Vec::new(),
            was_interrupted: false,
            unmarked: None,
        }
    }

    pub(crate) fn code(&self) -> u8 {
        self.code_and_word().0
    }

    /// The word is that of `outcome` in JSON.
    pub(crate) fn code_and_word(&self) -> (u8, &'static str) {
        match &self.outcome {
            Conclusion::Ended(status) => (of_status(*status), "ended"),
            Conclusion::Lost(_) => (LOST, "lost"),
            Conclusion::NotRun(error) if error.kind() == io::ErrorKind::NotFound => {
                (NOT_FOUND, "not_run")
            }
            Conclusion::NotRun(_) => (CANNOT_BE_RUN, "not_run"),
            Conclusion::Told(signal) => (of_signal(*signal), "interrupted"),
            Conclusion::Busy(_) => (BUSY, "busy"),
            Conclusion::AlreadyRun(_) => (0, "has_been_run"),
            Conclusion::Failed(error) => of_error(error),
            Conclusion::System(_) => (SYSTEM, "system"),
        }
    }
}
