//! A process that works for this one: this program, or a build of it before, started again, or another.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::Context;

/// A process that works, killed when it is dropped.
pub(crate) struct Worker {
    process: Child,
    says: BufReader<ChildStdout>,
}

impl Worker {
    /// The variable tells it that it works, and how.
    pub(crate) fn start(program: &Path, variable: &str, how: &str) -> anyhow::Result<Self> {
        Self::of(Command::new(program).env(variable, how))
    }

    /// Any program that hears and says lines.
    pub(crate) fn of(command: &mut Command) -> anyhow::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = process.stdout.take().context("its output")?;
        Ok(Self {
            process,
            says: BufReader::new(says),
        })
    }

    /// The next line that it says.
    pub(crate) fn hear(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "it ended");
        Ok(line)
    }

    /// Tells it a line, and hears one.
    pub(crate) fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        let input = self.process.stdin.as_mut().context("its input")?;
        writeln!(input, "{line}")?;
        self.hear()
    }

    /// Its input ends.
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
