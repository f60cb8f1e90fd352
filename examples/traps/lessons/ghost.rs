//! A free permit is refused for the sake of somebody who is dead and never had one.
//!
//! Who asks enters first and looks afterwards. Who is refused has to leave again; if it dies before
//! that, it stands in the way.

use leasehold::{acquire_fair_semaphore, release_fair_semaphore};

use super::book_semaphore::{Caller, KEYS};
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "ghost",
    title: "who was refused and died keeps a permit that it never had",
    source: "the book, 6.3.2: who is refused removes itself, in a third transaction",
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
        "Nobody holds the permit, and C is refused: B stands there for its 10 s.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let first = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    let first = first.context("the permit is free")?;
    scene.knows(&first, "A");
    scene.tell("A", "acquire_fair_semaphore\ngranted")?;
    let second = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    scene.tell(
        "B",
        &format!(
            "acquire_fair_semaphore\n{}\ncrashes",
            granted(second.as_ref())
        ),
    )?;
    release_fair_semaphore(&mut conn, "api", &first)?;
    scene.tell("A", "release_fair_semaphore\ntrue")?;
    let third = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    if let Some(third) = &third {
        scene.knows(third, "C");
    }
    scene.tell(
        "C",
        &format!("acquire_fair_semaphore\n{}", granted(third.as_ref())),
    )?;
    scene.goes_right(
        second.is_none() && third.is_some(),
        "The script looks before it writes: who is refused leaves nothing behind.",
    )
}
