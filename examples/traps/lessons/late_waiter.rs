//! A waiter that sleeps for a second misses the lock, and its own deadline.
//!
//! The Jedis article sleeps a whole second between two attempts. A lock that is free in between is not noticed, and the
//! wait ends up to a second after the time that the caller gave.

use std::{thread::sleep, time::Instant};

use leasehold::acquire_lock_with_timeout;

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "late-waiter",
    title: "a waiter sleeps past the moment the lock is free, and past its deadline",
    source: "the Jedis article: TimeUnit.SECONDS.sleep(1)",
    actors: &["A", "B"],
    keys: &["lock:trap"],
    classic,
    ours,
};

/// How long B wants to wait.
const PATIENCE: Duration = millis(700);

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 400")?;
    let began = Instant::now();
    let mut got = false;
    while began.elapsed() < PATIENCE && !got {
        got = scene.send("B", &mut b, "SETNX lock:trap B")?.is_int(1);
        sleep(secs(1));
    }
    scene.tell("B", "gives up")?;
    let wrong = !got && began.elapsed() > PATIENCE;
    scene.goes_wrong(
        wrong,
        "The lock was free for 300 ms of B's wait, and B asked again only after 1000 ms.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 400")?;
    let got = acquire_lock_with_timeout(&mut b, NAME, PATIENCE, secs(10))?;
    scene.knows(got.as_ref().context("A's lease ends")?, "B");
    scene.tell(
        "B",
        &format!(
            "acquire_lock_with_timeout, 700 ms\n{}",
            granted(got.as_ref())
        ),
    )?;
    scene.goes_right(
        got.is_some(),
        "It looks again after 1 to 10 ms, and no sleep passes the deadline.",
    )
}
