//! Two readers arrive in the same millisecond, and one releases the other.
//!
//! In the article's cluster edition the time of an acquisition proves who made it. Two readers that
//! arrive in the same millisecond have the same proof.

use leasehold::recipes::read_write;

use crate::{
    prelude::*,
    scripts::{ACQUIRE_ONE_HASH, RELEASE_ONE_HASH},
};

pub(crate) const TRAP: Trap = Trap {
    name: "same-millisecond",
    title: "readers that arrive in the same millisecond can release each other",
    source: "the read-write article, cluster edition: a time as the proof of ownership",
    actors: &["A", "B", "writer"],
    keys: &["lock:trap"],
    classic,
    ours,
};

const NOW: &str = "1795000000001";
const NEXT: &str = "1795000000002";

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let key = ["lock:trap"];
    scene.eval("A", &mut conn, ACQUIRE_ONE_HASH, &key, &["read", NOW])?;
    scene.eval("B", &mut conn, ACQUIRE_ONE_HASH, &key, &["read", NOW])?;
    scene.eval("A", &mut conn, RELEASE_ONE_HASH, &key, &["read", NOW])?;
    let got = scene.eval(
        "writer",
        &mut conn,
        ACQUIRE_ONE_HASH,
        &key,
        &["write", NEXT],
    )?;
    scene.goes_wrong(
        got.is_int(1),
        "A's release also released B: nothing tells the two apart.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let (first, second) = (Token::random(), Token::random());
    for (token, reader) in [(&first, "A"), (&second, "B")] {
        scene.knows(token, reader);
        let got = read_write::try_acquire_read(&mut conn, NAME, token, secs(10))?;
        scene.tell(reader, &format!("try_acquire_read\n{got}"))?;
    }
    let freed = read_write::release_read(&mut conn, NAME, &first)?;
    scene.tell("A", &format!("release_read\n{freed}"))?;
    let got = read_write::try_acquire_write(&mut conn, NAME, &Token::random(), secs(10))?;
    decided(scene, "writer", "try_acquire_write", got.as_ref())?;
    scene.goes_right(
        freed && got.is_none(),
        "A token is 122 random bits, not a time.",
    )
}
