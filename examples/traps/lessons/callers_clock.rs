//! The clock is in the caller's hands.
//!
//! The article's cluster edition lets each caller bring the time. Whose clock is four seconds ahead sees every lock as
//! over.

use leasehold::recipes::read_write;

use crate::{prelude::*, scripts::ACQUIRE_ONE_HASH};

pub(crate) const TRAP: Trap = Trap {
    name: "callers-clock",
    title: "whose clock is ahead takes a lock that is not over",
    source: "the read-write article, cluster edition: the caller brings the time",
    actors: &["A", "B"],
    keys: &["lock:trap"],
    classic,
    ours,
};

const NOW: &str = "1795000000000";
/// What B's clock says at the same moment.
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
        "Two write at once: a writer's 3 s are over by B's clock.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let mut answers = Vec::new();
    for writer in ["A", "B"] {
        let token = Token::random();
        scene.knows(&token, writer);
        let got = read_write::try_acquire_write(&mut conn, NAME, &token, secs(3))?;
        scene.tell(
            writer,
            &format!("try_acquire_write, 3 s\n{}", granted(got.as_ref())),
        )?;
        answers.push(got.is_some());
    }
    scene.goes_right(
        answers == [true, false],
        "There is no time among the arguments: the server's clock decides.",
    )
}
