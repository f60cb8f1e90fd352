//! What a failover brings back of a reentrant hold that has ended is entered by nobody.

use leasehold::{Lease, Lock, Options, Owner, Result, recipes::reentrant};
use redis::{Commands, Connection};

use crate::common::{LONG, MS, Server, wait::unless_halted};

const KEYS: [&str; 2] = ["lock:a", "{lock:a}:lease"];

/// Ends a hold, and the lock may be acquired again in between.
type End = fn(&Lock, Lease) -> Result<()>;

const ENDS: [(&str, End); 5] = [
    ("released", |_, lease| lease.release()),
    ("dropped", |_, lease| {
        drop(lease);
        Ok(())
    }),
    ("released with a commit", |_, lease| {
        lease.commit_and_release(|pipe| _ = pipe.incr("count", 1))
    }),
    ("the second level first", |lock, lease| {
        lock.acquire(LONG)?.release()?;
        lease.release()
    }),
    // Nobody told us of the end of the first hold.
    ("acquired again", |lock, lease| {
        let _ = lock.force_release()?;
        let again = lock.acquire(LONG)?;
        drop(lease);
        drop(again.detach());
        lock.force_release().map(drop)
    }),
];

/// The keys and how long each still lives.
fn dump(conn: &mut Connection) -> [(Vec<u8>, u64); 2] {
    KEYS.map(|key| {
        let value = redis::cmd("DUMP").arg(key).query(conn).unwrap();
        (value, conn.pttl(key).unwrap())
    })
}

/// As the new master has them that did not get the release.
fn bring_back(dumped: &[(Vec<u8>, u64); 2], conn: &mut Connection) {
    for (key, (value, left)) in KEYS.iter().zip(dumped) {
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(left).arg(value).arg("REPLACE");
        restore.exec(conn).unwrap();
    }
}

#[test]
fn the_remains_of_a_hold_that_has_ended_give_no_old_fencing_token() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let of = |owner: &str| {
            let options = Options::new().owner(Owner::new(owner).unwrap());
            crate::connect(&server.url()).reentrant("a").with(options)
        };
        for (name, end) in ENDS {
            let (lock, other) = (of("we").with(Options::new().lease(2 * LONG)), of("other"));
            let first = lock.acquire(LONG).unwrap();
            let level = lock.acquire(LONG).unwrap();
            let remains = dump(&mut conn);
            level.release().unwrap();
            let old = first.fencing_token();
            end(&lock, first).unwrap();
            let theirs = other.acquire(LONG).unwrap();
            let newest = theirs.fencing_token();
            assert!(newest > old);
            theirs.release().unwrap();
            bring_back(&remains, &mut conn);

            let short = lock.clone().with(Options::new().lease(LONG));
            let ours = short.acquire(LONG).unwrap();
            assert!(ours.fencing_token() > newest, "{name}");
            let count: u32 = conn.hget(KEYS[0], "we").unwrap();
            let left: u64 = conn.pttl(KEYS[0]).unwrap();
            assert_eq!(count, 1, "{name}");
            assert!(
                MS * u32::try_from(left).unwrap() <= LONG + MS,
                "{name}: {left}"
            );
            ours.commit(|pipe| _ = pipe.incr("count", 1)).unwrap();
            ours.release().unwrap();
            assert!(!lock.inspect().unwrap().is_held(), "{name}");
        }
    });
}

/// The server's clock was set back, and the companion is lost.
#[test]
fn a_token_exceeds_the_last_one_that_the_owner_had() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let lock = crate::connect(&server.url()).reentrant("a");
        lock.acquire(LONG).unwrap().release().unwrap();
        let later = 4_000_000_000_000_000_u64;
        let () = conn.hset(KEYS[1], "fence", later).unwrap();
        let last = lock.acquire(LONG).unwrap();
        let before = last.fencing_token();
        last.release().unwrap();
        let () = conn.del(KEYS[1]).unwrap();
        let (first, second) = (lock.acquire(LONG).unwrap(), lock.acquire(LONG).unwrap());
        assert!(first.fencing_token() > before);
        first.verify().unwrap();
        second.release().unwrap();
        first.verify().unwrap();
    });
}

/// The number says nothing about a later hold.
#[test]
fn a_later_hold_of_the_same_owner_is_entered() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let owner = Owner::new("we").unwrap();
        let options = Options::new().owner(owner.clone());
        let lock = crate::connect(&server.url()).reentrant("a").with(options);
        lock.acquire(LONG).unwrap().release().unwrap();
        let token = leasehold::Token::random();
        let granted = reentrant::try_acquire(&mut conn, "a", &owner, &token, LONG);
        let fence = granted.unwrap().unwrap().fencing_token();
        for _ in 0..2 {
            let level = lock.acquire(LONG).unwrap();
            assert_eq!(level.fencing_token(), Some(fence));
            assert_eq!(reentrant::holds(&mut conn, "a", &owner).unwrap(), 2);
            level.release().unwrap();
        }
    });
}
