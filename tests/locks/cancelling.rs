//! Cancelled waits: they end at once and leave nothing behind.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Instant,
};

use leasehold::{Cancel, Error, Events, Lease, Lock, Locks, Options, Result, event};
use redis::Commands;

use crate::common::{
    LONG, MS, Proxy, SLACK, Server,
    hold::{comes_true, every_kind},
    wait::{at_once, tracked_keys, unless_halted},
};

fn by(cancel: &Cancel) -> Options {
    crate::options().cancel(cancel)
}

fn is_cancelled<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Cancelled { .. }))
}

fn waiting(lock: &Lock) -> usize {
    lock.inspect().unwrap().waiting_here()
}

#[test]
fn an_earlier_cancel_sends_and_runs_nothing() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let cancel = Cancel::new();
        let locks = Locks::connect(&proxy.url()).unwrap().with(by(&cancel));
        cancel.cancel();
        assert!(cancel.is_cancelled());
        let ((), traffic) = proxy.traffic_of(|| {
            for lock in every_kind(&locks) {
                assert!(is_cancelled(&lock.acquire(LONG)));
                let tried = lock.try_acquire();
                assert!(is_cancelled(&tried));
                let text = tried.unwrap_err().to_string();
                assert!(!text.contains("wait"), "it did not wait: {text}");
                assert!(is_cancelled(&lock.run(LONG, |_| panic!("run"))));
            }
            let lock = locks.lock("m");
            let once = lock.run_once(LONG, LONG, |_| -> Result<()> { panic!("run") });
            assert!(is_cancelled(&once));
        });
        assert_eq!(traffic.commands, [""; 0]);
    });
}

#[test]
fn cancelled_waiters_leave_at_once_and_the_others_keep_their_order() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let theirs = crate::connect(&server.url());
        let lock = crate::connect(&server.url()).lock("a");
        let held = theirs.lock("a").acquire(LONG).unwrap();
        let cancels = [(); 5].map(|()| Cancel::new());
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let waiters: Vec<_> = cancels
                .iter()
                .enumerate()
                .map(|(number, cancel)| {
                    let (same, order) = (&lock, &order);
                    let lock = lock.clone().with(by(cancel));
                    let waiter = scope.spawn(move || {
                        let acquired = lock.acquire(LONG);
                        order.lock().unwrap().push((number, acquired.is_ok()));
                        is_cancelled(&acquired)
                    });
                    assert!(comes_true(|| waiting(same) == number + 1));
                    waiter
                })
                .collect();
            for number in [2, 0] {
                let raised = Instant::now();
                cancels[number].cancel();
                assert!(comes_true(|| waiters[number].is_finished()));
                assert!(
                    raised.elapsed() < SLACK + 250 * MS,
                    "{:?}",
                    raised.elapsed()
                );
            }
            assert_eq!(waiting(&lock), 3);
            held.verify().unwrap();
            held.release().unwrap();
            let cancelled: Vec<_> = waiters.into_iter().map(|it| it.join().unwrap()).collect();
            assert_eq!(cancelled, [true, false, true, false, false]);
        });
        let order = order.into_inner().unwrap();
        assert_eq!(
            order,
            [(2, false), (0, false), (1, true), (3, true), (4, true)]
        );
        assert!(!lock.inspect().unwrap().is_held());
    });
}

#[test]
fn run_and_run_once_are_cancelled_while_waiting() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let cancel = Cancel::new();
        let lock = crate::connect(&server.url()).lock("a").with(by(&cancel));
        let held = crate::connect(&server.url())
            .lock("a")
            .acquire(LONG)
            .unwrap();
        thread::scope(|scope| {
            let run = scope.spawn(|| is_cancelled(&lock.run(LONG, |_| panic!("run"))));
            let once = scope.spawn(|| {
                let once = lock.run_once(LONG, LONG, |_| -> Result<()> { panic!("run") });
                is_cancelled(&once)
            });
            assert!(comes_true(|| waiting(&lock) == 2));
            cancel.cancel();
            assert!(run.join().unwrap() && once.join().unwrap());
        });
        held.release().unwrap();
        assert!(lock.last_run().unwrap().is_none());
    });
}

#[derive(Default)]
struct Told {
    acquired: AtomicU32,
    released: AtomicU32,
}

impl Events for Told {
    fn acquired(&self, _: &event::Acquired<'_>) {
        self.acquired.fetch_add(1, Ordering::SeqCst);
    }

    fn released(&self, _: &event::Released<'_>) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

/// By the pool's connection, and by the head of the queue.
#[test]
fn a_grant_at_the_moment_of_a_cancel_is_released() {
    // Late enough that the cancel comes first, even on a busy machine.
    let late = 900 * MS;
    let cases = [false, true].map(|waits| [0, 1, 2, 3, 4].map(|kind| (waits, kind)));
    at_once(cases.into_iter().flatten(), |(waits, kind)| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let theirs = crate::connect(&server.url());
        let cancel = Cancel::new();
        let told = Arc::new(Told::default());
        let events = Arc::clone(&told) as Arc<dyn Events>;
        let locks = crate::connect(&proxy.url()).with(by(&cancel).events(events));
        let lock = every_kind(&locks)[kind].clone();
        drop(lock.acquire(LONG).unwrap());
        let key = format!("lock:{}", lock.name());
        let held = waits.then(|| match lock.name() {
            "read" | "write" => theirs.write(lock.name()).acquire(LONG).unwrap(),
            _ => every_kind(&theirs)[kind].acquire(LONG).unwrap(),
        });
        thread::scope(|scope| {
            if held.is_none() {
                proxy.at("EVALSHA").delay(late);
            }
            let waiter = scope.spawn(|| is_cancelled(&lock.acquire(LONG)));
            if let Some(held) = held {
                assert!(comes_true(|| waiting(&every_kind(&locks)[kind]) == 1));
                thread::sleep(300 * MS); // its attempt was refused
                // Before that, a waiting writer may renew its intent once.
                proxy.at("EVALSHA").delay(late);
                proxy.at("EVALSHA").nth(2).delay(late);
                held.release().unwrap();
            }
            let mut conn = server.connection().unwrap();
            let is_granted = || conn.exists::<_, bool>(&key).unwrap();
            assert!(comes_true(is_granted), "{lock:?}");
            cancel.cancel();
            assert!(waiter.join().unwrap(), "{lock:?}");
        });
        let free = || !every_kind(&theirs)[kind].inspect().unwrap().is_held();
        assert!(comes_true(free), "{lock:?} {waits}");
        // Only for the first, whose caller has the lease.
        let told = [&told.acquired, &told.released].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(told, [1, 1], "{lock:?} {waits}");
    });
}

#[test]
fn a_pending_hand_over_passes_to_the_next_waiter() {
    let cases = [true, false];
    at_once(cases, |fencing| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let () = conn.hset("{lock:a}:lease", "fence", 1).unwrap();
        let handing = Options::new().hand_over(1_000, LONG).fencing(fencing);
        let lock = Locks::connect(&server.url())
            .unwrap()
            .lock("a")
            .with(handing);
        let (off, on) = (AtomicU32::new(0), AtomicU32::new(0));
        // On a busy machine it takes more rounds to see both.
        let both_happened = || {
            [&off, &on]
                .iter()
                .all(|count| count.load(Ordering::SeqCst) > 0)
        };
        for round in 0..1_200_u64 {
            if round >= 120 && both_happened() {
                break;
            }
            let cancel = Cancel::new();
            let first = lock.acquire(LONG).unwrap();
            thread::scope(|scope| {
                let called_off = lock.clone().with(Options::new().cancel(&cancel));
                let second = scope.spawn(move || called_off.acquire(LONG).map(drop));
                assert!(comes_true(|| waiting(&lock) == 1));
                let third = scope.spawn(|| lock.acquire(LONG).map(drop));
                assert!(comes_true(|| waiting(&lock) == 2));
                let raises = scope.spawn(|| {
                    for _ in 0..(round % 30) * 50 {
                        std::hint::spin_loop();
                    }
                    cancel.cancel();
                });
                first.release().unwrap();
                raises.join().unwrap();
                let second = second.join().unwrap();
                assert!(second.is_ok() || is_cancelled(&second), "{second:?}");
                let count = if second.is_ok() { &on } else { &off };
                count.fetch_add(1, Ordering::SeqCst);
                third.join().unwrap().unwrap();
            });
            assert_eq!(waiting(&lock), 0);
        }
        assert!(!lock.inspect().unwrap().is_held());
        assert!(both_happened());
    });
}

#[test]
fn a_cancelled_writer_removes_its_intent_while_all_connections_are_lent() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let theirs = crate::connect(&server.url());
        let cancel = Cancel::new();
        let pool = leasehold::Pool::builder().max_size(1);
        let pool = pool.connect(&server.url()).unwrap();
        let locks = Locks::new(&pool).unwrap().with(crate::options());
        let write = locks.write("a").with(by(&cancel));
        let _reading = theirs.read("a").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| is_cancelled(&write.acquire(LONG)));
            let intends = || theirs.read("a").inspect().unwrap().waiting_writers() == 1;
            assert!(comes_true(intends));
            thread::sleep(300 * MS); // it has also asked as the head
            let _lent = pool.get().unwrap();
            cancel.cancel();
            assert!(writer.join().unwrap());
            assert_eq!(theirs.read("a").inspect().unwrap().waiting_writers(), 0);
        });
    });
}

#[test]
fn a_cancel_beside_a_silent_server_ends_within_one_timeout() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let pool = leasehold::Pool::builder().io_timeout(2_500 * MS);
        let cancel = Cancel::new();
        let locks = crate::connect_with(&proxy.url(), pool).with(by(&cancel));
        drop(locks.lock("warm").acquire(LONG).unwrap());
        proxy.at("EVALSHA").about("lock:a").swallow();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| is_cancelled(&locks.lock("a").acquire(LONG)));
            let mut conn = server.connection().unwrap();
            assert!(comes_true(|| conn.exists::<_, bool>("lock:a").unwrap()));
            let raised = Instant::now();
            cancel.cancel();
            assert!(waiter.join().unwrap());
            assert!(
                raised.elapsed() < 2_750 * MS + SLACK,
                "{:?}",
                raised.elapsed()
            );
            let free = || !conn.exists::<_, bool>("lock:a").unwrap();
            assert!(
                comes_true(free),
                "the locks that it had acquired are released"
            );
        });
    });
}

/// No wait takes the time-outs of the others, also if their calls run one after the other.
#[test]
fn cancelled_waits_for_many_locks_end_within_one_timeout_beside_a_silent_server() {
    at_once([0, 1], waits_for_many_locks_end_within_one_time_out);
}

fn waits_for_many_locks_end_within_one_time_out(replicas: u32) {
    const HEADS: usize = 20;
    let server = Server::start().unwrap();
    let io_timeout = 1_000 * MS;
    let pool = leasehold::Pool::builder()
        .io_timeout(io_timeout)
        .connect_timeout(io_timeout);
    let cancel = Cancel::new();
    let options = by(&cancel).replicas(replicas, MS);
    let locks = crate::connect_with(&server.url(), pool).with(options);
    let mut conn = server.connection().unwrap();
    for number in 0..HEADS {
        let () = conn.set(format!("lock:{number}"), "another").unwrap();
    }
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..HEADS)
            .map(|number| {
                let lock = locks.lock(&number.to_string());
                scope.spawn(move || (is_cancelled(&lock.acquire(LONG)), Instant::now()))
            })
            .collect();
        assert!(comes_true(|| tracked_keys(&mut conn).unwrap() >= HEADS));
        server.freeze().unwrap();
        // By now all know that the server is silent, and retry.
        thread::sleep(3 * io_timeout);
        let raised = Instant::now();
        cancel.cancel();
        for waiter in waiters {
            let (is_cancelled, at) = waiter.join().unwrap();
            let took = at.saturating_duration_since(raised);
            assert!(is_cancelled);
            assert!(took < io_timeout + 250 * MS + SLACK, "{took:?}");
        }
        server.thaw().unwrap();
    });
}

/// By a `Cancel`, and by a flag that it polls.
#[test]
fn a_cancel_and_a_deadline_end_a_wait_while_all_connections_are_lent() {
    at_once([false, true], |by_flag| {
        let server = Server::start().unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let pool = leasehold::Pool::builder().max_size(1).get_timeout(LONG);
        let pool = pool.build(&client).unwrap();
        let cancel = Cancel::new();
        let flag = by_flag.then(|| cancel.flag());
        let lock = Locks::new(&pool)
            .unwrap()
            .with(crate::options())
            .lock("a")
            .with(by(&cancel));
        let lent = pool.get().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| is_cancelled(&lock.acquire(LONG)));
            let asked = Instant::now();
            assert!(lock.acquire(300 * MS).is_err()); // both wait for the connection
            let took = asked.elapsed();
            assert!(took >= 300 * MS && took < 400 * MS + SLACK, "{took:?}");
            assert!(!waiter.is_finished());
            let raised = Instant::now();
            match &flag {
                Some(flag) => flag.store(true, Ordering::SeqCst),
                None => cancel.cancel(),
            }
            assert!(waiter.join().unwrap());
            let took = raised.elapsed();
            // The connection is not returned for twenty seconds.
            assert!(took < 250 * MS + SLACK, "{by_flag} {took:?}");
        });
        drop(lent);
        assert!(!lock.inspect().unwrap().is_held());
    });
}

/// A wait in the queue, which nothing else wakes.
#[test]
fn a_flag_requested_before_or_during_a_wait_ends_it() {
    at_once([false, true], |is_before| {
        let server = Server::start().unwrap();
        let cancel = Cancel::new();
        let flag = is_before.then(|| cancel.flag());
        let locks = crate::connect(&server.url());
        let _held = locks.lock("a").acquire(LONG).unwrap();
        let (head, lock) = (locks.lock("a"), locks.lock("a").with(by(&cancel)));
        thread::scope(|scope| {
            let before = scope.spawn(|| head.acquire(LONG / 4).is_err());
            assert!(comes_true(|| waiting(&head) == 1));
            let waiter = scope.spawn(|| is_cancelled(&lock.acquire(LONG)));
            assert!(comes_true(|| waiting(&head) == 2));
            let raised = Instant::now();
            let flag = flag.unwrap_or_else(|| cancel.flag());
            flag.store(true, Ordering::SeqCst);
            assert!(waiter.join().unwrap());
            let took = raised.elapsed();
            assert!(took < 300 * MS + SLACK, "{took:?}");
            assert!(before.join().unwrap());
        });
    });
}

#[test]
fn a_cancel_does_not_touch_a_held_lock() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let cancel = Cancel::new();
        let lock = crate::connect(&server.url()).lock("a").with(by(&cancel));
        let lease: Lease = lock.acquire(LONG).unwrap();
        cancel.cancel();
        lease.verify().unwrap();
        assert!(format!("{lock:?}").contains("is_cancelled: true"));
        lease.release().unwrap();
    });
}
