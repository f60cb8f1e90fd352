//! Commits that use their own connection, release the lock, or run once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use leasehold::{Committed, Error, Lease, Lock, LockSet, Locks, Options, Owner, Pool, Result};
use redis::{Client, Commands, Connection};

use crate::common::{
    LONG, MS, Proxy, Server,
    hold::{comes_true, every_kind, semaphore},
    wait::{at_once, unless_halted},
};

struct Bench {
    server: Server,
    conn: Connection,
    locks: Locks,
}

fn bench() -> Bench {
    let server = Server::start().unwrap();
    Bench {
        conn: server.connection().unwrap(),
        locks: crate::connect(&server.url()),
        server,
    }
}

type ACommit = fn(&Lease) -> Result<()>;

fn count_up(pipe: &mut redis::Pipeline) {
    pipe.incr("count", 1);
}

impl Bench {
    fn count(&mut self) -> i64 {
        self.conn
            .get::<_, Option<i64>>("count")
            .unwrap()
            .unwrap_or(0)
    }

    /// Warmed-up locks whose only connection goes through a proxy.
    fn by_proxy(&self) -> (Proxy, Locks) {
        let proxy = Proxy::in_front_of(&self.server).unwrap();
        // Many tests open connections at the same time.
        let pool = Pool::builder().max_size(1).get_timeout(LONG);
        let pool = pool.connect_timeout(LONG).connect(&proxy.url()).unwrap();
        let locks = Locks::new(&pool).unwrap().with(crate::options());
        drop(pool.get().unwrap());
        (proxy, locks)
    }
}

#[test]
fn a_releasing_commit_wakes_the_next_waiter() {
    unless_halted(|| {
        let bench = bench();
        let lock = bench.locks.lock("a");
        let lease = lock.acquire(LONG).unwrap();
        thread::scope(|scope| {
            let next = scope.spawn(|| lock.acquire(LONG).unwrap().release());
            assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
            lease.commit_and_release(count_up).unwrap();
            next.join().unwrap().unwrap();
        });
    });
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    /// Not allowed in a transaction.
    Invalid,
    /// The server does not know a command.
    Refused,
    /// The server refuses one of two commands when it executes the transaction.
    HalfRefused,
    /// This command gets no answer; the server executes it if true.
    Cut(&'static str, bool),
}

#[test]
fn a_releasing_commit_releases_whatever_its_outcome() {
    let troubles = [
        (Trouble::Invalid, 0),
        (Trouble::Refused, 0),
        (Trouble::HalfRefused, 1),
        // Nothing is written yet, so the commit takes another connection.
        (Trouble::Cut("WATCH", false), 1),
        (Trouble::Cut("WATCH", true), 1),
        (Trouble::Cut("MULTI", false), 0),
        (Trouble::Cut("EXEC", false), 0),
        (Trouble::Cut("EXEC", true), 1),
    ];
    at_once(troubles, |(trouble, written)| {
        let mut bench = bench();
        let (proxy, locks) = bench.by_proxy();
        // The lock does not expire in the meantime.
        let locks = locks.with(Options::new().lease(10 * LONG));
        for (number, lock) in (1..).zip(every_kind(&locks)) {
            let lease = lock.acquire(LONG).unwrap();
            if let Trouble::Cut(command, executed) = trouble {
                let point = proxy.at(command);
                if executed {
                    point.cut_after();
                } else {
                    point.cut_before();
                }
            }
            let () = bench.conn.set("text", "no number").unwrap();
            let outcome = lease.commit_and_release(|pipe| {
                count_up(pipe);
                match trouble {
                    Trouble::Invalid => pipe.cmd("MULTI"),
                    Trouble::Refused => pipe.cmd("NO.SUCH.COMMAND"),
                    Trouble::HalfRefused => pipe.incr("text", 1),
                    Trouble::Cut(..) => pipe,
                };
            });
            let as_told = match trouble {
                Trouble::Invalid => matches!(outcome, Err(Error::Invalid { .. })),
                Trouble::Refused => matches!(outcome, Err(Error::Redis { .. })),
                Trouble::HalfRefused => matches!(outcome, Err(Error::Partial { .. })),
                Trouble::Cut("WATCH", _) => outcome.is_ok(),
                Trouble::Cut(..) => matches!(outcome, Err(Error::Unknown { .. })),
            };
            assert!(as_told, "{trouble:?}: {outcome:?}");
            assert!(!matches!(trouble, Trouble::Cut(..)) || proxy.happened());
            let is_free = || !bench.locks.lock(lock.name()).inspect().unwrap().is_held();
            assert!(comes_true(is_free), "{trouble:?}");
            assert_eq!(
                bench.conn.get("count").unwrap_or(Some(0)).unwrap_or(0),
                number * written
            );
        }
    });
}

#[test]
fn a_releasing_commit_releases_one_level_of_a_reentrant_lock() {
    unless_halted(|| {
        let bench = bench();
        let lock = bench.locks.reentrant("a");
        let outer = lock.acquire(LONG).unwrap();
        let inner = lock.acquire(LONG).unwrap();
        inner.commit_and_release(count_up).unwrap();
        assert_eq!(lock.inspect().unwrap().holders()[0].count(), Some(1));
        outer.commit_and_release(count_up).unwrap();
        assert!(!lock.inspect().unwrap().is_held());
    });
}

/// Its reply says how many levels are left, and the one before it, 1, does not.
#[test]
fn a_level_that_a_commit_releases_leaves_the_hold_to_the_others() {
    unless_halted(|| {
        let bench = bench();
        let lock = bench.locks.reentrant("a");
        for is_set in [false, true] {
            let outer = lock.acquire(LONG).unwrap();
            let adds = |pipe: &mut redis::Pipeline| _ = pipe.sadd("members", is_set);
            if is_set {
                let set = LockSet::of([lock.clone(), bench.locks.lock("b")]);
                set.acquire(LONG).unwrap().commit_and_release(adds).unwrap();
            } else {
                let inner = lock.acquire(LONG).unwrap();
                inner.commit_and_release(adds).unwrap();
            }
            let again = lock.acquire(LONG).unwrap();
            assert_eq!(again.fencing_token(), outer.fencing_token(), "{is_set}");
            again.release().and_then(|()| outer.release()).unwrap();
        }
    });
}

#[test]
fn a_commit_repeated_by_its_id_runs_once_wherever_its_connection_is_cut() {
    type Break = fn(crate::common::proxy::Point<'_>);
    let breaks: [Break; 3] = [
        |point| point.cut_before(),
        |point| point.cut_after(),
        |point| point.half_way().cut_after(),
    ];
    // WATCH, the check of the hold, the mark and the time; MULTI, INCRBY, SET of the mark, EXEC.
    at_once(1..=10, |at| {
        for broken in breaks {
            let mut bench = bench();
            for lock in every_kind(&bench.locks) {
                let () = redis::cmd("FLUSHALL").query(&mut bench.conn).unwrap();
                let (proxy, locks) = bench.by_proxy();
                let named = |mine: &Lock| mine.name() == lock.name();
                let mine = every_kind(&locks).into_iter().find(named).unwrap();
                let options = Options::new().renewal(false);
                let lease = mine.with(options).acquire(LONG).unwrap();
                thread::sleep(50 * MS);
                broken(proxy.at_command(at));
                let first = lease.commit_once("payment", LONG, count_up);
                let happened = bench.count();
                assert!(happened <= 1, "{at}: {first:?}");
                match &first {
                    Ok(Committed::Now) => assert_eq!(happened, 1),
                    Err(Error::Unknown { .. }) => {}
                    other => assert!(other.is_err() && happened == 0, "{at}: {other:?}"),
                }
                // Under the same lease, which still holds, and then from another program.
                let second = lease.commit_once("payment", LONG, count_up).unwrap();
                let is_before = matches!(second, Committed::Before(_));
                assert_eq!(is_before, happened == 1, "{at} of {lock:?}");
                lease.release().unwrap();
                let again = lock.acquire(LONG).unwrap();
                let third = again.commit_once("payment", LONG, count_up).unwrap();
                assert!(matches!(third, Committed::Before(_)), "{third:?}");
                assert_eq!(bench.count(), 1, "{at} of {lock:?}");
                assert_eq!(
                    again.commit_once("another", LONG, count_up).unwrap(),
                    Committed::Now
                );
                again.release().unwrap();
            }
        }
    });
}

#[test]
fn threads_that_commit_under_one_hold_do_not_disturb_each_other() {
    unless_halted(|| {
        let mut bench = bench();
        for lock in every_kind(&bench.locks) {
            let lease = lock.acquire(LONG).unwrap();
            // The watchdog's first look is over.
            thread::sleep(30 * MS);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..20).for_each(|_| lease.commit(count_up).unwrap()));
                }
            });
            // Nor does one that writes nothing, or is refused, leave its proof.
            let read: Result<i64> = lease.transaction(&[], |conn, _| Ok(conn.get("count")?));
            assert!(read.unwrap() > 0);
            let refused = lease.commit(|pipe| _ = pipe.cmd("NO_SUCH_COMMAND"));
            assert!(matches!(refused, Err(Error::Redis { .. })), "{refused:?}");
            let refused = lease.commit(|pipe| _ = pipe.hset("count", "a", 1));
            assert!(
                matches!(refused, Err(Error::WrongKind { .. })),
                "{refused:?}"
            );
        }
        assert_eq!(bench.count(), 6 * 4 * 20);
        let proofs: Vec<String> = bench.conn.keys("*:proof{*").unwrap();
        assert!(proofs.is_empty(), "{proofs:?}");
    });
}

#[test]
fn one_of_two_simultaneous_commits_with_one_id_runs() {
    unless_halted(|| {
        let mut bench = bench();
        let proxy = Proxy::in_front_of(&bench.server).unwrap();
        let lock = crate::connect(&proxy.url()).lock("a");
        let lease = Arc::new(lock.acquire(LONG).unwrap());
        // The second commits after the first has read the mark.
        let second = Arc::clone(&lease);
        proxy.at("MULTI").run(move || {
            let committed = second.commit_once("payment", LONG, count_up);
            assert_eq!(committed.unwrap(), Committed::Now);
        });
        let first = lease.commit_once("payment", LONG, count_up).unwrap();
        assert!(proxy.happened());
        assert!(matches!(first, Committed::Before(_)), "{first:?}");
        assert_eq!(bench.count(), 1);
    });
}

#[test]
fn a_repeated_commit_learns_when_it_ran_and_by_whom() {
    unless_halted(|| {
        let mut bench = bench();
        for lock in every_kind(&bench.locks) {
            let () = redis::cmd("FLUSHALL").query(&mut bench.conn).unwrap();
            let named = |name: &str| {
                let owner = Owner::new(name).unwrap();
                lock.clone().with(Options::new().owner(owner))
            };
            let began = SystemTime::now() - 250 * MS;
            let lease = named("host a, its 1st").acquire(LONG).unwrap();
            let first = lease.commit_once("payment", LONG, count_up).unwrap();
            assert_eq!(first, Committed::Now);
            let written = SystemTime::now() + 250 * MS;
            lease.release().unwrap();
            thread::sleep(500 * MS);
            let lease = named("host b").acquire(LONG).unwrap();
            let Committed::Before(run) = lease.commit_once("payment", LONG, count_up).unwrap()
            else {
                panic!("written twice under {lock:?}");
            };
            assert_eq!(run.by().map(Owner::as_str), Some("host a, its 1st"));
            assert!(began <= run.at() && run.at() <= written, "{run:?}");
            assert!(run.ago() >= 250 * MS && run.ago() < LONG, "{run:?}");
            lease.release().unwrap();
        }
    });
}

#[test]
fn a_foreign_value_at_the_marks_key_prevents_the_write_and_is_named() {
    let mut bench = bench();
    let mark = "{lock:a}:done{id}";
    let lease = bench.locks.lock("a").acquire(LONG).unwrap();
    for (command, value) in [("SET", "done"), ("SET", "now host"), ("RPUSH", "1 host")] {
        let () = bench.conn.del(mark).unwrap();
        let () = redis::cmd(command)
            .arg(mark)
            .arg(value)
            .query(&mut bench.conn)
            .unwrap();
        let wrong = lease.commit_once("id", LONG, count_up).unwrap_err();
        assert!(matches!(wrong, Error::WrongKind { .. }), "{wrong:?}");
        assert!(wrong.to_string().contains(mark), "{wrong}");
        assert!(lease.is_held());
    }
    assert_eq!(bench.count(), 0);
}

#[test]
fn a_mark_expires_and_its_id_is_checked() {
    unless_halted(|| {
        let mut bench = bench();
        for (name, mark) in [
            ("a", "{lock:a}:done{id}"),
            ("{tag}a", "lock:{tag}a:done{id}"),
        ] {
            let lease = bench.locks.lock(name).acquire(LONG).unwrap();
            assert_eq!(
                lease.commit_once("id", 2_000 * MS, count_up).unwrap(),
                Committed::Now
            );
            let left: i64 = bench.conn.pttl(mark).unwrap();
            assert!(left > 0 && left <= 2_000, "{left}");
            assert!(comes_true(|| !bench.conn.exists::<_, bool>(mark).unwrap()));
            assert_eq!(
                lease.commit_once("id", LONG, count_up).unwrap(),
                Committed::Now
            );
            for wrong in [
                lease.commit_once("", LONG, count_up),
                lease.commit_once(&"x".repeat(513), LONG, count_up),
                lease.commit_once("id", Duration::ZERO, count_up),
            ] {
                assert!(matches!(wrong, Err(Error::Invalid { .. })), "{wrong:?}");
            }
            lease.release().unwrap();
        }
        assert_eq!(bench.count(), 4);
    });
}

#[test]
fn an_exhausted_pool_names_the_borrowers() {
    unless_halted(|| {
        let bench = bench();
        let client = Client::open(bench.server.url()).unwrap();
        let pool = Pool::builder().max_size(2).get_timeout(600 * MS);
        let pool = pool.build(&client).unwrap();
        let lock = Locks::new(&pool).unwrap().with(crate::options()).lock("a");
        // Both connections stay open. On a busy machine, opening takes longer than the time-out.
        let mut open = Vec::new();
        assert!(comes_true(|| {
            open.extend(pool.get());
            open.len() == 2
        }));
        drop(open);
        let lease = lock.acquire(LONG).unwrap();
        let lent = [pool.get().unwrap(), pool.get().unwrap()];
        for error in [
            lease.commit(count_up).unwrap_err(),
            lock.try_acquire().unwrap_err(),
            pool.get().map(drop).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(matches!(error, Error::Pool { .. }), "{text}");
            assert!(text.contains("all were lent by `Pool::get`"), "{text}");
        }
        drop(lent);
        lease.commit(count_up).unwrap();
    });
}

#[test]
fn a_known_loss_is_reported_without_a_free_connection() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let pool = Pool::builder().max_size(1).get_timeout(500 * MS);
        let pool = pool.connect(&server.url()).unwrap();
        let locks = Locks::new(&pool).unwrap();
        let asks: [ACommit; 3] = [
            Lease::verify,
            |lease| lease.renew(LONG),
            |lease| lease.commit(count_up),
        ];
        for ask in asks {
            for lock in every_kind(&locks) {
                let lease = lock.acquire(LONG).unwrap();
                let mut only = pool.get().unwrap();
                let () = redis::cmd("FLUSHALL").query(&mut *only).unwrap();
                let asked = ask(&lease);
                assert!(matches!(asked, Err(Error::Lost { .. })), "{asked:?}");
            }
        }
        let leases = locks.all_of(["a", "b"]).acquire(LONG).unwrap();
        let mut only = pool.get().unwrap();
        let () = redis::cmd("DEL").arg("lock:b").query(&mut *only).unwrap();
        let asked = leases.commit(count_up);
        assert!(matches!(asked, Err(Error::Lost { .. })), "{asked:?}");
    });
}

/// Each visit changes the key that a commit watches.
#[test]
fn busy_visitors_of_a_shared_lock_do_not_fail_its_commits() {
    let bench = bench();
    let kinds = [bench.locks.read("a"), semaphore(&bench.locks, "b", 5)];
    at_once(kinds, |lock| {
        let lease = lock.acquire(LONG).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        lock.acquire(LONG).unwrap().release().unwrap();
                    }
                });
            }
            let commits: Vec<_> = (0..100).map(|_| lease.commit(count_up)).collect();
            is_over.store(true, Ordering::Relaxed);
            let failed: Vec<_> = commits.iter().filter(|done| done.is_err()).collect();
            assert!(failed.is_empty(), "{} of 100: {failed:?}", failed.len());
        });
    });
}
