//! `SET` without `NX` takes the lock from its holder.
//!
//! Every test with a single process passes, but the lock excludes no other holder.

use leasehold::recipes::mutex::{self, End};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "no-nx",
    title: "SET without NX takes the lock from its holder",
    source: "the notes, the options of SET: neither NX nor XX",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let first = scene.send("A", &mut a, "SET lock:trap A PX 10000")?;
    let second = scene.send("B", &mut b, "SET lock:trap B PX 10000")?;
    scene.goes_wrong(
        first.is_ok() && second.is_ok(),
        "Both commands answered OK.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let mut answers = Vec::new();
    for actor in ["A", "B"] {
        let token = token_of(scene, actor);
        let grant = mutex::try_acquire(&mut conn, NAME, &token, End::After(secs(10)))?;
        scene.decided(actor, "mutex::try_acquire", grant.is_some())?;
        answers.push(grant.is_some());
    }
    scene.goes_right(answers == [true, false], "Only A has the lock.")
}
