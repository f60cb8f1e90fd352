//! `PXAT` with a moment that is past answers OK, and there is no lock.
//!
//! Whose clock is behind, or who computes the end too early, hears "OK" like everybody else.

use std::time::SystemTime;

use leasehold::recipes::mutex::{self, End};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "pxat-past",
    title: "PXAT with a moment in the past is answered OK, and there is no lock",
    source: "the notes, the options of SET: PXAT, EXAT",
    actors: &["A", "B"],
    keys: &["lock:trap"],
    classic,
    ours,
};

/// In November 2023.
const PAST: u64 = 1_700_000_000_000;

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let first = scene.send("A", &mut a, &format!("SET lock:trap A NX PXAT {PAST}"))?;
    let second = scene.send("B", &mut b, "SET lock:trap B NX PX 10000")?;
    scene.goes_wrong(
        first.is_ok() && second.is_ok(),
        "A was answered OK, and has no lock.",
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
    scene.goes_right(right, "The server's clock is asked first.")
}
