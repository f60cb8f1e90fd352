//! Faults of the server itself: halted, killed, full, busy, read-only, or with a clock that jumps.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::ensure;
use leasehold::redis::{Connection, RedisResult, cmd};

use super::{
    AtServer, Hit, Kind, Made, at_server as of, clients::kill_workers_connections,
    keys::EVERYTHING, surely,
};
use crate::{checks::Checker, stage::LOG};

pub(super) const KINDS: &[Kind] = &[
    of("server-stop-briefly", &[], 800, |at| halt(at, 50, 300)),
    of("server-stop", &[], 1_500, |at| halt(at, 500, 1_300)),
    of("server-kill", &[], 1_500, kill),
    of("server-kill-empty", EVERYTHING, 1_500, kill_empty),
    of("shutdown-nosave", &[], 1_500, shutdown),
    of("no-memory", &[], 800, |at| {
        with(at, &[("maxmemory", "1", "0")], 250)
    }),
    of("client-pause", &[], 1_500, |at| pause(at, "ALL")),
    of("client-pause-write", &[], 1_500, |at| pause(at, "WRITE")),
    of("read-only", &[], 1_500, read_only),
    of("acl-no-scripts", &[], 800, |at| {
        forbid(at, &["-eval", "-evalsha"], &["+eval", "+evalsha"])
    }),
    of("acl-no-renewals", &[], 800, |at| {
        forbid(at, &["-pexpire"], &["+pexpire"])
    }),
    of("acl-no-tracking", &[], 1_500, |at| {
        forbid(at, &["-client|tracking"], &["+client|tracking"])
    }),
    of("tracking-table-full", &[], 1_500, |at| {
        with(at, &[("tracking-table-max-keys", "1", "1000000")], 500)
    }),
    of("no-more-clients", &[], 1_500, no_more_clients),
    of("idle-clients-closed", &[], 1_500, |at| {
        with(at, &[("timeout", "1", "0")], 1_400)
    }),
    of("cannot-save", &[], 800, cannot_save),
    of("log-disk-full", &[], 2_000, log_disk_full),
    of("busy-script", &[], 1_500, busy),
    of("sleep", &[], 800, |at| {
        cmd("DEBUG")
            .arg(&["SLEEP", "0.2"])
            .exec(&mut at.operator()?)?;
        Ok(Some(Hit::all()))
    }),
    // Waiters that expect a later end notice an earlier one only at that time, or when the server
    // finds the expired key.
    of(
        "clock-forward",
        &[
            Checker::Exclusion,
            Checker::Free,
            Checker::ServerLog,
            Checker::Fencing,
            Checker::ReEntry,
            Checker::Once,
        ],
        0,
        |at| move_clock(at, 1),
    ),
    // Leases end later by the same amount.
    of("clock-back", &[Checker::Once], 4_000, |at| {
        move_clock(at, -1)
    }),
];

fn config(conn: &mut Connection, name: &str, value: &str) -> RedisResult<()> {
    cmd("CONFIG").arg(&["SET", name, value]).exec(conn)
}

/// Changes settings for a while.
fn with(at: &mut AtServer<'_>, settings: &[(&str, &str, &str)], millis: u64) -> Made {
    let set = |at: &AtServer<'_>| -> anyhow::Result<()> {
        let mut conn = at.operator()?;
        for (name, bad, _) in settings {
            config(&mut conn, name, bad)?;
        }
        Ok(())
    };
    let was_set = set(at);
    thread::sleep(Duration::from_millis(millis));
    surely(|| {
        let mut conn = at.operator()?;
        for (name, _, good) in settings {
            config(&mut conn, name, good)?;
        }
        Ok(())
    })?;
    was_set?;
    Ok(Some(Hit::all()))
}

fn halt(at: &mut AtServer<'_>, least: u64, most: u64) -> Made {
    let millis = at.random.u64(least..most);
    at.server.freeze()?;
    thread::sleep(Duration::from_millis(millis));
    at.server.thaw()?;
    Ok(Some(Hit::all()))
}

/// Kills the server. Its writes are still there after the restart.
fn kill(at: &mut AtServer<'_>) -> Made {
    at.server.kill()?;
    at.server.restart()?;
    Ok(Some(Hit::all()))
}

fn kill_empty(at: &mut AtServer<'_>) -> Made {
    at.server.kill()?;
    keep_log_aside(at)?;
    at.server.restart()?;
    Ok(Some(Hit::all()))
}

/// Moves the log aside for the checks; the restarted server finds no data.
fn keep_log_aside(at: &mut AtServer<'_>) -> anyhow::Result<()> {
    let data = at.folder.join("data");
    let earlier = fs::read_dir(&data)?.count();
    fs::rename(data.join(LOG), data.join(format!("earlier-{earlier:04}")))?;
    Ok(())
}

fn shutdown(at: &mut AtServer<'_>) -> Made {
    // The server closes the connection instead of answering.
    let _ = cmd("SHUTDOWN").arg("NOSAVE").exec(&mut at.operator()?);
    at.server.wait_for_its_end(Duration::from_secs(5))?;
    at.server.restart()?;
    Ok(Some(Hit::all()))
}

fn pause(at: &mut AtServer<'_>, what: &str) -> Made {
    let millis = at.random.u64(50..700).to_string();
    cmd("CLIENT")
        .arg(&["PAUSE", &millis, what])
        .exec(&mut at.operator()?)?;
    thread::sleep(Duration::from_millis(millis.parse()?));
    Ok(Some(Hit::all()))
}

/// Makes the server a replica of an unreachable master, and a master again.
fn read_only(at: &mut AtServer<'_>) -> Made {
    let was_set = cmd("REPLICAOF")
        .arg(&["127.0.0.1", "1"])
        .exec(&mut at.operator()?);
    thread::sleep(Duration::from_millis(250));
    surely(|| {
        Ok(cmd("REPLICAOF")
            .arg(&["NO", "ONE"])
            .exec(&mut at.operator()?)?)
    })?;
    was_set?;
    Ok(Some(Hit::all()))
}

fn forbid(at: &mut AtServer<'_>, without: &[&str], again: &[&str]) -> Made {
    let rights = |rights: &[&str]| -> anyhow::Result<()> {
        let mut conn = at.operator()?;
        Ok(cmd("ACL")
            .arg(&["SETUSER", "default"])
            .arg(rights)
            .exec(&mut conn)?)
    };
    let was_set = rights(without);
    thread::sleep(Duration::from_millis(250));
    surely(|| rights(again))?;
    was_set?;
    Ok(Some(Hit::all()))
}

fn no_more_clients(at: &mut AtServer<'_>) -> Made {
    let mut conn = at.operator()?;
    config(&mut conn, "maxclients", "1")?;
    let killed = kill_workers_connections(&mut conn, |_| true);
    thread::sleep(Duration::from_millis(250));
    // Uses the open connection: the server would refuse a new one.
    config(&mut conn, "maxclients", "4000")
        .or_else(|_| surely(|| Ok(config(&mut at.operator()?, "maxclients", "4000")?)))?;
    killed?;
    Ok(Some(Hit::all()))
}

/// After a failed save, the server refuses all writes.
fn cannot_save(at: &mut AtServer<'_>) -> Made {
    let mut conn = at.operator()?;
    let in_the_way = at.folder.join("data").join("dump.rdb");
    let _ = fs::remove_file(&in_the_way);
    fs::create_dir_all(in_the_way.join("full"))?;
    config(&mut conn, "save", "3600 1000000")?;
    let _: RedisResult<()> = cmd("BGSAVE").exec(&mut conn);
    thread::sleep(Duration::from_millis(300));
    surely(|| {
        let mut conn = at.operator()?;
        config(&mut conn, "save", "")?;
        Ok(())
    })?;
    fs::remove_dir_all(&in_the_way)?;
    Ok(Some(Hit::all()))
}

/// Keeps the server from writing its log: it refuses all writes until it can.
fn log_disk_full(at: &mut AtServer<'_>) -> Made {
    let pid = at.server.process().to_string();
    let limit = |bytes: &str| {
        Command::new("prlimit")
            .args(["--pid", &pid, &format!("--fsize={bytes}:")])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !limit("1") {
        return Ok(None);
    }
    thread::sleep(Duration::from_millis(300));
    ensure!(limit("unlimited"), "cannot remove the file size limit");
    // The server retries once a second.
    thread::sleep(Duration::from_millis(1_100));
    Ok(Some(Hit::all()))
}

/// Runs a slow script, during which the server soon answers `BUSY`.
fn busy(at: &mut AtServer<'_>) -> Made {
    let mut conn = at.operator()?;
    config(&mut conn, "lua-time-limit", "50")?;
    let spins =
        "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
        local begun = now()
        while now() < begun + 300 do end";
    let _: RedisResult<()> = cmd("EVAL").arg(spins).arg(0).exec(&mut conn);
    surely(|| Ok(config(&mut at.operator()?, "lua-time-limit", "5000")?))?;
    Ok(Some(Hit::all()))
}

/// Moves the server's clock forward or back by a few seconds.
fn move_clock(at: &mut AtServer<'_>, sign: i64) -> Made {
    if !at.has_clock {
        return Ok(None);
    }
    at.clock_ahead += sign * at.random.i64(500_000..3_000_000);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .open(at.folder.join("clock"))?;
    file.write_all(&at.clock_ahead.to_ne_bytes())?;
    Ok(Some(Hit::all()))
}
