//! A reply is taken for the answer to the next command.
//!
//! Somebody sends a command and does not wait for its answer: a time-out, an early return. The connection goes back to the
//! pool, and the next user reads what was meant for the one before.

use std::time::Instant;

use leasehold::{Pool, redis::Client};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "stale-answer",
    title: "an answer that nobody waited for is read by the next user of the connection",
    source: "any pool that lends a connection again after a time-out",
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
    scene.goes_wrong(wrong, "B read A's 1, and believes that it has C's lock.")
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
    scene.tell("A", "BLPOP lock:trap:other 8\n(waits for 2 s, not longer)")?;
    let got = scene.send("B", &mut *pool.get()?, "SETNX lock:trap B")?;
    let right = gave_up && got.is_int(0) && asked.elapsed() >= secs(2);
    scene.goes_right(
        right,
        "A connection that may be owed an answer is closed, not lent again.",
    )
}
