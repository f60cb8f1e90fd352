//! A lock that is held, for what keeps it alive.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Lock, Locks, Token,
    recipes::mutex::{self, End, Hold},
};
use redis::Connection;

/// Slower than this is never asserted to be, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Takes the lock for so long.
pub fn take(conn: &mut Connection, name: &str, lease: Duration) -> anyhow::Result<Hold> {
    let token = Token::random();
    let granted = mutex::try_acquire(conn, name, &token, End::After(lease))?;
    anyhow::ensure!(granted.is_some(), "{name} is held by somebody else");
    Ok(Hold::new(name, &token)?)
}

/// A lock of each kind, named after it.
pub fn every_kind(locks: &Locks) -> [Lock; 4] {
    [
        locks.lock("mutex"),
        locks.reentrant("reentrant"),
        locks.read("read"),
        locks.write("write"),
    ]
}

/// Waits for something to be true; false if it has not become so in time.
pub fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let asked = Instant::now();
    while asked.elapsed() < PATIENCE {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    condition()
}
