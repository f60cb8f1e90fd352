//! `redis::Client` under `WATCH`.
//!
//! A `Client` can send commands like a connection, but opens a new connection for each. So `WATCH`
//! and `EXEC` run on different connections, and `WATCH` protects nothing.

use leasehold::{acquire_lock_with_timeout, commit_while_held, redis::Client};

use crate::prelude::*;

pub(crate) const TRAP: Trap = Trap {
    name: "client-under-watch",
    title: "a redis::Client opens a connection for each command, so WATCH protects nothing",
    source: "the book's release_lock, ported by hand to redis-rs",
    actors: &["A", "B"],
    keys: &["lock:trap", "report"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (Client::open(redis.url.as_str())?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 10000")?;
    scene.send("A", &mut a, "WATCH lock:trap")?;
    scene.send("A", &mut a, "GET lock:trap")?;
    scene.send("B", &mut b, "SET lock:trap B PX 10000")?;
    redis::pipe().atomic().set("report", "by-A").exec(&mut a)?;
    scene.tell("A", "MULTI\nSET report by-A\nEXEC\n1) OK")?;
    let report = scene.send("B", &mut b, "GET report")?;
    scene.goes_wrong(
        report.is_text("by-A"),
        "The lock had changed, but the WATCH did not notice.",
    )
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let token = acquire_lock_with_timeout(&mut a, NAME, NO_WAIT, secs(10))?;
    let token = scene.gets("A", "acquire_lock_with_timeout", token)?;
    scene.send("B", &mut b, "SET lock:trap B PX 10000")?;
    let written = commit_while_held::<()>(&mut a, NAME, &token, |pipe| {
        pipe.set("report", "by-A");
    });
    let error = written.err().context("written without the lock")?;
    scene.tell("A", &error.to_string())?;
    let right = matches!(error, Error::Lost { .. });
    scene.goes_right(
        right,
        "Passing a Client instead of a connection does not compile.",
    )
}
