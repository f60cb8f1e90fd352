//! A lock that is held, for what keeps it alive.

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

/// Takes the lock for so long.
pub fn take(conn: &mut Connection, name: &str, lease: Duration) -> anyhow::Result<Hold> {
    let token = Token::random();
    let granted = mutex::try_acquire(conn, name, &token, End::After(lease))?;
    anyhow::ensure!(granted.is_some(), "{name} is held by somebody else");
    Ok(Hold::mutex(name, &token)?)
}

/// The proxy counts and disturbs nothing of what the watchdog of these locks sends from now on. Nobody waits for a lock of the server yet: who
/// waits is told of changes as well.
pub fn leave_the_watchdog_alone(proxy: &Proxy, locks: &Locks, admin: &mut Connection) {
    let watched = locks.lock("watched").acquire(LONG).unwrap();
    assert!(comes_true(|| tracked_keys(admin).unwrap() > 0));
    proxy.leave_alone(&clients::told_of_changes(admin));
    watched.release().unwrap();
}

/// A semaphore refuses the hand-over that these locks may have.
pub fn semaphore(locks: &Locks, name: &str, permits: u32) -> Lock {
    let without = Options::new().hand_over(0, Duration::ZERO);
    locks.semaphore(name, permits).with(without)
}

/// A lock of each kind, named after it. The semaphore has one permit, so that it excludes like the others.
pub fn every_kind(locks: &Locks) -> [Lock; 5] {
    [
        locks.lock("mutex"),
        locks.reentrant("reentrant"),
        locks.read("read"),
        locks.write("write"),
        semaphore(locks, "semaphore", 1),
    ]
}
