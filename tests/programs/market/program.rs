//! Starts the example `market` and waits for it, on a server that a test can observe.

use std::{
    ffi::OsStr,
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use redis::{Client, Commands, Connection};
use tempfile::TempDir;

use crate::common::{
    example,
    server::find_binary,
    wait::{comes_true, comes_true_within},
};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(30);

/// The program with these arguments, which contain no spaces.
pub(crate) fn market(args: &str) -> Command {
    let mut command = example("market");
    command.args(args.split_whitespace());
    command
}

/// Starts it; [`ended`] waits for its exit.
pub(crate) fn started(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for its exit; its output fits into a pipe.
pub(crate) fn ended(mut child: Child) -> Output {
    let ends = comes_true_within(LIMIT, || child.try_wait().unwrap().is_some());
    if !ends {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(ends, "it hangs: {output:?}");
    output
}

pub(crate) fn run(args: &str) -> Output {
    ended(started(&mut market(args)))
}

/// Sends a signal to a process or, with a minus sign, to a group.
pub(crate) fn signal(name: &str, process: &str) {
    let status = Command::new("kill")
        .args(["-s", name, "--", process])
        .status();
    assert!(status.unwrap().success());
}

/// Waits until a simulation is running.
pub(crate) fn wait_for_trade(conn: &mut Connection) {
    assert!(comes_true(|| conn
        .exists::<_, bool>("inventory:buyer-1")
        .unwrap()));
}

/// Another process writes the file. If this process had it open for writing while another thread
/// starts a program, that program would have it open too for a moment, and no one can execute a
/// file that is open for writing.
pub(crate) fn write_script(path: &Path, script: &str) {
    let status = Command::new("sh")
        .args([
            "-c",
            r#"printf '#!/bin/sh\n%s\n' "$1" >"$2" && chmod +x "$2""#,
            "sh",
        ])
        .args([OsStr::new(script), path.as_os_str()])
        .status();
    assert!(status.unwrap().success());
}

/// A fake redis-server on the PATH, which records the process id and the port of the real one and
/// then executes it.
pub(crate) struct Wrapper {
    folder: TempDir,
}

impl Wrapper {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("note");
        let (note, binary) = (note.display(), find_binary().unwrap());
        let script =
            format!("[ \"$1\" = --port ] && echo \"$$ $2\" >'{note}'\nexec '{binary}' \"$@\"");
        write_script(&folder.path().join("server"), &script);
        Self { folder }
    }

    pub(crate) fn command(&self, args: &str) -> Command {
        let mut command = market(args);
        command.env("LEASEHOLD_REDIS_SERVER", self.folder.path().join("server"));
        command
    }

    pub(crate) fn run(&self, args: &str) -> Child {
        started(&mut self.command(args))
    }

    pub(crate) fn note(&self) -> Option<(u32, u16)> {
        let note = fs::read_to_string(self.folder.path().join("note")).ok()?;
        let (process, port) = note.strip_suffix('\n')?.split_once(' ')?;
        Some((process.parse().ok()?, port.parse().ok()?))
    }

    /// Waits until the simulation is running on it. Returns the server's process id.
    pub(crate) fn wait_for_trade(&self) -> u32 {
        assert!(comes_true(|| self.note().is_some()));
        let (process, port) = self.note().unwrap();
        let client = Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let mut connection = None;
        assert!(comes_true(|| {
            connection = client.get_connection().ok();
            connection.is_some()
        }));
        wait_for_trade(&mut connection.unwrap());
        process
    }
}

/// A process that its parent has reaped is gone at once.
pub(crate) fn is_alive(process: u32) -> bool {
    let kill = Command::new("kill")
        .args(["-0", &process.to_string()])
        .stderr(Stdio::null())
        .status();
    kill.unwrap().success()
}
