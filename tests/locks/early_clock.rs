//! A server whose clock says 1970, as on a machine without a clock of its own.

use leasehold::{
    Locks, Options, Owner, acquire_fair_semaphore, acquire_semaphore, refresh_fair_semaphore,
    release_fair_semaphore, release_semaphore,
};
use redis::Commands;

use crate::common::{
    LONG, MS, Server,
    clock::{millis, server_in_1970},
    hold::{comes_true, every_kind},
};

fn bench() -> (Server, tempfile::TempDir, redis::Connection) {
    let (server, directory) = server_in_1970();
    let mut conn = server.connection().unwrap();
    assert!(millis(&mut conn) < 600_000, "the clock is not moved");
    (server, directory, conn)
}

#[test]
fn every_kind_works_in_1970() {
    let (server, _directory, mut conn) = bench();
    let locks = crate::connect(&server.url());
    let owner = Options::new().owner(Owner::new("theirs").unwrap());
    let theirs = Locks::connect(&server.url()).unwrap().with(owner);
    for (lock, other) in every_kind(&locks).into_iter().zip(every_kind(&theirs)) {
        let other = if lock.name() == "read" {
            theirs.write("read")
        } else {
            other
        };
        let short = Options::new().lease(300 * MS).renewal(false);
        let dead = lock.clone().with(short).acquire(LONG).unwrap().detach();
        let companion = format!("{{lock:{}}}:lease", lock.name());
        if conn.exists(&companion).unwrap() {
            assert!(conn.pttl::<_, i64>(&companion).unwrap() > 0, "{companion}");
        }
        let lease = other.acquire(LONG).unwrap();
        let tried = lock.try_acquire().unwrap();
        assert!(tried.is_none(), "{lock:?}");
        lease.renew(2 * LONG).unwrap();
        lease.commit(|pipe| _ = pipe.incr("written", 1)).unwrap();
        let seen = lock.inspect().unwrap();
        assert!(seen.is_held() && !seen.is_foreign(), "{seen:?}");
        assert_eq!(locks.held("").unwrap().iter().count(), 1);
        lease.release().unwrap();
        drop(dead);
        let _lease = lock.acquire(LONG).unwrap();
        assert!(lock.force_release().unwrap().is_held());
    }
    assert_eq!(conn.get::<_, u32>("written").unwrap(), 6);
}

#[test]
fn the_books_semaphores_work_in_1970() {
    let (_server, _directory, mut conn) = bench();
    // A permit that is older than the time-out is swept.
    let timeout = 300 * MS;
    let old = acquire_semaphore(&mut conn, "basic", 1, timeout).unwrap();
    let first = acquire_fair_semaphore(&mut conn, "fair", 1, timeout).unwrap();
    assert!(old.is_some() && first.is_some());
    let mut next = None;
    assert!(comes_true(|| {
        next = acquire_semaphore(&mut conn, "basic", 1, timeout).unwrap();
        next.is_some()
    }));
    assert!(release_semaphore(&mut conn, "basic", &next.unwrap()).unwrap());
    let mut next = None;
    assert!(comes_true(|| {
        next = acquire_fair_semaphore(&mut conn, "fair", 1, timeout).unwrap();
        next.is_some()
    }));
    let next = next.unwrap();
    assert!(refresh_fair_semaphore(&mut conn, "fair", &next).unwrap());
    assert!(release_fair_semaphore(&mut conn, "fair", &next).unwrap());
    // Scores that might be times, of members that are no tokens.
    let () = conn.zadd("prices", "ItemA.4", 1).unwrap();
    assert!(acquire_semaphore(&mut conn, "prices", 9, timeout).is_err());
    assert_eq!(conn.zcard::<_, u64>("prices").unwrap(), 1);
}
