//! A caller whose clock is behind ranks first.
//!
//! The basic semaphore sorts its holders by the time at which they came, each by its own clock. A
//! caller that comes later with a clock that is a second behind ranks before the holder.

use leasehold::acquire_semaphore;

use super::book_semaphore::Caller;
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "slow-clock",
    title: "a caller whose clock is behind gets a permit that is taken",
    source: "the book, 6.3.1: the rank by the callers' clocks",
    actors: &["A", "B, a second behind"],
    keys: &["api"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut a = Caller::new(redis, "A")?;
    let first = a.acquire(scene, 1_000, 10)?;
    let mut b = Caller::new(redis, "B, a second behind")?;
    let second = b.acquire(scene, 999, 10)?;
    scene.goes_wrong(
        first && second,
        "Both got rank 0, so both have the one permit. A has rank 1 now, and is not told.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let first = acquire_semaphore(&mut conn, "api", 1, secs(10))?;
    scene.gets("A", "acquire_semaphore", first)?;
    let second = acquire_semaphore(&mut conn, "api", 1, secs(10))?;
    scene.decided("B, a second behind", "acquire_semaphore", second.is_some())?;
    scene.goes_right(
        second.is_none(),
        "No caller passes a time: the server's clock sorts them.",
    )
}
