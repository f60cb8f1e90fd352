//! The second of the book's three problems: a holder crashes, and the others wait for a lock that nobody will release.
//!
//! `cargo run --example problem_2_crash [redis://…]`
#![allow(clippy::print_stdout, reason = "a program that talks")]

#[allow(dead_code, reason = "each example uses a part of it")]
mod shared;

use std::{
    env,
    process::{Command, Stdio, abort},
    time::Duration,
};

use leasehold::{Pool, acquire_lock, acquire_lock_with_timeout, release_lock};
use shared::{Redis, Story};

const NAME: &str = "problem-2";
const LEASE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(1);
/// Set for the process that is going to crash: which lock it takes.
const ROLE: &str = "PROBLEM_2_ROLE";

fn main() -> anyhow::Result<()> {
    if let Ok(role) = env::var(ROLE) {
        return hold_and_crash(&role);
    }
    let redis = Redis::open()?;
    without_an_end(&redis)?;
    with_an_end(&redis)
}

/// The failure: a lock without an end outlives its holder.
fn without_an_end(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let story = Story::begin("A takes a lock that has no end (the book's acquire_lock)");

    crash_while_holding(redis, "without an end")?;
    story.tell("A", "takes the lock and crashes");
    let second = acquire_lock(&mut conn, NAME, PATIENCE)?;
    story.tell(
        "B",
        if second.is_some() {
            "takes the lock"
        } else {
            "has waited a second in vain, and could wait for ever: WRONG"
        },
    );
    Ok(())
}

/// The cure: a lease. It also mends the lock that was left behind: whoever waits gives it an end.
fn with_an_end(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let story =
        Story::begin("B waits with a lease of its own: the lock that was left behind gets an end");
    let mended = acquire_lock_with_timeout(&mut conn, NAME, PATIENCE, LEASE)?;
    story.tell(
        "B",
        if mended.is_some() {
            "takes the lock, half a second later"
        } else {
            "waits in vain: WRONG"
        },
    );
    if let Some(token) = mended {
        release_lock(&mut conn, NAME, &token)?;
    }

    let story = Story::begin("A takes a lock for half a second (acquire_lock_with_timeout)");
    crash_while_holding(redis, "with an end")?;
    story.tell("A", "takes the lock and crashes");
    let second = acquire_lock_with_timeout(&mut conn, NAME, PATIENCE, LEASE)?;
    story.tell(
        "B",
        if second.is_some() {
            "takes the lock when A's lease has ended"
        } else {
            "waits in vain: WRONG"
        },
    );
    if let Some(token) = second {
        release_lock(&mut conn, NAME, &token)?;
    }
    Ok(())
}

/// Starts this program once more, as the one that crashes.
fn crash_while_holding(redis: &Redis, role: &str) -> anyhow::Result<()> {
    let crashed = Command::new(env::current_exe()?)
        .env(ROLE, role)
        .arg(&redis.url)
        .stderr(Stdio::null())
        .status()?;
    anyhow::ensure!(
        crashed.code().is_none(),
        "A was to crash and did not: {crashed}"
    );
    Ok(())
}

fn hold_and_crash(role: &str) -> anyhow::Result<()> {
    let pool = Pool::connect(&env::args().nth(1).unwrap_or_default())?;
    let mut conn = pool.get()?;
    let token = if role == "with an end" {
        acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LEASE)?
    } else {
        acquire_lock(&mut conn, NAME, Duration::ZERO)?
    };
    anyhow::ensure!(token.is_some(), "somebody else uses the lock `{NAME}`");
    abort()
}
