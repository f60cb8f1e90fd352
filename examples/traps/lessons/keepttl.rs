//! `KEEPTTL` keeps the expiry, which a free key does not have.
//!
//! With `NX` there is nothing to keep, so the lock never expires. `SET` answers OK.

use leasehold::recipes::mutex::{self, End};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "keepttl",
    title: "NX KEEPTTL makes a lock that never expires",
    source: "the notes, the options of SET: KEEPTTL",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX KEEPTTL")?;
    scene.tell("A", "crashes")?;
    let left = scene.send("B", &mut b, "PTTL lock:trap")?;
    scene.goes_wrong(
        left.is_int(-1),
        "There was no expiry to keep: B waits forever.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let token = token_of(scene, "A");
    let grant = mutex::try_acquire(&mut a, NAME, &token, End::After(secs(10)))?;
    decided(
        scene,
        "A",
        "mutex::try_acquire\n(lease 10 s)",
        grant.as_ref(),
    )?;
    let left = scene.send("B", &mut b, "PTTL lock:trap")?;
    let ends = left.int().is_some_and(|left| left > 0);
    scene.goes_right(ends, "The end of the lease is a required argument.")
}
