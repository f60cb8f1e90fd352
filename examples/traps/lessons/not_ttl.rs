//! `not conn.ttl()` renews a dead holder's lock forever.
//!
//! `TTL` rounds to whole seconds: with less than half a second left it answers 0. The printed book
//! reads 0 as "no expiry" and sets one, again and again, as long as a waiter asks.

use leasehold::acquire_lock_with_timeout;

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "not-ttl",
    title: "TTL rounds to 0, so waiters renew a dead holder's lock forever",
    source: "the book, 6.2.5 as printed: if not conn.ttl(…): conn.expire(…)",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 450")?;
    scene.tell("A", "crashes; its lock has half a second left")?;
    for _ in 0..3 {
        scene.wait_for_the_end("lock:trap", 450)?;
        let left = scene.send("B", &mut b, "TTL lock:trap")?;
        if left.is_int(0) {
            scene.send("B", &mut b, "EXPIRE lock:trap 1")?;
        }
    }
    let got = scene.send("B", &mut b, "SETNX lock:trap B")?;
    scene.goes_wrong(
        got.is_int(0),
        "A's half second is over, but B itself keeps A's lock alive.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 450")?;
    scene.tell("A", "crashes; its lock has half a second left")?;
    let got = acquire_lock_with_timeout(&mut b, NAME, secs(5), secs(1))?;
    scene.knows(got.as_ref().context("A's lease ends")?, "B");
    scene.decided("B", "acquire_lock_with_timeout", got.is_some())?;
    scene.goes_right(
        got.is_some(),
        "A waiter never changes the expiry of a lock that has one.",
    )
}
