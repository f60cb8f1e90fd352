//! A forked child has a copy of its parent's locks and leases: every request is refused, and no
//! call hangs.
//!
//! In a program of its own, because a fork delays all threads of the process.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::{
    cell::RefCell,
    env,
    process::Command,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Events, Lease, Leases, Locks, Once, Options, Owner, Pool, Renewal, RenewalState, Token,
    Watchdog, acquire_lock_with_timeout, event,
    recipes::{Hold, reentrant},
};
use redis::Commands;

use common::{
    LONG, Server,
    child::{forking_within, said_by_a_child},
    wait::unless_halted,
};

const SERVER: &str = "LEASEHOLD_TEST_SERVER";

/// The outputs of twenty children forked while this many threads of the parent are busy; `None` for
/// a child that hung, which is the last.
fn children_while(
    threads: usize,
    busy: impl Fn() + Sync,
    mut child: impl FnMut() -> String,
) -> Vec<Option<String>> {
    let stop = AtomicBool::new(false);
    let mut said = Vec::new();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    busy();
                }
            });
        }
        while said.len() < 20 && said.last() != Some(&None) {
            said.push(said_by_a_child(&mut child));
        }
        stop.store(true, Ordering::Relaxed);
    });
    said
}

#[test]
fn a_forked_child_releases_none_of_its_parents_locks() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = Locks::connect(&server.url()).unwrap();
        let lease = RefCell::new(Some(locks.lock("a").acquire(LONG).unwrap()));
        let set = locks.all_of(["b", "c"]).acquire(LONG).unwrap();
        let set = RefCell::new(Some(set));
        let said = said_by_a_child(|| {
            drop((lease.take(), set.take()));
            String::from("dropped")
        });
        assert_eq!(said.as_deref(), Some("dropped"), "the child hangs");
        let (lease, set) = (lease.take().unwrap(), set.take().unwrap());
        lease.verify().and_then(|()| set.verify()).unwrap();
        lease.release().and_then(|()| set.release()).unwrap();
    });
}

#[test]
fn a_forked_child_calls_no_hook() {
    #[derive(Default)]
    struct Told(AtomicU32);
    impl Events for Told {
        fn waiting(&self, _: &event::Waiting<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn failed(&self, _: &event::AcquireFailed<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    unless_halted(|| {
        let server = Server::start().unwrap();
        let told = Arc::new(Told::default());
        let options = Options::new().events(told.clone());
        let locks = Locks::connect(&server.url()).unwrap().with(options);
        let said = said_by_a_child(|| {
            let refused = ["a", ""].map(|name| locks.lock(name).try_acquire().is_err());
            format!("{refused:?} {:?}", told.0)
        });
        assert_eq!(said.as_deref(), Some("[true, true] 0"));
    });
}

#[test]
fn a_forked_child_is_another_owner() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let enter = |conn: &mut redis::Connection| {
            let owner = Owner::current_thread();
            reentrant::try_acquire(conn, "a", &owner, &Token::random(), LONG)
        };
        assert!(enter(&mut conn).unwrap().is_some());
        // This same thread, in the child, on a connection of the child's own.
        let said = said_by_a_child(|| match server.connection() {
            Ok(mut conn) => format!("{:?}", enter(&mut conn)),
            Err(error) => format!("{error:?}"),
        });
        assert_eq!(said.as_deref(), Some("Ok(None)"));
        let count = enter(&mut conn).unwrap().map(|grant| grant.count());
        assert_eq!(count, Some(2), "the parent is still the owner");
    });
}

/// Meanwhile other threads of the parent lock and unlock everything that the library shares: a
/// child has a copy of each mutex, which no thread unlocks there.
#[test]
fn every_call_is_refused_in_a_forked_child_and_none_hangs() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let pool = Pool::connect(&server.url()).unwrap();
        let locks = Locks::new(&pool).unwrap();
        let watchdog = Watchdog::new(&pool).unwrap();
        let hold = Hold::mutex("b", &Token::random()).unwrap();
        let lease = locks.lock("held").acquire(LONG).unwrap();
        let lock_and_unlock = || drop(locks.lock("busy").acquire(LONG).unwrap());
        let said = children_while(4, lock_and_unlock, || {
            let mut answers = Vec::new();
            for lock in [locks.lock("held"), locks.lock("busy"), locks.read("free")] {
                answers.push(lock.acquire(LONG).err());
                answers.push(lock.try_acquire().err());
                answers.push(lock.run(LONG, |_| ()).err());
                answers.push(lock.inspect().err());
                answers.push(lock.force_release().err());
                answers.push(lock.last_run().err());
            }
            answers.push(locks.probe().err());
            answers.push(lease.verify().err());
            answers.push(lease.renew(LONG).err());
            let commit = lease.commit(|pipe| {
                pipe.set("k", 1);
            });
            answers.push(commit.err());
            let transaction = lease.transaction(&["k"], |_, _| Ok(()));
            answers.push(transaction.err());
            answers.push(watchdog.keep(&hold, LONG).err());
            format!("{answers:?}")
        });
        for said in said {
            let said = said.unwrap_or_default(); // empty: it hung
            assert_eq!(said.matches("Some(Forked)").count(), 24, "{said}");
        }
        let mut lease = Some(lease);
        let said = said_by_a_child(|| format!("{:?}", lease.take().map(Lease::release)));
        assert_eq!(said.as_deref(), Some("Some(Err(Forked))"));
        let seen = locks.lock("held").inspect().unwrap();
        assert!(seen.is_held(), "the child has released it");
    });
}

/// The first thread that needs a script or the host name creates it. A child forked while another
/// thread was creating one would wait for it forever.
#[test]
fn a_child_is_refused_while_another_thread_creates_shared_state() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for _ in 0..5 {
            // They are created once per process.
            let ended = Command::new(env::current_exe().unwrap())
                .args(["--exact", "a_fork_during_the_first_calls"])
                .args(["--ignored", "--nocapture"])
                .env(SERVER, server.url())
                .output()
                .unwrap();
            let complaint = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert!(ended.status.success(), "{complaint}");
        }
    });
}

#[test]
#[ignore = "run by another test, in its own process"]
fn a_fork_during_the_first_calls() {
    let Ok(url) = env::var(SERVER) else {
        return;
    };
    let pool = Pool::connect(&url).unwrap();
    let locks = Locks::new(&pool).unwrap();
    let watchdog = Watchdog::new(&pool).unwrap();
    let token = Token::random();
    let (lock, hold) = (locks.lock("a"), Hold::mutex("b", &token).unwrap());
    let ways: [(&str, &Way<'_>); 6] = [
        ("try_acquire", &|| lock.try_acquire().err()),
        ("adopt", &|| lock.adopt(&token).err()),
        ("inspect", &|| lock.inspect().err()),
        ("force_release", &|| lock.force_release().err()),
        ("last_run", &|| lock.last_run().err()),
        ("keep", &|| watchdog.keep(&hold, LONG).err()),
    ];
    for (name, way) in ways {
        check_while_another_begins(name, way);
    }
    let lease = lock.try_acquire().unwrap().unwrap();
    let ways: [(&str, &Way<'_>); 3] = [
        ("verify", &|| lease.verify().err()),
        ("renew", &|| lease.renew(LONG).err()),
        ("notify", &|| lease.lost().notify(drop).err()),
    ];
    for (name, way) in ways {
        check_while_another_begins(name, way);
    }
}

type Way<'a> = dyn Fn() -> Option<Error> + Sync + 'a;

/// Forks while another thread makes this call for the first time.
fn check_while_another_begins(name: &str, way: &Way<'_>) {
    let begin = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            begin.wait();
            way();
        });
        begin.wait();
        for _ in 0..3 {
            let said = said_by_a_child(|| format!("{:?}", way()));
            assert_eq!(said.as_deref(), Some("Some(Forked)"), "{name}");
        }
    });
}

#[test]
fn a_child_is_refused_while_others_read_the_state_of_the_lease() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = Locks::connect(&server.url()).unwrap();
        let lease = locks.lock("a").acquire(LONG).unwrap();
        let lost = lease.lost();
        let lease = RefCell::new(Some(lease));
        let ways: [(&str, &dyn Fn(Lease) -> String); 5] = [
            ("Err(Forked)", &|lease| format!("{:?}", lease.verify())),
            ("Err(Forked)", &|lease| format!("{:?}", lease.renew(LONG))),
            ("Err(Forked)", &|lease| {
                format!("{:?}", lease.commit(|_| ()))
            }),
            ("Err(Forked)", &|lease| format!("{:?}", lease.release())),
            ("0ns", &|lease| format!("{:?}", lease.detach().1)),
        ];
        for (place, (expected, way)) in ways.into_iter().enumerate() {
            let said = children_while(
                2,
                || {
                    let _ = lost.is_lost();
                },
                || way(lease.take().unwrap()),
            );
            let is_it = |said: &Option<String>| said.as_deref() == Some(expected);
            assert!(said.iter().all(is_it), "{place}: {said:?}");
        }
        lease.take().unwrap().release().unwrap();
    });
}

#[test]
fn a_child_is_refused_a_set_while_others_read_its_state() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = Locks::connect(&server.url()).unwrap();
        let leases = locks.all_of(["a", "b"]).acquire(LONG).unwrap();
        let lost = leases.lost();
        let leases = RefCell::new(Some(leases));
        let ways: [&dyn Fn(Leases) -> String; 5] = [
            &|leases| format!("{:?}", leases.commit(|_| ())),
            &|leases| format!("{:?}", leases.transaction(&[], |_, _| Ok(()))),
            &|leases| format!("{:?}", leases.lost().notify(drop)),
            &|leases| format!("{:?}", leases.release()),
            &|_| format!("{:?}", locks.all_of(["c", "d"]).acquire(LONG).map(drop)),
        ];
        for (place, way) in ways.into_iter().enumerate() {
            let said = children_while(
                2,
                || {
                    let _ = lost.is_lost();
                },
                || way(leases.take().unwrap()),
            );
            let is_it = |said: &Option<String>| said.as_deref() == Some("Err(Forked)");
            assert!(said.iter().all(is_it), "{place}: {said:?}");
        }
        leases.take().unwrap().release().unwrap();
    });
}

#[test]
fn a_child_stops_no_renewal_while_others_read_its_state() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let pool = Pool::connect(&server.url()).unwrap();
        let watchdog = Watchdog::new(&pool).unwrap();
        let acquired = acquire_lock_with_timeout(&mut pool.get().unwrap(), "a", LONG, LONG);
        let hold = Hold::mutex("a", &acquired.unwrap().unwrap()).unwrap();
        let renewal = watchdog.keep(&hold, LONG).unwrap();
        let lost = renewal.lost();
        let renewal = RefCell::new(Some(renewal));
        let is_read = || {
            let _ = lost.is_lost();
        };
        let said = children_while(2, is_read, || {
            format!("{:?}", renewal.take().map(Renewal::stop))
        });
        let is_it = |said: &Option<String>| said.as_deref() == Some("Some(Unknown)");
        assert!(said.iter().all(is_it), "{said:?}");
        let state = renewal.take().map(Renewal::stop);
        assert_eq!(state, Some(RenewalState::Held));
    });
}

/// r2d2's threads start when a pool is made; a mutex of r2d2 that is locked at the fork stays
/// locked.
#[test]
fn a_child_drops_the_last_lease_of_a_pool() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        for turn in 0..40 {
            let locks = Locks::connect(&server.url()).unwrap();
            let lease = locks.lock("a").acquire(LONG).unwrap();
            drop(locks);
            let lease = RefCell::new(Some(lease));
            let said = said_by_a_child(|| {
                drop(lease.take());
                String::from("dropped")
            });
            assert_eq!(said.as_deref(), Some("dropped"), "{turn}");
            lease.take().unwrap().release().unwrap();
        }
    });
}

#[test]
fn a_child_opens_nothing_on_its_parents_pool() {
    let server = Server::start().unwrap();
    let pool = Pool::connect(&server.url()).unwrap();
    let said = said_by_a_child(|| {
        let (locks, watchdog) = (Locks::new(&pool).err(), Watchdog::new(&pool).err());
        format!("{locks:?} {watchdog:?}")
    });
    assert_eq!(said.as_deref(), Some("Some(Forked) Some(Forked)"));
}

#[test]
fn a_child_forked_in_a_closure_writes_and_releases_nothing() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = Locks::connect(&server.url()).unwrap();
        let (child, here) = forking_within(|fork| {
            let ran = locks.lock("run").run(LONG, |_| fork());
            ran.map(|ran| ran.released)
        });
        assert_eq!(child.as_deref(), Some("Ok(Err(Forked))"));
        here.unwrap().unwrap();
        let (child, here) = forking_within(|fork| {
            let once = locks.lock("once").run_once(LONG, LONG, |_| {
                fork();
                Ok::<_, Error>(())
            });
            once.map(|once| match once {
                Once::Ran(ran) => Some(ran.released),
                _ => None,
            })
        });
        assert_eq!(child.as_deref(), Some("Ok(Some(Err(Forked)))"));
        here.unwrap().unwrap().unwrap();

        let lease = RefCell::new(Some(locks.lock("commit").acquire(LONG).unwrap()));
        let count = |pipe: &mut redis::Pipeline| {
            pipe.incr("count", 1);
        };
        let (child, here) = forking_within(|fork| {
            let lease = lease.borrow();
            lease.as_ref().unwrap().commit(|pipe| {
                fork();
                count(pipe);
            })
        });
        assert_eq!(child.as_deref(), Some("Err(Forked)"));
        here.unwrap();
        let (child, here) = forking_within(|fork| {
            let lease = lease.take().unwrap();
            lease.commit_and_release(|pipe| {
                fork();
                count(pipe);
            })
        });
        assert_eq!(child.as_deref(), Some("Err(Forked)"));
        here.unwrap();
        let written: u32 = server.connection().unwrap().get("count").unwrap();
        assert_eq!(written, 2);
    });
}

type Commit<'a> = dyn Fn(&dyn Fn(&mut redis::Pipeline)) -> Result<(), Error> + 'a;

#[test]
fn a_child_forked_while_a_set_builds_a_commit_writes_and_releases_nothing() {
    struct Ended(AtomicU32);
    impl Events for Ended {
        fn released(&self, _: &event::Released<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    unless_halted(|| {
        let server = Server::start().unwrap();
        let ended = Arc::new(Ended(AtomicU32::new(0)));
        let events = Options::new().events(ended.clone());
        let locks = Locks::connect(&server.url()).unwrap().with(events);
        let leases = locks.all_of(["a", "b"]).acquire(LONG).unwrap();
        let leases = RefCell::new(Some(leases));
        let ways: [&Commit<'_>; 3] = [
            &|build| leases.borrow().as_ref().unwrap().commit(build),
            &|build| {
                let leases = leases.borrow();
                let once = leases.as_ref().unwrap().commit_once("id", LONG, build);
                once.map(drop)
            },
            &|build| leases.take().unwrap().commit_and_release(build),
        ];
        for (place, way) in ways.into_iter().enumerate() {
            let (child, (here, _)) = forking_within(|fork| {
                let done = way(&|pipe| {
                    fork();
                    pipe.incr("count", 1);
                });
                (done, ended.0.load(Ordering::Relaxed))
            });
            assert_eq!(child.as_deref(), Some("(Err(Forked), 0)"), "{place}");
            here.unwrap();
        }
        let written: u32 = server.connection().unwrap().get("count").unwrap();
        assert_eq!(written, 3);
    });
}

/// For 50 ms two threads keep asking whether the lease is lost. Both have started when this
/// returns.
fn ask_all_the_time(lease: &Lease) {
    let begin = Arc::new(Barrier::new(3));
    for _ in 0..2 {
        let (lost, begin) = (lease.lost(), Arc::clone(&begin));
        thread::spawn(move || {
            begin.wait();
            let end = Instant::now() + Duration::from_millis(50);
            while Instant::now() < end {
                let _ = lost.is_lost();
            }
        });
    }
    begin.wait();
    // Each has been scheduled.
    thread::sleep(Duration::from_millis(2));
}

#[test]
fn a_child_forked_in_a_closure_does_not_read_the_state_of_the_lease() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = Locks::connect(&server.url()).unwrap();
        for turn in 0..10 {
            let (child, _) = forking_within(|fork| {
                let ran = locks.lock("run").run(LONG, |lease| {
                    ask_all_the_time(lease);
                    fork();
                });
                ran.map(|ran| ran.released)
            });
            assert_eq!(child.as_deref(), Some("Ok(Err(Forked))"), "run {turn}");
            // A failed run leaves no mark.
            for done in [Err(()), Ok(())] {
                let (child, _) = forking_within(|fork| {
                    let lock = locks.lock(&format!("once {turn}"));
                    let once = lock.run_once(LONG, LONG, |lease| {
                        ask_all_the_time(lease);
                        fork();
                        done
                    });
                    once.map(|once| match once {
                        Once::Ran(ran) | Once::Failed(ran) => Some(ran.released),
                        _ => None,
                    })
                });
                let refused = Some("Ok(Some(Err(Forked)))");
                assert_eq!(child.as_deref(), refused, "{done:?} {turn}");
            }
        }
    });
}
