//! Waits: in turn, no longer than the deadline, and woken by whatever frees the lock.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use leasehold::{Cancel, Error, Lock, Locks, Pool};
use redis::Commands;

use crate::common::{
    LONG, MS, Proxy, SLACK, Server,
    hold::comes_true,
    tell,
    wait::{at_once, tracked_keys, unless_halted},
};

type Freeing = fn(&Server, &Locks);

pub(crate) fn waiting(lock: &Lock) -> usize {
    lock.inspect().unwrap().waiting_here()
}

#[test]
fn threads_are_served_in_order_of_arrival() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        let lock = locks.lock("a");
        let first = lock.acquire(LONG).unwrap();
        let order = Mutex::new(Vec::new());
        let inside = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..50 {
                let (lock, order, inside) = (&lock, &order, &inside);
                scope.spawn(move || {
                    let lease = lock.acquire(LONG).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                    order.lock().unwrap().push(number);
                    inside.store(false, Ordering::SeqCst);
                    lease.release().unwrap();
                });
                assert!(comes_true(|| waiting(lock) == number + 1));
            }
            first.release().unwrap();
        });
        assert!(order.into_inner().unwrap().is_sorted());
    });
}

#[test]
fn a_wait_ends_at_its_deadline_in_any_place() {
    let server = Server::start().unwrap();
    // One connection per thread: a wait for a connection may end with a pool error.
    let pool = Pool::builder().max_size(20).connect(&server.url()).unwrap();
    let mut open = Vec::new();
    assert!(comes_true(|| {
        open.extend(pool.get());
        open.len() == 20
    }));
    drop(open);
    let locks = Locks::new(&pool).unwrap().with(crate::options());
    let held = crate::connect(&server.url());
    let kinds = [
        (locks.lock("m"), held.lock("m")),
        (locks.reentrant("e"), held.reentrant("e")),
        (locks.read("w"), held.write("w")),
        (locks.write("r"), held.read("r")),
    ];
    at_once(kinds, |(lock, holder)| {
        let _lease = thread::scope(|scope| {
            scope
                .spawn(|| holder.acquire(LONG).unwrap())
                .join()
                .unwrap()
        });
        thread::scope(|scope| {
            for wait in [0, 1, 60, 300, 600] {
                let (lock, wait) = (lock.clone(), wait * MS);
                scope.spawn(move || {
                    let asked = Instant::now();
                    let contended = lock.acquire(wait);
                    let took = asked.elapsed();
                    // On a busy machine the head may have no answer yet when a short wait is over.
                    let is_short = wait < 100 * MS;
                    assert!(
                        matches!(contended, Err(Error::Contended { .. }))
                            || is_short && matches!(contended, Err(Error::Pool { .. })),
                        "{lock:?} {wait:?}: {contended:?}"
                    );
                    assert!(took >= wait && took < wait + SLACK, "{wait:?} {took:?}");
                });
            }
        });
        assert_eq!(waiting(&lock), 0);
        if lock.name() == "r" {
            let mut conn = server.connection().unwrap();
            let mut fields = || conn.hkeys::<_, Vec<String>>("lock:r").unwrap();
            // A writer that left while others used the connection, before it was open, or without
            // being scheduled in time, left its intent, which expires.
            let takes_it_back = || {
                let before = fields();
                assert!(lock.acquire(150 * MS).is_err());
                fields().iter().all(|field| before.contains(field))
            };
            assert!(comes_true(takes_it_back), "its own intent remains");
        }
    });
}

/// Each of their calls uses the heads' shared connection for as long as it waits for replicas.
#[test]
fn a_wait_ends_at_its_deadline_beside_waits_for_replicas() {
    const HEADS: usize = 8;
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        let mut conn = server.connection().unwrap();
        let cancel = Cancel::new();
        let options = crate::options().lease(LONG).cancel(&cancel);
        let options = options.replicas(1, 400 * MS);
        thread::scope(|scope| {
            for number in 0..HEADS {
                let () = conn.set(format!("lock:{number}"), "another").unwrap();
                let lock = locks.lock(&number.to_string()).with(options.clone());
                scope.spawn(move || drop(lock.acquire(LONG)));
            }
            assert!(comes_true(|| tracked_keys(&mut conn).unwrap() >= HEADS));
            let () = conn.set("lock:plain", "another").unwrap();
            let longest = (0..5).map(|_| {
                let began = Instant::now();
                let acquired = locks.lock("plain").acquire(100 * MS);
                assert!(matches!(acquired, Err(Error::Contended { .. })));
                began.elapsed()
            });
            let longest = longest.max().unwrap();
            cancel.cancel();
            // One of their answers may come first.
            assert!(longest < (100 + 400 + 250) * MS + SLACK, "{longest:?}");
        });
    });
}

#[test]
fn a_wait_shorter_than_a_round_trip_reports_contention() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let _held = crate::connect(&server.url()).lock("a").acquire(LONG);
    let lock = crate::connect(&proxy.url()).lock("a");
    assert!(lock.try_acquire().unwrap().is_none());
    let (tell, is_asking) = mpsc::channel();
    // The first one uses the pool, the second one is the head's.
    proxy.at("EVALSHA").nth(2).run(move || {
        tell.send(()).unwrap();
        thread::sleep(40 * MS);
    });
    thread::scope(|scope| {
        let head = scope.spawn(|| lock.acquire(300 * MS).map(drop));
        is_asking.recv().unwrap();
        let behind = lock.acquire(5 * MS).map(drop);
        for contended in [behind, head.join().unwrap()] {
            assert!(
                matches!(contended, Err(Error::Contended { .. })),
                "{contended:?}"
            );
        }
    });
}

#[test]
fn whatever_frees_a_lock_wakes_a_waiter() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        let other = crate::connect(&server.url());
        let ways: [(&str, Freeing); 5] = [
            ("another program's deletion", |server, _| {
                let () = server.connection().unwrap().del("lock:a").unwrap();
            }),
            ("a flush", |server, _| {
                tell(&mut server.connection().unwrap(), "FLUSHALL");
            }),
            ("another name", |server, _| {
                let () = server.connection().unwrap().rename("lock:a", "b").unwrap();
            }),
            ("an operator here", |_, locks| {
                assert!(locks.lock("a").force_release().unwrap().is_held());
            }),
            ("an earlier end", |server, _| {
                let () = server.connection().unwrap().pexpire("lock:a", 20).unwrap();
            }),
        ];
        for (way, free) in ways {
            for locks in [&locks, &other] {
                let held = other
                    .lock("a")
                    .with(crate::options().renewal(false))
                    .acquire(LONG)
                    .unwrap();
                thread::scope(|scope| {
                    let waiter = scope.spawn(|| {
                        let lease = locks.lock("a").acquire(LONG).unwrap();
                        (Instant::now(), lease)
                    });
                    assert!(comes_true(|| waiting(&locks.lock("a")) == 1));
                    thread::sleep(30 * MS);
                    let freed = Instant::now();
                    free(&server, locks);
                    let (got, lease) = waiter.join().unwrap();
                    assert!(got - freed < 50 * MS + SLACK, "{way}: {:?}", got - freed);
                    lease.release().unwrap();
                });
                drop(held);
            }
        }
    });
}

#[test]
fn an_expiry_wakes_a_waiter() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let all = [
        locks.lock("a"),
        locks.reentrant("e"),
        locks.read("r"),
        locks.write("w"),
    ];
    at_once(all, |lock| {
        let mut conn = server.connection().unwrap();
        let key = format!("lock:{}", lock.name());
        match lock.name() {
            "a" => {
                let () = conn.pset_ex(&key, "somebody", 900).unwrap();
            }
            "e" => {
                let () = conn.hset(&key, "somebody", 1).unwrap();
                let () = conn.pexpire(&key, 900).unwrap();
            }
            _ => {
                // A dead writer.
                let dead = crate::connect(&server.url());
                let options = crate::options().lease(900 * MS);
                let _ = dead
                    .write(lock.name())
                    .with(options)
                    .acquire(LONG)
                    .unwrap()
                    .detach();
            }
        }
        let asked = Instant::now();
        let lease = lock.acquire(LONG).unwrap();
        let took = asked.elapsed();
        assert!(
            took > 200 * MS && took < 900 * MS + SLACK,
            "{lock:?} {took:?}"
        );
        lease.release().unwrap();
    });
}

#[test]
fn a_writer_is_not_starved_by_steady_readers() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        let others = crate::connect(&server.url());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for locks in [&locks, &others, &locks, &others] {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        let lease = locks.read("a").acquire(LONG).unwrap();
                        thread::sleep(5 * MS);
                        drop(lease);
                    }
                });
            }
            for _ in 0..3 {
                let asked = Instant::now();
                let lease = locks.write("a").acquire(LONG);
                let took = asked.elapsed();
                let is_soon = lease.is_ok() && took < 1_750 * MS + SLACK;
                // The readers continue until told to stop.
                done.store(!is_soon, Ordering::SeqCst);
                assert!(is_soon, "{took:?}");
            }
            done.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn readers_come_in_together() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        let writer = locks.write("a").acquire(LONG).unwrap();
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let lease = locks.read("a").acquire(LONG).unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    assert!(comes_true(|| most.load(Ordering::SeqCst) == 8));
                    drop(lease);
                });
            }
            assert!(comes_true(|| waiting(&locks.read("a")) == 8));
            writer.release().unwrap();
        });
    });
}
