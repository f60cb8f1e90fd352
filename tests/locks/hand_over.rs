//! A lock that passes between the threads of one process without the server.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, FencingToken, Lease, Lock, Locks, Options};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Server,
    hold::comes_true,
    tell,
    wait::{PATIENCE, at_once, calls, comes_true_within, unless_halted},
};

mod fences;
mod leases;
mod other_settings;

const COMPANION: &str = "{lock:a}:lease";

struct Bench {
    lock: Lock,
    conn: Connection,
    server: Server,
}

fn handing(turns: u32) -> Options {
    Options::new().hand_over(turns, LONG)
}

fn bench(options: Options) -> Bench {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    // As after an earlier hold: without one there are no fencing tokens for hand-overs.
    let () = conn.hset(COMPANION, "fence", 1).unwrap();
    Bench {
        lock: lock(&server, options),
        conn,
        server,
    }
}

fn lock(server: &Server, options: Options) -> Lock {
    let locks = Locks::connect(&server.url()).unwrap();
    locks.lock("a").with(options)
}

fn fence(lease: &Lease) -> u64 {
    lease.fencing_token().map(FencingToken::get).unwrap()
}

impl Bench {
    fn stored(&mut self, field: &str) -> u64 {
        let stored: Option<u64> = self.conn.hget(COMPANION, field).unwrap();
        stored.unwrap_or(0)
    }

    /// The server sends no notifications.
    fn keep_silent(&mut self) {
        tell(
            &mut self.conn,
            "ACL SETUSER default -client +client|id +client|list +client|pause +client|unpause",
        );
    }

    /// This many threads wait in line for the lock; each runs the closure when it has it.
    fn one_after_the_other(&self, threads: usize, run: impl Fn(usize, Lease) + Sync) {
        self.those(&vec![self.lock.clone(); threads], run);
    }

    fn those(&self, locks: &[Lock], run: impl Fn(usize, Lease) + Sync) {
        let first = self.lock.acquire(LONG).unwrap();
        thread::scope(|scope| {
            for (number, lock) in locks.iter().enumerate() {
                let run = &run;
                scope.spawn(move || run(number, lock.acquire(LONG).unwrap()));
                let waits = || self.lock.inspect().unwrap().waiting_here() == number + 1;
                assert!(comes_true(waits));
            }
            first.release().unwrap();
        });
    }
}

#[test]
fn all_waiters_are_served_in_order_by_one_grant_and_one_release() {
    unless_halted(|| {
        let mut bench = bench(handing(100));
        let order = Mutex::new(Vec::new());
        let inside = AtomicBool::new(false);
        bench.one_after_the_other(20, |number, lease| {
            assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
            assert!(lease.is_held());
            order.lock().unwrap().push((number, fence(&lease)));
            inside.store(false, Ordering::SeqCst);
            lease.release().unwrap();
        });
        let order = order.into_inner().unwrap();
        assert!(order.is_sorted() && order.iter().is_sorted_by(|a, b| a.1 < b.1));
        assert_eq!(order.len(), 20);
        assert!(!bench.conn.exists::<_, bool>("lock:a").unwrap());
        // The total of scripts is not fixed, because the watchdog may read the lock at any turn.
        let [granted, released] =
            ["set", "del"].map(|command| calls(&mut bench.conn, command).unwrap());
        assert_eq!((granted, released), (1, 1));
    });
}

#[test]
fn the_limit_of_hand_overs_holds() {
    unless_halted(|| {
        let mut bench = bench(handing(2));
        let started = Mutex::new(Vec::new());
        bench.one_after_the_other(8, |_, lease| {
            started.lock().unwrap().push(fence(&lease));
        });
        // A hand-over increments the fencing token; the server takes it from its clock.
        let fences = started.into_inner().unwrap();
        let handed = |pair: &[u64]| pair[0] + 1 == pair[1];
        let kinds: Vec<bool> = fences.windows(2).map(handed).collect();
        assert_eq!(
            kinds,
            [true, false, true, true, false, true, true],
            "{fences:?}"
        );
        assert!(bench.stored("fence") <= *fences.last().unwrap());
    });
}

/// Runs concurrently: each mostly waits.
#[test]
fn how_long_hand_overs_continue() {
    let cases: [fn(); 8] = [
        the_bound_on_time_holds,
        leases::a_lease_lasts_through_all_turns,
        leases::a_loss_is_told_to_whose_turn_it_is,
        leases::a_lease_that_is_not_to_be_renewed_ends,
        leases::a_turn_that_is_never_given_back_ends_with_its_lease,
        leases::a_renewal_that_is_on_its_way_is_not_for_the_next,
        those_who_give_up_leave_nothing_behind,
        leases::what_may_have_been_renewed_without_our_knowing_goes_to_the_server,
    ];
    at_once(cases, |case| case());
}

fn the_bound_on_time_holds() {
    let bench = bench(Options::new().hand_over(1_000, 30 * MS));
    let fences = Mutex::new(Vec::new());
    bench.one_after_the_other(4, |_, lease| {
        fences.lock().unwrap().push(fence(&lease));
        thread::sleep(60 * MS);
    });
    let fences = fences.into_inner().unwrap();
    assert!(
        fences.windows(2).all(|pair| pair[0] + 1 < pair[1]),
        "{fences:?}"
    );
}

#[test]
fn a_panic_and_a_drop_hand_the_lock_over() {
    unless_halted(|| {
        let bench = bench(handing(100));
        let fences = Mutex::new(Vec::new());
        bench.one_after_the_other(4, |number, lease| {
            fences.lock().unwrap().push(fence(&lease));
            if number % 2 == 0 {
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    let _lease = lease;
                    std::panic::resume_unwind(Box::new("on purpose"));
                }));
                assert!(panicked.is_err());
            }
        });
        let fences = fences.into_inner().unwrap();
        assert!(
            fences.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "{fences:?}"
        );
    });
}

#[test]
fn an_endless_time_is_no_limit() {
    unless_halted(|| {
        let bench = bench(Options::new().hand_over(100, Duration::MAX));
        let fences = Mutex::new(Vec::new());
        bench.one_after_the_other(3, |_, lease| fences.lock().unwrap().push(fence(&lease)));
        let fences = fences.into_inner().unwrap();
        assert!(fences.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    });
}

#[test]
fn another_process_sees_the_first_holder_throughout() {
    unless_halted(|| {
        let bench = bench(handing(100));
        let other = lock(&bench.server, Options::new());
        let seen = Mutex::new(Vec::new());
        bench.one_after_the_other(3, |_, lease| {
            let found = other.inspect().unwrap();
            let holder = &found.holders()[0];
            let known = (holder.fencing_token(), holder.since());
            seen.lock().unwrap().push((known, lease.fencing_token()));
        });
        let seen = seen.into_inner().unwrap();
        assert!(seen.iter().all(|(known, _)| *known == seen[0].0));
        assert!(seen.iter().all(|(known, own)| known.0 < *own));
    });
}

fn those_who_give_up_leave_nothing_behind() {
    let bench = bench(handing(50));
    let (inside, served) = (AtomicBool::new(false), AtomicU32::new(0));
    let until = Instant::now() + 400 * MS;
    thread::scope(|scope| {
        for number in 0..12 {
            let (lock, inside, served) = (&bench.lock, &inside, &served);
            scope.spawn(move || {
                let patience = Duration::from_micros(number * 40);
                let is_over = || match served.load(Ordering::SeqCst) {
                    // On a busy machine it takes longer until one of them is in time.
                    0 => Instant::now() >= until + LONG,
                    _ => Instant::now() >= until,
                };
                while !is_over() {
                    if let Ok(lease) = lock.acquire(patience) {
                        assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                        served.fetch_add(1, Ordering::SeqCst);
                        inside.store(false, Ordering::SeqCst);
                        drop(lease);
                    }
                }
            });
        }
    });
    assert!(served.load(Ordering::SeqCst) > 0);
    assert_eq!(bench.lock.inspect().unwrap().waiting_here(), 0);
    let is_free = || bench.lock.try_acquire().unwrap().is_some();
    assert!(
        comes_true_within(PATIENCE, is_free),
        "free before the lease has ended"
    );
}

#[test]
fn another_process_is_served_too() {
    unless_halted(|| {
        let bench = bench(Options::new().hand_over(20, LONG));
        let other = lock(&bench.server, Options::new().hand_over(20, LONG));
        // It has fencing tokens for the permitted number of hand-overs.
        let first = bench.lock.acquire(LONG).unwrap();
        let turns = [AtomicU32::new(0), AtomicU32::new(0)];
        let counted = || [0, 1].map(|at: usize| turns[at].load(Ordering::SeqCst));
        // Without a limit the other process would never get it: another thread always waits here.
        let both_have_turns = || counted().into_iter().min() >= Some(20);
        let is_over = || both_have_turns() || counted().into_iter().max() >= Some(5_000);
        thread::scope(|scope| {
            for (lock, turns) in [&bench.lock, &other].into_iter().zip(&turns) {
                for _ in 0..16 {
                    scope.spawn(|| {
                        while !is_over() {
                            let lease = lock.acquire(LONG).unwrap();
                            turns.fetch_add(1, Ordering::SeqCst);
                            lease.release().unwrap();
                        }
                    });
                }
                assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 16));
            }
            first.release().unwrap();
        });
        assert!(both_have_turns(), "{turns:?}");
    });
}

#[test]
fn each_lease_has_the_name_that_was_requested() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = Locks::connect(&server.url()).unwrap().with(handing(100));
        // So there are fencing tokens for hand-overs.
        let mut conn = server.connection().unwrap();
        let () = conn.hset(COMPANION, "fence", 1).unwrap();
        let first = locks.lock("a").acquire(LONG).unwrap();
        let same = locks.lock("lock:a").with(handing(100).prefix(""));
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(same.acquire(LONG).unwrap().name(), "lock:a"));
            assert!(comes_true(|| same.inspect().unwrap().waiting_here() == 1));
            first.release().unwrap();
        });
    });
}

#[test]
fn locks_of_other_kinds_are_released_to_the_server() {
    unless_halted(|| {
        let bench = bench(Options::new());
        let locks = Locks::connect(&bench.server.url())
            .unwrap()
            .with(handing(100));
        let kinds: [fn(&Locks, &str) -> Lock; 3] = [Locks::reentrant, Locks::read, Locks::write];
        for lock in kinds.map(|kind| kind(&locks, "other")) {
            let held = lock.acquire(LONG).unwrap();
            held.release().unwrap();
            assert!(!lock.inspect().unwrap().is_held(), "{lock:?}");
        }
    });
}

#[test]
fn a_waiting_writer_is_handed_nothing() {
    unless_halted(|| {
        let bench = bench(handing(100));
        let locks = Locks::connect(&bench.server.url())
            .unwrap()
            .with(handing(100));
        let (lock, write) = (locks.lock("a"), locks.write("a"));
        let first = lock.acquire(LONG).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| lock.acquire(LONG).unwrap().release().unwrap());
            assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
            scope.spawn(|| match write.acquire(LONG) {
                Ok(lease) => {
                    lease.verify().unwrap();
                    let found = write.inspect().unwrap();
                    assert_eq!(found.holders()[0].fencing_token(), lease.fencing_token());
                }
                // It had asked while the lock was still a mutex.
                Err(error) => assert!(matches!(error, Error::WrongKind { .. }), "{error}"),
            });
            assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 2));
            first.release().unwrap();
        });
    });
}
