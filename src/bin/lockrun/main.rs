//! Runs a command under a lock: `lockrun --name backup --wait 2m --lease 60s -- command args…`.
//!
//! See `lockrun --help`; `docs/lockrun.md` lists the failures it handles.
//!
//! `arguments` reads the command line and computes the grace and the margin before the end of the
//! lease. `run` acquires the locks and releases them; `held` has the guards. `command` starts and
//! watches the command; `Job::check_lease` decides when to end it so that it ends before the lease.
//! `guard` owns the command's process group, `family` finds what has left it. The `guardian`, a
//! second process, kills them if lockrun cannot. `processes` reads `/proc`. `outcome` has the exit codes,
//! `words` the texts of errors. `operator`, `list` and `probe` answer without a command.

#[cfg(unix)]
mod arguments;
#[cfg(unix)]
mod busy;
#[cfg(unix)]
mod command;
#[cfg(unix)]
mod events;
#[cfg(unix)]
mod family;
#[cfg(unix)]
mod guard;
#[cfg(unix)]
mod guardian;
#[cfg(unix)]
mod held;
#[cfg(unix)]
mod help;
#[cfg(unix)]
mod list;
#[cfg(unix)]
mod loss;
#[cfg(unix)]
mod operator;
#[cfg(unix)]
mod outcome;
#[cfg(unix)]
mod probe;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
mod repeats;
#[cfg(unix)]
mod run;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod text;
#[cfg(unix)]
mod tls;
#[cfg(unix)]
mod words;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use std::env;

    use arguments::{Arguments, Task};

    if env::args_os().skip(1).eq([guard::GUARDIAN]) {
        return guardian::main();
    }
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let (code, told) = match arguments.action() {
        Task::Status => operator::status(&arguments),
        Task::ForceRelease => operator::force_release(&arguments),
        Task::List => list::list(&arguments),
        Task::Manual => help::manual(),
        Task::Completions(shell) => help::completions(shell),
        Task::Probe => probe::probe(&arguments),
        Task::Run => {
            let report = run::run(&arguments);
            (report.code(), report.told(&arguments))
        }
    };
    told.print()
        .map_or_else(|error| outcome::not_written(&error), |()| code)
        .into()
}

#[cfg(not(unix))]
#[allow(clippy::print_stderr, reason = "a program that talks")]
fn main() -> std::process::ExitCode {
    eprintln!("lockrun: runs only on Unix, since it ends commands by their process groups");
    std::process::ExitCode::from(64)
}
