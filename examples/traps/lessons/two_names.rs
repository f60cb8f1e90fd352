//! Two programs lock one market by two names.
//!
//! The book's Python names its lock `market:`, so the key is `lock:market:`. The key of the Jedis
//! article is `lock:market`. Each program thinks that it is alone.

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
        "The names differ by a colon, and both programs are in the market.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let mut conn = redis.client()?;
    let java = scene.send("Java", &mut conn, "SET lock:market B NX PX 10000")?;
    let same = acquire_lock_with_timeout(&mut conn, "market", NO_WAIT, secs(10))?;
    scene.decided(
        "Python",
        "acquire_lock_with_timeout of `market` instead",
        same.is_some(),
    )?;
    scene.goes_right(
        java.is_ok() && same.is_none(),
        "You choose the name: `market` excludes the article's code, `market:` the book's Python.",
    )
}
