//! Two programs lock one market, by two names.
//!
//! The book's Python gives its lock the name `market:`, which makes the key `lock:market:`. The Jedis article's is
//! `lock:market`. Each is sure to be alone.

use leasehold::acquire_lock_with_timeout;

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "two-names",
    title: "`lock:market:` and `lock:market` are two locks",
    source: "the book's Python, and the Jedis article",
    actors: &["Python", "Java"],
    keys: &["lock:market:", "lock:market"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let python = scene.send("Python", &mut conn, "SET lock:market: A NX PX 10000")?;
    let java = scene.send("Java", &mut conn, "SET lock:market B NX PX 10000")?;
    scene.goes_wrong(
        python.is_ok() && java.is_ok(),
        "The two names differ by a colon, and both are in the market.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let java = scene.send("Java", &mut conn, "SET lock:market B NX PX 10000")?;
    let same = acquire_lock_with_timeout(&mut conn, "market", NO_WAIT, secs(10))?;
    scene.tell(
        "Python",
        &format!(
            "in its place, acquire_lock_with_timeout of `market`\n{}",
            granted(same.as_ref())
        ),
    )?;
    scene.goes_right(
        java.is_ok() && same.is_none(),
        "The name is yours to agree on: `market` keeps the article out, `market:` the Python code.",
    )
}
