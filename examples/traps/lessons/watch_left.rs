//! `WATCH` is left on a pooled connection.
//!
//! A function checks, finds nothing to do and returns. The `WATCH` stays on the connection, and the
//! next user's transaction fails because of a key that it never used.

use leasehold::{
    Pool,
    redis::{Client, Value},
    release_lock,
};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "watch-left",
    title: "an early return leaves a WATCH behind, and the next user's EXEC returns nil",
    source: "the book's Java port, purchaseItem: an exception after watch",
    actors: &["A", "B", "C"],
    keys: &["lock:trap", "report"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let client = Client::open(redis.url.as_str())?;
    let pool = r2d2::Pool::builder().max_size(1).build(client)?;
    let mut other = redis.client()?;
    let mut conn = pool.get()?;
    scene.send("A", &mut *conn, "WATCH lock:trap")?;
    scene.send("A", &mut *conn, "GET lock:trap")?;
    drop(conn);
    scene.tell(
        "A",
        "nothing to do: returns, and the connection goes back to the pool",
    )?;
    scene.send("C", &mut other, "SET lock:trap C PX 10000")?;
    let done = write_the_report(scene, &mut *pool.get()?)?;
    scene.goes_wrong(
        !done,
        "B watched nothing, but its transaction was discarded.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let client = Client::open(redis.url.as_str())?;
    let pool = Pool::builder().max_size(1).build(&client)?;
    let mut other = redis.client()?;
    let mut conn = pool.get()?;
    let was_ours = release_lock(&mut conn, NAME, &Token::random())?;
    scene.tell(
        "A",
        &format!("release_lock: WATCH, GET\n{was_ours}, nothing to do"),
    )?;
    drop(conn);
    scene.send("C", &mut other, "SET lock:trap C PX 10000")?;
    let done = write_the_report(scene, &mut *pool.get()?)?;
    scene.goes_right(done, "Every path that does not reach EXEC sends UNWATCH.")
}

/// B's transaction on the connection that A had.
fn write_the_report(scene: &mut Scene, conn: &mut Connection) -> Result<bool> {
    let written = redis::pipe()
        .atomic()
        .set("report", "by-B")
        .query::<Value>(conn)?;
    let done = written != Value::Nil;
    let answer = if done { "1) OK" } else { "(nil)" };
    scene.tell("B", &format!("MULTI\nSET report by-B\nEXEC\n{answer}"))?;
    Ok(done)
}
