//! Entering again shortens the lease.
//!
//! The outer function holds the lock for five minutes and calls a helper that takes it again, for a
//! second. The helper releases its level, but the five minutes are gone.

use leasehold::{Owner, recipes::reentrant};

use crate::{
    prelude::*,
    scripts::{ENTER, LEAVE},
};

pub(crate) const TRAP: Trap = Trap {
    name: "reentry-shortens",
    title: "an inner function's short lease ends the outer function's lock",
    source: "the notes, the reentrant lock: expire at each entry",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.eval("A", &mut a, ENTER, &["lock:trap"], &["A", "300"])?;
    scene.eval("A", &mut a, ENTER, &["lock:trap"], &["A", "1"])?;
    scene.eval("A", &mut a, LEAVE, &["lock:trap"], &["A"])?;
    scene.wait_for_the_end("lock:trap", 0)?;
    let got = scene.eval("B", &mut b, ENTER, &["lock:trap"], &["B", "300"])?;
    scene.goes_wrong(
        got.is_int(1),
        "A's outer function still works, but B has the lock.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let owner = Owner::new("A")?;
    let (outer, inner) = (Token::random(), Token::random());
    reentrant::try_acquire(&mut conn, NAME, &owner, &outer, secs(300))?;
    scene.tell("A", "reentrant::try_acquire\n(lease 300 s)\ngranted")?;
    reentrant::try_acquire(&mut conn, NAME, &owner, &inner, secs(1))?;
    scene.tell("A", "reentrant::try_acquire\n(lease 1 s)\ngranted")?;
    let release = reentrant::release(&mut conn, NAME, &owner, &inner)?;
    scene.tell("A", &format!("reentrant::release\n{release:?}"))?;
    let left = scene.send("B", &mut conn, "PTTL lock:trap")?;
    let right = left.int().is_some_and(|left| left > 200_000);
    scene.goes_right(right, "Entering again never shortens the lease.")
}
