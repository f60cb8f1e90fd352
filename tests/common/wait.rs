//! Waiting for a condition, with a bound.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;

/// Looks again and again until it is so; an error after ten seconds.
pub fn until(mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(10) {
        if is_so()? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    bail!("it did not become so within ten seconds")
}

/// How often the server has executed this command, given in lower case.
pub fn calls(conn: &mut redis::Connection, command: &str) -> anyhow::Result<u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(conn)?;
    let line = format!("cmdstat_{command}:calls=");
    let calls = stats
        .lines()
        .find_map(|stat| stat.strip_prefix(&line)?.split(',').next()?.parse().ok());
    Ok(calls.unwrap_or(0))
}

/// Runs the cases at the same time, a thread each: what waits costs nothing.
pub fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, run: impl Fn(T) + Sync) {
    let run = &run;
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || run(case));
        }
    });
}
