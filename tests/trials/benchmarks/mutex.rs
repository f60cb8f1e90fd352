//! The lock with a fencing token, and the cost of that token.

use std::time::Duration;

use anyhow::Context;
use leasehold::{
    Token,
    recipes::mutex::{self, End},
};
use redis::{Connection, Script};
use uuid::Uuid;

use crate::{
    measure::{Effort, compare},
    show,
};

const LEASE: Duration = Duration::from_secs(10);
const NAME: &str = "benchmark-mutex";
const KEY: &str = "lock:benchmark-mutex";
const COMPANION: &str = "{lock:benchmark-mutex}:lease";

pub(crate) fn mutex(connections: &mut [Connection], effort: Effort) -> anyhow::Result<()> {
    let acquire = Script::new(include_str!("../../../src/recipes/mutex/acquire.lua"));
    let release = Script::new(include_str!("../../../src/wire/release.lua"));
    let fenced_by_hand = |conn: &mut Connection, _: usize| {
        let token = Uuid::new_v4().to_string();
        let fence: Option<u64> = acquire
            .key(KEY)
            .key(COMPANION)
            .arg(&token)
            .arg(10_000)
            .arg("by hand")
            .invoke(conn)?;
        fence.context("the lock is held")?;
        delete_if_ours(&release, conn, &token)
    };
    let unfenced_by_hand = |conn: &mut Connection, _: usize| {
        let token = Uuid::new_v4().to_string();
        let mut set = redis::cmd("SET");
        set.arg(KEY).arg(&token).arg("NX").arg("PX").arg(10_000);
        anyhow::ensure!(set.query::<bool>(conn)?, "the lock is held");
        delete_if_ours(&release, conn, &token)
    };

    let compared = compare(connections, effort, &fenced, &fenced_by_hand)?;
    show("mutex acquire + release / by hand", &compared);
    let compared = compare(connections, effort, &unfenced, &unfenced_by_hand)?;
    show("the same unfenced / by hand", &compared);
    let compared = compare(connections, effort, &fenced, &unfenced)?;
    show("mutex / unfenced: the fencing token's cost", &compared);
    Ok(())
}

fn delete_if_ours(release: &Script, conn: &mut Connection, token: &str) -> anyhow::Result<()> {
    let released: bool = release.key(KEY).arg(token).invoke(conn)?;
    anyhow::ensure!(released, "the lock is lost");
    Ok(())
}

fn fenced(conn: &mut Connection, _: usize) -> anyhow::Result<()> {
    let token = Token::random();
    mutex::try_acquire(conn, NAME, &token, End::After(LEASE))?.context("the lock is held")?;
    anyhow::ensure!(mutex::release(conn, NAME, &token)?, "the lock is lost");
    Ok(())
}

fn unfenced(conn: &mut Connection, _: usize) -> anyhow::Result<()> {
    let token = Token::random();
    let ours = mutex::try_acquire_unfenced(conn, NAME, &token, LEASE)?;
    anyhow::ensure!(ours, "the lock is held");
    anyhow::ensure!(mutex::release(conn, NAME, &token)?, "the lock is lost");
    Ok(())
}
