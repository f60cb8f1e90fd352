//! A holder works longer than its lease, and deletes the next holder's lock.
//!
//! The first of the book's three problems. `DEL` does not check who holds the lock. So the key's
//! value must name the holder, and the release must compare it.

use leasehold::{acquire_lock_with_timeout, release_lock};

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
    scene.record("A", acquired(300))?;
    scene.record("B", Happened::Waits)?;
    scene.wait_for_the_end("lock:trap", 0)?;
    scene.send("B", &mut conn, "SET lock:trap B NX PX 10000")?;
    scene.record("B", acquired(10_000))?;
    scene.wait_until(500);
    scene.send("A", &mut conn, "DEL lock:trap")?;
    scene.record("A", Happened::Released)?;
    scene.record("B", Happened::TakenAway)?;
    let third = scene.send("C", &mut conn, "SET lock:trap C NX PX 10000")?;
    scene.record("C", acquired(10_000))?;
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
    let first = acquire_lock_with_timeout(&mut conn, NAME, NO_WAIT, millis(300))?;
    let first = first.context("the lock is free")?;
    scene.knows(&first, "A");
    scene.tell("A", "acquire_lock_with_timeout\n(lease 300 ms)\ngranted")?;
    scene.record("A", acquired(300))?;
    scene.record("B", Happened::Waits)?;
    let second = acquire_lock_with_timeout(&mut conn, NAME, secs(5), secs(10))?;
    let second = second.context("A's lease ends")?;
    scene.knows(&second, "B");
    scene.tell("B", "acquire_lock_with_timeout\ngranted")?;
    scene.record("B", acquired(10_000))?;
    scene.wait_until(500);
    let was_ours = release_lock(&mut conn, NAME, &first)?;
    scene.tell(
        "A",
        &format!("release_lock\n{was_ours}: A no longer held it"),
    )?;
    scene.record("A", Happened::Released)?;
    let third = acquire_lock_with_timeout(&mut conn, NAME, NO_WAIT, secs(10))?;
    scene.tell(
        "C",
        &format!("acquire_lock_with_timeout\n{}", granted(third.as_ref())),
    )?;
    let stands = release_lock(&mut conn, NAME, &second)?;
    scene.record("B", Happened::Released)?;
    scene.goes_right(
        !was_ours && third.is_none() && stands,
        "A's token cannot release B's lock. But A worked too long: see sigstop.",
    )
}

fn acquired(lease_ms: u64) -> Happened {
    Happened::Acquired {
        lease_ms: Some(lease_ms),
        reader: false,
    }
}
