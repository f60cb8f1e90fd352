//! A semaphore behind a lock that never expires.
//!
//! To serialise its callers, the book takes its first lock around the fair semaphore; that lock
//! never expires, and the book waits 10 ms for it. A caller that crashes while holding it blocks
//! all others. And a caller that cannot get it is answered as if no permit were free.

use leasehold::{acquire_semaphore_with_lock, release_fair_semaphore};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "lock-inside",
    title: "a caller that crashes while it asks blocks all permits forever",
    source: "the book, 6.3.4: acquire_lock for 10 ms around the fair semaphore",
    actors: &["A", "B"],
    keys: &["lock:api", "api", "api:owner", "api:counter"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SETNX lock:api A")?;
    scene.tell("A", "crashes before it asks for a permit")?;
    let begins = scene.send("B", &mut b, "SETNX lock:api B")?;
    sleep(millis(10));
    let ends = scene.send("B", &mut b, "SETNX lock:api B")?;
    scene.tell("B", "after 10 ms: None, as if no permit were free")?;
    let end = scene.send("B", &mut b, "TTL lock:api")?;
    let held = scene.send("B", &mut b, "ZCARD api")?;
    scene.goes_wrong(
        [begins, ends, held].iter().all(|reply| reply.is_int(0)) && end.is_int(-1),
        "No permit is held, but no caller will ever get one.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let ask = |conn: &mut Connection| acquire_semaphore_with_lock(conn, "api", 1, secs(10));
    let first = ask(&mut conn)?.context("the permit is free")?;
    scene.knows(&first, "B");
    scene.tell(
        "B",
        "acquire_semaphore_with_lock\ngranted, without the lock",
    )?;
    release_fair_semaphore(&mut conn, "api", &first)?;
    scene.tell("B", "release_fair_semaphore\ntrue")?;
    scene.send("A", &mut conn, "SETNX lock:api A")?;
    scene.tell("A", "runs the book's code, and crashes")?;
    let error = ask(&mut conn).err().context("the lock is A's")?;
    scene.tell("B", &error.to_string())?;
    let left = scene.send("B", &mut conn, "PTTL lock:api")?;
    let ends = left.int().is_some_and(|left| (1..=10_000).contains(&left));
    scene.goes_right(
        error.is_contended() && ends,
        "This crate leaves no lock behind, and gives the book's lock an expiry.",
    )
}
