//! Runs a command under a lock: `lockrun --name backup --wait 2m --lease 60s -- command args…`.
//!
//! See `lockrun --help`; `docs/lockrun.md` lists the failures it handles.
//!
//! - **Deciding**, from values alone: `arguments` computes the grace and the margin before the end of
//!   the lease, `ending` when the command is told to end and killed, `outcome` the exit code.
//! - **Doing**: `run` acquires and releases the locks that `held` has the guards of; `command` starts
//!   the command, `job` watches and ends it. `guard` owns the command's process group, `family` finds
//!   what has left it; the `guardian`, a second process, kills both if lockrun cannot. `signals` and
//!   `events` bring what happens, `processes` reads `/proc`.
//! - **Speaking**: `messages` makes every text for stderr, of `words`, `busy`, `loss` and `text`. The
//!   `speaker`, a thread of its own, writes it: nobody waits for a reader. `waits` reports a wait.
//! - **Answering** without a command, on stdout: `answer`, `help`, `operator`, `list`, `probe`.

#[cfg(unix)]
mod answer;
#[cfg(unix)]
mod arguments;
#[cfg(unix)]
mod busy;
#[cfg(unix)]
mod command;
#[cfg(unix)]
mod ending;
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
mod job;
#[cfg(unix)]
mod list;
#[cfg(unix)]
mod loss;
#[cfg(unix)]
mod messages;
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
mod speaker;
#[cfg(unix)]
mod text;
#[cfg(unix)]
mod tls;
#[cfg(unix)]
mod waits;
#[cfg(unix)]
mod words;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use std::{
        env,
        io::{self, Write},
    };

    use speaker::Speaker;

    if env::args_os().skip(1).eq([guard::GUARDIAN]) {
        return guardian::main();
    }
    let speaker = match Speaker::start() {
        Ok(speaker) => speaker,
        Err(error) => {
            // Nothing depends on lockrun yet, so it may wait for a reader.
            let _ = io::stderr().write_all(messages::system(&error).line().as_bytes());
            return outcome::SYSTEM.into();
        }
    };
    let code = answer::to_arguments(&speaker);
    speaker.finish();
    code.into()
}

#[cfg(not(unix))]
#[allow(clippy::print_stderr, reason = "a program that talks")]
fn main() -> std::process::ExitCode {
    eprintln!("lockrun: runs only on Unix, since it ends commands by their process groups");
    std::process::ExitCode::from(64)
}
