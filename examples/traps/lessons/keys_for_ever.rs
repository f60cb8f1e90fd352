//! No key of the book's semaphore expires.
//!
//! The next caller removes the entry of a holder that crashed. If no caller follows, the keys stay:
//! three for every name ever used, such as one per customer.

use leasehold::acquire_fair_semaphore;

use super::book_semaphore::{Caller, KEYS};
use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "keys-for-ever",
    title: "an unused semaphore leaves three keys forever",
    source: "the book, 6.3: no command sets an expiry",
    actors: &["A", "operator"],
    keys: KEYS,
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut a = Caller::new(redis, "A")?;
    a.acquire_fair(scene, 1_000, 10)?;
    scene.tell("A", "crashes; no other caller follows")?;
    let mut conn = redis.client()?;
    let mut without_end = 0;
    for key in KEYS {
        let end = scene.send("operator", &mut conn, &format!("TTL {key}"))?;
        without_end += u32::from(end.is_int(-1));
    }
    scene.goes_wrong(
        without_end == 3,
        "No key expires: every name ever used leaves three keys.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let token = acquire_fair_semaphore(&mut conn, "api", 1, secs(10))?;
    scene.knows(&token.context("the permit is free")?, "A");
    scene.tell(
        "A",
        "acquire_fair_semaphore\n(timeout 10 s)\ngranted\ncrashes",
    )?;
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
        "The sets expire a day after their last use, and no counter is needed.",
    )
}
