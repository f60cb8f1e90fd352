//! Hooks report each end of a wait or a hold once, whichever thread notices it.

use std::{
    error::Error as _,
    sync::{Arc, Mutex},
    thread,
};

use leasehold::{Cancel, Error, Events, Lease, Locks, LostReason, Once, Options, event::*};
use redis::Commands;

use crate::common::{
    LONG, MS, Server,
    hold::{CALLS, comes_true},
    wait::{at_once, unless_halted},
};

/// The events received, in order.
#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    ends: Mutex<Vec<HoldEnd>>,
    failures: Mutex<Vec<(Error, u32)>>,
    panics: bool,
}

impl Log {
    fn note(&self, line: &str) {
        self.lines.lock().unwrap().push(line.to_owned());
        assert!(!self.panics, "on purpose");
    }

    fn times(&self, line: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|told| *told == line).count()
    }

    fn last_end(&self) -> Option<HoldEnd> {
        self.ends.lock().unwrap().last().copied()
    }

    fn in_a_row(&self) -> Vec<u32> {
        let failures = self.failures.lock().unwrap();
        failures.iter().map(|(_, in_a_row)| *in_a_row).collect()
    }
}

impl Events for Log {
    fn acquired(&self, _: &Acquired<'_>) {
        self.note("acquired");
    }
    fn contended(&self, _: &Contended<'_>) {
        self.note("contended");
    }
    fn already_run(&self, _: &AlreadyRun<'_>) {
        self.note("has been run");
    }
    fn failed(&self, failed: &AcquireFailed<'_>) {
        let failure = (failed.error().clone(), failed.in_a_row());
        self.failures.lock().unwrap().push(failure);
        self.note("failed");
    }
    fn released(&self, released: &Released<'_>) {
        self.ends.lock().unwrap().push(released.end());
        self.note("released");
    }
    fn lost(&self, lost: &Lost<'_>) {
        self.note(&format!("lost {:?}", lost.reason()));
    }
}

struct Bench {
    server: Server,
    locks: Locks,
    conn: redis::Connection,
    log: Arc<Log>,
}

fn bench(log: Log, options: Options) -> Bench {
    let server = Server::start().unwrap();
    let log = Arc::new(log);
    Bench {
        locks: Locks::connect(&server.url())
            .unwrap()
            .with(options.events(log.clone())),
        conn: server.connection().unwrap(),
        server,
        log,
    }
}

const TAKEN_AWAY: HoldEnd = HoldEnd::Lost(LostReason::TakenAway);

/// Calls its argument, which deletes the lock, and then finds the loss.
type Finder = Box<dyn Fn(Lease, &dyn Fn())>;
type Other = fn(Lease, &dyn Fn());

fn finders() -> Vec<(&'static str, Finder)> {
    let calls = CALLS.map(|(name, call)| {
        let find = move |lease, harm: &dyn Fn()| {
            harm();
            call(lease).0.unwrap_err();
        };
        (name, Box::new(find) as Finder)
    });
    let others: [(&str, Other); 3] = [
        ("drop", |lease, harm| {
            harm();
            drop(lease);
        }),
        ("the callback thread", |lease, harm| {
            thread::sleep(150 * MS);
            harm();
            assert!(lease.lost().wait_for(LONG));
        }),
        ("detach, after a look", |lease, harm| {
            harm();
            lease.verify().unwrap_err();
            let _ = lease.detach();
        }),
    ];
    let others = others.map(|(name, find)| (name, Box::new(find) as Finder));
    calls.into_iter().chain(others).collect()
}

#[test]
fn a_loss_event_comes_once_and_before_the_end_event() {
    crate::attacks::hooks::without_words();
    let cases = [0, 3]
        .into_iter()
        .flat_map(|turns| [(turns, false), (turns, true)]);
    at_once(cases, |(turns, panics)| {
        let log = Log {
            panics,
            ..Log::default()
        };
        let options = Options::new().hand_over(turns, LONG);
        let Bench {
            server, locks, log, ..
        } = bench(log, options);
        let harm = || {
            let () = server.connection().unwrap().del("lock:a").unwrap();
        };
        for (number, (finder, find)) in (1..).zip(finders()) {
            let lease = locks.lock("a").acquire(LONG).unwrap();
            find(lease, &harm);
            let is_told =
                || log.times("lost TakenAway") == number && log.times("released") == number;
            assert!(comes_true(is_told), "{finder}: {:?}", log.lines);
            assert_eq!(log.last_end(), Some(TAKEN_AWAY), "{finder}");
        }
        // `run` reports them too.
        let lock = locks.lock("a");
        let ran = lock.run(LONG, |_| harm()).unwrap();
        assert!(matches!(ran.released, Err(Error::Lost { .. })));
        let once = lock.run_once(LONG, LONG, |_| {
            harm();
            Ok::<_, Error>(())
        });
        assert!(matches!(once, Ok(Once::Ran(ran)) if ran.released.is_err()));
        let all = finders().len() + 2;
        assert!(comes_true(|| log.times("lost TakenAway") >= all));
        drop((lock, locks));
        thread::sleep(150 * MS); // its threads end: no events from now on
        let told = ["acquired", "lost TakenAway", "released"].map(|line| log.times(line));
        assert_eq!(told, [all; 3], "{:?}", log.lines);
    });
}

#[test]
fn a_hold_event_says_how_it_ended() {
    unless_halted(|| {
        let options = Options::new().drop_timeout(2_000 * MS).lease(LONG);
        let Bench {
            server,
            locks,
            log,
            mut conn,
        } = bench(Log::default(), options);
        let lock = locks.lock("a");
        let acquire = || lock.acquire(LONG).unwrap();

        acquire().release().unwrap();
        assert_eq!(log.last_end(), Some(HoldEnd::Released));
        drop(acquire());
        acquire()
            .commit_and_release(|pipe| {
                pipe.set("b", 1);
            })
            .unwrap();
        let _ = lock.run(LONG, |_| ()).unwrap();
        assert_eq!(*log.ends.lock().unwrap(), [HoldEnd::Released; 4]);

        let _ = acquire().detach();
        assert_eq!(log.last_end(), Some(HoldEnd::Detached));
        let () = conn.del("lock:a").unwrap();

        let short = Options::new().lease(100 * MS).renewal(false);
        let lease = lock.clone().with(short).acquire(LONG).unwrap();
        thread::sleep(150 * MS);
        drop(lease);
        assert_eq!(log.last_end(), Some(HoldEnd::Lost(LostReason::Ended)));
        assert!(comes_true(|| log.times("lost Ended") == 1));

        let lease = acquire();
        server.freeze().unwrap();
        drop(lease);
        assert_eq!(log.last_end(), Some(HoldEnd::Unknown));
        server.thaw().unwrap();
        // A failed release is not a loss: the lock was ours, but may not be free yet.
        assert_eq!(log.times("lost TakenAway"), 0);
        assert_eq!(log.times("acquired"), log.times("released"));
    });
}

#[test]
fn a_wait_event_says_how_it_ended() {
    let Bench {
        mut server,
        locks,
        log,
        mut conn,
    } = bench(Log::default(), Options::new());
    let lock = locks.lock("a");
    let lease = lock.acquire(LONG).unwrap();
    assert!(matches!(
        lock.acquire(50 * MS),
        Err(Error::Contended { .. })
    ));
    assert!(lock.try_acquire().unwrap().is_none());
    lease.release().unwrap();
    let job = locks.lock("job");
    for _ in 0..2 {
        let _ = job.run_once(LONG, LONG, |_| Ok::<_, Error>(())).unwrap();
    }
    let told = ["acquired", "contended", "has been run", "failed"].map(|line| log.times(line));
    assert_eq!(told, [2, 2, 1, 0]);

    let () = conn.lpush("lock:list", 1).unwrap();
    let cancel = Cancel::new();
    cancel.cancel();
    let fails: [&dyn Fn() -> Error; 6] = [
        &|| locks.lock("list").acquire(LONG).unwrap_err(),
        &|| locks.lock("list").try_acquire().unwrap_err(),
        &|| locks.lock("").acquire(LONG).unwrap_err(),
        &|| {
            lock.clone()
                .with(Options::new().lease(MS / 10))
                .acquire(LONG)
                .unwrap_err()
        },
        &|| {
            lock.clone()
                .with(Options::new().cancel(&cancel))
                .acquire(LONG)
                .unwrap_err()
        },
        &|| {
            locks
                .read("a")
                .run_once(LONG, LONG, |_| Ok::<_, Error>(()))
                .unwrap_err()
        },
    ];
    for (number, fails) in (1..).zip(fails) {
        let error = fails();
        assert_eq!(log.times("failed"), number, "{error}");
        let failures = log.failures.lock().unwrap();
        let (told, _) = failures.last().unwrap();
        let kinds = (std::mem::discriminant(told), std::mem::discriminant(&error));
        assert_eq!(kinds.0, kinds.1, "{told} {error}");
    }
    // A cancelled wait is no failure of the server.
    assert_eq!(log.in_a_row(), [1, 2, 3, 4, 0, 5]);

    // An answer of the server ends the series.
    lock.acquire(LONG).unwrap().release().unwrap();
    server.kill().unwrap();
    for _ in 0..3 {
        assert!(lock.acquire(MS).is_err());
    }
    assert_eq!(log.in_a_row()[6..], [1, 2, 3]);
    // The error includes its causes.
    let failures = log.failures.lock().unwrap();
    let (error, _) = failures.last().unwrap();
    let cause = error.source().map(ToString::to_string);
    let text = format!("{error} {cause:?}").to_lowercase();
    assert!(text.contains("refused"), "{text}");
}

/// First another holder has the lock, then the server is down: the hook reports both during the
/// wait.
#[test]
fn a_retrying_event_says_why() {
    #[derive(Default)]
    struct Whys(Mutex<Vec<Option<String>>>);
    impl Events for Whys {
        fn retrying(&self, retrying: &Retrying<'_>) {
            assert_eq!(retrying.lock(), "a");
            let why = retrying.error().map(ToString::to_string);
            self.0.lock().unwrap().push(why);
        }
    }
    let mut server = Server::start().unwrap();
    let holder = Locks::connect(&server.url()).unwrap();
    let _held = holder.lock("a").acquire(LONG).unwrap();
    let (whys, cancel) = (Arc::new(Whys::default()), Cancel::new());
    let options = Options::new().events(whys.clone()).cancel(&cancel);
    let locks = Locks::connect(&server.url()).unwrap().with(options);
    let has =
        |is: fn(&Option<String>) -> bool| comes_true(|| whys.0.lock().unwrap().iter().any(is));
    assert!(locks.lock("a").try_acquire().unwrap().is_none());
    assert!(whys.0.lock().unwrap().is_empty(), "it does not wait");
    thread::scope(|scope| {
        scope.spawn(|| locks.lock("a").acquire(LONG));
        assert!(has(Option::is_none));
        server.kill().unwrap();
        let unreached = |why: &Option<String>| {
            let why = why.as_deref().unwrap_or_default();
            why.starts_with("Lock::acquire on `a`: cannot reach redis at ")
        };
        let is_told = has(unreached);
        cancel.cancel();
        assert!(is_told, "{:?}", whys.0);
    });
}
