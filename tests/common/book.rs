//! The lock functions of the book's Python and Java code, by the commands that they send, as somebody else's client.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use redis::Connection;
use uuid::Uuid;

use super::Server;

/// A program that uses the book's functions.
pub trait BookClient: Send {
    fn acquire_lock(&mut self, name: &str, wait: Duration) -> anyhow::Result<Option<String>>;

    fn acquire_lock_with_timeout(
        &mut self,
        name: &str,
        wait: Duration,
        lease: Duration,
    ) -> anyhow::Result<Option<String>>;

    fn release_lock(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool>;

    /// Adds one to a number so often, with a `GET` and a `SET` that only the lock keeps together.
    fn count_under_lock(&mut self, name: &str, number: &str, times: u32) -> anyhow::Result<()>;
}

/// In what the two editions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    /// A lease is rounded up to whole seconds; a lock has no end if its `TTL` is negative.
    Python,
    /// A lease is cut to whole seconds; a lock has no end if its `TTL` is -1.
    Java,
}

/// An edition of the book, spoken from here.
pub struct Book {
    conn: Connection,
    edition: Edition,
}

impl Book {
    pub fn new(server: &Server, edition: Edition) -> anyhow::Result<Self> {
        let conn = server.connection()?;
        Ok(Self { conn, edition })
    }

    fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> anyhow::Result<T> {
        Ok(redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut self.conn)?)
    }

    fn acquire(
        &mut self,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> anyhow::Result<Option<String>> {
        let (key, identifier) = (format!("lock:{name}"), Uuid::new_v4().to_string());
        let seconds = lease.map(|lease| self.whole_seconds(lease));
        let end = Instant::now() + wait;
        while Instant::now() < end {
            let set: bool = self.ask(&["SETNX", &key, &identifier])?;
            if let Some(seconds) = &seconds
                && (set || self.has_no_end(&key)?)
            {
                let _: i64 = self.ask(&["EXPIRE", &key, seconds])?;
            }
            if set {
                return Ok(Some(identifier));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    fn whole_seconds(&self, lease: Duration) -> String {
        let millis = lease.as_millis();
        match self.edition {
            Edition::Python => millis.div_ceil(1000).to_string(),
            Edition::Java => (millis / 1000).to_string(),
        }
    }

    fn has_no_end(&mut self, key: &str) -> anyhow::Result<bool> {
        let ttl: i64 = self.ask(&["TTL", key])?;
        Ok(match self.edition {
            Edition::Python => ttl < 0,
            Edition::Java => ttl == -1,
        })
    }
}

impl BookClient for Book {
    fn acquire_lock(&mut self, name: &str, wait: Duration) -> anyhow::Result<Option<String>> {
        self.acquire(name, wait, None)
    }

    fn acquire_lock_with_timeout(
        &mut self,
        name: &str,
        wait: Duration,
        lease: Duration,
    ) -> anyhow::Result<Option<String>> {
        self.acquire(name, wait, Some(lease))
    }

    fn release_lock(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        let key = format!("lock:{name}");
        loop {
            let () = self.ask(&["WATCH", &key])?;
            let holder: Option<String> = self.ask(&["GET", &key])?;
            if holder.as_deref() != Some(identifier) {
                let () = self.ask(&["UNWATCH"])?;
                return Ok(false);
            }
            let () = self.ask(&["MULTI"])?;
            let () = self.ask(&["DEL", &key])?;
            let executed: redis::Value = self.ask(&["EXEC"])?;
            if executed != redis::Value::Nil {
                return Ok(true);
            }
        }
    }

    fn count_under_lock(&mut self, name: &str, number: &str, times: u32) -> anyhow::Result<()> {
        for _ in 0..times {
            let (wait, lease) = (Duration::from_secs(30), Duration::from_secs(10));
            let identifier = self.acquire(name, wait, Some(lease))?;
            let before: Option<i64> = self.ask(&["GET", number])?;
            let after = before.unwrap_or(0) + 1;
            let () = self.ask(&["SET", number, &after.to_string()])?;
            let identifier = identifier.context("the lock was not to be had")?;
            ensure!(self.release_lock(name, &identifier)?, "the lock was lost");
        }
        Ok(())
    }
}

/// A program of another language: it reads a request a line and answers each with a line.
pub struct Program {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it with the server's port as its last argument.
    pub fn start(command: &str, args: &[&str], server: &Server) -> anyhow::Result<Self> {
        let mut process = Command::new(command)
            .args(args)
            .arg(server.port().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{command} does not start: is it installed?"))?;
        Ok(Self {
            requests: process.stdin.take().context("no stdin")?,
            answers: BufReader::new(process.stdout.take().context("no stdout")?),
            process,
        })
    }

    fn ask(&mut self, request: &str) -> anyhow::Result<String> {
        writeln!(self.requests, "{request}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(
            answer.ends_with('\n'),
            "the program has ended at: {request}"
        );
        Ok(answer.trim_end().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl BookClient for Program {
    fn acquire_lock(&mut self, name: &str, wait: Duration) -> anyhow::Result<Option<String>> {
        let answer = self.ask(&format!("acquire {name} {}", wait.as_millis()))?;
        Ok((answer != "none").then_some(answer))
    }

    fn acquire_lock_with_timeout(
        &mut self,
        name: &str,
        wait: Duration,
        lease: Duration,
    ) -> anyhow::Result<Option<String>> {
        let (wait, lease) = (wait.as_millis(), lease.as_millis());
        let answer = self.ask(&format!("acquire_with_timeout {name} {wait} {lease}"))?;
        Ok((answer != "none").then_some(answer))
    }

    fn release_lock(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        Ok(self.ask(&format!("release {name} {identifier}"))? == "true")
    }

    fn count_under_lock(&mut self, name: &str, number: &str, times: u32) -> anyhow::Result<()> {
        let answer = self.ask(&format!("count {name} {number} {times}"))?;
        ensure!(answer == "done", "{answer}");
        Ok(())
    }
}
