//! The first of the book's three problems: a holder works longer than its lease and releases the
//! next holder's lock.
//!
//! `cargo run --example problem_1_overrun [redis://…]`
#![allow(clippy::print_stdout, reason = "a command-line program")]

#[allow(dead_code, reason = "each example uses only part of it")]
mod shared;

use std::{thread::sleep, time::Duration};

use anyhow::Context;
use leasehold::{
    Token, Watchdog, acquire_lock_with_timeout, recipes::Hold, redis::Connection, release_lock,
};
use shared::{Redis, scene::Scene};

const NAME: &str = "problem-1";
const KEYS: [&str; 1] = ["lock:problem-1"];
const LEASE: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(10);
/// The time that A works, in milliseconds: longer than its lease.
const WORK: u64 = 500;

fn main() -> anyhow::Result<()> {
    let redis = Redis::open()?;
    without_looking(&redis)?;
    with_the_token(&redis)?;
    with_a_watchdog(&redis)
}

/// The failure: A deletes the key, although B now holds the lock.
fn without_looking(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let title = "A releases by deleting the key";
    let mut scene = Scene::begin(redis, title, &["A", "B", "C"], &KEYS)?;
    take(&mut scene, &mut conn, "A", LEASE)?;
    take(&mut scene, &mut conn, "B", LONG)?;
    scene.wait_until(WORK);
    scene.send("A", &mut conn, "DEL lock:problem-1")?;
    let third = acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LONG)?;
    let third = third.context("the lock was deleted")?;
    scene.knows(&third, "C");
    scene.tell("C", "takes the lock")?;
    let is_ours = release_lock(&mut conn, NAME, &third)?;
    scene.goes_wrong(is_ours, "B and C are at work: A has deleted B's lock.")
}

/// The cure: only the token that took the lock releases it, and A learns that it was late.
fn with_the_token(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let title = "A releases with its token";
    let mut scene = Scene::begin(redis, title, &["A", "B", "C"], &KEYS)?;
    let first = take(&mut scene, &mut conn, "A", LEASE)?;
    let second = take(&mut scene, &mut conn, "B", LONG)?;
    scene.wait_until(WORK);
    let was_ours = release_lock(&mut conn, NAME, &first)?;
    scene.tell("A", &format!("release_lock\n{was_ours}"))?;
    let third = acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LONG)?;
    scene.tell("C", "has to wait")?;
    let is_bs = release_lock(&mut conn, NAME, &second)?;
    scene.tell("B", &format!("release_lock\n{is_bs}"))?;
    scene.goes_right(
        !was_ours && third.is_none() && is_bs,
        "B still holds the lock, and A learns that it was late.",
    )
}

/// The prevention: a watchdog renews the lease for as long as the work takes.
fn with_a_watchdog(redis: &Redis) -> anyhow::Result<()> {
    let mut conn = redis.pool.get()?;
    let title = "A lets a watchdog renew the lease";
    let mut scene = Scene::begin(redis, title, &["A", "B", "the watchdog"], &KEYS)?;
    // Longer than in the other scenes, so that it does not expire on a busy machine.
    let lease = 5 * LEASE;
    let watchdog = Watchdog::new(&redis.pool)?;
    let token = take(&mut scene, &mut conn, "A", lease)?;
    let renewal = watchdog.keep(&Hold::mutex(NAME, &token)?, lease)?;
    scene.tell("A", "Watchdog::keep")?;
    scene.wait_until(1_200);
    scene.tell("the watchdog", "has renewed it")?;
    // The watchdog renews every half second.
    sleep(Duration::from_millis(900));
    let early = acquire_lock_with_timeout(&mut conn, NAME, Duration::ZERO, LONG)?;
    scene.tell("B", "has to wait")?;
    scene.wait_until(5 * WORK);
    renewal.stop();
    let was_ours = release_lock(&mut conn, NAME, &token)?;
    scene.tell("A", &format!("Renewal::stop, release_lock\n{was_ours}"))?;
    let second = take(&mut scene, &mut conn, "B", LONG)?;
    release_lock(&mut conn, NAME, &second)?;
    scene.goes_right(
        early.is_none() && was_ours,
        "The work took longer than a lease, and A held the lock to the end.",
    )
}

/// Waits for the lock and takes it.
fn take(
    scene: &mut Scene,
    conn: &mut Connection,
    who: &str,
    lease: Duration,
) -> anyhow::Result<Token> {
    let token = acquire_lock_with_timeout(conn, NAME, LONG, lease)?;
    let token = token.context("another process holds the lock `problem-1`")?;
    scene.knows(&token, who);
    scene.tell(who, &format!("takes the lock for {lease:?}"))?;
    Ok(token)
}
