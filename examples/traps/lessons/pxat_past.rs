//! `PXAT` with a time in the past answers OK, but sets no lock.
//!
//! A caller whose clock is behind, or that computes the end too early, gets OK like every other.

use std::time::SystemTime;

use leasehold::recipes::mutex::{self, End};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "pxat-past",
    title: "PXAT with a time in the past answers OK, but sets no lock",
    source: "the notes, the options of SET: PXAT, EXAT",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

/// In November 2023.
const PAST: u64 = 1_700_000_000_000;

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let first = scene.send("A", &mut a, &format!("SET lock:trap A NX PXAT {PAST}"))?;
    let second = scene.send("B", &mut b, "SET lock:trap B NX PX 10000")?;
    scene.goes_wrong(
        first.is_ok() && second.is_ok(),
        "A got OK, but has no lock.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut a = redis.client()?;
    let end = End::At(SystemTime::UNIX_EPOCH + millis(PAST));
    let answer = mutex::try_acquire(&mut a, NAME, &Token::random(), end);
    let Err(error) = answer else {
        anyhow::bail!("a lock that had ended before it began");
    };
    scene.tell("A", &format!("mutex::try_acquire, End::At\n{error}"))?;
    let right = matches!(error, Error::Invalid { .. });
    scene.goes_right(
        right,
        "The script checks the end by the server's clock first.",
    )
}
