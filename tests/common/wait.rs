//! Bounded waits for a condition.

use std::{
    io, mem,
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

/// The same with another limit. The polls become rarer: dozens of tests poll at a time.
pub fn comes_true_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let asked = Instant::now();
    while asked.elapsed() < limit {
        if condition() {
            return true;
        }
        let (least, most) = (Duration::from_millis(1), Duration::from_millis(20));
        thread::sleep((asked.elapsed() / 16).clamp(least, most));
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
        let before = halted();
        let Err(why) = panic::catch_unwind(AssertUnwindSafe(&run)) else {
            return;
        };
        let text = why.downcast_ref::<String>().map_or("", String::as_str);
        if !text.contains("Interrupted system call") && !text.contains(TOO_SLOW) {
            // The measuring thread resumes along with this one, but not always before it.
            thread::sleep(Duration::from_millis(100));
            if halted() < before + HALT {
                panic::resume_unwind(why);
            }
        }
        // At the next attempt the machine may have time for it.
        let mut last = halted();
        comes_true_within(PATIENCE, || {
            thread::sleep(Duration::from_millis(250));
            let now = halted();
            mem::replace(&mut last, now) == now
        });
    }
    run();
}

/// No test asserts a time tighter than this, so a run that was halted for less has proved
/// something.
const HALT: Duration = Duration::from_millis(250);

/// The time for which this process was halted: stopped by a signal, or ready without a core.
///
/// A thread that only sleeps measures how late it wakes. A test is late more than this, since its
/// threads, its server and its proxy wait for one another.
fn halted() -> Duration {
    static HALTED: AtomicU64 = AtomicU64::new(0);
    static MEASURING: Once = Once::new();
    MEASURING.call_once(|| {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sleep = Duration::from_millis(20);
        silent.set_read_timeout(Some(sleep)).unwrap();
        thread::spawn(move || -> ! {
            loop {
                let asleep = Instant::now();
                let error = silent.recv(&mut [0]).unwrap_err();
                let late = asleep.elapsed().saturating_sub(sleep);
                let halted = match error.kind() {
                    // A signal that stops the process for a moment makes reads fail.
                    io::ErrorKind::Interrupted => late.max(HALT),
                    // The clock ticks of the kernel.
                    _ if late < sleep / 2 => continue,
                    _ => late,
                };
                let halted = u64::try_from(halted.as_micros()).unwrap();
                HALTED.fetch_add(halted, Ordering::SeqCst);
            }
        });
    });
    Duration::from_micros(HALTED.load(Ordering::SeqCst))
}
