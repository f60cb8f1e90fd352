//! Reads the command line; `--help`, hints about wrong arguments.

use std::env;

use clap::{
    Command, CommandFactory, Error, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::arguments::Arguments;

/// The end of `--help`.
const DETAILS: &str = include_str!("help.txt");

/// The command line as clap knows it. An empty variable counts as not set.
fn command() -> Command {
    let command = Arguments::command().after_long_help(DETAILS);
    command.mut_args(|argument| {
        let argument = argument.hide_env(true);
        let value = argument.get_env().and_then(env::var_os);
        if value.is_some_and(|value| value.is_empty() || value == "\n") {
            return argument.env(None::<&str>);
        }
        argument
    })
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

/// The hint for a word that is not an option, if there is no `--` before a command.
fn without_dashes(word: &str) -> Option<String> {
    let begins_command = env::args_os().any(|argument| argument == "--");
    (!word.starts_with('-') && !begins_command).then(|| {
        format!("Did you forget `--` before the command? lockrun [OPTIONS] --name <NAME> -- {word}")
    })
}

/// The hint for a value that is not on the command line.
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
