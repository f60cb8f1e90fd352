//! After `FLUSHALL` the fencing tokens start at 1 again.
//!
//! A fencing token grows with each acquisition, and the protected resource refuses one that is
//! smaller than one it has seen. A token counted by `INCR` is lost with the lock: after a flush, or
//! a restart without persistence, the new holder has a small number and the old one a large one.

use leasehold::recipes::mutex::{self, End};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "flushall",
    title: "after FLUSHALL a counted fencing token refuses the new holder, not the old one",
    source: "articles that count fencing tokens by INCR",
    actors: &["A", "B", "a disk"],
    keys: &["lock:trap", "lock:trap:fence"],
    classic,
    ours,
};

/// A resource outside Redis that refuses a smaller number than it has seen.
#[derive(Default)]
struct Disk(u64);

impl Disk {
    fn accepts(&mut self, scene: &mut Scene, who: &str, number: u64) -> Result<bool> {
        let accepts = number >= self.0;
        self.0 = self.0.max(number);
        let answer = if accepts { "accepted" } else { "refused" };
        scene.tell("a disk", &format!("{who} writes with {number}: {answer}"))?;
        Ok(accepts)
    }
}

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut conn, mut disk) = (redis.client()?, Disk::default());
    redis::cmd("SET")
        .arg("lock:trap:fence")
        .arg(41)
        .exec(&mut conn)?;
    scene.send("A", &mut conn, "SET lock:trap A NX PX 60000")?;
    let first = scene.send("A", &mut conn, "INCR lock:trap:fence")?;
    disk.accepts(scene, "A", first.int().unwrap_or_default().try_into()?)?;
    lose_everything(redis, scene, &mut conn)?;
    scene.send("B", &mut conn, "SET lock:trap B NX PX 60000")?;
    let second = scene.send("B", &mut conn, "INCR lock:trap:fence")?;
    let new = disk.accepts(scene, "B", second.int().unwrap_or_default().try_into()?)?;
    let old = disk.accepts(scene, "A", first.int().unwrap_or_default().try_into()?)?;
    scene.goes_wrong(
        old && !new,
        "B holds the lock and is refused; A has lost it and is accepted.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut conn, mut disk) = (redis.client()?, Disk::default());
    let mut numbers = Vec::new();
    let mut answers = Vec::new();
    for actor in ["A", "B"] {
        let token = token_of(scene, actor);
        let grant = mutex::try_acquire(&mut conn, NAME, &token, End::After(secs(60)))?;
        let number = grant.context("the lock is free")?.fencing_token().get();
        scene.tell(
            actor,
            &format!("mutex::try_acquire\nfencing token {number}"),
        )?;
        answers.push(disk.accepts(scene, actor, number)?);
        numbers.push(number);
        if actor == "A" {
            lose_everything(redis, scene, &mut conn)?;
        }
    }
    let old = numbers.first().copied().unwrap_or_default();
    answers.push(disk.accepts(scene, "A", old)?);
    let right = answers == [true, true, false];
    scene.goes_right(
        right,
        "The number comes from the server's clock, so it grows even after the loss.",
    )
}

/// On a server that has other keys, deletes only those of this trap.
fn lose_everything(redis: &Redis, scene: &mut Scene, conn: &mut Connection) -> Result<()> {
    let command = if redis.is_private() {
        "FLUSHALL"
    } else {
        "DEL lock:trap lock:trap:fence {lock:trap}:lease"
    };
    scene.send("A", conn, command)?;
    Ok(())
}
