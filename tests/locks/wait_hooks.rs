//! `Events::waiting`: each wait begins once and ends once, on its own thread, whatever ends it.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex},
    thread::{self, ThreadId},
};

use leasehold::{Cancel, Error, Events, Locks, Options, Owner, event::*};
use redis::Commands;

use crate::common::{
    LONG, MS, Server,
    hold::{comes_true, every_kind},
    wait::unless_halted,
};

#[derive(Default)]
struct Waits {
    now: Mutex<HashSet<ThreadId>>,
    ends: Mutex<Vec<&'static str>>,
}

impl Waits {
    fn ends(&self, how: &'static str) {
        let began = self.now.lock().unwrap().remove(&thread::current().id());
        let how = if began { how } else { "an end of nothing" };
        self.ends.lock().unwrap().push(how);
    }

    fn now(&self) -> usize {
        self.now.lock().unwrap().len()
    }

    fn taken(&self) -> Vec<&'static str> {
        assert_eq!(self.now(), 0);
        mem::take(&mut *self.ends.lock().unwrap())
    }
}

impl Events for Waits {
    fn waiting(&self, _: &Waiting<'_>) {
        if !self.now.lock().unwrap().insert(thread::current().id()) {
            self.ends.lock().unwrap().push("begun twice");
        }
    }
    fn acquired(&self, _: &Acquired<'_>) {
        self.ends("acquired");
    }
    fn contended(&self, _: &Contended<'_>) {
        self.ends("contended");
    }
    fn already_run(&self, _: &AlreadyRun<'_>) {
        self.ends("already run");
    }
    fn failed(&self, failed: &AcquireFailed<'_>) {
        self.ends(match failed.error() {
            Error::Cancelled { .. } => "cancelled",
            _ => "failed",
        });
    }
}

struct Bench {
    server: Server,
    locks: Locks,
    waits: Arc<Waits>,
}

fn bench() -> Bench {
    let server = Server::start().unwrap();
    let waits = Arc::new(Waits::default());
    let options = Options::new().events(waits.clone());
    Bench {
        locks: crate::connect(&server.url()).with(options),
        server,
        waits,
    }
}

#[test]
fn a_wait_ended_by_the_server() {
    unless_halted(|| {
        let Bench {
            mut server,
            locks,
            waits,
        } = bench();
        let theirs = Options::new().owner(Owner::new("theirs").unwrap());
        let others = crate::connect(&server.url()).with(theirs);
        for (lock, other) in every_kind(&locks).into_iter().zip(every_kind(&others)) {
            let held = other.acquire(LONG).unwrap();
            drop(lock.acquire(50 * MS));
            drop(lock.try_acquire());
            // A reader shares it.
            let is_refused = lock.name() != "read";
            let ends = if is_refused { "contended" } else { "acquired" };
            assert_eq!(waits.taken(), [ends; 2], "{}", lock.name());
            held.release().unwrap();
            lock.acquire(LONG).unwrap().release().unwrap();
            assert_eq!(waits.taken(), ["acquired"], "{}", lock.name());
        }
        let lock = locks.lock("a");
        for _ in 0..2 {
            let _ = lock.run_once(LONG, LONG, |_| Ok::<_, Error>(())).unwrap();
        }
        assert_eq!(waits.taken(), ["acquired", "already run"]);

        let set = locks.all_of(["a", "b", "c"]);
        set.acquire(LONG).unwrap().release().unwrap();
        assert_eq!(waits.taken(), ["acquired"; 3]);
        let theirs = crate::connect(&server.url()).lock("b");
        let held = theirs.acquire(LONG).unwrap();
        assert!(set.try_acquire().unwrap().is_none());
        held.release().unwrap();
        assert_eq!(waits.taken(), ["acquired", "contended"]);

        let () = server.connection().unwrap().lpush("lock:list", 1).unwrap();
        assert!(locks.lock("list").acquire(LONG).is_err());
        server.freeze().unwrap();
        assert!(lock.acquire(50 * MS).is_err());
        server.thaw().unwrap();
        server.kill().unwrap();
        assert!(lock.acquire(50 * MS).is_err());
        assert!(lock.try_acquire().is_err());
        assert_eq!(waits.taken(), ["failed"; 4]);
    });
}

#[test]
fn a_wait_that_ends_before_the_first_request() {
    let Bench { locks, waits, .. } = bench();
    let lock = locks.lock("a");
    assert!(locks.lock("").acquire(LONG).is_err());
    let short = lock.clone().with(Options::new().lease(MS / 10));
    assert!(short.try_acquire().is_err());
    let done = locks.read("a").run_once(LONG, LONG, |_| Ok::<_, Error>(()));
    assert!(done.is_err());
    assert_eq!(waits.taken(), ["failed"; 3]);
    // An invalid set waits for none of its locks.
    assert!(locks.all_of(["a", "a"]).acquire(LONG).is_err());
    assert!(locks.all_of([""; 0]).acquire(LONG).is_err());
    assert_eq!(waits.taken(), [""; 0]);
}

#[test]
fn a_wait_ended_by_its_caller_or_another_thread() {
    unless_halted(|| {
        let Bench {
            locks,
            waits,
            server: _server,
        } = bench();
        let cancel = Cancel::new();
        let lock = locks.lock("a");
        let cancelled = lock.clone().with(Options::new().cancel(&cancel));
        let lease = lock.acquire(LONG).unwrap();
        assert_eq!(waits.taken(), ["acquired"]);
        thread::scope(|scope| {
            let waiters = [(); 3].map(|()| scope.spawn(|| cancelled.acquire(LONG).is_err()));
            assert!(comes_true(|| waits.now() == 3));
            cancel.cancel();
            assert!(waiters.map(|it| it.join().unwrap()).iter().all(|it| *it));
        });
        assert!(cancelled.try_acquire().is_err());
        assert_eq!(waits.taken(), ["cancelled"; 4]);

        lease.release().unwrap();
        let handing = lock.clone().with(Options::new().hand_over(4, LONG));
        let lease = handing.acquire(LONG).unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| handing.acquire(LONG).unwrap());
            }
            assert!(comes_true(|| {
                waits.now() == 3 && lock.inspect().unwrap().waiting_here() == 3
            }));
            lease.release().unwrap();
        });
        assert_eq!(waits.taken(), ["acquired"; 4]);
    });
}

/// All hooks of an event are called in their order, even after one that panics.
#[test]
fn all_hooks_are_called() {
    struct First(Arc<Waits>);
    impl Events for First {
        fn waiting(&self, _: &Waiting<'_>) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        fn acquired(&self, _: &Acquired<'_>) {
            self.0.ends.lock().unwrap().push("the first");
        }
    }
    let Bench {
        locks,
        waits,
        server: _server,
    } = bench();
    let second = Arc::new(Waits::default());
    let options = Options::new()
        .events(Arc::new(First(second.clone())))
        .events(second.clone());
    let lock = locks.lock("a").with(options);
    drop(lock.acquire(LONG).unwrap());
    drop(locks.lock("a").acquire(LONG).unwrap());
    assert_eq!(waits.taken(), ["acquired"; 2]);
    let told = ["the first", "acquired"];
    assert_eq!(second.taken(), told, "those of one lock only");
}
