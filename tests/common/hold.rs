//! Held locks, for the tests of renewal.

use std::time::Duration;

use leasehold::{
    Lease, Lock, Locks, Options, Result, Token,
    recipes::{
        Hold,
        mutex::{self, End},
    },
};
use redis::{Commands, Connection};

pub use super::wait::{PATIENCE, comes_true};
use super::{LONG, Proxy, Server, clients, wait::tracked_keys};

/// Acquires the lock for this lease.
pub fn take(conn: &mut Connection, name: &str, lease: Duration) -> anyhow::Result<Hold> {
    let token = Token::random();
    let granted = mutex::try_acquire(conn, name, &token, End::After(lease))?;
    anyhow::ensure!(granted.is_some(), "{name} is held by someone else");
    Ok(Hold::mutex(name, &token)?)
}

/// This many mutexes, whose names end with their numbers, held for a minute.
pub fn take_many(server: &Server, begins: &str, count: u32) -> anyhow::Result<Vec<Hold>> {
    let mut take = redis::pipe();
    let mut holds = Vec::new();
    for number in 0..count {
        let (name, token) = (format!("{begins}{number}:"), Token::random());
        take.pset_ex(format!("lock:{name}"), token.to_string(), 60_000);
        holds.push(Hold::mutex(&name, &token)?);
    }
    take.exec(&mut server.connection()?)?;
    Ok(holds)
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

/// What a holder asks of its server. `Some`: the lease goes on.
pub type Call = fn(Lease) -> (Result<()>, Option<Lease>);

/// All calls of a lease; a commit counts up at `written`.
pub const CALLS: [(&str, Call); 8] = [
    ("verify", |lease| (lease.verify(), Some(lease))),
    ("renew", |lease| (lease.renew(LONG), Some(lease))),
    ("commit", |lease| (lease.commit(count_up), Some(lease))),
    ("commit_returning", |lease| {
        let written = lease.commit_returning::<(u64,)>(count_up);
        (written.map(drop), Some(lease))
    }),
    ("commit_once", |lease| {
        let written = lease.commit_once("id", LONG, count_up);
        (written.map(drop), Some(lease))
    }),
    ("transaction", |lease| {
        let written = lease.transaction(&[], |conn, pipe| {
            let _: Option<u64> = conn.get("written")?;
            count_up(pipe);
            Ok(())
        });
        (written, Some(lease))
    }),
    ("commit_and_release", |lease| {
        (lease.commit_and_release(count_up), None)
    }),
    ("release", |lease| (lease.release(), None)),
];

fn count_up(pipe: &mut redis::Pipeline) {
    pipe.incr("written", 1);
}
