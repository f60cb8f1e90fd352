//! `EXPIRE 0` deletes another holder's lock.
//!
//! The Java ports count a lease in whole seconds and cut off the rest, so 400 ms become 0. `EXPIRE
//! key 0` is no error: it deletes the key. Their waiter gives a lock without an expiry one, and so
//! deletes it.

use leasehold::acquire_lock_with_timeout;

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "expire-0",
    title: "a lease under a second becomes EXPIRE 0, which deletes another holder's lock",
    source: "the Jedis article, acquireLockWithTimeout: lockTimeout / 1000",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

const LEASE: Duration = millis(400);

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SETNX lock:trap A")?;
    scene.send("B", &mut b, "SETNX lock:trap B")?;
    scene.send("B", &mut b, "TTL lock:trap")?;
    let seconds = LEASE.as_secs();
    scene.tell(
        "B",
        &format!("no expiry: sets one, 400 ms / 1000 = {seconds} s"),
    )?;
    scene.send("B", &mut b, &format!("EXPIRE lock:trap {seconds}"))?;
    let left = scene.send("A", &mut a, "EXISTS lock:trap")?;
    scene.goes_wrong(left.is_int(0), "B deleted A's lock while A still works.")
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SETNX lock:trap A")?;
    let got = acquire_lock_with_timeout(&mut b, NAME, NO_WAIT, LEASE)?;
    scene.decided(
        "B",
        "acquire_lock_with_timeout\n(lease 400 ms)",
        got.is_some(),
    )?;
    let left = scene.send("A", &mut a, "EXISTS lock:trap")?;
    let right = got.is_none() && left.is_int(1);
    scene.goes_right(right, "A's lock gets an expiry of 400 ms, not of 0.")
}
