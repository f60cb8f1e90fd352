//! The server's clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use redis::Connection;

/// What it says, in milliseconds since 1970.
pub fn millis(conn: &mut Connection) -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(conn).unwrap();
    seconds * 1000 + micros / 1000
}
