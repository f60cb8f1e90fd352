//! The book's semaphores: `acquire_semaphore`, the fair one, and the one with the lock.

mod bad_input;
mod bugs;
mod ends;
mod lost_replies;
mod other_values;
mod permits;

use std::time::Duration;

use redis::{Commands, Connection};

use crate::common::book_semaphore::{Asked, Way, acquire, release};

const TIMEOUT: Duration = Duration::from_secs(10);
const DAY: i64 = 24 * 60 * 60 * 1000;
const ALL: [Way; 3] = [Way::Basic, Way::Fair, Way::WithLock];

/// One permit of the semaphore `a`, for ten seconds.
const ONE: Asked<'static> = Asked {
    name: "a",
    limit: 1,
    timeout: TIMEOUT,
};

/// Makes a permit older by this many seconds.
fn age(conn: &mut Connection, name: &str, token: &str, seconds: i64) {
    let () = conn.zincr(name, token, -seconds).unwrap();
}

fn is_in(conn: &mut Connection, key: &str, token: &str) -> bool {
    conn.zscore::<_, _, Option<f64>>(key, token)
        .unwrap()
        .is_some()
}

/// Number of keys on the server.
fn size(conn: &mut Connection) -> i64 {
    redis::cmd("DBSIZE").query(conn).unwrap()
}
