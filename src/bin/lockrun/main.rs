//! Runs a command under a lock: `lockrun --name backup --wait 2m --lease 60s -- command args…`.
//!
//! See `lockrun --help`; `docs/lockrun.md` lists the failures it handles.
//!
//! - [`arguments`]: the command line.
//! - [`deciding`], from values alone: when the command is told to end and killed; the exit code.
//! - [`doing`]: locks, processes, signals. No action waits until a message is read.
//! - [`speaking`]: texts for stderr, and the only thread that writes them.
//! - [`answering`]: calls the others, and writes answers to questions on stdout.

#[cfg(unix)]
mod answering;
#[cfg(unix)]
mod arguments;
#[cfg(unix)]
mod deciding;
#[cfg(unix)]
mod doing;
#[cfg(unix)]
mod speaking;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use std::{
        env,
        io::{self, Write},
        os::fd::AsFd,
    };

    use nix::poll::{PollFd, PollFlags, poll};

    use deciding::outcome;
    use doing::{command, guard, guardian};
    use speaking::{messages, speaker::Speaker};

    let mut words = env::args_os().skip(1);
    match words.next() {
        Some(word) if word == guard::GUARDIAN => return guardian::main(),
        Some(word) if word == command::BECOME => return command::main(words),
        _ => {}
    }
    let speaker = match Speaker::start() {
        Ok(speaker) => speaker,
        Err(error) => {
            let mut stderr = io::stderr();
            let room = poll(&mut [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)], 0u8);
            if room == Ok(1) {
                let _ = stderr.write_all(messages::system(&error).line().as_bytes());
            }
            return outcome::SYSTEM.into();
        }
    };
    let code = answering::to_arguments(&speaker);
    speaker.finish();
    code.into()
}

#[cfg(not(unix))]
#[allow(clippy::print_stderr, reason = "a program that talks")]
fn main() -> std::process::ExitCode {
    eprintln!("lockrun: runs only on Unix, since it ends commands by their process groups");
    std::process::ExitCode::from(64)
}
