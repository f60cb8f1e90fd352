//! What a set that is not acquired leaves: it is given back before the call returns, in one write.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Cancel, Error, Leases, Lock, LockSet, Locks, Options, Pool, Result,
    event::{AcquireFailed, Acquired, Contended, Events, Lost, Released},
};
use redis::Commands;

use crate::{
    common::{
        LONG, MS, Proxy, SLACK, Server,
        hold::{comes_true, every_kind, leave_the_watchdog_alone},
        tell,
        wait::{at_once, unless_halted},
    },
    waiting::waiting,
};

/// The key of the lock that is busy. It comes last.
const BUSY: &str = "lock:z";
/// The I/O time-out.
const ANSWER: Duration = Duration::from_millis(500);

/// Why a set is not acquired.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Limit,
    Cancelled,
    /// A held lock is deleted.
    TakenAway,
    /// A held lock that is not renewed ends by our clock.
    Expired,
    /// The last lock is of another kind.
    WrongKind,
}

const ENDS: [End; 5] = [
    End::Limit,
    End::Cancelled,
    End::TakenAway,
    End::Expired,
    End::WrongKind,
];

struct Bench {
    server: Server,
    proxy: Proxy,
    locks: Locks,
    conn: redis::Connection,
}

impl Bench {
    fn new(options: Options) -> Self {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        // To connect takes part of a wait too.
        let pool = Pool::builder().io_timeout(ANSWER).connect_timeout(ANSWER);
        let pool = pool.connect(&proxy.url());
        let locks = Locks::new(&pool.unwrap()).unwrap().with(options);
        let mut conn = server.connection().unwrap();
        leave_the_watchdog_alone(&proxy, &locks, &mut conn);
        // The server knows all scripts.
        drop(LockSet::of(every_kind(&locks)).acquire(LONG).unwrap());
        proxy.take_bursts();
        Self {
            server,
            proxy,
            locks,
            conn,
        }
    }

    /// Twenty locks of all kinds, and the one that is busy.
    fn set(&self, options: &Options) -> LockSet {
        let plain = (0..14).map(|n| self.locks.lock(&format!("n{n}")));
        let all = every_kind(&self.locks).into_iter().chain(plain);
        let all = all.chain([self.locks.lock("z")]);
        LockSet::of(all).with(options.clone())
    }

    fn held(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = self.conn.keys("lock:*").unwrap();
        keys.retain(|key| key != BUSY);
        keys.sort();
        keys
    }
}

/// Ends the wait of a set in this way. Returns the error, and how long after its end the call
/// returned. `meanwhile` runs when the set waits for the busy lock.
fn ended(bench: &mut Bench, end: End, meanwhile: impl FnOnce(&Bench)) -> (Error, Duration) {
    let limit = match end {
        End::Limit => 2_000 * MS,
        _ => LONG,
    };
    let cancel = Cancel::new();
    let mut options = Options::new().cancel(&cancel).drop_timeout(LONG);
    if end == End::Expired {
        options = options.lease(2_500 * MS).renewal(false);
    }
    if end != End::WrongKind {
        let () = bench.conn.set(BUSY, "someone").unwrap();
    }
    let set = bench.set(&options);
    let began = Instant::now();
    let mut due = began + 2_000 * MS;
    thread::scope(|scope| {
        let set = &set;
        let (conn, proxy) = (bench.server.connection(), &bench.proxy);
        let mut conn = conn.unwrap();
        if end == End::WrongKind {
            proxy.at("EVALSHA").about(BUSY).run(move || {
                let () = conn.rpush(BUSY, 1).unwrap();
            });
            due = Instant::now();
            let error = set.acquire(limit).unwrap_err();
            return (error, due.elapsed());
        }
        let waiter = scope.spawn(move || {
            let error = set.acquire(limit).map(drop).unwrap_err();
            (error, Instant::now())
        });
        assert!(comes_true(|| waiting(&bench.locks.lock("z")) == 1));
        proxy.take_bursts();
        meanwhile(bench);
        match end {
            End::Cancelled => {
                due = Instant::now();
                cancel.cancel();
            }
            End::TakenAway => {
                let () = conn.del("lock:read").unwrap();
                due = Instant::now();
            }
            End::Expired => due = began + 2_500 * MS,
            End::Limit | End::WrongKind => {}
        }
        // Otherwise the test would hang.
        if !comes_true(|| waiter.is_finished()) {
            let _ = bench.server.thaw();
            let () = bench.server.connection().unwrap().del(BUSY).unwrap();
        }
        let (error, returned) = waiter.join().unwrap();
        (error, returned.saturating_duration_since(due))
    })
}

fn is_as_expected(end: End, error: &Error) -> bool {
    let Some(context) = error.context() else {
        return false;
    };
    match (end, error) {
        (End::Limit, Error::Contended { .. }) | (End::Cancelled, Error::Cancelled { .. }) => {
            context.lock == "z"
        }
        (End::TakenAway, Error::Lost { .. }) => context.lock == "read",
        (End::Expired, Error::Lost { .. }) => context.lock != "z",
        (End::WrongKind, Error::WrongKind { .. }) => context.lock == "z",
        _ => false,
    }
}

#[test]
fn a_set_is_given_back_in_one_write_before_the_call_returns() {
    at_once(ENDS, |end| {
        let mut bench = Bench::new(crate::options());
        let (error, late) = ended(&mut bench, end, |_| {});
        let held = bench.held();
        let bursts = bench.proxy.take_bursts();
        assert!(is_as_expected(end, &error), "{end:?}: {error:?}");
        assert_eq!(held, [""; 0], "{end:?}");
        assert!(late < 250 * MS + SLACK, "{end:?}: {late:?}");
        // Nothing else was sent in more than a few calls.
        let sizes = bursts.iter().map(Vec::len).filter(|size| *size > 4);
        let sizes: Vec<_> = sizes.collect();
        // This one does not wait: its first write asks for all.
        let expected: &[usize] = if end == End::WrongKind {
            &[21, 20]
        } else {
            &[20]
        };
        assert_eq!(sizes, expected, "{end:?}");
    });
}

/// The scripts too are unknown.
#[test]
fn a_set_far_from_its_server_returns_within_a_few_round_trips() {
    at_once([End::Limit, End::Cancelled, End::TakenAway], |end| {
        let mut bench = Bench::new(crate::options());
        let (error, late) = ended(&mut bench, end, |bench| {
            tell(&mut bench.server.connection().unwrap(), "SCRIPT FLUSH");
            bench.proxy.delay_each(150 * MS);
        });
        assert!(is_as_expected(end, &error), "{end:?}: {error:?}");
        assert_eq!(bench.held(), [""; 0], "{end:?}");
        // One after the other, the releases would take 3 s.
        assert!(late < 750 * MS + 2 * SLACK, "{end:?}: {late:?}");
    });
}

#[test]
fn a_set_on_a_distant_server_asks_for_no_lock_after_its_limit() {
    unless_halted(|| {
        let log = Arc::new(Log::default());
        let mut bench = Bench::new(crate::options());
        let () = bench.conn.set("lock:a", "someone").unwrap();
        let hooks = Options::new().events(Arc::clone(&log) as Arc<dyn Events>);
        let set = LockSet::of(["a", "b", "c"].map(|name| bench.locks.lock(name))).with(hooks);
        // The connection of the heads is open.
        let () = bench.conn.set("lock:other", "someone").unwrap();
        let waited = bench.locks.lock("other").acquire(100 * MS).map(drop);
        let () = bench.conn.del("lock:other").unwrap();
        assert!(matches!(waited, Err(Error::Contended { .. })), "{waited:?}");
        bench.proxy.delay_each(450 * MS);
        // The second attempt is sent after what was granted behind the first is given back, before
        // the limit, and its reply comes after.
        let mut conn = bench.server.connection().unwrap();
        let second = bench.proxy.at("EVALSHA").about("lock:a").nth(2);
        second.run(move || {
            let () = conn.del("lock:a").unwrap();
        });
        let error = set.acquire(1_150 * MS).map(drop).unwrap_err();
        assert!(bench.proxy.happened());
        // The server is too far for a release within the time that is left of the call.
        assert!(comes_true(|| bench.held().is_empty()));
        let Error::Contended {
            context, waited, ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(context.lock, "b");
        assert!(waited.is_some_and(|waited| waited >= 1_150 * MS), "{error}");
        assert_eq!(log.of("a"), ["acquired", "released"]);
        assert_eq!(log.of("b"), ["contended"]);
        assert_eq!(log.of("c"), [""; 0]);
    });
}

/// No hook is told of a lock that was granted behind the busy one: the set never held it.
#[test]
fn locks_behind_a_busy_one_are_given_back_in_one_write_before_the_wait() {
    let names = ["m", "n", "v", "w", "x", "y", "z0"];
    unless_halted(|| {
        let log = Arc::new(Log::default());
        let mut bench = Bench::new(crate::options());
        let hooks = Options::new().events(Arc::clone(&log) as Arc<dyn Events>);
        let () = bench.conn.set("lock:v", "someone").unwrap();
        let set = LockSet::of(names.map(|name| bench.locks.lock(name))).with(hooks);
        let held = thread::scope(|scope| {
            let waiter = scope.spawn(|| set.acquire(LONG).unwrap());
            assert!(comes_true(|| waiting(&bench.locks.lock("v")) == 1));
            assert!(comes_true(|| bench.held() == ["lock:m", "lock:n", "lock:v"]));
            let sizes = bench.proxy.take_bursts().into_iter().map(|it| it.len());
            let sizes: Vec<_> = sizes.filter(|size| *size > 3).collect();
            assert_eq!(sizes, [7, 4]);
            let () = bench.conn.del("lock:v").unwrap();
            waiter.join().unwrap()
        });
        let sizes = bench.proxy.take_bursts().into_iter().map(|it| it.len());
        assert_eq!(sizes.max(), Some(4), "the rest is asked for in one write");
        assert!(held.is_held());
        assert_eq!(bench.held().len(), 7);
        held.release().unwrap();
        assert_eq!(bench.held(), [""; 0]);
        for name in names {
            assert_eq!(log.of(name), ["acquired", "released"], "{name}");
        }
    });
}

/// The answers to the first attempts come at the end of one I/O time-out, and the release of what
/// was granted behind the busy lock has no other.
#[test]
fn a_slow_server_that_falls_silent_before_the_first_release_costs_one_timeout() {
    let answer = 3_000 * MS;
    unless_halted(|| {
        let bench = Bench::new(crate::options());
        let pool = Pool::builder().io_timeout(answer);
        let locks = Locks::new(&pool.connect(&bench.proxy.url()).unwrap()).unwrap();
        let mut conn = bench.server.connection().unwrap();
        let () = conn.set("lock:a", "someone").unwrap();
        assert!(locks.lock("a").try_acquire().unwrap().is_none());
        let set = locks.all_of(["a", "b", "c"]);
        let first = bench.proxy.at("EVALSHA").about("lock:a");
        first.delay(2_500 * MS);
        // The second command about it is its release.
        bench.proxy.at_command(2).about("lock:b").swallow();
        let began = Instant::now();
        let error = set.acquire(100 * MS).map(drop).unwrap_err();
        let took = began.elapsed();
        assert!(matches!(error, Error::Contended { .. }), "{error:?}");
        assert!(bench.proxy.happened());
        assert!(took < answer + 100 * MS + 250 * MS + SLACK, "{took:?}");
        let is_free = || conn.exists("lock:b") == Ok(false) && conn.exists("lock:c") == Ok(false);
        assert!(comes_true(is_free));
    });
}

/// The cancel comes while the first write is under way: the locks are granted, and none is kept.
#[test]
fn a_cancel_while_all_locks_are_being_granted_leaves_none_held() {
    let mut bench = Bench::new(crate::options());
    let cancel = Cancel::new();
    let set = LockSet::of(every_kind(&bench.locks)).with(Options::new().cancel(&cancel));
    bench.proxy.at("EVALSHA").run(move || cancel.cancel());
    let error = set.acquire(LONG).map(drop).unwrap_err();
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    assert!(bench.proxy.happened());
    assert_eq!(bench.held(), [""; 0]);
}

/// The connection is cut after the reply to the n-th lock. The attempts behind it were executed or
/// not; the set asks again, and each lock is held once.
#[test]
fn a_cut_between_the_replies_to_a_set_leaves_no_lock_behind() {
    at_once([0, 1, 2, 3, 4, 5], |at| {
        for (is_executed, limit) in [(true, LONG), (false, LONG), (true, Duration::ZERO)] {
            let mut bench = Bench::new(crate::options());
            let all = every_kind(&bench.locks)
                .into_iter()
                .chain([bench.locks.lock("z")]);
            let set = LockSet::of(all);
            let point = bench.proxy.at("EVALSHA").nth(at + 1);
            if is_executed {
                point.cut_after();
            } else {
                point.cut_before();
            }
            let acquired = set.acquire(limit);
            assert!(bench.proxy.happened());
            match acquired {
                Ok(held) => {
                    held.check().unwrap();
                    assert!(bench.held().len() >= 5);
                    held.release().unwrap();
                }
                Err(error) => assert!(
                    limit.is_zero() && matches!(error, Error::Unknown { .. }),
                    "{at} {is_executed}: {error:?}"
                ),
            }
            let mut keys = || -> Vec<String> { bench.conn.keys("lock:*").unwrap() };
            assert!(comes_true(|| keys().is_empty()), "{at} {is_executed}");
        }
    });
}

/// Whatever `drop_timeout` says: here 20 s.
#[test]
fn a_set_on_a_silent_server_returns_within_one_timeout() {
    at_once([End::Limit, End::Cancelled, End::Expired], |end| {
        let mut bench = Bench::new(crate::options());
        let (error, late) = ended(&mut bench, end, |bench| bench.server.freeze().unwrap());
        bench.server.thaw().unwrap();
        assert!(!matches!(error, Error::Contended { .. }) || end == End::Limit);
        assert!(late < ANSWER + 250 * MS + SLACK, "{end:?}: {late:?}");
        assert!(comes_true(|| bench.held().is_empty()), "{end:?}");
    });
}

/// Counts the events of each lock.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn note(&self, event: &str, lock: &str) {
        self.0.lock().unwrap().push(format!("{event} {lock}"));
    }

    fn of(&self, lock: &str) -> Vec<String> {
        let events = self.0.lock().unwrap();
        let its = events.iter().filter_map(|event| event.split_once(' '));
        its.filter(|(_, of)| *of == lock)
            .map(|(event, _)| event.to_owned())
            .collect()
    }
}

impl Events for Log {
    fn acquired(&self, it: &Acquired<'_>) {
        self.note("acquired", it.lock());
    }
    fn contended(&self, it: &Contended<'_>) {
        self.note("contended", it.lock());
    }
    fn failed(&self, it: &AcquireFailed<'_>) {
        assert!(matches!(it.error(), Error::Lost { .. }), "{:?}", it.error());
        assert_eq!(it.in_a_row(), 0);
        self.note("failed", it.lock());
    }
    fn released(&self, it: &Released<'_>) {
        self.note("released", it.lock());
    }
    fn lost(&self, it: &Lost<'_>) {
        self.note("lost", it.lock());
    }
}

/// At once, long before its limit, and its lock stays busy.
#[test]
fn the_loss_of_a_held_lock_of_any_kind_ends_the_wait_for_the_next() {
    let of_kind = |n: usize| move |locks: &Locks| every_kind(locks)[n].clone();
    at_once(0..6, |n: usize| {
        let log = Arc::new(Log::default());
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let locks = crate::connect(&server.url());
        let () = conn.set(BUSY, "someone").unwrap();
        let told = locks.with(Options::new().events(Arc::clone(&log) as Arc<dyn Events>));
        let all = every_kind(&told).into_iter().chain([told.lock("z")]);
        let lost = of_kind(n)(&locks).name().to_owned();
        let (set, lost) = (LockSet::of(all), &*lost);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| set.acquire(LONG).map(drop).unwrap_err());
            assert!(comes_true(|| waiting(&locks.lock("z")) == 1));
            let () = conn.del(format!("lock:{lost}")).unwrap();
            let deleted = Instant::now();
            let is_told = comes_true(|| waiter.is_finished());
            let took = deleted.elapsed();
            // Otherwise the test would hang.
            let () = conn.del(BUSY).unwrap();
            let error = waiter.join().unwrap();
            assert!(is_told && took < 250 * MS + SLACK, "{lost}: {took:?}");
            let Error::Lost { context, .. } = &error else {
                panic!("{lost}: {error:?}");
            };
            assert_eq!(
                (context.operation, &*context.lock),
                ("LockSet::acquire", lost)
            );
        });
        assert_eq!(conn.keys::<_, Vec<String>>("lock:*").unwrap(), [""; 0]);
        assert!(comes_true(|| log.of(lost).len() == 3), "{:?}", log.of(lost));
        assert_eq!(log.of(lost), ["acquired", "lost", "released"]);
        assert_eq!(log.of("z"), ["failed"]);
        for lock in every_kind(&locks)
            .iter()
            .map(Lock::name)
            .filter(|it| *it != lost)
        {
            assert_eq!(log.of(lock), ["acquired", "released"], "{lost} {lock}");
        }
    });
}

/// `release` and a drop give back as a set does that is not acquired.
#[test]
fn a_set_is_acquired_in_one_write_and_released_in_another() {
    type Way = fn(Leases) -> Result<()>;
    let ways: [Way; 2] = [Leases::release, |leases| {
        drop(leases);
        Ok(())
    }];
    at_once(ways, |way| {
        let mut bench = Bench::new(crate::options());
        let set = LockSet::of(every_kind(&bench.locks));
        let (leases, traffic) = bench.proxy.traffic_of(|| set.acquire(LONG).unwrap());
        assert_eq!((traffic.round_trips, traffic.commands.len()), (1, 6));
        let (released, traffic) = bench.proxy.traffic_of(|| way(leases));
        released.unwrap();
        assert_eq!((traffic.round_trips, traffic.commands.len()), (1, 6));
        assert_eq!(bench.held(), [""; 0]);
    });
}

/// As for a single lock: a closed connection is replaced, and a no to the second release proves no
/// loss.
#[test]
fn a_release_of_all_that_meets_a_fault_is_repeated_or_unknown() {
    let faults: [fn(&Proxy); 3] = [
        |proxy| proxy.at("EVALSHA").cut_before(),
        |proxy| proxy.at("EVALSHA").nth(3).cut_after(),
        |proxy| proxy.at("EVALSHA").nth(3).swallow(),
    ];
    at_once(0..3, |n| {
        let mut bench = Bench::new(crate::options());
        let leases = LockSet::of(every_kind(&bench.locks)).acquire(LONG).unwrap();
        faults[n](&bench.proxy);
        let released = leases.release();
        assert!(bench.proxy.happened());
        match n {
            0 => released.unwrap(),
            _ => assert!(
                matches!(released, Err(Error::Unknown { .. })),
                "{n}: {released:?}"
            ),
        }
        assert!(comes_true(|| bench.held().is_empty()));
    });
}

/// One after the other they would take two seconds. A set of several `Locks` stands for one of
/// several shards.
#[test]
fn several_servers_are_asked_at_once() {
    unless_halted(|| {
        let mut benches = [(); 5].map(|()| Bench::new(crate::options()));
        let lock = |(bench, n): (&Bench, u32)| bench.locks.lock(&format!("a{n}"));
        let leases = LockSet::of(benches.iter().zip(0..).map(lock));
        let leases = leases.acquire(LONG).unwrap();
        for bench in &benches {
            bench.proxy.delay_each(400 * MS);
        }
        let asked = Instant::now();
        leases.release().unwrap();
        assert!(asked.elapsed() < 400 * MS + SLACK, "{:?}", asked.elapsed());
        assert!(benches.iter_mut().all(|bench| bench.held().is_empty()));
    });
}
