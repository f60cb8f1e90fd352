//! Inspection and force release, and keys with another prefix.

use std::{
    thread,
    time::{Duration, SystemTime},
};

use leasehold::{Error, Owner, Token, acquire_lock, acquire_lock_with_timeout};
use redis::Commands;

use crate::{
    bench,
    common::{
        LONG, MS, Proxy, State,
        hold::{comes_true, every_kind},
        wait::unless_halted,
    },
};

#[test]
fn inspect_shows_the_holder_of_each_kind() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        let me = Owner::new("the night job").unwrap();
        let locks = locks.with(crate::options().owner(me.clone()));
        for lock in [locks.lock("m"), locks.reentrant("e"), locks.write("w")] {
            let before = SystemTime::now();
            let lease = lock.acquire(LONG).unwrap();
            let seen = lock.inspect().unwrap();
            let [holder] = seen.holders() else {
                panic!("{seen:?}");
            };
            assert_eq!(holder.owner(), Some(&me), "{lock:?}");
            assert_eq!(holder.fencing_token(), lease.fencing_token());
            let left = holder.remaining().unwrap();
            assert!(left > LONG / 4 && left <= LONG);
            let since = holder.since().unwrap();
            assert!(since + Duration::from_secs(1) > before && since < SystemTime::now() + LONG);
            assert!(!holder.is_reader() && !seen.is_foreign());
            if lock.name() == "e" {
                assert_eq!(holder.count(), Some(1));
            } else {
                assert_eq!(holder.token(), Some(lease.token()));
            }
        }
    });
}

#[test]
fn readers_and_waiting_writers_are_counted() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        let first = locks.read("a").acquire(LONG).unwrap();
        let second = locks.read("a").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| drop(locks.write("a").acquire(LONG).unwrap()));
            let seen = || locks.read("a").inspect().unwrap();
            assert!(comes_true(
                || seen().waiting_writers() == 1 && seen().waiting_here() == 1
            ));
            let readers = seen();
            assert_eq!(readers.holders().len(), 2);
            assert!(readers.holders().iter().all(leasehold::Holder::is_reader));
            assert!(
                readers
                    .holders()
                    .iter()
                    .any(|holder| holder.token() == Some(first.token()))
            );
            drop((first, second));
            writer.join().unwrap();
        });
    });
}

#[test]
fn inspect_of_a_foreign_lock() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let token = acquire_lock(&mut conn, "book", LONG).unwrap().unwrap();
        let seen = locks.lock("book").inspect().unwrap();
        let holder = &seen.holders()[0];
        assert_eq!(holder.token(), Some(&token));
        assert!(holder.remaining().is_none() && holder.since().is_none());
        assert!(holder.owner().is_none() && holder.fencing_token().is_none());

        // The companion of the previous hold does not count for this one.
        drop(locks.lock("later").acquire(LONG).unwrap());
        let token = acquire_lock_with_timeout(&mut conn, "later", MS, LONG).unwrap();
        let seen = locks.lock("later").inspect().unwrap();
        assert_eq!(seen.holders()[0].token(), token.as_ref());
        assert!(seen.holders()[0].owner().is_none() && seen.holders()[0].fencing_token().is_none());

        let () = conn.rpush("lock:list", "x").unwrap();
        let () = conn
            .hset_multiple("lock:hash", &[("a", 1), ("b", 2)])
            .unwrap();
        let () = conn.hset("lock:word", "a", "b").unwrap();
        for foreign in ["list", "hash", "word"] {
            let seen = locks.lock(foreign).inspect().unwrap();
            assert!(seen.is_foreign() && seen.is_held(), "{foreign}");
        }
        let () = conn.set("{lock:book}:lease", "no hash").unwrap();
        assert!(locks.lock("book").inspect().unwrap().is_held());
    });
}

#[test]
fn an_expired_reader_holds_nothing() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let () = conn
            .hset_multiple("lock:a", &[("kind", "rw"), ("r:gone", "1000")])
            .unwrap();
        assert!(!locks.read("a").inspect().unwrap().is_held());
    });
}

#[test]
fn force_release_frees_the_lock_and_notifies_holder_and_waiters() {
    unless_halted(|| {
        let (_server, locks, _conn) = bench();
        assert!(!locks.lock("a").force_release().unwrap().is_held());
        let lease = locks.lock("a").acquire(LONG).unwrap();
        let fence = lease.fencing_token();
        thread::scope(|scope| {
            let next = scope.spawn(|| locks.lock("a").acquire(LONG).unwrap());
            assert!(comes_true(|| locks
                .lock("a")
                .inspect()
                .unwrap()
                .waiting_here()
                == 1));
            assert!(locks.lock("a").force_release().unwrap().is_held());
            assert!(next.join().unwrap().fencing_token() > fence);
        });
        assert!(lease.lost().wait_for(LONG));
        assert!(matches!(lease.release(), Err(Error::Lost { .. })));
    });
}

#[test]
fn force_release_returns_the_holder() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let owner = Owner::new("the night job").unwrap();
        let theirs = locks.with(crate::options().owner(owner.clone()));
        for lock in every_kind(&theirs) {
            let lease = lock.acquire(LONG).unwrap();
            let seen = lock.inspect().unwrap();
            let taken = lock.force_release().unwrap();
            let ([seen], [taken]) = (seen.holders(), taken.holders()) else {
                panic!("{taken:?}");
            };
            assert_eq!(taken.token(), seen.token(), "{lock:?}");
            assert_eq!(taken.owner(), seen.owner(), "{lock:?}");
            assert!(seen.owner().is_none_or(|seen| *seen == owner));
            assert_eq!(taken.fencing_token(), lease.fencing_token());
            assert!(matches!(lease.verify(), Err(Error::Lost { .. })));
            assert!(!lock.force_release().unwrap().is_held(), "nobody had it");
            // A semaphore has no use for its companion without holders.
            let companion = format!("{{lock:{}}}:lease", lock.name());
            let is_kept: bool = conn.exists(companion).unwrap();
            assert!(!is_kept || lock.name() != "semaphore");
        }
        let readers = [(); 3].map(|()| locks.read("a").acquire(LONG).unwrap());
        assert_eq!(locks.read("a").force_release().unwrap().holders().len(), 3);
        assert!(readers.iter().all(|reader| reader.verify().is_err()));
        let by_hand = acquire_lock(&mut conn, "book", LONG).unwrap();
        let taken = locks.lock("book").force_release().unwrap();
        assert_eq!(taken.holders()[0].token(), by_hand.as_ref());
    });
}

#[test]
fn force_release_leaves_a_key_that_is_not_a_lock() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        let () = conn.rpush("lock:list", "x").unwrap();
        let () = conn.hset("lock:word", "a", "b").unwrap();
        let () = conn.hset("lock:none", "a", 0).unwrap();
        let two = [("a", 1), ("b", 2)];
        let () = conn.hset_multiple("lock:hash", &two).unwrap();
        let before = State::of(&mut conn).unwrap();
        for foreign in ["list", "hash", "word", "none"] {
            let left = locks.lock(foreign).force_release();
            assert!(matches!(left, Err(Error::WrongKind { .. })), "{left:?}");
        }
        assert_eq!(State::of(&mut conn).unwrap(), before);
    });
}

/// A second attempt would take the lock from the next holder, and its answer would be about that
/// one or about none.
#[test]
fn force_release_is_sent_once_and_never_takes_the_next_ones_lock() {
    unless_halted(|| {
        let (server, theirs, mut conn) = bench();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let operator = crate::connect(&proxy.url());
        let _ = operator.lock("warm").force_release().unwrap();
        let held = theirs.lock("a").acquire(LONG).unwrap();
        proxy.at("EVALSHA").cut_after();
        let next = theirs.lock("a");
        proxy.at("EVALSHA").nth(2).run(move || {
            let _ = next.acquire(LONG).unwrap().detach();
        });
        let taken = operator.lock("a").force_release();
        assert!(matches!(taken, Err(Error::Unknown { .. })), "{taken:?}");
        assert!(matches!(held.verify(), Err(Error::Lost { .. })));
        assert!(!conn.exists::<_, bool>("lock:a").unwrap(), "nobody came");

        // A connection that broke while idle does not prevent an answer.
        let _ = operator.lock("b").inspect().unwrap();
        let killed = crate::faults::kill(&server, |line| line.contains("cmd=eval"));
        assert!(killed > 0);
        let _held = theirs.lock("b").acquire(LONG).unwrap();
        let taken = operator.lock("b").force_release();
        assert!(taken.unwrap().is_held());
    });
}

#[test]
fn another_prefix_is_another_key() {
    unless_halted(|| {
        let (_server, locks, mut conn) = bench();
        for prefix in ["", "jobs:", "lock:"] {
            let lock = locks.lock("a").with(crate::options().prefix(prefix));
            let lease = lock.acquire(LONG).unwrap();
            let holder: String = conn.get(format!("{prefix}a")).unwrap();
            assert_eq!(holder.parse::<Token>().unwrap(), *lease.token());
            assert_eq!(lease.name(), "a");
            lease.release().unwrap();
        }
        for bad in ["{", "a}"] {
            let lock = locks.lock("a").with(crate::options().prefix(bad));
            assert!(matches!(
                lock.try_acquire(),
                Err(Error::Invalid {
                    argument: "prefix",
                    ..
                })
            ));
        }
        let lock = locks.lock("{tag}a").with(crate::options().prefix(""));
        assert!(matches!(lock.try_acquire(), Err(Error::Invalid { .. })));
    });
}
