//! Bounded waits for a condition.

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

/// The panic message of a test that [runs again](unless_halted), raised in the test's own thread
/// when it sees that the machine was too slow for its preparation. Do not use it when something
/// merely takes long: that would hide occasional bugs.
pub const TOO_SLOW: &str = "the machine was too slow";

/// The longest stall of a thread on a machine that runs twenty tests at a time. Assert a bound with
/// this margin; a violation must take longer.
pub const SLACK: Duration = Duration::from_millis(750);

/// No test asserts a time over this, however busy the machine.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Polls until the condition holds. False if it does not within ten seconds.
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

/// Number of times the server has executed this command, given in lower case.
pub fn calls(conn: &mut redis::Connection, command: &str) -> anyhow::Result<u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(conn)?;
    let line = format!("cmdstat_{command}:calls=");
    let calls = stats
        .lines()
        .find_map(|stat| stat.strip_prefix(&line)?.split(',').next()?.parse().ok());
    Ok(calls.unwrap_or(0))
}

/// Number of keys that the server tracks for its clients.
pub fn tracked_keys(conn: &mut redis::Connection) -> anyhow::Result<usize> {
    tracking(conn, "tracking_total_keys:")
}

/// The same; a key counts once for each of the connections that have read it.
pub fn told_of_keys(conn: &mut redis::Connection) -> anyhow::Result<usize> {
    tracking(conn, "tracking_total_items:")
}

fn tracking(conn: &mut redis::Connection, what: &str) -> anyhow::Result<usize> {
    let stats: String = redis::cmd("INFO").arg("stats").query(conn)?;
    let mut lines = stats.lines();
    let number = lines.find_map(|stat| stat.strip_prefix(what)?.parse().ok());
    Ok(number.unwrap_or(0))
}

/// Asserts that something takes less than this. A busy machine is late now and then, so it may
/// try five times; what waits for the wrong event is late each time.
#[track_caller]
pub fn in_time(limit: Duration, run: impl Fn() -> Duration) {
    let mut took = Vec::new();
    let is_in_time = (0..5).any(|_| {
        let last = run();
        took.push(last);
        last < limit
    });
    assert!(is_in_time, "{took:?}");
}

/// Runs the cases concurrently, one thread each: most of them only wait.
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

/// Runs a test again, up to five times, if the process was halted: then reads with a time-out may
/// fail and leases expire, so the run has proved nothing.
pub fn unless_halted(run: impl Fn()) {
    for _ in 0..5 {
        let before = halts();
        let Err(why) = panic::catch_unwind(AssertUnwindSafe(&run)) else {
            return;
        };
        let text = why.downcast_ref::<String>().map_or("", String::as_str);
        if !text.contains("Interrupted system call") && !text.contains(TOO_SLOW) {
            // The counting thread resumes along with this one, but not always before it.
            thread::sleep(Duration::from_millis(100));
            if halts() == before {
                panic::resume_unwind(why);
            }
        }
    }
    run();
}

/// Number of times this process was halted: a thread counts the interruptions of its read.
fn halts() -> u64 {
    static HALTS: AtomicU64 = AtomicU64::new(0);
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let long = Some(Duration::from_hours(1));
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
