//! A worker process: this program, started again, an earlier build of it, or another program.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::Context;

/// A worker process, killed when dropped.
pub(crate) struct Worker {
    process: Child,
    says: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker. The environment variable makes it a worker, and has its settings.
    pub(crate) fn start(program: &Path, variable: &str, how: &str) -> anyhow::Result<Self> {
        Self::of(Command::new(program).env(variable, how))
    }

    /// Starts any program that reads and prints lines.
    pub(crate) fn of(command: &mut Command) -> anyhow::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = process.stdout.take().context("no stdout")?;
        Ok(Self {
            process,
            says: BufReader::new(says),
        })
    }

    /// Reads the next line of output.
    pub(crate) fn hear(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "the worker has ended");
        Ok(line)
    }

    /// Sends a line, and reads one.
    pub(crate) fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        let input = self.process.stdin.as_mut().context("no stdin")?;
        writeln!(input, "{line}")?;
        self.hear()
    }

    /// Closes its input.
    pub(crate) fn no_more(&mut self) {
        drop(self.process.stdin.take());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
