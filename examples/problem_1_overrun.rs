//! The first of the book's three problems: a holder works longer than its lease and releases somebody else's lock.
//!
//! `cargo run --example problem_1_overrun [redis://…]`
#![allow(clippy::print_stdout, reason = "a program that talks")]

#[allow(dead_code, reason = "each example uses a part of it")]
mod shared;

use std::time::Duration;

use leasehold::{acquire_lock_with_timeout, release_lock};
use shared::{Redis, Story};

const NAME: &str = "problem-1";
const LEASE: Duration = Duration::from_millis(300);
const LONG_LEASE: Duration = Duration::from_secs(10);
const LONG_WORK: Duration = Duration::from_millis(500);

fn main() -> anyhow::Result<()> {
    let redis = Redis::open()?;
    without_looking(&redis)?;
    with_the_token(&redis)
}

/// The failure: the holder deletes the key, whoever's it is.
fn without_looking(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let story = Story::begin("A releases by deleting the key");

    acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LEASE)?;
    story.tell("A", "takes the lock for 300 ms, and needs 500 ms");
    acquire_lock_with_timeout(&mut conn, NAME, LONG_LEASE, LONG_LEASE)?;
    story.tell(
        "B",
        "takes the lock: A's lease has ended, and A does not know",
    );
    story.wait_until(LONG_WORK);
    redis::cmd("DEL")
        .arg(format!("lock:{NAME}"))
        .exec(&mut conn)?;
    story.tell("A", "is done and deletes the lock, which is B's");
    let third = acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LONG_LEASE)?;
    story.tell(
        "C",
        if third.is_some() {
            "takes the lock while B works: WRONG"
        } else {
            "has to wait"
        },
    );

    redis::cmd("DEL")
        .arg(format!("lock:{NAME}"))
        .exec(&mut conn)?;
    Ok(())
}

/// The cure: only the token that took the lock releases it, and its owner hears that it was late.
fn with_the_token(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let story = Story::begin("A releases with its token");

    let Some(first) = acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LEASE)? else {
        anyhow::bail!("somebody else uses the lock `{NAME}`");
    };
    story.tell("A", "takes the lock for 300 ms, and needs 500 ms");
    let second = acquire_lock_with_timeout(&mut conn, NAME, LONG_LEASE, LONG_LEASE)?;
    story.tell(
        "B",
        "takes the lock: A's lease has ended, and A does not know",
    );
    story.wait_until(LONG_WORK);
    let was_ours = release_lock(&mut conn, NAME, &first)?;
    story.tell(
        "A",
        if was_ours {
            "released the lock: WRONG"
        } else {
            "is told that the lock is not its own any more"
        },
    );
    let third = acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LONG_LEASE)?;
    story.tell(
        "C",
        if third.is_some() {
            "takes the lock: WRONG"
        } else {
            "has to wait: B's lock stands"
        },
    );

    if let Some(second) = second {
        release_lock(&mut conn, NAME, &second)?;
        story.tell("B", "is done and releases its own lock");
    }
    Ok(())
}
