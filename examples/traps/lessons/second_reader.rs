//! The second reader's release also ends the first reader's hold.
//!
//! The article's cluster edition has one field for all readers: the time at which the last one
//! came. The second reader overwrites the first reader's time, and deletes the field when it
//! leaves.

use leasehold::recipes::read_write;

use crate::{
    prelude::*,
    scripts::{ACQUIRE_ONE_HASH, RELEASE_ONE_HASH},
};

pub(crate) const TRAP: Trap = Trap {
    name: "second-reader",
    title: "the second reader's release ends the first one's hold, and a writer comes in",
    source: "the read-write article, cluster edition: one field `read`",
    actors: &["A", "B", "writer"],
    keys: &["lock:trap"],
    classic,
    ours,
};

/// The time of each, by its own clock.
const TIMES: [&str; 3] = ["1795000000001", "1795000000002", "1795000000003"];

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let [first, second, third] = TIMES;
    let key = ["lock:trap"];
    scene.eval("A", &mut conn, ACQUIRE_ONE_HASH, &key, &["read", first])?;
    scene.record("A", acquired(true))?;
    scene.wait_until(100);
    scene.eval("B", &mut conn, ACQUIRE_ONE_HASH, &key, &["read", second])?;
    scene.record("B", acquired(true))?;
    scene.wait_until(200);
    scene.eval("B", &mut conn, RELEASE_ONE_HASH, &key, &["read", second])?;
    scene.record("B", Happened::Released)?;
    scene.record("A", Happened::Deleted)?;
    scene.wait_until(300);
    let got = scene.eval(
        "writer",
        &mut conn,
        ACQUIRE_ONE_HASH,
        &key,
        &["write", third],
    )?;
    scene.record("writer", acquired(false))?;
    scene.wait_until(450);
    scene.record("A", Happened::Released)?;
    scene.record("writer", Happened::Released)?;
    scene.goes_wrong(got.is_int(1), "The writer writes while A still reads.")
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let [first, second, third] = [(); 3].map(|()| Token::random());
    for (token, reader, moment) in [(&first, "A", 100), (&second, "B", 200)] {
        scene.knows(token, reader);
        let got = read_write::try_acquire_read(&mut conn, NAME, token, secs(10))?;
        scene.tell(reader, &format!("try_acquire_read\n{got}"))?;
        scene.record(reader, acquired(true))?;
        scene.wait_until(moment);
    }
    let freed = read_write::release_read(&mut conn, NAME, &second)?;
    scene.tell("B", &format!("release_read\n{freed}"))?;
    scene.record("B", Happened::Released)?;
    let early = read_write::try_acquire_write(&mut conn, NAME, &third, secs(10))?;
    scene.decided("writer", "try_acquire_write", early.is_some())?;
    scene.record("writer", Happened::Waits)?;
    scene.wait_until(300);
    read_write::release_read(&mut conn, NAME, &first)?;
    scene.record("A", Happened::Released)?;
    scene.tell("A", "release_read\ntrue")?;
    scene.knows(&third, "writer");
    let late = read_write::try_acquire_write(&mut conn, NAME, &third, secs(10))?;
    scene.decided("writer", "try_acquire_write", late.is_some())?;
    scene.record("writer", acquired(false))?;
    scene.wait_until(450);
    scene.record("writer", Happened::Released)?;
    let right = early.is_none() && late.is_some();
    scene.goes_right(right, "Each reader has its own field and its own expiry.")
}

fn acquired(reader: bool) -> Happened {
    Happened::Acquired {
        lease_ms: Some(10_000),
        reader,
    }
}
