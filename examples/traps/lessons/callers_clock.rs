//! The caller's clock decides.
//!
//! In the article's cluster edition each caller passes the time. To a caller whose clock is four
//! seconds ahead, every lock has expired.

use leasehold::recipes::read_write;

use crate::{prelude::*, scripts::ACQUIRE_ONE_HASH};

pub(crate) const TRAP: Trap = Trap {
    name: "callers-clock",
    title: "a caller whose clock is ahead takes a lock that is still held",
    source: "the read-write article, cluster edition: the caller passes the time",
    classic,
    ours,
    ..Trap::OF_A_AND_B
};

const NOW: &str = "1795000000000";
/// B's clock at the same moment.
const FOUR_SECONDS_AHEAD: &str = "1795000004000";

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let key = ["lock:trap"];
    scene.eval("A", &mut a, ACQUIRE_ONE_HASH, &key, &["write", NOW])?;
    let got = scene.eval(
        "B",
        &mut b,
        ACQUIRE_ONE_HASH,
        &key,
        &["write", FOUR_SECONDS_AHEAD],
    )?;
    scene.goes_wrong(
        got.is_int(1),
        "Two writers at once: by B's clock A's 3 s are over.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let mut answers = Vec::new();
    for writer in ["A", "B"] {
        let token = token_of(scene, writer);
        let got = read_write::try_acquire_write(&mut conn, NAME, &token, secs(3))?;
        decided(
            scene,
            writer,
            "try_acquire_write\n(lease 3 s)",
            got.as_ref(),
        )?;
        answers.push(got.is_some());
    }
    scene.goes_right(
        answers == [true, false],
        "No caller passes a time: the server's clock decides.",
    )
}
