//! The lock changes hands between the look and the `EXPIRE`.
//!
//! A waiter sees a lock without an end (`TTL`) and gives it one (`EXPIRE`). Those are two commands: in between the lock
//! may have been released and taken by somebody else, whose lease is cut.

use leasehold::{acquire_lock_with_timeout, release_lock};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "late-expire",
    title: "between TTL and EXPIRE the lock changes hands, and the next lease is cut",
    source: "the book, 6.2.5, and the Jedis article: ttl, then expire",
    actors: &["A", "B", "C"],
    keys: &["lock:trap"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    scene.send("A", &mut conn, "SETNX lock:trap A")?;
    scene.send("B", &mut conn, "TTL lock:trap")?;
    scene.send("A", &mut conn, "DEL lock:trap")?;
    scene.send("C", &mut conn, "SET lock:trap C NX PX 60000")?;
    scene.send("B", &mut conn, "EXPIRE lock:trap 1")?;
    let left = scene.send("C", &mut conn, "PTTL lock:trap")?;
    let is_cut = left.int().is_some_and(|left| left <= 1_000);
    scene.goes_wrong(
        is_cut,
        "C asked for a minute, and B's EXPIRE has cut it to a second.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    scene.send("A", &mut conn, "SETNX lock:trap A")?;
    scene.send("A", &mut conn, "DEL lock:trap")?;
    let third = acquire_lock_with_timeout(&mut conn, NAME, NO_WAIT, secs(60))?;
    let third = third.context("the lock is free")?;
    scene.knows(&third, "C");
    scene.tell("C", "acquire_lock_with_timeout, 60 s\ngranted")?;
    let got = acquire_lock_with_timeout(&mut conn, NAME, NO_WAIT, secs(1))?;
    scene.tell(
        "B",
        &format!(
            "acquire_lock_with_timeout, 1 s: one script looks and gives the end\n{}",
            granted(got.as_ref())
        ),
    )?;
    let left = scene.send("C", &mut conn, "PTTL lock:trap")?;
    release_lock(&mut conn, NAME, &third)?;
    let stands = left.int().is_some_and(|left| left > 50_000);
    scene.goes_right(
        stands,
        "One script looks at the lock and sets the end: C keeps its minute.",
    )
}
