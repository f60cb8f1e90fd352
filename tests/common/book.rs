//! A foreign client: the commands sent by the lock functions of the book's Python and Java code.

use std::{
    fmt,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use redis::Connection;
use uuid::Uuid;

use super::Server;

/// A client that uses the book's functions.
pub trait BookClient: Send {
    fn acquire_lock(&mut self, name: &str, wait: Duration) -> anyhow::Result<Option<String>>;

    fn acquire_lock_with_timeout(
        &mut self,
        name: &str,
        wait: Duration,
        lease: Duration,
    ) -> anyhow::Result<Option<String>>;

    fn release_lock(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool>;

    /// Increments a number this many times by `GET` and `SET`, which only the lock makes atomic.
    fn count_under_lock(&mut self, name: &str, number: &str, times: u32) -> anyhow::Result<()>;

    /// First half of a purchase: acquires the edition's market lock and reads. Returns whether the
    /// item can be bought.
    fn look_at(&mut self, sale: &Sale) -> anyhow::Result<bool>;

    /// Second half: pays and moves the item if it can be bought, then releases the lock.
    fn decide_on(&mut self, sale: &Sale) -> anyhow::Result<()>;
}

/// Buyer, seller and item of a purchase.
pub struct Sale {
    pub buyer: &'static str,
    pub item: String,
    pub seller: &'static str,
}

impl fmt::Display for Sale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            buyer,
            item,
            seller,
        } = self;
        write!(f, "{buyer} {item} {seller}")
    }
}

/// The differences between the two editions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    /// Rounds a lease up to whole seconds; treats a lock with a negative `TTL` as endless; the
    /// market lock is `lock:market:`.
    Python,
    /// The article's: truncates a lease to whole seconds; treats a lock with a `TTL` of -1 as
    /// endless; the market lock is `lock:market`.
    Java,
}

/// An edition of the book, implemented in Rust.
pub struct Book {
    conn: Connection,
    edition: Edition,
    /// The token of the market lock, and the price if the item can be bought.
    looked: Option<(String, Option<i64>)>,
}

impl Book {
    pub fn new(server: &Server, edition: Edition) -> anyhow::Result<Self> {
        let conn = server.connection()?;
        Ok(Self {
            conn,
            edition,
            looked: None,
        })
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

    fn market_lock(&self) -> &'static str {
        match self.edition {
            Edition::Python => "market:",
            Edition::Java => "market",
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
            let identifier = identifier.context("the lock was not acquired")?;
            ensure!(self.release_lock(name, &identifier)?, "the lock was lost");
        }
        Ok(())
    }

    fn look_at(&mut self, sale: &Sale) -> anyhow::Result<bool> {
        let identifier = self.acquire(self.market_lock(), Duration::from_secs(10), None)?;
        let identifier = identifier.context("the market is closed")?;
        let offer = format!("{}.{}", sale.item, sale.seller);
        let price: Option<i64> = self.ask(&["ZSCORE", "market:", &offer])?;
        let funds: i64 = self.ask(&["HGET", &format!("users:{}", sale.buyer), "funds"])?;
        let price = price.filter(|price| *price <= funds);
        self.looked = Some((identifier, price));
        Ok(price.is_some())
    }

    fn decide_on(&mut self, sale: &Sale) -> anyhow::Result<()> {
        let (identifier, price) = self.looked.take().context("`look_at` was not called")?;
        if let Some(price) = price {
            let mut writes = redis::pipe();
            if self.edition == Edition::Python {
                writes.atomic();
            }
            writes
                .hincr(format!("users:{}", sale.seller), "funds", price)
                .hincr(format!("users:{}", sale.buyer), "funds", -price)
                .sadd(format!("inventory:{}", sale.buyer), &sale.item)
                .zrem("market:", format!("{}.{}", sale.item, sale.seller))
                .exec(&mut self.conn)?;
        }
        let is_ours = self.release_lock(self.market_lock(), &identifier)?;
        ensure!(is_ours, "the lock was lost");
        Ok(())
    }
}

/// A program in another language: reads one request per line and answers each with one line.
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

    pub fn ask(&mut self, request: &str) -> anyhow::Result<String> {
        writeln!(self.requests, "{request}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(answer.ends_with('\n'), "the program exited at: {request}");
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

    fn look_at(&mut self, sale: &Sale) -> anyhow::Result<bool> {
        Ok(self.ask(&format!("look {sale}"))? == "true")
    }

    fn decide_on(&mut self, sale: &Sale) -> anyhow::Result<()> {
        let answer = self.ask(&format!("decide {sale}"))?;
        ensure!(answer == "done", "{answer}");
        Ok(())
    }
}
