//! A later reader shortens an earlier reader's lease.
//!
//! In the article's single-instance edition all readers share one key. Each overwrites the expiry
//! of the others.

use leasehold::recipes::read_write;

use crate::{
    prelude::*,
    scripts::{READ_TWO_KEY, WRITE_TWO_KEY},
};

pub(crate) const TRAP: Trap = Trap {
    name: "reader-shortens",
    title: "a reader with a short lease ends another reader's lease",
    source: "the read-write article, single-instance edition: set … ex",
    actors: &["A", "B", "writer"],
    keys: &["trap:read", "trap:write", "lock:trap"],
    classic,
    ours,
};

const KEYS: [&str; 2] = ["trap:read", "trap:write"];

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    scene.eval("A", &mut conn, READ_TWO_KEY, &KEYS, &["100"])?;
    scene.eval("B", &mut conn, READ_TWO_KEY, &KEYS, &["1"])?;
    scene.wait_for_the_end("trap:read", 0)?;
    let got = scene.eval("writer", &mut conn, WRITE_TWO_KEY, &KEYS, &["100"])?;
    scene.goes_wrong(
        got.is_int(1),
        "A's lease was 100 s, but the writer came in after 1 s.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    for (reader, lease) in [("A", secs(100)), ("B", secs(1))] {
        let token = token_of(scene, reader);
        let got = read_write::try_acquire_read(&mut conn, NAME, &token, lease)?;
        scene.tell(
            reader,
            &format!("try_acquire_read\n(lease {lease:?})\n{got}"),
        )?;
    }
    scene.wait_until(1_100);
    let got = read_write::try_acquire_write(&mut conn, NAME, &Token::random(), secs(100))?;
    decided(scene, "writer", "try_acquire_write", got.as_ref())?;
    scene.goes_right(got.is_none(), "Only B's lease has ended; A still reads.")
}
