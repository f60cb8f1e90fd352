//! A key of another type looks like a lock that is busy forever.
//!
//! `SETNX` answers 0 whatever the key holds. A list written there by mistake is never released, and
//! no error says so.

use leasehold::acquire_lock_with_timeout;

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "wrong-type",
    title: "a key of another type looks like a lock that is busy forever",
    source: "the book, 6.2.3: SETNX",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "RPUSH lock:trap oops")?;
    let got = scene.send("B", &mut b, "SETNX lock:trap B")?;
    scene.goes_wrong(got.is_int(0), "B is told forever that the lock is busy.")
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "RPUSH lock:trap oops")?;
    let answer = acquire_lock_with_timeout(&mut b, NAME, secs(5), secs(10));
    let Err(error) = answer else {
        anyhow::bail!("a list was taken for a lock");
    };
    scene.tell("B", &error.to_string())?;
    let right = matches!(error, Error::WrongKind { .. });
    scene.goes_right(
        right,
        "The error comes at once: the key holds another type.",
    )
}
