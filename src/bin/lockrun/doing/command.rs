//! Starts the command in the guard's group, with its fencing tokens.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    process::{Child, Command},
};

use nix::errno::Errno;

use crate::{
    arguments::Arguments,
    deciding::outcome::Conclusion,
    doing::{guard::Guard, held::Held, signals::SignalMask},
};

const FENCING_TOKEN: &str = "LEASEHOLD_FENCING_TOKEN";
/// Runs a file without `#!` as a shell script, and searches `PATH` for it, as `execvp` does.
const AS_A_SCRIPT: [&str; 3] = ["/bin/sh", "-c", r#"exec "$0" "$@""#];

/// Starts the command in the guard's group.
pub(crate) fn start(
    arguments: &Arguments,
    started: SignalMask,
    held: &Held<'_>,
    guard: &mut Guard,
) -> Result<Child, Conclusion> {
    guard
        .end_in(|| held.remaining(), arguments.margin())
        .map_err(Conclusion::System)?;
    let spawn = |before: &[&str]| {
        let words = before.iter().map(OsStr::new);
        let mut words = words.chain(arguments.command.iter().map(OsString::as_os_str));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).process_group(guard.group());
        pass_fencing_tokens(&mut command, held);
        started.spawn(&mut command)
    };
    let command = match spawn(&[]) {
        Err(error) if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => spawn(&AS_A_SCRIPT),
        command => command,
    };
    let command = command.map_err(Conclusion::not_started)?;
    guard.take_in(&command);
    Ok(command)
}

/// Numbers the tokens of several locks in the order of `--name`: a lock's name may contain
/// characters that a variable's name cannot.
fn pass_fencing_tokens(command: &mut Command, held: &Held<'_>) {
    // The command would take the tokens of an outer lockrun for those of its own locks.
    command.env_remove(FENCING_TOKEN);
    let inherited = env::vars_os().map(|(variable, _)| variable);
    for variable in inherited.filter(|it| it.to_str().is_some_and(is_numbered)) {
        command.env_remove(variable);
    }
    let is_one = held.all().count() == 1;
    for (number, lease) in (1..).zip(held.all()) {
        let variable = if is_one {
            FENCING_TOKEN.to_owned()
        } else {
            format!("{FENCING_TOKEN}_{number}")
        };
        if let Some(fence) = lease.fencing_token() {
            command.env(variable, fence.to_string());
        }
    }
}

fn is_numbered(variable: &str) -> bool {
    let number = variable.strip_prefix(FENCING_TOKEN);
    let number = number.and_then(|rest| rest.strip_prefix('_'));
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}
