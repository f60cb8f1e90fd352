//! The second of the book's three problems: a holder crashes, and the others wait for a lock that
//! will never be released.
//!
//! `cargo run --example problem_2_crash [redis://…]`
#![allow(clippy::print_stdout, reason = "a command-line program")]

#[allow(dead_code, reason = "each example uses only part of it")]
mod shared;

use std::{
    env,
    process::{Command, Stdio, abort},
    time::Duration,
};

use anyhow::Context;
use leasehold::{
    Pool, Token, acquire_lock, acquire_lock_with_timeout, redis::Connection, release_lock,
};
use shared::{Redis, scene::Scene};

const NAME: &str = "problem-2";
const KEYS: [&str; 1] = ["lock:problem-2"];
const LEASE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(1);
/// Set in the process that will crash: the kind of lock that it takes.
const ROLE: &str = "PROBLEM_2_ROLE";

fn main() -> anyhow::Result<()> {
    if let Ok(role) = env::var(ROLE) {
        return hold_and_crash(&role);
    }
    let redis = Redis::open()?;
    let left_behind = without_an_end(&redis)?;
    mended(&redis, &left_behind)?;
    with_an_end(&redis)
}

/// The failure: a lock without a lease outlives its holder.
fn without_an_end(redis: &Redis) -> anyhow::Result<Token> {
    let mut conn = redis.pool.get()?;
    let title = "A takes a lock without a lease (the book's acquire_lock)";
    let mut scene = Scene::begin(redis, title, &["A, a process", "B"], &KEYS)?;
    let left_behind = crash_while_holding(redis, &mut scene, "without an end")?;
    scene.tell("A, a process", "takes the lock and crashes")?;
    let second = acquire_lock(&mut conn, NAME, PATIENCE)?;
    scene.tell("B", "gives up after a second")?;
    scene.goes_wrong(
        second.is_none(),
        "The lock will never be released, and no one can tell.",
    )?;
    Ok(left_behind)
}

/// The repair: a waiter with a lease sets an expiry on a lock that has none.
fn mended(redis: &Redis, left_behind: &Token) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let title = "B waits with a lease of its own: the abandoned lock gets an expiry";
    let mut scene = Scene::begin(redis, title, &["A, a process", "B"], &KEYS)?;
    scene.knows(left_behind, "A");
    let early = acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LEASE)?;
    scene.tell("B", "has to wait, and sets an expiry of 500 ms")?;
    let token = take(&mut scene, &mut conn)?;
    release_lock(&mut conn, NAME, &token)?;
    scene.goes_right(
        early.is_none(),
        "B has repaired what the crash left behind.",
    )
}

/// The cure: a lease. The server ends the lock of a crashed holder.
fn with_an_end(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let title = "A takes a lock for half a second (acquire_lock_with_timeout)";
    let mut scene = Scene::begin(redis, title, &["A, a process", "B"], &KEYS)?;
    crash_while_holding(redis, &mut scene, "with an end")?;
    scene.tell("A, a process", "takes the lock and crashes")?;
    let token = take(&mut scene, &mut conn)?;
    release_lock(&mut conn, NAME, &token)?;
    scene.goes_right(true, "The server ended A's lock.")
}

/// B waits for the lock and takes it.
fn take(scene: &mut Scene, conn: &mut Connection) -> anyhow::Result<Token> {
    let token = acquire_lock_with_timeout(conn, NAME, PATIENCE, LEASE)?;
    let token = token.context("B did not get the lock")?;
    scene.knows(&token, "B");
    scene.tell("B", "takes the lock for 500 ms")?;
    Ok(token)
}

/// Starts this program again as the process that crashes.
fn crash_while_holding(redis: &Redis, scene: &mut Scene, role: &str) -> anyhow::Result<Token> {
    let crashed = Command::new(env::current_exe()?)
        .env(ROLE, role)
        .arg(&redis.url)
        .stderr(Stdio::null())
        .output()?;
    anyhow::ensure!(
        crashed.status.code().is_none(),
        "A should have crashed and did not: {}",
        crashed.status
    );
    let token: Token = String::from_utf8_lossy(&crashed.stdout).trim().parse()?;
    scene.knows(&token, "A");
    Ok(token)
}

fn hold_and_crash(role: &str) -> anyhow::Result<()> {
    let pool = Pool::connect(&env::args().nth(1).unwrap_or_default())?;
    let mut conn = pool.get()?;
    let token = if role == "with an end" {
        acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LEASE)?
    } else {
        acquire_lock(&mut conn, NAME, Duration::ZERO)?
    };
    println!(
        "{}",
        token.context("another process holds the lock `problem-2`")?
    );
    abort()
}
