//! A program reads an answer that belongs to an earlier command.
//!
//! A caller sends a command and does not wait for its answer, because of a timeout or an early
//! return. The connection goes back to the pool, and the next user reads that answer as its own.

use std::time::Instant;

use leasehold::{Pool, redis::Client};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "stale-answer",
    title: "the next user of a connection reads the previous user's answer",
    source: "any pool that reuses a connection after a timeout",
    actors: &["A", "B", "C"],
    keys: &["lock:trap", "lock:trap:other"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let client = Client::open(redis.url.as_str())?;
    let pool = r2d2::Pool::builder();
    let pool = pool.max_size(1).test_on_check_out(false).build(client)?;
    let mut other = redis.client()?;
    scene.send("C", &mut other, "SET lock:trap C NX PX 10000")?;
    let mut conn = pool.get()?;
    let mut set = redis::cmd("SETNX");
    conn.send_packed_command(&set.arg("lock:trap:other").arg("A").get_packed_command())?;
    drop(conn);
    scene.tell(
        "A",
        "SETNX lock:trap:other A\n(does not wait for the answer)",
    )?;
    let got = scene.send("B", &mut *pool.get()?, "SETNX lock:trap B")?;
    let holder = scene.send("C", &mut other, "GET lock:trap")?;
    let wrong = got.is_int(1) && holder.is_text("C");
    scene.goes_wrong(wrong, "B read A's 1, and thinks that it has the lock.")
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let client = Client::open(redis.url.as_str())?;
    let pool = Pool::builder()
        .max_size(1)
        .io_timeout(secs(2))
        .build(&client)?;
    let mut other = redis.client()?;
    scene.send("C", &mut other, "SET lock:trap C NX PX 10000")?;
    let (mut conn, asked) = (pool.get()?, Instant::now());
    let answer = redis::cmd("BLPOP")
        .arg("lock:trap:other")
        .arg(8)
        .exec(&mut conn);
    let gave_up = answer.is_err_and(|error| error.is_timeout());
    drop(conn);
    scene.tell("A", "BLPOP lock:trap:other 8\n(gives up after 2 s)")?;
    let got = scene.send("B", &mut *pool.get()?, "SETNX lock:trap B")?;
    let right = gave_up && got.is_int(0) && asked.elapsed() >= secs(2);
    scene.goes_right(
        right,
        "A connection whose answer is outstanding is closed, not lent again.",
    )
}
