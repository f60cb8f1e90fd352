//! The fencing tokens that are reserved for turns to come.

use std::sync::{
    Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use leasehold::{Error, Options, Owner};
use redis::{Commands, Connection};

use super::{COMPANION, LONG, MS, bench, fence, handing, lock};
use crate::common::{hold::comes_true, wait::unless_halted};

#[test]
fn what_is_reserved_is_handed_back_and_seen_by_others() {
    unless_halted(|| {
        let mut bench = bench(handing(500));
        let other = lock(&bench.server, Options::new());
        let first = bench.lock.acquire(LONG).unwrap();
        assert_eq!(bench.stored("fence"), fence(&first) + 500);
        let found = other.inspect().unwrap();
        assert_eq!(found.holders()[0].fencing_token(), first.fencing_token());
        let used = fence(&first);
        drop(first);
        assert_eq!((bench.stored("fence"), bench.stored("reserved")), (used, 0));

        let last = AtomicU32::new(0);
        let beginning = used;
        bench.one_after_the_other(3, |_, lease| {
            let since = u32::try_from(fence(&lease) - beginning).unwrap();
            last.store(since, Ordering::SeqCst);
        });
        let used = beginning + u64::from(last.load(Ordering::SeqCst));
        assert_eq!((bench.stored("fence"), bench.stored("reserved")), (used, 0));
    });
}

#[test]
fn a_release_needs_nothing_of_the_companion() {
    unless_halted(|| {
        // A hash with longer texts may be dumped in another order.
        let mut bench = bench(handing(500).owner(Owner::new("short").unwrap()));
        let harms: [fn(&mut Connection); 3] = [
            |conn| conn.del(COMPANION).unwrap(),
            |conn| {
                let () = conn.del(COMPANION).unwrap();
                conn.rpush::<_, _, ()>(COMPANION, 1).unwrap();
            },
            |conn| conn.hset(COMPANION, "token", "somebody's").unwrap(),
        ];
        for harm in harms {
            let lease = bench.lock.acquire(LONG).unwrap();
            harm(&mut bench.conn);
            let before: Option<Vec<u8>> = redis::cmd("DUMP")
                .arg(COMPANION)
                .query(&mut bench.conn)
                .unwrap();
            lease.release().unwrap();
            assert!(!bench.conn.exists::<_, bool>("lock:a").unwrap());
            let after: Option<Vec<u8>> = redis::cmd("DUMP")
                .arg(COMPANION)
                .query(&mut bench.conn)
                .unwrap();
            assert_eq!(before, after);
            let () = bench.conn.del(COMPANION).unwrap();
        }
    });
}

/// By the watchdog, since the release was refused.
pub(super) fn what_is_reserved_is_handed_back_late() {
    let mut bench = bench(handing(500));
    let ask = |conn: &mut Connection, rule: &str| {
        let mut setting = redis::cmd("ACL");
        let setting = setting.arg("SETUSER").arg("default").arg(rule);
        setting.exec(conn).unwrap();
    };
    let last = AtomicU64::new(0);
    let admin = Mutex::new(bench.server.connection().unwrap());
    bench.one_after_the_other(1, |_, lease| {
        last.store(fence(&lease), Ordering::SeqCst);
        ask(&mut admin.lock().unwrap(), "-del");
        assert!(lease.release().is_err());
    });
    ask(&mut bench.conn, "+del");
    assert!(comes_true(|| !bench.lock.inspect().unwrap().is_held()));
    let used = last.into_inner();
    assert_eq!((bench.stored("fence"), bench.stored("reserved")), (used, 0));
}

#[test]
fn no_more_is_reserved_than_the_clock_makes_good() {
    unless_halted(|| {
        let mut bench = bench(handing(1_000_000).lease(20 * MS).renewal(false));
        let held = bench.lock.acquire(LONG).unwrap();
        assert_eq!(bench.stored("fence"), fence(&held) + 19_999);
        let () = bench.conn.del("lock:a").unwrap();
        assert!(matches!(held.release(), Err(Error::Lost { .. })));
        // The next one, whose lock it is now, has more than all that were reserved.
        let next = bench.lock.acquire(LONG).unwrap();
        assert!(fence(&next) + 19_999 <= bench.stored("fence"));
    });
}
