//! The child of a fork, which does one thing and ends.

use std::{
    io::{Read, Write, pipe},
    thread,
    time::{Duration, Instant},
};

use fork::{Fork, fork, waitpid_nohang};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Longer than any child takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a child of a fork says; `None`: it hung, and was killed. It has no thread but this one, and must not print: another
/// thread may have been printing when the process was copied.
pub fn said_by_a_child(says: impl FnOnce() -> String) -> Option<String> {
    let (mut hears, mut tells) = pipe().unwrap();
    match fork().unwrap() {
        Fork::Child => {
            let _ = tells.write_all(says().as_bytes());
            // Without whatever the parent wants done at its end.
            let _ = kill(Pid::this(), Signal::SIGKILL);
            std::process::abort()
        }
        Fork::Parent(child) => {
            drop(tells);
            let started = Instant::now();
            while waitpid_nohang(child).unwrap().is_none() {
                if started.elapsed() > PATIENCE {
                    let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
                    let _ = fork::waitpid(child);
                    return None;
                }
                thread::sleep(Duration::from_millis(2));
            }
            let mut said = String::new();
            hears.read_to_string(&mut said).unwrap();
            Some(said)
        }
    }
}
