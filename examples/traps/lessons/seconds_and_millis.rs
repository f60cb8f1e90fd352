//! Two programs share a semaphore, one by seconds and one by milliseconds.
//!
//! The book's Java port writes milliseconds where the original writes seconds. By its clock every
//! holder of the others came fifty years ago, so it removes them all. No program can be right for
//! both: the crate's functions write seconds.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold::{Locks, acquire_fair_semaphore};

use super::book_semaphore::Caller;
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "seconds-and-millis",
    title: "a program that counts milliseconds removes those that count seconds",
    source: "the book's Java port together with its Python",
    actors: &["A", "Java"],
    keys: &["api", "api:owner", "api:counter", "lock:api"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut java) = (Caller::new(redis, "A")?, Caller::new(redis, "Java")?);
    let first = a.acquire_fair(scene, 1_000, 10)?;
    let second = java.acquire_fair(scene, 1_001_000, 10_000)?;
    scene.goes_wrong(
        first && second,
        "By Java's clock A's permit ended long ago: two hold one permit.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let is_the_formats = by_the_books_keys(redis, scene)?;
    let locks = Locks::new(&redis.pool)?;
    let held = locks.semaphore("api", 1).acquire(NO_WAIT)?;
    scene.knows(held.token(), "A");
    scene.tell("A", "Locks::semaphore\nLock::acquire\ngranted")?;
    let second = locks.semaphore("api", 1).try_acquire()?;
    scene.decided("Java", "lockrun --permits 1 asks too", second.is_some())?;
    held.release()?;
    scene.goes_right(
        is_the_formats && second.is_none(),
        "The book's ports differ in their unit; Locks::semaphore uses the server's clock.",
    )
}

/// True if Java gets a permit while A has one, and A is refused afterwards.
fn by_the_books_keys(redis: &Redis, scene: &mut Scene) -> Result<bool> {
    let (mut conn, mut java) = (redis.client()?, Caller::new(redis, "Java")?);
    let first = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    scene.gets("A", "acquire_fair_semaphore", first)?;
    let second = java.acquire_fair(scene, now_in_millis()?, 10_000)?;
    let refused = acquire_fair_semaphore(&mut conn, "api", 1, secs(10));
    let error = refused.err().context("the times are no seconds")?;
    scene.tell("A", &error.to_string())?;
    Ok(second && matches!(error, Error::WrongKind { .. }))
}

/// Java's clock.
fn now_in_millis() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_millis())?)
}
