//! `EXPIRE` fails after `HINCRBY` has counted.
//!
//! A script that fails half-way is not rolled back. `EXPIRE` with half a second is an error, but
//! the count stays, and the hash never expires.

use leasehold::{Owner, recipes::reentrant};

use crate::{prelude::*, scripts::ENTER};

pub(crate) const TRAP: Trap = Trap {
    name: "expire-half",
    title: "EXPIRE 0.5 fails after HINCRBY, and the lock never expires",
    source: "the notes, the reentrant lock: hincrby, then expire",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let answer = scene.eval("A", &mut a, ENTER, &["lock:trap"], &["A", "0.5"])?;
    let got = scene.eval("B", &mut b, ENTER, &["lock:trap"], &["B", "10"])?;
    let left = scene.send("B", &mut b, "PTTL lock:trap")?;
    let wrong = answer.is_refused() && got.is_int(0) && left.is_int(-1);
    scene.goes_wrong(wrong, "A got an error, but holds the lock forever.")
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let owner = Owner::new("A")?;
    let refused = reentrant::try_acquire(&mut a, NAME, &owner, &Token::random(), NO_WAIT);
    let error = refused.err().context("a lease of nothing was granted")?;
    scene.tell(
        "A",
        &format!("reentrant::try_acquire\n(lease 0 ms)\n{error}"),
    )?;
    let grant = reentrant::try_acquire(&mut a, NAME, &owner, &Token::random(), millis(500))?;
    scene.decided(
        "A",
        "reentrant::try_acquire\n(lease 500 ms)",
        grant.is_some(),
    )?;
    let left = scene.send("B", &mut b, "PTTL lock:trap")?;
    let right = left.int().is_some_and(|left| left > 0);
    scene.goes_right(
        right,
        "Everything is checked before anything is written; half a second is 500 ms.",
    )
}
