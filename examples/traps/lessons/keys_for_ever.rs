//! No key of the book's semaphore ends.
//!
//! A holder that crashes is swept by the next one who asks. If nobody asks any more, the keys stay:
//! three for each name that was ever used, such as one per customer.

use leasehold::acquire_fair_semaphore;

use super::book_semaphore::{Caller, KEYS};
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "keys-for-ever",
    title: "a semaphore that nobody uses any more leaves three keys",
    source: "the book, 6.3: no command sets an end",
    actors: &["A", "operator"],
    keys: KEYS,
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut a = Caller::new(redis, "A")?;
    a.acquire_fair(scene, 1_000, 10)?;
    scene.tell("A", "crashes, and nobody comes after it")?;
    let mut conn = redis.client()?;
    let mut without_end = 0;
    for key in KEYS {
        let end = scene.send("operator", &mut conn, &format!("TTL {key}"))?;
        without_end += u32::from(end.is_int(-1));
    }
    scene.goes_wrong(
        without_end == 3,
        "No key has an end: each name that was ever used has three of them.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let token = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    scene.knows(&token.context("the permit is free")?, "A");
    scene.tell("A", "acquire_fair_semaphore, 10 s\ngranted\ncrashes")?;
    let mut ends = Vec::new();
    for key in KEYS {
        ends.extend(
            scene
                .send("operator", &mut conn, &format!("TTL {key}"))?
                .int(),
        );
    }
    let in_a_day = |end: &i64| (86_000..=86_400).contains(end);
    let right = matches!(ends.as_slice(), [api, owner, -2] if in_a_day(api) && in_a_day(owner));
    scene.goes_right(
        right,
        "The sets end a day after the last use, and a counter is not needed.",
    )
}
