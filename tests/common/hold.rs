//! Held locks, for the tests of renewal.

use std::time::Duration;

use leasehold::{
    Lock, Locks, Options, Token,
    recipes::{
        Hold,
        mutex::{self, End},
    },
};
use redis::Connection;

pub use super::wait::{PATIENCE, comes_true};
use super::{LONG, Proxy, clients, wait::tracked_keys};

/// Acquires the lock for this lease.
pub fn take(conn: &mut Connection, name: &str, lease: Duration) -> anyhow::Result<Hold> {
    let token = Token::random();
    let granted = mutex::try_acquire(conn, name, &token, End::After(lease))?;
    anyhow::ensure!(granted.is_some(), "{name} is held by someone else");
    Ok(Hold::mutex(name, &token)?)
}

/// From now on the proxy neither counts nor disturbs the connection of these locks' watchdog. Call
/// it before any thread waits for a lock on this server, because waiting threads have a tracking
/// connection too.
pub fn leave_the_watchdog_alone(proxy: &Proxy, locks: &Locks, admin: &mut Connection) {
    let watched = locks.lock("watched").acquire(LONG).unwrap();
    assert!(comes_true(|| tracked_keys(admin).unwrap() > 0));
    proxy.leave_alone(&clients::told_of_changes(admin));
    watched.release().unwrap();
}

/// A semaphore without hand-over, which semaphores do not support.
pub fn semaphore(locks: &Locks, name: &str, permits: u32) -> Lock {
    let without = Options::new().hand_over(0, Duration::ZERO);
    locks.semaphore(name, permits).with(without)
}

/// A lock of each kind, named after its kind. The semaphore has one permit, so it excludes like the
/// others. The bare one is a mutex without a fencing token. A set of all of them is the seventh
/// kind.
pub fn every_kind(locks: &Locks) -> [Lock; 6] {
    [
        locks.lock("mutex"),
        locks.reentrant("reentrant"),
        locks.read("read"),
        locks.write("write"),
        semaphore(locks, "semaphore", 1),
        locks.lock("bare").with(Options::new().fencing(false)),
    ]
}
