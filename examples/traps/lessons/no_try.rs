//! A wait of zero makes no attempt.
//!
//! The usual loop looks at the clock before its first attempt. A caller that does not want to wait
//! never gets a lock, even a free one.

use std::time::Instant;

use leasehold::{acquire_lock_with_timeout, release_lock};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "no-try",
    title: "a wait of 0 makes no attempt, so even a free lock is not acquired",
    source: "the book, 6.2.3: while time.time() < end",
    actors: &["A"],
    keys: &["lock:trap"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut a = redis.client()?;
    let end = Instant::now() + NO_WAIT;
    let (mut attempts, mut got) = (0, false);
    while Instant::now() < end && !got {
        attempts += 1;
        got = scene.send("A", &mut a, "SETNX lock:trap A")?.is_int(1);
    }
    scene.tell(
        "A",
        &format!("acquire_lock\n(wait 0 ms)\nFalse, after {attempts} attempts"),
    )?;
    let exists = scene.send("A", &mut a, "EXISTS lock:trap")?;
    scene.goes_wrong(
        !got && exists.is_int(0),
        "The lock was free the whole time.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut a = redis.client()?;
    let token = acquire_lock_with_timeout(&mut a, NAME, NO_WAIT, secs(10))?;
    let token = scene.gets("A", "acquire_lock_with_timeout\n(wait 0 ms)", token)?;
    let released = release_lock(&mut a, NAME, &token)?;
    scene.tell("A", &format!("release_lock\n{released}"))?;
    scene.goes_right(released, "It always tries at least once.")
}
