//! Every message of lockrun on stderr. Only this file makes one, and a test goes over all of them.

use std::{fmt::Display, io, process::ExitStatus, time::Duration};

use leasehold::{Error, LastRun, Lease};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    arguments::Arguments,
    deciding::loss::{Loss, Why},
    speaking::{
        busy::Busy,
        text::{last_run, of_system, rounded},
        words,
    },
};

/// The beginning of every line, except JSON and the answers to questions.
const WE: &str = "lockrun: ";

/// A text for the speaker.
#[derive(Debug)]
pub(crate) struct Message {
    text: String,
    /// Said only with `--verbose`.
    pub(crate) is_step: bool,
}

impl Message {
    fn step(text: impl Display) -> Self {
        let (text, is_step) = (format!("{WE}{text}"), true);
        Self { text, is_step }
    }

    fn always(text: impl Display) -> Self {
        Self::bare(format!("{WE}{text}"))
    }

    fn bare(text: impl Into<String>) -> Self {
        let (text, is_step) = (text.into(), false);
        Self { text, is_step }
    }

    pub(crate) fn line(&self) -> String {
        format!("{}\n", self.text)
    }

    /// The text without the name of the program.
    pub(crate) fn text(&self) -> &str {
        self.text.strip_prefix(WE).unwrap_or(&self.text)
    }
}

// The steps.

pub(crate) fn acquiring(arguments: &Arguments) -> Message {
    let (subject, server) = (arguments.subject(), arguments.server());
    let up_to = match arguments.wait {
        Duration::ZERO => String::new(),
        wait => format!(", waiting up to {}", rounded(wait)),
    };
    Message::step(format!("acquiring {subject} from {server}{up_to}"))
}

/// `left` is `None` if the wait is too long for an `Instant`.
pub(crate) fn waiting(busy: &Busy, left: Option<Duration>) -> Message {
    let left = for_another(left);
    Message::step(format!("`{}` {busy}; waiting{left}", busy.name))
}

pub(crate) fn retrying(why: &str, left: Option<Duration>) -> Message {
    let left = for_another(left);
    Message::step(format!("{why}; retrying{left}"))
}

fn for_another(left: Option<Duration>) -> String {
    left.map_or_else(String::new, |left| {
        format!(" for another {}", rounded(left))
    })
}

pub(crate) fn acquired(arguments: &Arguments, lease: &Lease) -> Message {
    let subject = arguments.subject_of(lease.name());
    let fence = match (lease.fencing_token(), arguments.permits) {
        (Some(fence), _) => format!(", fencing token {fence}"),
        (None, Some(permits)) => format!(" (--permits {permits}), without a fencing token"),
        (None, None) => String::new(),
    };
    Message::step(format!("acquired {subject}{fence}"))
}

pub(crate) fn passed_on(signal: Signal) -> Message {
    Message::step(format!("passing {signal} on to the command"))
}

pub(crate) fn ending(subject: &str, why: Why) -> Message {
    Message::step(format!("{subject} {why}: ending the command"))
}

pub(crate) fn killing() -> Message {
    Message::step("killing the remaining processes")
}

pub(crate) fn not_renewed(subject: &str, why: &str, left: Duration) -> Message {
    let left = rounded(left);
    Message::step(format!(
        "cannot renew {subject}: {why}; retrying for another {left}"
    ))
}

pub(crate) fn renewed_again(subject: &str) -> Message {
    Message::step(format!("{subject} is renewed again"))
}

pub(crate) fn guardian_gone() -> Message {
    Message::step("the guardian is gone")
}

pub(crate) fn not_released(why: &str) -> Message {
    Message::step(format!(
        "cannot release the lock, which ends with its lease: {why}"
    ))
}

// While the command runs.

pub(crate) fn stopped(subject: &str, signal: Signal) -> Message {
    let why = match signal {
        Signal::SIGTTIN | Signal::SIGTTOU => ", since it may not use the terminal",
        _ => "",
    };
    Message::always(format!(
        "the command was stopped by {signal}{why}; lockrun still holds {subject}"
    ))
}

// The outcome.

pub(crate) fn command_failed(subject: &str, status: ExitStatus) -> Message {
    Message::always(format!("{subject}: the command failed, {status}"))
}

pub(crate) fn may_be_run_again(subject: &str, why: &str) -> Message {
    Message::always(format!("{subject} may be run again: {why}"))
}

pub(crate) fn already_run(subject: &str, run: &LastRun) -> Message {
    Message::always(format!("{subject} {}", last_run(run)))
}

pub(crate) fn lost(subject: &str, loss: &Loss) -> Message {
    Message::always(format!("{subject} {loss}"))
}

pub(crate) fn not_run(arguments: &Arguments, error: &io::Error) -> Message {
    let command = arguments.command.first().cloned().unwrap_or_default();
    let (command, why) = (command.display(), of_system(error));
    Message::always(format!("cannot run {command}: {why}"))
}

pub(crate) fn busy(busy: &Busy) -> Message {
    Message::always(format!("`{}` {busy}", busy.name))
}

pub(crate) fn not_acquired(arguments: &Arguments, error: &Error, waited: Duration) -> Message {
    Message::always(words::not_acquired(arguments, error, waited))
}

pub(crate) fn system(error: &io::Error) -> Message {
    Message::always(format!("system error: {}", of_system(error)))
}

pub(crate) fn in_json(outcome: &Value) -> Message {
    Message::bare(outcome.to_string())
}

// Without a command.

/// The part of a question that could not be answered.
pub(crate) fn unanswered(text: &str) -> Message {
    Message::bare(text)
}

pub(crate) fn wrong_arguments(text: &str, hint: Option<String>) -> Message {
    let hint = hint.map_or_else(String::new, |hint| format!("\n\n{hint}"));
    Message::bare(format!("{}{hint}", text.trim_end()))
}

pub(crate) fn not_written(error: &io::Error) -> Message {
    Message::always(format!("cannot write to stdout: {error}"))
}
