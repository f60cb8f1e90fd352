//! Does what the arguments ask for: runs a command, or answers a question on stdout.
//!
//! This room writes the answer itself, not through the speaker: the caller asked for it, so lockrun
//! waits until it is read.

mod list;
mod operator;
mod probe;

use std::io::{self, Write};

use clap::error::ErrorKind;

use crate::{
    arguments::{Arguments, help},
    deciding::outcome::{AnswerText, NOT_WRITTEN, USAGE},
    doing::run,
    speaking::{messages, speaker::Speaker},
};

/// Returns the exit code.
pub(crate) fn to_arguments(speaker: &Speaker) -> u8 {
    let arguments = match help::read() {
        Ok(arguments) => arguments,
        Err(error) => return to_none(&error, speaker),
    };
    let (code, told) = if arguments.status {
        operator::status(&arguments)
    } else if arguments.force_release {
        operator::force_release(&arguments)
    } else if let Some(begin) = &arguments.list {
        list::list(&arguments, begin)
    } else if arguments.probe {
        probe::probe(&arguments)
    } else {
        return to_a_command(&arguments, speaker);
    };
    to_a_question(&told, code, speaker)
}

fn to_a_command(arguments: &Arguments, speaker: &Speaker) -> u8 {
    let speaker = speaker.clone().with_steps(arguments.verbose);
    let report = run::run(arguments, &speaker);
    if let Some(message) = report.message(arguments) {
        speaker.say(&message);
    }
    report.code()
}

fn to_a_question(told: &AnswerText, code: u8, speaker: &Speaker) -> u8 {
    if !told.err.is_empty() {
        speaker.say(&messages::unanswered(&told.err));
    }
    let written = match &*told.out {
        "" => Ok(()),
        text => writeln!(io::stdout(), "{text}"),
    };
    written.map_or_else(|error| not_written(&error, speaker), |()| code)
}

/// The arguments are wrong, or ask for help.
fn to_none(error: &clap::Error, speaker: &Speaker) -> u8 {
    if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = error.kind() {
        let written = error.print();
        return written.map_or_else(|error| not_written(&error, speaker), |()| 0);
    }
    let text = error.render().to_string();
    speaker.say(&messages::wrong_arguments(&text, help::hint(error)));
    USAGE
}

/// Reports the error, unless the reader has closed the pipe.
fn not_written(error: &io::Error, speaker: &Speaker) -> u8 {
    if error.kind() != io::ErrorKind::BrokenPipe {
        speaker.say(&messages::not_written(error));
    }
    NOT_WRITTEN
}
