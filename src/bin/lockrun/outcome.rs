//! The outcome of lockrun: an exit code, and its message or JSON.

use std::{io, os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use leasehold::{Error, FencingToken, LastRun};
use serde_json::{Value, json};

use crate::{
    arguments::Arguments,
    busy::Busy,
    loss::Loss,
    messages::{self, Message},
    text::{holder_in_json, last_run_in_json, millis},
};

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

/// Why a successful run may not be marked as completed.
const INTERRUPTED: &str = "lockrun got TERM or INT";

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
    /// Why the release may not have marked the run as completed.
    pub(crate) unmarked: Option<String>,
}

/// The answer to a question: what to print. An empty text is not printed.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A failed operation without a command, as JSON.
pub(crate) fn failure_in_json(name: &str, error: &Error, message: &str) -> Value {
    let (code, outcome) = of_error(error);
    json!({ "name": name, "outcome": outcome, "exit_code": code, "message": message })
}

/// The exit code for an error.
pub(crate) fn code_of(error: &Error) -> u8 {
    of_error(error).0
}

fn of_error(error: &Error) -> (u8, &'static str) {
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

    fn code_and_word(&self) -> (u8, &'static str) {
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

    /// `None`: there is nothing to say.
    pub(crate) fn message(&self, arguments: &Arguments) -> Option<Message> {
        if arguments.json {
            return Some(messages::in_json(&self.json(arguments)));
        }
        // That another host holds the lock or has done the work is the purpose of the lock, not a
        // failure. If it holds the lock for the whole wait, the work may hang there.
        let is_usual = match self.outcome {
            Conclusion::Busy(_) => arguments.wait.is_zero(),
            Conclusion::AlreadyRun(_) => true,
            _ => false,
        };
        if is_usual && arguments.quiet {
            return None;
        }
        self.in_words(arguments)
    }

    fn in_words(&self, arguments: &Arguments) -> Option<Message> {
        let subject = || arguments.subject();
        match &self.outcome {
            Conclusion::Ended(status) if !status.success() => {
                // Whoever told it to end expects no success.
                let failed = || messages::command_failed(&subject(), *status);
                (!self.was_interrupted).then(failed)
            }
            Conclusion::Ended(_) => {
                let why = self.unmarked(arguments)?;
                Some(messages::may_be_run_again(&subject(), why))
            }
            Conclusion::Told(_) => None,
            Conclusion::AlreadyRun(run) => Some(messages::already_run(&subject(), run)),
            Conclusion::Lost(loss) => {
                let lock = arguments.subject_of(&loss.lost.lock);
                Some(messages::lost(&lock, loss))
            }
            Conclusion::NotRun(error) => {
                let command = arguments.command.first().cloned().unwrap_or_default();
                Some(messages::not_run(&command, error))
            }
            Conclusion::Busy(busy) => Some(messages::busy(busy)),
            Conclusion::Failed(error) => {
                Some(messages::not_acquired(arguments, error, self.waited))
            }
            Conclusion::System(error) => Some(messages::system(error)),
        }
    }

    /// Why a successful run with `--once-per` may not have been marked as completed.
    fn unmarked(&self, arguments: &Arguments) -> Option<&str> {
        arguments.once_per?;
        if self.was_interrupted {
            return Some(INTERRUPTED);
        }
        self.unmarked.as_deref()
    }

    /// The lock of this outcome: of several, the one that was not acquired or was lost.
    fn name<'a>(&'a self, arguments: &'a Arguments) -> Option<&'a str> {
        let of_several = || match &self.outcome {
            Conclusion::Busy(busy) => Some(&*busy.name),
            Conclusion::Lost(loss) => Some(&*loss.lost.lock),
            Conclusion::Failed(error) => error.context().map(|context| &*context.lock),
            _ => None,
        };
        arguments.only_name().or_else(of_several)
    }

    fn json(&self, arguments: &Arguments) -> Value {
        let (code, word) = self.code_and_word();
        let (status, lost) = match &self.outcome {
            Conclusion::Ended(status) => (Some(*status), None),
            Conclusion::Lost(loss) => (loss.status, Some(loss.lost.why.word())),
            _ => (None, None),
        };
        let holders = match &self.outcome {
            Conclusion::Busy(busy) => busy.holders(),
            _ => &[],
        };
        let fences = self.fencing_tokens.iter();
        let fences: Vec<_> = fences.map(|fence| fence.map(FencingToken::get)).collect();
        json!({
            "name": self.name(arguments),
            "names": arguments.names,
            "permits": arguments.permits,
            "outcome": word,
            "exit_code": code,
            "message": self.in_words(arguments).as_ref().map(Message::text),
            "last_run": match &self.outcome {
                Conclusion::AlreadyRun(run) => last_run_in_json(run),
                _ => Value::Null,
            },
            "holders": holders.iter().map(holder_in_json).collect::<Vec<_>>(),
            "lost_reason": lost,
            "command_exit_code": status.and_then(|status| status.code()),
            "command_signal": status.and_then(|status| status.signal()),
            "fencing_token": arguments.only_name().and_then(|_| *fences.first()?),
            "fencing_tokens": fences,
            "waited_ms": millis(self.waited),
            "held_ms": self.held.map(millis),
        })
    }
}
