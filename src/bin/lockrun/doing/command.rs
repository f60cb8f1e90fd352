//! Starts the command in the guard's group, with its fencing tokens.
//!
//! Starts a second lockrun, which becomes the command once the guardian knows of it. Otherwise a
//! command that leaves the group at once would go on without the lock if lockrun were killed at
//! that moment.

use std::{
    env,
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, PipeReader, PipeWriter, Read, Write, pipe},
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, ExitCode},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    unistd::close,
};

use crate::{
    arguments::Arguments,
    deciding::{
        loss::Loss,
        outcome::{Conclusion, SYSTEM},
    },
    doing::{
        guard::{Guard, this_program},
        held::Held,
        signals::SignalMask,
    },
};

/// The first argument of the process that becomes the command. Two file descriptors follow, and
/// then the command.
pub(crate) const BECOME: &str = "--become-a-command";
const OPEN_FILES: &str = if cfg!(target_os = "linux") {
    "/proc/self/fd"
} else {
    "/dev/fd"
};
const FENCING_TOKEN: &str = "LEASEHOLD_FENCING_TOKEN";

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
    let waiting = Waiting::start(arguments, started, held, guard.group());
    let waiting = waiting.map_err(Conclusion::not_started)?;
    let is_taken_in = guard.take_in(&waiting.command);
    // lockrun may have been stopped for any length of time.
    if let (Duration::ZERO, lease) = held.weakest() {
        return Err(Conclusion::Lost(Loss::of(lease)));
    }
    is_taken_in.map_err(Conclusion::System)?;
    waiting
        .becomes_the_command()
        .map_err(Conclusion::not_started)
}

/// The second lockrun. It ends if this value is dropped.
struct Waiting {
    command: Child,
    is_known: PipeWriter,
    failed: PipeReader,
}

impl Waiting {
    fn start(
        arguments: &Arguments,
        started: SignalMask,
        held: &Held<'_>,
        group: i32,
    ) -> io::Result<Self> {
        let ((known, is_known), (failed, failure)) = (pipe()?, pipe()?);
        let mut command = Command::new(this_program()?);
        command.arg(BECOME).process_group(group);
        for file in [known.as_fd(), failure.as_fd()] {
            fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
            command.arg(file.as_raw_fd().to_string());
        }
        pass_fencing_tokens(command.args(&arguments.command), held);
        Ok(Self {
            command: started.spawn(&mut command)?,
            is_known,
            failed,
        })
    }

    fn becomes_the_command(mut self) -> io::Result<Child> {
        // An error means that the second lockrun was killed meanwhile: its status shows that.
        let _ = self.is_known.write_all(b"!");
        let mut errno = String::new();
        self.failed.read_to_string(&mut errno)?;
        let Ok(errno) = errno.parse() else {
            return Ok(self.command);
        };
        self.command.wait()?;
        Err(io::Error::from_raw_os_error(errno))
    }
}

/// The process that becomes the command.
pub(crate) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let _ = become_the_command(words);
    SYSTEM.into()
}

/// Returns only if it cannot, or if lockrun is gone.
fn become_the_command(mut words: impl Iterator<Item = OsString>) -> io::Result<()> {
    // The files are opened anew to be closed by the start of the command.
    let mut open = |how: &OpenOptions| {
        let number = words.next().and_then(|it| it.to_str()?.parse().ok());
        let number: i32 = number.ok_or(io::ErrorKind::InvalidInput)?;
        let file = how.open(format!("{OPEN_FILES}/{number}"));
        close(number)?;
        file
    };
    let mut known = open(File::options().read(true))?;
    let mut failure = open(File::options().write(true))?;
    known.read_exact(&mut [0])?;
    let mut command = Command::new(words.next().unwrap_or_default());
    let error = command.args(words).exec();
    write!(failure, "{}", error.raw_os_error().unwrap_or_default())
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
