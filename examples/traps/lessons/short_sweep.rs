//! One caller's short timeout ends another's permit.
//!
//! The book stores when a holder came, not when its permit ends. So a caller removes holders by its
//! own timeout, even those that asked for longer. That is the format of the keys: the crate's
//! functions on these keys do so too.

use leasehold::{Locks, Options, acquire_semaphore, release_semaphore};

use super::book_semaphore::Caller;
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "short-sweep",
    title: "one caller's short timeout ends another's permit",
    source: "the book, 6.3.1: it stores when a holder came, not when its permit ends",
    actors: &["A", "B"],
    keys: &["api", "lock:api"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (Caller::new(redis, "A")?, Caller::new(redis, "B")?);
    let first = a.acquire(scene, 1_000, 10)?;
    let second = b.acquire(scene, 1_002, 1)?;
    scene.goes_wrong(
        first && second,
        "A asked for 10 s, but after 2 s B's timeout of 1 s ended A's permit.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let format_is_the_books = by_the_books_keys(redis, scene)?;
    let locks = Locks::new(&redis.pool)?;
    let lock = locks.semaphore("api", 1);
    let [long, short] =
        [secs(10), millis(100)].map(|lease| lock.clone().with(Options::new().lease(lease)));
    let first = long.acquire(NO_WAIT)?;
    scene.knows(first.token(), "A");
    scene.tell(
        "A",
        "Locks::semaphore\n(lease 10 s)\nLock::acquire\ngranted",
    )?;
    scene.wait_until(400);
    let second = short.try_acquire()?;
    scene.decided(
        "B",
        "Locks::semaphore\n(lease 100 ms)\nLock::try_acquire",
        second.is_some(),
    )?;
    let stands = second.is_none() && first.check().is_ok();
    first.release()?;
    scene.goes_right(
        format_is_the_books && stands,
        "The book's keys store no expiry for each permit; those of Locks::semaphore do.",
    )
}

/// True if these functions fail in the same way.
fn by_the_books_keys(redis: &Redis, scene: &mut Scene) -> Result<bool> {
    let mut conn = redis.client()?;
    let first = acquire_semaphore(&mut conn, "api", 1, secs(10))?;
    let first = scene.gets("A", "acquire_semaphore\n(timeout 10 s)", first)?;
    scene.wait_until(200);
    let second = acquire_semaphore(&mut conn, "api", 1, millis(100))?;
    if let Some(second) = &second {
        scene.knows(second, "B");
    }
    let call = "acquire_semaphore\n(timeout 100 ms; the keys store no expiry)";
    scene.decided("B", call, second.is_some())?;
    let was_ours = release_semaphore(&mut conn, "api", &first)?;
    scene.tell(
        "A",
        &format!("release_semaphore\n{was_ours}: A no longer holds it"),
    )?;
    Ok(second.is_some() && !was_ours)
}
