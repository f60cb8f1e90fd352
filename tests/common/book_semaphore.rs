//! A foreign client: the commands that the Python code in the book's section 6.3 sends for its
//! semaphores.

use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::ensure;
use leasehold::{
    Result, Token, acquire_fair_semaphore, acquire_semaphore, acquire_semaphore_with_lock,
    release_fair_semaphore, release_semaphore,
};
use redis::{Connection, FromRedisValue, Pipeline};
use uuid::Uuid;

use super::{
    Server,
    book::{Book, BookClient, Edition, Program},
};

/// A client that uses the book's semaphores.
pub trait SemaphoreClient: Send {
    fn acquire(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>>;
    fn release(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool>;
    fn acquire_fair(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>>;
    fn release_fair(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool>;
    fn refresh_fair(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool>;
    fn acquire_with_lock(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>>;
    /// Acquires and releases this many times and counts the holders at a number. Returns the
    /// highest count seen.
    fn storm(
        &mut self,
        way: Way,
        asked: &Asked<'_>,
        inside: &str,
        times: u32,
    ) -> anyhow::Result<i64>;
}

/// The arguments of an acquire.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub name: &'a str,
    pub limit: u32,
    pub timeout: Duration,
}

/// The function that acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Basic,
    Fair,
    WithLock,
}

impl Way {
    pub fn word(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Fair => "fair",
            Self::WithLock => "with_lock",
        }
    }
}

/// By our function.
pub fn acquire(conn: &mut Connection, way: Way, asked: &Asked<'_>) -> Result<Option<Token>> {
    let acquire = match way {
        Way::Basic => acquire_semaphore,
        Way::Fair => acquire_fair_semaphore,
        Way::WithLock => acquire_semaphore_with_lock,
    };
    acquire(conn, asked.name, asked.limit, asked.timeout)
}

pub fn release(conn: &mut Connection, way: Way, name: &str, token: &Token) -> Result<bool> {
    match way {
        Way::Basic => release_semaphore(conn, name, token),
        Way::Fair | Way::WithLock => release_fair_semaphore(conn, name, token),
    }
}

/// The book's steps in Rust; a test can run them one at a time.
pub struct BookSemaphores {
    conn: Connection,
    locks: Book,
    /// Seconds by which this client's clock is fast.
    pub clock_ahead: f64,
}

/// A caller of the fair semaphore after its first transaction.
pub struct Arrival {
    pub identifier: String,
    at: f64,
    pub number: i64,
}

impl BookSemaphores {
    pub fn new(server: &Server) -> anyhow::Result<Self> {
        Ok(Self {
            conn: server.connection()?,
            locks: Book::new(server, Edition::Python)?,
            clock_ahead: 0.0,
        })
    }

    fn clock(&self) -> anyhow::Result<f64> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(since.as_secs_f64() + self.clock_ahead)
    }

    fn together<T: FromRedisValue>(&mut self, commands: &[&[&str]]) -> anyhow::Result<T> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for command in commands {
            let _: &mut Pipeline = pipe.cmd(command[0]).arg(&command[1..]);
        }
        Ok(pipe.query(&mut self.conn)?)
    }

    /// First transaction: removes expired holders and draws a number.
    pub fn arrive(&mut self, asked: &Asked<'_>) -> anyhow::Result<Arrival> {
        let (name, at) = (asked.name, self.clock()?);
        let (owner, counter) = (format!("{name}:owner"), format!("{name}:counter"));
        let past = (at - asked.timeout.as_secs_f64()).to_string();
        let (_, _, number): (i64, i64, i64) = self.together(&[
            &["ZREMRANGEBYSCORE", name, "-inf", &past],
            &[
                "ZINTERSTORE",
                &owner,
                "2",
                &owner,
                name,
                "WEIGHTS",
                "1",
                "0",
            ],
            &["INCR", &counter],
        ])?;
        let identifier = Uuid::new_v4().to_string();
        Ok(Arrival {
            identifier,
            at,
            number,
        })
    }

    /// Second transaction: enters both sets and returns its rank.
    pub fn join(&mut self, name: &str, arrival: &Arrival) -> anyhow::Result<u32> {
        let owner = format!("{name}:owner");
        let (at, number) = (arrival.at.to_string(), arrival.number.to_string());
        let mine = &arrival.identifier;
        let (_, _, rank): (i64, i64, u32) = self.together(&[
            &["ZADD", name, &at, mine],
            &["ZADD", &owner, &number, mine],
            &["ZRANK", &owner, mine],
        ])?;
        Ok(rank)
    }

    /// Third transaction, also the release: returns whether the first set contained the identifier.
    pub fn leave(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        let owner = format!("{name}:owner");
        let (removed, _): (i64, i64) =
            self.together(&[&["ZREM", name, identifier], &["ZREM", &owner, identifier]])?;
        Ok(removed == 1)
    }
}

impl SemaphoreClient for BookSemaphores {
    fn acquire(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>> {
        let (at, mine) = (self.clock()?, Uuid::new_v4().to_string());
        let past = (at - asked.timeout.as_secs_f64()).to_string();
        let (_, _, rank): (i64, i64, u32) = self.together(&[
            &["ZREMRANGEBYSCORE", asked.name, "-inf", &past],
            &["ZADD", asked.name, &at.to_string(), &mine],
            &["ZRANK", asked.name, &mine],
        ])?;
        if rank < asked.limit {
            return Ok(Some(mine));
        }
        self.release(asked.name, &mine)?;
        Ok(None)
    }

    fn release(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        let (removed,): (i64,) = self.together(&[&["ZREM", name, identifier]])?;
        Ok(removed == 1)
    }

    fn acquire_fair(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>> {
        let arrival = self.arrive(asked)?;
        if self.join(asked.name, &arrival)? < asked.limit {
            return Ok(Some(arrival.identifier));
        }
        self.leave(asked.name, &arrival.identifier)?;
        Ok(None)
    }

    fn release_fair(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        self.leave(name, identifier)
    }

    fn refresh_fair(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        let at = self.clock()?.to_string();
        let (added,): (i64,) = self.together(&[&["ZADD", name, &at, identifier]])?;
        if added == 1 {
            self.leave(name, identifier)?;
        }
        Ok(added == 0)
    }

    fn acquire_with_lock(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>> {
        let wait = Duration::from_millis(10);
        let Some(lock) = self.locks.acquire_lock(asked.name, wait)? else {
            return Ok(None);
        };
        let acquired = self.acquire_fair(asked);
        self.locks.release_lock(asked.name, &lock)?;
        acquired
    }

    fn storm(
        &mut self,
        way: Way,
        asked: &Asked<'_>,
        inside: &str,
        times: u32,
    ) -> anyhow::Result<i64> {
        let (mut most, mut held, end) = (0, 0, Instant::now() + Duration::from_mins(1));
        while held < times {
            ensure!(
                Instant::now() < end,
                "{held} of {times} permits in a minute"
            );
            let acquired = match way {
                Way::Basic => self.acquire(asked)?,
                Way::Fair => self.acquire_fair(asked)?,
                Way::WithLock => self.acquire_with_lock(asked)?,
            };
            let Some(identifier) = acquired else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            held += 1;
            let (seen,): (i64,) = self.together(&[&["INCR", inside]])?;
            most = most.max(seen);
            thread::sleep(Duration::from_millis(1));
            let _: (i64,) = self.together(&[&["DECR", inside]])?;
            let released = match way {
                Way::Basic => self.release(asked.name, &identifier)?,
                Way::Fair | Way::WithLock => self.release_fair(asked.name, &identifier)?,
            };
            ensure!(released, "a permit was lost");
        }
        Ok(most)
    }
}

impl SemaphoreClient for Program {
    fn acquire(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>> {
        self.acquire_by(Way::Basic, asked)
    }

    fn release(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        Ok(self.ask(&format!("release {name} {identifier}"))? == "true")
    }

    fn acquire_fair(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>> {
        self.acquire_by(Way::Fair, asked)
    }

    fn release_fair(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        Ok(self.ask(&format!("release_fair {name} {identifier}"))? == "true")
    }

    fn refresh_fair(&mut self, name: &str, identifier: &str) -> anyhow::Result<bool> {
        Ok(self.ask(&format!("refresh_fair {name} {identifier}"))? == "true")
    }

    fn acquire_with_lock(&mut self, asked: &Asked<'_>) -> anyhow::Result<Option<String>> {
        self.acquire_by(Way::WithLock, asked)
    }

    fn storm(
        &mut self,
        way: Way,
        asked: &Asked<'_>,
        inside: &str,
        times: u32,
    ) -> anyhow::Result<i64> {
        let (way, asked) = (way.word(), asked.words());
        Ok(self
            .ask(&format!("storm {asked} {way} {inside} {times}"))?
            .parse()?)
    }
}

impl Program {
    fn acquire_by(&mut self, way: Way, asked: &Asked<'_>) -> anyhow::Result<Option<String>> {
        let answer = self.ask(&format!("acquire {} {}", asked.words(), way.word()))?;
        Ok((answer != "none").then_some(answer))
    }
}

impl Asked<'_> {
    fn words(&self) -> String {
        format!("{} {} {}", self.name, self.limit, self.timeout.as_millis())
    }
}
