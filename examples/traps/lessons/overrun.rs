//! A holder works longer than its lease, and deletes the next holder's lock.
//!
//! The first of the book's three problems. `DEL` does not check who holds the lock. So the key's
//! value must name the holder, and the release must compare it.

use std::thread::scope;

use leasehold::{Locks, release_lock};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "overrun",
    title: "a late holder deletes the next holder's lock",
    source: "the book, 6.2.2; the article's first problem",
    actors: &["A", "B", "C"],
    keys: &["lock:trap"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    scene.send("A", &mut conn, "SET lock:trap A NX PX 300")?;
    scene.record("A", Happened::acquired(300))?;
    scene.record("B", Happened::Waits)?;
    scene.wait_for_the_end("lock:trap", 0)?;
    scene.send("B", &mut conn, "SET lock:trap B NX PX 10000")?;
    scene.record("B", Happened::acquired(10_000))?;
    scene.wait_until(500);
    scene.send("A", &mut conn, "DEL lock:trap")?;
    scene.record("A", Happened::Released)?;
    scene.record("B", Happened::Deleted)?;
    let third = scene.send("C", &mut conn, "SET lock:trap C NX PX 10000")?;
    scene.record("C", Happened::acquired(10_000))?;
    scene.wait_until(700);
    scene.record("B", Happened::Released)?;
    scene.record("C", Happened::Released)?;
    scene.goes_wrong(
        third.is_ok(),
        "A deleted B's lock, and C came in while B works.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let locks = Locks::new(&redis.pool)?;
    let mine = locks.with(scene.options("A", millis(900))).lock(NAME);
    let theirs = locks.with(scene.options("B", secs(10))).lock(NAME);
    let first = mine.try_acquire()?.context("the lock is free")?;
    let token = first.token().clone();
    scene.knows(&token, "A");
    scene.tell("A", "Lock::try_acquire\n(lease 900 ms)\ngranted")?;
    scene.record("B", Happened::Waits)?;
    let second = scope(|threads| -> Result<_> {
        let waiter = threads.spawn(|| theirs.acquire(secs(5)));
        scene.wait_until(1_200);
        scene.tell("A", "Lease::release")?;
        first.release()?;
        Ok(waiter.join().ok().context("B fails")??)
    })?;
    scene.knows(second.token(), "B");
    scene.tell("B", "Lock::acquire\ngranted")?;
    scene.wait_until(1_300);
    let again = release_lock(&mut conn, NAME, &token)?;
    scene.tell("A", &format!("release_lock, once more\n{again}"))?;
    let third = mine.try_acquire()?;
    scene.decided("C", "Lock::try_acquire", third.is_some())?;
    scene.record("C", Happened::Waits)?;
    scene.wait_until(1_400);
    second.release()?;
    scene.goes_right(
        !again && third.is_none(),
        "A's lease renews itself, and A's token cannot release B's lock.",
    )
}
