//! Faults of the server's data: deleted, overwritten, evicted, flushed.

use std::{thread, time::Duration};

use leasehold::redis::{Commands, cmd};

use super::{AtServer, Hit, Kind, Made, at_server as of, surely};
use crate::checks::Checker;

/// A holder that loses its lock this way may continue until it learns of it, while another holds
/// the lock.
const HOLDERS: &[Checker] = &[
    Checker::Exclusion,
    Checker::Fencing,
    Checker::ServerLog,
    Checker::ReEntry,
];
/// Data is lost as well.
pub(super) const EVERYTHING: &[Checker] = &[
    Checker::Exclusion,
    Checker::Fencing,
    Checker::ServerLog,
    Checker::ReEntry,
    Checker::Once,
    Checker::Sums,
];

/// Marks of completed work expire too.
const EVICTED: &[Checker] = &[
    Checker::Exclusion,
    Checker::Fencing,
    Checker::ServerLog,
    Checker::ReEntry,
    Checker::Once,
];

pub(super) const KINDS: &[Kind] = &[
    of("delete-lock", HOLDERS, 0, delete_lock),
    of("overwrite-lock", HOLDERS, 0, overwrite_lock),
    of("lock-of-another-type", HOLDERS, 0, retype_lock),
    of("persist-lock", &[], 0, persist_lock),
    // The count of a reentrant hold depends on the companion.
    of(
        "delete-companion",
        &[Checker::ReEntry, Checker::Exclusion],
        0,
        delete_companion,
    ),
    of(
        "overwrite-companion",
        &[Checker::ReEntry, Checker::Exclusion],
        600,
        overwrite_companion,
    ),
    of("flush", EVERYTHING, 0, flush),
    of("evict", EVICTED, 600, evict),
    of("script-flush", &[], 0, script_flush),
];

fn delete_lock(at: &mut AtServer<'_>) -> Made {
    let (mut conn, lock) = (at.operator()?, at.lock());
    let deleted: i64 = conn.del(format!("lock:{lock}"))?;
    Ok((deleted == 1).then(|| Hit::lock(lock)))
}

/// Overwrites the lock with a plain `SET`, for a moment.
fn overwrite_lock(at: &mut AtServer<'_>) -> Made {
    let (mut conn, lock) = (at.operator()?, at.lock());
    let set: Option<String> = cmd("SET")
        .arg(format!("lock:{lock}"))
        .arg(&["an-intruder", "XX", "PX", "200"])
        .query(&mut conn)?;
    thread::sleep(Duration::from_millis(210));
    Ok(set.map(|_| Hit::lock(lock)))
}

fn retype_lock(at: &mut AtServer<'_>) -> Made {
    let (mut conn, lock) = (at.operator()?, at.lock());
    let key = format!("lock:{lock}");
    let deleted: i64 = conn.del(&key)?;
    let pushed: i64 = conn.rpush(&key, "no lock").unwrap_or(0);
    thread::sleep(Duration::from_millis(100));
    surely(|| {
        let mut conn = at.operator()?;
        // The lock may have been taken in between: then nothing was pushed.
        if conn.key_type::<_, String>(&key)? == "list" {
            let _: i64 = conn.del(&key)?;
        }
        Ok(())
    })?;
    Ok((deleted + pushed > 0).then(|| Hit::lock(lock)))
}

/// Removes the lock's expiry, as an operator might, and restores it a little later.
fn persist_lock(at: &mut AtServer<'_>) -> Made {
    let (mut conn, lock) = (at.operator()?, at.lock());
    let key = format!("lock:{lock}");
    let persisted: bool = conn.persist(&key)?;
    thread::sleep(Duration::from_millis(200));
    surely(|| {
        let mut end = cmd("PEXPIRE");
        Ok(end
            .arg(&key)
            .arg(&["400", "NX"])
            .exec(&mut at.operator()?)?)
    })?;
    Ok(persisted.then(|| Hit::lock(lock)))
}

fn delete_companion(at: &mut AtServer<'_>) -> Made {
    let (mut conn, lock) = (at.operator()?, at.lock());
    let deleted: i64 = conn.del(format!("{{lock:{lock}}}:lease"))?;
    Ok((deleted == 1).then(|| Hit::lock(lock)))
}

fn overwrite_companion(at: &mut AtServer<'_>) -> Made {
    let (mut conn, lock) = (at.operator()?, at.lock());
    let key = format!("{{lock:{lock}}}:lease");
    let _: () = conn.set(&key, "no companion")?;
    thread::sleep(Duration::from_millis(150));
    surely(|| Ok(cmd("DEL").arg(&key).exec(&mut at.operator()?)?))?;
    Ok(Some(Hit::lock(lock)))
}

fn flush(at: &mut AtServer<'_>) -> Made {
    cmd("FLUSHALL").exec(&mut at.operator()?)?;
    Ok(Some(Hit::all()))
}

/// Fills the server, so that it evicts keys with an expiry: locks.
fn evict(at: &mut AtServer<'_>) -> Made {
    let set = |settings: [(&str, &str); 2]| -> anyhow::Result<()> {
        let mut conn = at.operator()?;
        for (name, value) in settings {
            cmd("CONFIG").arg(&["SET", name, value]).exec(&mut conn)?;
        }
        Ok(())
    };
    let was_set = set([("maxmemory-policy", "volatile-random"), ("maxmemory", "1")]);
    thread::sleep(Duration::from_millis(30));
    surely(|| set([("maxmemory", "0"), ("maxmemory-policy", "noeviction")]))?;
    was_set?;
    Ok(Some(Hit::all()))
}

fn script_flush(at: &mut AtServer<'_>) -> Made {
    cmd("SCRIPT").arg("FLUSH").exec(&mut at.operator()?)?;
    Ok(Some(Hit::all()))
}
