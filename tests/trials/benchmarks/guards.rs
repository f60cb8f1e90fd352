//! `Locks`: guards on a free lock.

use std::time::Duration;

use anyhow::Context;
use leasehold::Locks;
use redis::{Connection, Script};
use uuid::Uuid;

use crate::{
    common::Server,
    measure::{Effort, compare},
    show,
};

/// Measures a guard against its own scripts, and against the shortest safe commands by hand.
pub(crate) fn free(
    server: &Server,
    connections: &mut [Connection],
    effort: Effort,
) -> anyhow::Result<()> {
    let locks = Locks::connect(&server.url())?;
    let acquire = Script::new(include_str!("../../../src/recipes/mutex/acquire.lua"));
    let release = Script::new(include_str!("../../../src/wire/release.lua"));
    let guards = |_: &mut Connection, thread: usize| {
        let lease = locks.lock(&name(thread)).acquire(Duration::ZERO)?;
        Ok(lease.release()?)
    };
    let scripts = |conn: &mut Connection, thread: usize| {
        let (key, token) = (format!("lock:{}", name(thread)), Uuid::new_v4().to_string());
        let fence: Option<u64> = acquire
            .key(&key)
            .key(format!("{{{key}}}:lease"))
            .arg(&token)
            .arg(10_000)
            .arg("by hand")
            .invoke(conn)?;
        fence.context("the lock is held")?;
        delete_if_ours(&release, conn, &key, &token)
    };
    let shortest = |conn: &mut Connection, thread: usize| {
        let (key, token) = (format!("lock:{}", name(thread)), Uuid::new_v4().to_string());
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&token).arg("NX").arg("PX").arg(10_000);
        anyhow::ensure!(set.query::<bool>(conn)?, "the lock is held");
        delete_if_ours(&release, conn, &key, &token)
    };
    for threads in [1, 8] {
        let connections = &mut connections[..threads];
        let compared = compare(connections, effort, &guards, &scripts)?;
        show(
            &format!("guard / its scripts, {threads} thread(s)"),
            &compared,
        );
        let compared = compare(connections, effort, &guards, &shortest)?;
        show(
            &format!("guard / SET + EVALSHA, {threads} thread(s)"),
            &compared,
        );
    }
    Ok(())
}

fn name(thread: usize) -> String {
    format!("benchmark-guard-{thread}")
}

fn delete_if_ours(
    release: &Script,
    conn: &mut Connection,
    key: &str,
    token: &str,
) -> anyhow::Result<()> {
    let released: bool = release.key(key).arg(token).invoke(conn)?;
    anyhow::ensure!(released, "the lock is lost");
    Ok(())
}
