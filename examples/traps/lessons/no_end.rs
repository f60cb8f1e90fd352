//! A lock that never expires outlives its holder.
//!
//! The book's first lock is `SETNX` alone; its second sets the expiry by a second command. A holder
//! that crashes before that leaves a key that is never deleted. The key does not show whether its
//! holder is slow or dead.

use leasehold::acquire_lock_with_timeout;

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "no-end",
    title: "the holder crashes before it sets the expiry, and the lock stays forever",
    source: "the book, 6.2.3 and 6.2.5: SETNX, then EXPIRE",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SETNX lock:trap A")?;
    drop(a);
    scene.tell("A", "crashes before EXPIRE")?;
    scene.wait_until(400);
    let got = scene.send("B", &mut b, "SETNX lock:trap B")?;
    let left = scene.send("B", &mut b, "TTL lock:trap")?;
    let wrong = got.is_int(0) && left.is_int(-1);
    scene.goes_wrong(
        wrong,
        "A is dead, and its lock never expires: B waits forever.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let first = acquire_lock_with_timeout(&mut a, NAME, NO_WAIT, millis(300))?;
    scene.knows(&first.context("the lock is free")?, "A");
    scene.tell(
        "A",
        "acquire_lock_with_timeout\n(lease 300 ms)\ngranted: one command sets key and expiry",
    )?;
    drop(a);
    scene.tell("A", "crashes")?;
    let second = acquire_lock_with_timeout(&mut b, NAME, secs(5), secs(10))?;
    scene.knows(second.as_ref().context("it ends")?, "B");
    scene.decided("B", "acquire_lock_with_timeout", second.is_some())?;
    scene.goes_right(
        second.is_some(),
        "A's lock expired on the server: B did not have to know that A is dead.",
    )
}
