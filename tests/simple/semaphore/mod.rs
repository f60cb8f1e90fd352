//! The book's semaphores: `acquire_semaphore`, the fair one, and the one with the lock.

mod bad_input;
mod bugs;
mod ends;
mod lost_replies;
mod other_values;
mod permits;

use std::time::Duration;

use leasehold::{
    Result, Token, acquire_fair_semaphore, acquire_semaphore, acquire_semaphore_with_lock,
    release_fair_semaphore, release_semaphore,
};
use redis::{Commands, Connection};

use crate::common::book_semaphore::{Asked, Way};

const TIMEOUT: Duration = Duration::from_secs(10);
const DAY: i64 = 24 * 60 * 60 * 1000;
const ALL: [Way; 3] = [Way::Basic, Way::Fair, Way::WithLock];

/// One permit of the semaphore `a`, for ten seconds.
const ONE: Asked<'static> = Asked {
    name: "a",
    limit: 1,
    timeout: TIMEOUT,
};

fn acquire(conn: &mut Connection, way: Way, asked: &Asked<'_>) -> Result<Option<Token>> {
    let acquire = match way {
        Way::Basic => acquire_semaphore,
        Way::Fair => acquire_fair_semaphore,
        Way::WithLock => acquire_semaphore_with_lock,
    };
    acquire(conn, asked.name, asked.limit, asked.timeout)
}

fn release(conn: &mut Connection, way: Way, name: &str, token: &Token) -> Result<bool> {
    match way {
        Way::Basic => release_semaphore(conn, name, token),
        Way::Fair | Way::WithLock => release_fair_semaphore(conn, name, token),
    }
}

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
