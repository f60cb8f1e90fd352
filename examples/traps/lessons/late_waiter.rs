//! A waiter that sleeps for a second misses the release, and its own deadline.
//!
//! The Jedis article sleeps for a whole second between two attempts. It does not notice a lock that
//! becomes free meanwhile, and waits up to a second longer than the caller allowed.

use std::time::Instant;

use leasehold::acquire_lock_with_timeout;

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "late-waiter",
    title: "a waiter sleeps past the release, and past its own deadline",
    source: "the Jedis article: TimeUnit.SECONDS.sleep(1)",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

/// B's time limit.
const PATIENCE: Duration = millis(900);

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
        "The lock was free for 500 ms of B's wait, but B slept for 1000 ms.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 400")?;
    let got = acquire_lock_with_timeout(&mut b, NAME, PATIENCE, secs(10))?;
    scene.knows(got.as_ref().context("A's lease ends")?, "B");
    scene.decided(
        "B",
        "acquire_lock_with_timeout\n(wait 900 ms)",
        got.is_some(),
    )?;
    scene.goes_right(
        got.is_some(),
        "It tries again after 1 to 10 ms, and never sleeps past the deadline.",
    )
}
