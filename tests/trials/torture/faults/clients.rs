//! Faults of connections and process limits: closed by the server, or no descriptors left.

use std::{fs, path::PathBuf, process::Command, thread, time::Duration};

use anyhow::Context;
use leasehold::redis::{Connection, cmd};

use super::{AtClients, Hit, Kind, Made, Make, surely};
use crate::stage::OPERATOR;

pub(super) const KINDS: &[Kind] = &[
    // The connection of waiters is checked once a second.
    of("kill-tracked", 1_500, kill_tracked),
    of("kill-listeners", 1_500, kill_listeners),
    of("kill-pooled", 600, kill_pooled),
    of("kill-all", 1_500, kill_all),
    of("few-descriptors", 1_500, few_descriptors),
    of("few-threads", 1_500, few_threads),
];

const fn of(name: &'static str, disturbs: u64, make: fn(&mut AtClients<'_>) -> Made) -> Kind {
    Kind {
        name,
        announces: &[],
        disturbs,
        fails_over: false,
        make: Make::AtClients(make),
    }
}

/// Closes one connection of waiters or watchdogs.
fn kill_tracked(at: &mut AtClients<'_>) -> Made {
    kill_one(at, |flags| flags.contains('t'))
}

fn kill_listeners(at: &mut AtClients<'_>) -> Made {
    kill_one(at, |flags| flags.contains('P'))
}

fn kill_pooled(at: &mut AtClients<'_>) -> Made {
    kill_one(at, |flags| flags == "N")
}

fn kill_all(at: &mut AtClients<'_>) -> Made {
    let killed = kill_workers_connections(&mut at.operator()?, |_| true)?;
    Ok((killed > 0).then(Hit::default))
}

fn kill_one(at: &mut AtClients<'_>, is_wanted: fn(&str) -> bool) -> Made {
    let mut conn = at.operator()?;
    let mut ids = workers_connections(&mut conn, is_wanted)?;
    at.random.shuffle(&mut ids);
    let killed = ids.first().map(|id| kill(&mut conn, id)).transpose()?;
    Ok((killed == Some(1)).then(Hit::default))
}

/// Closes the connections of workers with these flags. Returns how many.
pub(super) fn kill_workers_connections(
    conn: &mut Connection,
    is_wanted: fn(&str) -> bool,
) -> anyhow::Result<i64> {
    let ids = workers_connections(conn, is_wanted)?;
    ids.iter().map(|id| kill(conn, id)).sum()
}

fn kill(conn: &mut Connection, id: &str) -> anyhow::Result<i64> {
    Ok(cmd("CLIENT").arg(&["KILL", "ID", id]).query(conn)?)
}

/// Excludes connections of operators, who must complete their commands, and those of other servers
/// and of sentinels.
fn workers_connections(
    conn: &mut Connection,
    is_wanted: fn(&str) -> bool,
) -> anyhow::Result<Vec<String>> {
    let list: String = cmd("CLIENT").arg("LIST").query(conn)?;
    let of_workers = list
        .lines()
        .filter(|line| word(line, "name=").is_none_or(|name| !is_no_workers(name)))
        .filter(|line| !word(line, "flags=").is_some_and(|flags| flags.contains(['S', 'M'])))
        .filter(|line| word(line, "flags=").is_some_and(is_wanted));
    let ids = of_workers.filter_map(|line| word(line, "id=").map(str::to_owned));
    Ok(ids.collect())
}

fn is_no_workers(name: &str) -> bool {
    name == OPERATOR || name.starts_with("sentinel-")
}

fn word<'l>(line: &'l str, start: &str) -> Option<&'l str> {
    line.split(' ').find_map(|word| word.strip_prefix(start))
}

/// Lets a worker open no more files for a while, and closes its pooled connections.
fn few_descriptors(at: &mut AtClients<'_>) -> Made {
    let mut targets = at.targets();
    at.random.shuffle(&mut targets);
    let Some(target) = targets.pop() else {
        return Ok(None);
    };
    let limit = |files: &str| -> anyhow::Result<bool> {
        let pid = target.pid.to_string();
        let status = Command::new("prlimit")
            .args(["--pid", &pid, &format!("--nofile={files}:")])
            .stderr(std::process::Stdio::null())
            .status();
        Ok(status.is_ok_and(|status| status.success()))
    };
    if !limit("8")? {
        return Ok(None);
    }
    for _ in 0..3 {
        let _ = kill_pooled(at);
        thread::sleep(Duration::from_millis(100));
    }
    limit("1024")?;
    Ok(Some(Hit::all()))
}

/// Lets a worker start no thread or process for a while, and closes connections.
fn few_threads(at: &mut AtClients<'_>) -> Made {
    let mut targets = at.targets();
    at.random.shuffle(&mut targets);
    let Some(target) = targets.pop() else {
        return Ok(None);
    };
    // A worker that has just started has no threads to work with yet.
    let threads = fs::read_dir(format!("/proc/{}/task", target.pid));
    if threads.map_or(0, Iterator::count) < at.jobs {
        return Ok(None);
    }
    let Ok(limit) = ThreadLimit::of(target.pid.as_raw()) else {
        return Ok(None);
    };
    for _ in 0..4 {
        let _ = kill_one(at, |_| true);
        thread::sleep(Duration::from_millis(100));
    }
    limit.lift()?;
    Ok(Some(Hit::all()))
}

/// A control group with one process that may start no thread. It limits root too.
struct ThreadLimit {
    group: PathBuf,
    before: PathBuf,
    pid: String,
}

impl ThreadLimit {
    /// Works only if such groups can be created, usually as root.
    fn of(pid: i32) -> anyhow::Result<Self> {
        let (root, before) = [("/sys/fs/cgroup/pids", "pids"), ("/sys/fs/cgroup", "")]
            .into_iter()
            .find_map(|(root, controller)| Some((PathBuf::from(root), group(pid, controller)?)))
            .context("no control group can limit threads")?;
        let limit = Self {
            group: root.join(format!("torture-{pid}")),
            before: root.join(before.trim_start_matches('/')),
            pid: pid.to_string(),
        };
        let made = fs::create_dir(&limit.group)
            .and_then(|()| fs::write(limit.group.join("pids.max"), "1"))
            .and_then(|()| fs::write(limit.group.join("cgroup.procs"), &limit.pid));
        if made.is_err() {
            let _ = fs::remove_dir(&limit.group);
        }
        made?;
        Ok(limit)
    }

    fn lift(&self) -> anyhow::Result<()> {
        fs::write(self.group.join("pids.max"), "max")?;
        surely(|| {
            // The process may have been killed meanwhile. Its children, including new ones, are in
            // the group too.
            let inside = fs::read_to_string(self.group.join("cgroup.procs"))?;
            for pid in inside.lines() {
                let _ = fs::write(self.before.join("cgroup.procs"), pid);
            }
            Ok(fs::remove_dir(&self.group)?)
        })
    }
}

/// Returns the control group of a process.
fn group(pid: i32, controller: &str) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        (words.next()? == controller).then(|| words.next().map(str::to_owned))?
    })
}
