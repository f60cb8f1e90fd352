//! A holder is not told that its lock is gone.
//!
//! An operator deletes a lock, or the server loses it. Its holder works on, and finds out when it
//! releases, if it checks the answer.

use leasehold::Locks;

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "untold",
    title: "a holder is not told that its lock is gone",
    source: "the book, 6.2: the lock is checked only at the release",
    actors: &["A", "B", "operator"],
    keys: &["lock:trap"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    scene.send("A", &mut conn, "SET lock:trap A NX PX 10000")?;
    scene.record("A", Happened::acquired(10_000))?;
    scene.wait_until(150);
    scene.send("operator", &mut conn, "DEL lock:trap")?;
    scene.record("A", Happened::Deleted)?;
    let got = scene.send("B", &mut conn, "SET lock:trap B NX PX 10000")?;
    scene.record("B", Happened::acquired(10_000))?;
    scene.wait_until(450);
    scene.tell("A", "works on")?;
    scene.record("A", Happened::Released)?;
    scene.record("B", Happened::Released)?;
    scene.goes_wrong(got.is_ok(), "A and B both work, and A does not notice.")
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let locks = Locks::new(&redis.pool)?;
    let [mine, theirs] =
        ["A", "B"].map(|holder| locks.with(scene.options(holder, secs(3))).lock(NAME));
    let lease = mine.acquire(secs(1))?;
    scene.knows(lease.token(), "A");
    scene.tell("A", "Lock::acquire\n(lease 3 s)\ngranted")?;
    // The first renewal starts the tracking of the key.
    scene.wait_until(1_500);
    scene.send("operator", &mut conn, "DEL lock:trap")?;
    let told = lease.lost().wait_for(secs(2));
    let why = lease.check().err().context("it is lost")?;
    scene.tell("A", &format!("LostSignal::wait_for\n{told}\n{why}"))?;
    drop(lease);
    let next = theirs.acquire(secs(1))?;
    scene.knows(next.token(), "B");
    scene.tell("B", "Lock::acquire\ngranted")?;
    scene.wait_until(1_900);
    next.release()?;
    scene.goes_right(told, "A is told as soon as the key is deleted, and stops.")
}
