//! Reads the command line; `--help`, the manual page, completions, hints about wrong arguments.

use std::{env, io};

use clap::{
    Arg, ArgAction, Command, CommandFactory, Error, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};
use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use crate::{arguments::Arguments, deciding::outcome::AnswerText};

/// The end of `--help`, and sections of the manual page.
const DETAILS: &str = include_str!("help.txt");

/// The command line as clap knows it. An empty variable counts as not set.
///
/// `--help` prints the details too. With clap's own long help each option would take several lines.
fn command() -> Command {
    let help = Arg::new("help").short('h').long("help");
    let help = help.action(ArgAction::HelpShort);
    let help = help.help("Print the options; --help adds examples, environment and exit codes");
    let mut options = env::args_os().take_while(|argument| argument != "--");
    let is_long = options.any(|argument| argument == "--help");
    let command = Arguments::command().arg(help);
    let command = command.after_help(if is_long { DETAILS } else { "" });
    command.mut_args(|argument| {
        let argument = argument.hide_env(true);
        let value = argument.get_env().and_then(env::var_os);
        if value.is_some_and(|value| value.is_empty() || value == "\n") {
            return argument.env(None::<&str>);
        }
        argument
    })
}

pub(crate) fn manual() -> (u8, AnswerText) {
    let mut page = Vec::new();
    // Writing to memory cannot fail.
    let _ = write_manual(&mut page);
    shown(&page)
}

fn write_manual(page: &mut Vec<u8>) -> io::Result<()> {
    let manual = Man::new(command().mut_args(|argument| argument.hide_env(false)));
    manual.render_title(page)?;
    manual.render_name_section(page)?;
    manual.render_synopsis_section(page)?;
    manual.render_description_section(page)?;
    manual.render_options_section(page)?;
    let mut rest = Roff::new();
    for section in DETAILS.split("\n\n") {
        let (title, lines) = section.split_once(':').unwrap_or_default();
        rest.control("SH", [&*title.to_uppercase()]);
        rest.control("nf", []);
        for line in lines.trim_start().lines() {
            rest.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        }
        rest.control("fi", []);
    }
    rest.to_writer(page)
}

pub(crate) fn completions(shell: Shell) -> (u8, AnswerText) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "lockrun", &mut script);
    shown(&script)
}

fn shown(text: &[u8]) -> (u8, AnswerText) {
    let out = String::from_utf8_lossy(text).trim_end().to_owned();
    let err = String::new();
    (0, AnswerText { out, err })
}

/// The arguments of this process.
pub(crate) fn read() -> Result<Arguments, Error> {
    let matches = command().try_get_matches()?;
    Arguments::from_arg_matches(&matches)?.checked(&matches)
}

/// The likely mistake, if clap does not name it.
pub(crate) fn hint(error: &Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(&**text),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => without_dashes(text(ContextKind::InvalidArg)?),
        ErrorKind::ValueValidation => from_environment(text(ContextKind::InvalidValue)?),
        _ => None,
    }
}

/// For a word that is not an option, if there is no `--` before a command.
fn without_dashes(word: &str) -> Option<String> {
    let begins_command = env::args_os().any(|argument| argument == "--");
    (!word.starts_with('-') && !begins_command).then(|| {
        format!("Did you forget `--` before the command? lockrun [OPTIONS] --name <NAME> -- {word}")
    })
}

/// For a value that is not on the command line.
fn from_environment(value: &str) -> Option<String> {
    let is_it = |variable: &&str| env::var_os(variable).is_some_and(|it| it == value);
    let is_given = env::args_os().any(|argument| argument == value);
    let command = command();
    let variables = command
        .get_arguments()
        .filter_map(|it| it.get_env()?.to_str());
    let mut variables = variables.filter(|_| !is_given);
    let variable = variables.find(is_it)?;
    Some(format!("The environment sets {variable} to this value."))
}
