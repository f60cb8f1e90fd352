//! What the tests ask the server itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use redis::{Commands, Connection};

/// The server's clock in milliseconds.
pub fn millis(conn: &mut Connection) -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(conn).unwrap();
    seconds * 1000 + micros / 1000
}

/// How often the server has executed a command (lower-case name), scripts included.
pub fn calls(conn: &mut Connection, command: &str) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(conn).unwrap();
    let start = format!("cmdstat_{command}:calls=");
    stats
        .lines()
        .find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

/// How often the server has executed a command that writes.
pub fn writes(conn: &mut Connection) -> u64 {
    ["set", "hset", "hdel", "del", "pexpire", "pexpireat"]
        .map(|command| calls(conn, command))
        .iter()
        .sum()
}

/// Everything that is stored, without the ends of keys: those are asked for apart.
pub fn stored(conn: &mut Connection) -> HashMap<String, Vec<u8>> {
    let keys: Vec<String> = conn.keys("*").unwrap();
    keys.into_iter()
        .map(|key| {
            let dump = redis::cmd("DUMP").arg(&key).query(conn).unwrap();
            (key, dump)
        })
        .collect()
}

/// Waits until something is so, for five seconds.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(5), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
