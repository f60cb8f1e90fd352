//! Finds leftovers of a round: keys on the server, processes, and the servers' logs.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context;
use leasehold::redis::{Commands, Connection, cmd};
use nix::{sys::signal::Signal, unistd::Pid};

use crate::{
    checks::{Checker, Span, Violation},
    clock::{Nanos, millis, now},
    faults::SEMAPHORES,
    role::Part,
    stage::LOG,
};

/// Locks and their companion keys must all expire.
pub(crate) fn left_on_the_server(conn: &mut Connection, patience: Nanos) -> Vec<Violation> {
    let patience = now() + patience;
    let mut locks = locks_on(conn);
    while !locks.is_empty() && now() < patience {
        thread::sleep(Duration::from_millis(20));
        locks = locks_on(conn);
    }
    // The companion of a lock with its own hash tag has no braces.
    let companions: Vec<String> = conn.keys("*lock:*:lease*").unwrap_or_default();
    // A server that has lost its slots still lists keys, but refuses to read them.
    let has_no_end = |key: &String| conn.pttl(key).is_ok_and(|left: i64| left == -1);
    let endless = companions.into_iter().filter(has_no_end);
    let endless: Vec<_> = endless.collect();
    let left = locks.into_iter().chain(endless).map(|key| {
        let left: i64 = cmd("PTTL").arg(&key).query(conn).unwrap_or(-2);
        let lock = key.trim_start_matches("lock:").to_owned();
        let what = format!("{key} is left behind; it expires in {left} ms");
        Violation::new(
            Checker::LeftBehind,
            &lock,
            Span { from: 0, to: now() },
            what,
        )
    });
    left.collect()
}

fn locks_on(conn: &mut Connection) -> Vec<String> {
    let mut keys: Vec<String> = conn.keys("lock:*").unwrap_or_default();
    keys.retain(|key| !key.contains(":lease"));
    // A semaphore has no companion key.
    for lock in SEMAPHORES {
        let companion = format!("{{lock:{lock}}}:lease");
        if conn.exists(&companion).unwrap_or(false) {
            keys.push(companion);
        }
    }
    keys
}

/// Finds processes that the round started, by the folder in their environment.
pub(crate) fn processes_left(folder: &Path) -> Vec<Violation> {
    let (name, patience) = (folder.to_string_lossy().into_owned(), now() + millis(3_000));
    let look = || -> Vec<u32> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
        pids.filter(|pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let is_alive = fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "));
            let is_of_round = String::from_utf8_lossy(&environment).contains(&format!("{name}\""));
            is_alive && is_of_round
        })
        .collect()
    };
    let mut left = look();
    while !left.is_empty() && now() < patience {
        thread::sleep(Duration::from_millis(20));
        left = look();
    }
    let violation = |pid: u32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let program = Path::new(command.split('\0').next().unwrap_or_default());
        let program = program.file_name().unwrap_or_default().display();
        let what = format!("process {pid} still runs: {program}");
        Part::signal(
            Pid::from_raw(i32::try_from(pid).unwrap_or(0)),
            Signal::SIGKILL,
        );
        Violation::new(Checker::LeftBehind, "", Span { from: 0, to: 0 }, what)
    };
    left.into_iter().map(violation).collect()
}

/// Returns the write logs of all servers, earliest first.
pub(crate) fn server_logs(data: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut folders: Vec<PathBuf> = fs::read_dir(data)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    // `earlier-0001` sorts before the current log.
    folders.sort_by_key(|path| (path.ends_with(LOG), path.clone()));
    let mut logs = Vec::new();
    for folder in folders {
        let mut files: Vec<PathBuf> = fs::read_dir(folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        files.sort();
        for file in files
            .iter()
            .filter(|file| file.extension().is_some_and(|found| found == "aof"))
        {
            logs.push(fs::read(file).context("cannot read a write log")?);
        }
    }
    Ok(logs)
}
