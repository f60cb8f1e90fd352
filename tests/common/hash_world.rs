//! A lock of the article's cluster edition, used by our functions and by a client with the
//! article's scripts.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use leasehold::{
    Token,
    book::article::one_hash::{
        Lifetimes, acquire_read, acquire_write, release_read, release_write,
    },
};
use redis::{Commands, Connection, Value};

use super::{Server, article::one_hash as article, clock::millis, wait::comes_true};

pub const KEY: &str = "lockKey";

/// The same lifetimes as `article::LENGTHS`.
pub const LEASES: Lifetimes = Lifetimes {
    read: Duration::from_secs(20),
    write: Duration::from_secs(30),
    key: Duration::from_secs(90),
};

pub struct World {
    _server: Server,
    pub conn: Connection,
    pub leases: Lifetimes,
}

impl World {
    pub fn new() -> Self {
        let server = Server::start().unwrap();
        let conn = server.connection().unwrap();
        Self {
            _server: server,
            conn,
            leases: LEASES,
        }
    }

    pub fn now(&mut self) -> i64 {
        millis(&mut self.conn)
    }

    pub fn reads(&mut self, token: &Token) -> bool {
        acquire_read(&mut self.conn, KEY, token, Duration::ZERO, &self.leases).unwrap()
    }

    pub fn writes(&mut self, token: &Token) -> bool {
        acquire_write(&mut self.conn, KEY, token, Duration::ZERO, &self.leases).unwrap()
    }

    pub fn stops_reading(&mut self, token: &Token) -> bool {
        release_read(&mut self.conn, KEY, token, &self.leases).unwrap()
    }

    pub fn stops_writing(&mut self, token: &Token) -> bool {
        release_write(&mut self.conn, KEY, token, &self.leases).unwrap()
    }

    /// A client with the article's scripts acquires `read` or `write`; its clock shows `now`.
    pub fn article_acquires(&mut self, side: &str, now: i64) -> bool {
        article::acquire(&mut self.conn, side, KEY, now)
    }

    pub fn article_releases(&mut self, side: &str, now: i64) -> Value {
        article::release(&mut self.conn, side, KEY, &now.to_string())
    }

    pub fn field(&mut self, field: &str) -> Option<String> {
        self.conn.hget(KEY, field).unwrap()
    }

    pub fn put(&mut self, field: &str, value: &str) {
        self.conn.hset::<_, _, _, ()>(KEY, field, value).unwrap();
    }

    /// Number of fields.
    pub fn fields(&mut self) -> usize {
        self.conn.hlen(KEY).unwrap()
    }

    pub fn is_free(&mut self) -> bool {
        self.fields() == 0
    }

    /// Milliseconds until the key expires.
    pub fn left(&mut self) -> i64 {
        self.conn.pttl(KEY).unwrap()
    }

    pub fn wait_until_the_key_ends(&mut self) {
        assert!(comes_true(|| self.is_free()));
    }
}

pub fn tokens<const N: usize>() -> [Token; N] {
    [(); N].map(|()| Token::random())
}
