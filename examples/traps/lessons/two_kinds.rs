//! Two kinds of lock with one name.
//!
//! One program locks by a string, another by a reentrant hash. On the same key the second one's
//! script fails. With a key of its own it works, but the two no longer exclude each other.

use leasehold::{Owner, acquire_lock_with_timeout, recipes::reentrant};

use crate::{prelude::*, scripts::ENTER};

pub(crate) const TRAP: Trap = Trap {
    name: "two-kinds",
    title: "two kinds of lock with one name fail, or are two separate locks",
    source: "the book's string and the notes' hash in one system",
    actors: &["A", "B"],
    keys: &["lock:trap", "lock:trap:hash"],
    classic,
    ours,
};

fn classic(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    scene.send("A", &mut a, "SET lock:trap A NX PX 60000")?;
    scene.eval("B", &mut b, ENTER, &["lock:trap"], &["B", "60"])?;
    scene.tell("B", "uses another key instead")?;
    let got = scene.eval("B", &mut b, ENTER, &["lock:trap:hash"], &["B", "60"])?;
    scene.goes_wrong(got.is_int(1), "Both have locked `trap`, and both work.")
}

fn ours(redis: &Redis, scene: &mut Scene) -> Result<()> {
    let (mut a, mut b) = (redis.client()?, redis.client()?);
    let token = acquire_lock_with_timeout(&mut a, NAME, NO_WAIT, secs(60))?;
    scene.gets("A", "acquire_lock_with_timeout", token)?;
    let owner = Owner::new("B")?;
    let answer = reentrant::try_acquire(&mut b, NAME, &owner, &Token::random(), secs(60));
    let Err(error) = answer else {
        anyhow::bail!("two kinds of lock on one name");
    };
    scene.tell("B", &error.to_string())?;
    let right = matches!(error, Error::WrongKind { .. });
    scene.goes_right(right, "One name is one key: B gets an error and stays out.")
}
