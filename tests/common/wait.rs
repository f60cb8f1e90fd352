//! Waiting for a condition, with a bound.

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    panic::{self, AssertUnwindSafe},
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

/// What a test that [is run again](unless_halted) panics with, in its own thread, when it has seen that the machine was too slow for what
/// it had to prepare. Not what it panics with when something merely takes long: what is wrong now and then would be hidden.
pub const TOO_SLOW: &str = "the machine was too slow";

/// A machine that runs twenty tests at a time may hold a thread up for this long. A bound that is
/// asserted lies this much over the promise, and what breaks the promise takes longer.
pub const SLACK: Duration = Duration::from_millis(750);

/// Slower than this is never asserted to be, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Looks again and again until the condition holds. False: it has not come to hold within ten seconds.
pub fn comes_true(condition: impl FnMut() -> bool) -> bool {
    comes_true_within(2 * PATIENCE, condition)
}

/// The same with another limit.
pub fn comes_true_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let asked = Instant::now();
    while asked.elapsed() < limit {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    condition()
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

/// How many keys the server tells anybody of when they change.
pub fn tracked_keys(conn: &mut redis::Connection) -> anyhow::Result<usize> {
    let stats: String = redis::cmd("INFO").arg("stats").query(conn)?;
    let mut lines = stats.lines();
    let keys = lines.find_map(|stat| stat.strip_prefix("tracking_total_keys:")?.parse().ok());
    Ok(keys.unwrap_or(0))
}

/// Runs the cases at the same time, a thread each: what waits costs nothing.
pub fn at_once<T: Clone + Send>(cases: impl IntoIterator<Item = T>, run: impl Fn(T) + Sync) {
    let run = &run;
    thread::scope(|scope| {
        let running: Vec<_> = cases
            .into_iter()
            .map(|case| scope.spawn(move || unless_halted(|| run(case.clone()))))
            .collect();
        let ended: Vec<_> = running.into_iter().map(ScopedJoinHandle::join).collect();
        if let Some(why) = ended.into_iter().find_map(Result::err) {
            panic::resume_unwind(why);
        }
    });
}

/// Runs it again, up to five times, where the process was halted meanwhile: each read with a time
/// limit may end with an error then, and leases end, so that the test has shown nothing.
pub fn unless_halted(run: impl Fn()) {
    for _ in 0..5 {
        let before = halts();
        let Err(why) = panic::catch_unwind(AssertUnwindSafe(&run)) else {
            return;
        };
        let text = why.downcast_ref::<String>().map_or("", String::as_str);
        if !text.contains("Interrupted system call") && !text.contains(TOO_SLOW) {
            // The thread that counts goes on when this one does, but not always before it.
            thread::sleep(Duration::from_millis(100));
            if halts() == before {
                panic::resume_unwind(why);
            }
        }
    }
    run();
}

/// How often this process has been halted so far: a thread counts how often its read is interrupted.
fn halts() -> u64 {
    static HALTS: AtomicU64 = AtomicU64::new(0);
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let long = Some(Duration::from_secs(3_600));
        silent.set_read_timeout(long).unwrap();
        thread::spawn(move || -> ! {
            loop {
                let error = silent.recv(&mut [0]).unwrap_err();
                let is_halt = error.kind() == io::ErrorKind::Interrupted;
                HALTS.fetch_add(u64::from(is_halt), Ordering::SeqCst);
            }
        });
    });
    HALTS.load(Ordering::SeqCst)
}
