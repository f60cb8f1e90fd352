//! A free permit is refused because of a caller that crashed and never had one.
//!
//! A caller enters first and checks afterwards. A refused caller must remove itself; if it crashes
//! before that, its entry blocks the permit.

use leasehold::{acquire_fair_semaphore, release_fair_semaphore};

use super::book_semaphore::{Caller, KEYS};
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "ghost",
    title: "a caller that was refused and crashed blocks a permit it never had",
    source: "the book, 6.3.2: a refused caller removes itself in a third transaction",
    actors: &["A", "B", "C"],
    keys: KEYS,
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let [mut a, mut b, mut c] = [
        Caller::new(redis, "A")?,
        Caller::new(redis, "B")?,
        Caller::new(redis, "C")?,
    ];
    let first = a.acquire_fair(scene, 1_000, 10)?;
    let second = b.acquire_fair(scene, 1_001, 10)?;
    scene.tell("B", "is refused, and crashes before it removes itself")?;
    drop(b);
    a.leave(scene)?;
    let third = c.acquire_fair(scene, 1_002, 10)?;
    c.leave(scene)?;
    scene.goes_wrong(
        first && !second && !third,
        "The permit is free, but C is refused: B's entry stays for 10 s.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let first = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    let first = scene.gets("A", "acquire_fair_semaphore", first)?;
    let second = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    scene.decided("B", "acquire_fair_semaphore", second.is_some())?;
    scene.tell("B", "crashes")?;
    release_fair_semaphore(&mut conn, "api", &first)?;
    scene.tell("A", "release_fair_semaphore\ntrue")?;
    let third = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    if let Some(third) = &third {
        scene.knows(third, "C");
    }
    scene.decided("C", "acquire_fair_semaphore", third.is_some())?;
    scene.goes_right(
        second.is_none() && third.is_some(),
        "The script checks before it writes: a refused caller leaves nothing behind.",
    )
}
