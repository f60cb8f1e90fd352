//! The lock changes hands between the check and the `EXPIRE`.
//!
//! A waiter sees a lock without an expiry (`TTL`) and gives it one (`EXPIRE`). Between these two
//! commands the lock may be released and taken by another holder, whose lease is then cut short.

use leasehold::{acquire_lock_with_timeout, release_lock};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "late-expire",
    title: "the lock changes hands between TTL and EXPIRE, which cuts the next lease short",
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
        "C asked for a minute, but B's EXPIRE cut it to a second.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    scene.send("A", &mut conn, "SETNX lock:trap A")?;
    scene.send("A", &mut conn, "DEL lock:trap")?;
    let third = acquire_lock_with_timeout(&mut conn, NAME, NO_WAIT, secs(60))?;
    let third = scene.gets("C", "acquire_lock_with_timeout\n(lease 60 s)", third)?;
    let got = acquire_lock_with_timeout(&mut conn, NAME, NO_WAIT, secs(1))?;
    scene.decided(
        "B",
        "acquire_lock_with_timeout\n(lease 1 s; one script checks the lock and its expiry)",
        got.is_some(),
    )?;
    let left = scene.send("C", &mut conn, "PTTL lock:trap")?;
    release_lock(&mut conn, NAME, &third)?;
    let stands = left.int().is_some_and(|left| left > 50_000);
    scene.goes_right(
        stands,
        "One script checks the lock and sets the expiry: C keeps its minute.",
    )
}
