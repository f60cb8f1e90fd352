//! A steady stream of readers keeps the writer out.
//!
//! Each reader stays only for a moment, but there is always one. The writer finds the lock taken
//! every time, as long as the traffic lasts.

use std::thread::scope;

use leasehold::recipes::read_write;

use crate::{
    prelude::*,
    scripts::{READ_TWO_KEY, WRITE_TWO_KEY},
};

pub(crate) const TRAP: Trap = Trap {
    name: "starving-writer",
    title: "a steady stream of readers keeps a writer out forever",
    source: "the read-write article, both editions",
    actors: &["A", "B", "writer"],
    keys: &["trap:read", "trap:write", "lock:trap"],
    classic,
    ours,
};

const KEYS: [&str; 2] = ["trap:read", "trap:write"];

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let mut refused = 0;
    for (round, reader) in ["A", "B", "A", "B"].into_iter().enumerate() {
        scene.wait_until(500 * u64::try_from(round)?);
        scene.eval(reader, &mut conn, READ_TWO_KEY, &KEYS, &["1"])?;
        let got = scene.eval("writer", &mut conn, WRITE_TWO_KEY, &KEYS, &["1"])?;
        refused += u32::from(got.is_int(0));
    }
    scene.goes_wrong(
        refused == 4,
        "No reader stays longer than a second, but there is never a gap.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut conn, mut writers) = (redis.client()?, redis.client()?);
    let [first, second, third] = [(); 3].map(|()| Token::random());
    for (token, actor) in [(&first, "A"), (&second, "B"), (&third, "writer")] {
        scene.knows(token, actor);
    }
    read_write::try_acquire_read(&mut conn, NAME, &first, secs(10))?;
    scene.tell("A", "try_acquire_read\ntrue")?;
    let (refused, written) = scope(|threads| -> Result<_> {
        let writer = threads
            .spawn(|| read_write::acquire_write(&mut writers, NAME, &third, secs(10), secs(10)));
        // Until the writer has written its intent: a third field of the lock's hash, after `kind`
        // and A's.
        while redis::cmd("HLEN")
            .arg("lock:trap")
            .query::<u32>(&mut conn)?
            < 3
        {
            sleep(millis(1));
        }
        scene.tell("writer", "acquire_write\nwaits")?;
        let refused = !read_write::try_acquire_read(&mut conn, NAME, &second, secs(10))?;
        scene.tell("B", &format!("try_acquire_read\n{}", !refused))?;
        read_write::release_read(&mut conn, NAME, &first)?;
        let written = writer.join().ok().context("the writer fails")??;
        Ok((refused, written))
    })?;
    scene.decided("writer", "after A's release", written.is_some())?;
    scene.goes_right(
        refused && written.is_some(),
        "A waiting writer keeps new readers out until it has had its turn.",
    )
}
