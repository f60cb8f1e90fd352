//! A forked child that does one thing and exits.

use std::{
    cell::Cell,
    fmt::Debug,
    io::{PipeReader, PipeWriter, Read, Write, pipe},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process, thread,
    time::{Duration, Instant},
};

use fork::{Fork, fork, waitpid, waitpid_nohang};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Longer than any child runs unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A forked child, killed when this value is dropped.
pub struct Forked {
    process: i32,
    started: Instant,
    hears: PipeReader,
    has_ended: bool,
    has_hung: bool,
}

impl Forked {
    /// Forks. The child has only this thread and must not print: another thread may have held the
    /// output lock at the time of the fork.
    pub fn start(says: impl FnOnce() -> String) -> Self {
        let (hears, mut tells) = pipe().unwrap();
        match fork().unwrap() {
            Fork::Child => end_as_a_child(&mut tells, says),
            Fork::Parent(process) => Self::new(process, hears),
        }
    }

    fn new(process: i32, hears: PipeReader) -> Self {
        Self {
            process,
            started: Instant::now(),
            hears,
            has_ended: false,
            has_hung: false,
        }
    }

    /// True if it has exited. Kills a child that hangs.
    pub fn has_ended(&mut self) -> bool {
        self.has_ended = self.has_ended || waitpid_nohang(self.process).unwrap().is_some();
        if !self.has_ended && self.started.elapsed() > PATIENCE {
            self.has_hung = true;
            self.kill();
        }
        self.has_ended
    }

    /// The child's output; `None` if it hung and was killed.
    pub fn said(mut self) -> Option<String> {
        while !self.has_ended() {
            thread::sleep(Duration::from_millis(2));
        }
        if self.has_hung {
            return None;
        }
        let mut said = String::new();
        self.hears.read_to_string(&mut said).unwrap();
        Some(without_contexts(&said))
    }

    fn kill(&mut self) {
        let _ = kill(Pid::from_raw(self.process), Signal::SIGKILL);
        let _ = waitpid(self.process);
        self.has_ended = true;
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if !self.has_ended {
            self.kill();
        }
    }
}

/// Leaves out the function and the lock of each `Error::Forked`.
fn without_contexts(said: &str) -> String {
    let mut parts = said.split("Forked { context: ");
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, rest) = part.split_once("} }").unwrap();
        told.push_str("Forked");
        told.push_str(rest);
    }
    told
}

/// The output of a forked child; `None` if it hung and was killed.
pub fn said_by_a_child(says: impl FnOnce() -> String) -> Option<String> {
    Forked::start(says).said()
}

/// Runs a function that forks when it calls its argument. Returns the function's result in the
/// child (`None` if it hung) and in the parent.
pub fn forking_within<T: Debug>(function: impl FnOnce(&dyn Fn()) -> T) -> (Option<String>, T) {
    let (hears, mut tells) = pipe().unwrap();
    let forked = Cell::new(None);
    let fork_here = || forked.set(Some(fork().unwrap()));
    let came = catch_unwind(AssertUnwindSafe(|| function(&fork_here)));
    match forked.get().unwrap() {
        Fork::Child => end_as_a_child(&mut tells, || match came {
            Ok(came) => format!("{came:?}"),
            Err(panic) => resume_unwind(panic),
        }),
        Fork::Parent(process) => {
            drop(tells);
            let said = Forked::new(process, hears).said();
            (said, came.unwrap_or_else(|panic| resume_unwind(panic)))
        }
    }
}

fn end_as_a_child(tells: &mut PipeWriter, says: impl FnOnce() -> String) -> ! {
    let said = catch_unwind(AssertUnwindSafe(says));
    let said = said.unwrap_or_else(|_| String::from("it panicked"));
    let _ = tells.write_all(said.as_bytes());
    // Skips the exit handlers inherited from the parent.
    let _ = kill(Pid::this(), Signal::SIGKILL);
    process::abort()
}
