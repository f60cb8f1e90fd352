//! A record of the holds of a lock, kept by their holders and checked afterwards.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lock, Locks, Options};

use crate::common::{LONG, MS};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// One hold, as its holder saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    from: Instant,
    /// The time of its release, or the last moment at which it was held.
    until: Instant,
    fence: u64,
}

impl Hold {
    /// True if the other one began after this one was over, with a greater fencing token.
    fn is_before(&self, other: &Self) -> bool {
        self.until <= other.from && self.fence < other.fence
    }
}

pub(crate) type History = Mutex<Vec<Hold>>;

/// Stops the work when dropped, also on a panic: otherwise the workers would never stop.
pub(crate) struct Stopping<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Acquires the lock again and again, and records each hold.
pub(crate) fn work(lock: &Lock, history: &History, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let Ok(lease) = lock.acquire(SECOND) else {
            continue;
        };
        let from = Instant::now();
        let mut until = from;
        while lease.is_held() && from.elapsed() < 4 * MS {
            until = Instant::now();
            thread::sleep(MS);
        }
        let fence = lease.fencing_token().unwrap().get();
        history.lock().unwrap().push(Hold { from, until, fence });
        let _ = lease.release();
    }
}

/// Acquires free locks, one after the other, and keeps them. Returns the time of each request and
/// grant.
pub(crate) fn probe(
    locks: &Locks,
    name: impl Fn(usize) -> String,
    stop: &AtomicBool,
) -> Vec<(Instant, Instant)> {
    let locks = locks.with(Options::new().lease(LONG).renewal(false));
    let mut grants = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let asked = Instant::now();
        let Ok(lease) = locks.lock(&name(grants.len())).acquire(SECOND) else {
            continue;
        };
        grants.push((asked, Instant::now()));
        let _ = lease.detach();
        thread::sleep(2 * MS);
    }
    grants
}

/// Number of overlapping holds.
pub(crate) fn violations(history: History) -> usize {
    let mut history = history.into_inner().unwrap();
    history.sort_by_key(|hold| hold.from);
    let pairs = history.windows(2);
    pairs.filter(|pair| !pair[0].is_before(&pair[1])).count()
}

/// The median and the maximum.
pub(crate) fn median(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}
