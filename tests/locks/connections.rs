//! Broken and replaced connections of the locks themselves, and the threads that rely on them.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Cancel, Lock, Locks, Options, Pool};
use redis::{Client, Commands, Connection};

use crate::{
    common::{
        LONG, MS, Proxy, SLACK, Server,
        hold::comes_true,
        tell,
        wait::{at_once, unless_halted},
    },
    faults::kill,
};

pub(crate) const MINUTE: Duration = Duration::from_mins(1);

fn is_tracked(line: &str) -> bool {
    line.contains("redir=") && !line.contains("redir=-1")
}

/// Number of the server's connections with tracking.
pub(crate) fn tracked(conn: &mut Connection) -> usize {
    tracked_ids(conn).len()
}

fn tracked_ids(conn: &mut Connection) -> Vec<String> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(conn).unwrap();
    let tracked = list.lines().filter(|line| is_tracked(line));
    tracked.map(id_of).collect()
}

/// The id in a line of `CLIENT LIST`.
fn id_of(line: &str) -> String {
    line.split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn waiting(lock: &Lock) -> usize {
    lock.inspect().unwrap().waiting_here()
}

pub(crate) fn pool(url: &str, io_timeout: Duration) -> Pool {
    Pool::builder()
        .io_timeout(io_timeout)
        .build(&Client::open(url).unwrap())
        .unwrap()
}

/// A thread with a short wait breaks the connection that all waiting threads share, and leaves.
#[test]
fn a_waiter_is_notified_after_another_broke_the_shared_connection() {
    at_once(["cut", "swallow", "unreadable"], |fault| {
        unless_halted(|| {
            let server = Server::start().unwrap();
            let proxy = Proxy::in_front_of(&server).unwrap();
            // A wait that can be cancelled has no connection of its own.
            let shares = Options::new().cancel(&Cancel::new());
            let locks = Locks::new(&pool(&proxy.url(), 1_500 * MS))
                .unwrap()
                .with(shares);
            let others = Locks::connect(&server.url()).unwrap();
            let minute = Options::new().lease(MINUTE);
            drop(locks.lock("warm").acquire(LONG).unwrap());
            let _a = others.lock("a").with(minute.clone()).acquire(LONG).unwrap();
            let b = others.lock("b").with(minute).acquire(LONG).unwrap();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let lease = locks.lock("b").acquire(LONG).unwrap();
                    (Instant::now(), lease)
                });
                let mut conn = server.connection().unwrap();
                // One of them is the watchdog of `others`.
                assert!(comes_true(
                    || waiting(&locks.lock("b")) == 1 && tracked(&mut conn) >= 2
                ));
                thread::sleep(300 * MS);
                // It breaks only after the deadline, so the thread that waits for `a` leaves at
                // once.
                let second = || proxy.at("EVALSHA").nth(2);
                second().run(|| thread::sleep(700 * MS));
                match fault {
                    "cut" => second().cut_before(),
                    "swallow" => second().swallow(),
                    _ => second().pretend("?what\r\n"),
                }
                assert!(locks.lock("a").acquire(500 * MS).is_err(), "{fault}");
                assert!(proxy.happened(), "{fault}");
                thread::sleep(100 * MS);
                let released = Instant::now();
                b.release().unwrap();
                let (got, _lease) = waiter.join().unwrap();
                let took = got - released;
                assert!(took < 500 * MS + SLACK, "{fault}: {took:?}");
            });
        });
    });
}

/// A new watchdog connection has read no key yet, so the server would not notify it about any
/// lease.
#[test]
fn a_loss_is_reported_at_once_after_the_watchdogs_connection_was_replaced() {
    at_once(
        ["slow answer", "killed", "killed and nothing due"],
        |fault| {
            unless_halted(|| {
                let server = Server::start().unwrap();
                let mut conn = server.connection().unwrap();
                // The listener tolerates the silence: if it reconnected, it would read all leases
                // again.
                let locks = Locks::new(&pool(&server.url(), LONG)).unwrap();
                let lease = |time| Options::new().lease(time);
                let long = locks
                    .lock("long")
                    .with(lease(MINUTE))
                    .acquire(LONG)
                    .unwrap();
                let short = (fault != "killed and nothing due").then(|| {
                    // Leaves time for a renewal after the silence; in the other cases a renewal is
                    // due soon.
                    let time = if fault == "slow answer" { 6_000 } else { 3_000 };
                    let short = locks.lock("short").with(lease(time * MS));
                    short.acquire(LONG).unwrap()
                });
                // The watchdog reads them after 20 ms.
                assert!(comes_true(|| tracked(&mut conn) == 1));
                thread::sleep(100 * MS);
                if fault == "slow answer" {
                    // A renewal is due after a third of the lease, and is given up after two
                    // thirds.
                    server.freeze().unwrap();
                    thread::sleep(4_100 * MS);
                    server.thaw().unwrap();
                } else {
                    assert!(kill(&server, is_tracked) > 0);
                }
                // Found by a renewal, or by the check that runs every second.
                thread::sleep(2_500 * MS);
                assert!(comes_true(|| tracked(&mut conn) == 1), "{fault}");
                assert!(long.is_held() && short.is_none_or(|short| short.is_held()));
                let () = conn.del("lock:long").unwrap();
                assert!(long.lost().wait_for(250 * MS + SLACK), "{fault}");
            });
        },
    );
}

/// The listener's thread opens the connection, which the server accepts but does not answer.
/// Meanwhile the renewing thread cannot ask; all other threads continue.
#[test]
fn opening_the_watchdogs_connection_delays_no_acquire_and_no_loss() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let patient = Pool::builder().connect_timeout(LONG);
        let client = Client::open(proxy.url()).unwrap();
        let locks = Locks::new(&patient.build(&client).unwrap()).unwrap();
        let lease = |time| Options::new().lease(time);
        // It has no renewal due, so the listener's thread notices first.
        let minute = locks.lock("a").with(lease(MINUTE));
        let _minute = minute.acquire(LONG).unwrap();
        let mut conn = server.connection().unwrap();
        assert!(comes_true(|| tracked(&mut conn) == 1));
        thread::sleep(100 * MS); // the watchdog has read it
        proxy.at("INFO").swallow();
        assert!(kill(&server, is_tracked) > 0);
        assert!(proxy.happened());

        let asked = Instant::now();
        let ends = locks.lock("ends").with(lease(600 * MS));
        let ends = ends.acquire(LONG).unwrap();
        let (called, calls) = mpsc::channel();
        let call = move |_| called.send(Instant::now()).unwrap();
        ends.lost().notify(call).unwrap();
        while asked.elapsed() < 300 * MS {
            drop(locks.lock("b").acquire(LONG).unwrap());
            thread::sleep(10 * MS);
        }
        let took = asked.elapsed();
        let told = calls.recv_timeout(LONG).unwrap() - asked;
        // Ends the attempt to connect.
        drop(proxy);
        assert!(took < 550 * MS + SLACK, "{took:?}");
        assert!(told < 850 * MS + SLACK, "notified after {told:?}");
    });
}

/// After one time-out, not two.
#[test]
fn a_waiter_polls_when_only_the_listeners_connection_falls_silent() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        // A wait that can be cancelled has no connection of its own.
        let shares = Options::new().cancel(&Cancel::new());
        let locks = Locks::new(&pool(&proxy.url(), 1_500 * MS))
            .unwrap()
            .with(shares);
        let minute = Options::new().lease(MINUTE);
        let others = Locks::connect(&server.url()).unwrap().with(minute);
        let lease = others.lock("a").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let lease = locks.lock("a").acquire(LONG).unwrap();
                (Instant::now(), lease)
            });
            // One of them is the watchdog of `others`.
            assert!(comes_true(
                || waiting(&locks.lock("a")) == 1 && tracked(&mut conn) >= 2
            ));
            thread::sleep(300 * MS);
            proxy.at("PING").swallow();
            assert!(proxy.happened());
            let silent = Instant::now();
            lease.release().unwrap();
            let (got, _lease) = waiter.join().unwrap();
            let took = got - silent;
            assert!(took < 1_750 * MS + SLACK, "{took:?}");
        });
    });
}

/// Once a second the listener's thread spends a second on a failing connect. Between two attempts
/// it handles all notifications that have arrived.
#[test]
fn a_waiter_is_woken_even_without_a_connection_for_the_watchdog() {
    const WAITERS: usize = 8;
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let pool = Pool::builder().connect_timeout(1_000 * MS);
        let pool = pool.build(&Client::open(proxy.url()).unwrap()).unwrap();
        // A wait that can be cancelled has no connection of its own.
        let options = Options::new().cancel(&Cancel::new()).lease(MINUTE);
        let locks = Locks::new(&pool).unwrap().with(options);
        let _held = locks.lock("held").acquire(LONG).unwrap();
        assert!(comes_true(|| tracked(&mut conn) == 1));
        let watchdogs = tracked_ids(&mut conn);
        let others = Locks::connect(&server.url())
            .unwrap()
            .with(Options::new().lease(MINUTE));
        let names: Vec<String> = (0..WAITERS).map(|number| number.to_string()).collect();
        let leases: Vec<_> = (names.iter())
            .map(|name| others.lock(name).acquire(LONG).unwrap())
            .collect();
        thread::scope(|scope| {
            for name in &names {
                let locks = &locks;
                scope.spawn(move || locks.lock(name).acquire(LONG).unwrap());
            }
            let all_wait = || {
                let waits = |name: &String| waiting(&locks.lock(name)) == 1;
                names.iter().all(waits)
            };
            assert!(comes_true(all_wait));
            // The waiting threads' connection is open, besides those of two watchdogs.
            assert!(comes_true(|| tracked(&mut conn) == 3));
            thread::sleep(300 * MS);
            proxy.at("INFO").swallow();
            let is_the_watchdogs = |line: &str| watchdogs.contains(&id_of(line));
            assert_eq!(kill(&server, is_the_watchdogs), 1);
            assert!(proxy.happened());
            for next in 1..=3 * WAITERS {
                proxy.at("INFO").nth(next).swallow();
            }
            let released = Instant::now();
            for lease in leases {
                lease.release().unwrap();
            }
            let nobody_waits = || {
                let waits = |name: &String| waiting(&locks.lock(name)) > 0;
                !names.iter().any(waits)
            };
            assert!(comes_true(nobody_waits));
            let took = released.elapsed();
            assert!(took < 2_250 * MS + SLACK, "{took:?}");
        });
    });
}

/// redis-rs skips a late reply only by waiting for it, and all waiting threads would wait along.
#[test]
fn a_waiters_connection_with_a_pending_reply_is_not_reused() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let locks = Locks::new(&pool(&proxy.url(), 300 * MS)).unwrap();
        let others = Locks::connect(&server.url()).unwrap();
        let _held = ["a", "b"].map(|name| others.lock(name).acquire(LONG).unwrap());
        // The one of the watchdog of `others`.
        assert!(comes_true(|| tracked(&mut conn) == 1));
        let theirs = tracked_ids(&mut conn);
        assert!(comes_true(|| {
            locks.lock("a").acquire(50 * MS).is_err() && tracked(&mut conn) == 2
        }));
        let before = tracked_ids(&mut conn);
        proxy.at("EVALSHA").nth(2).delay(1_200 * MS);
        assert!(locks.lock("a").acquire(900 * MS).is_err());
        assert!(proxy.happened());
        assert!(locks.lock("b").acquire(50 * MS).is_err());
        // The server notices the close a little later.
        let is_kept = |id: &String| before.contains(id);
        let only_theirs = || {
            tracked_ids(&mut conn)
                .into_iter()
                .filter(is_kept)
                .eq(theirs.clone())
        };
        assert!(comes_true(only_theirs), "{before:?}");
    });
}

/// A connection that has just answered is not bounded.
#[test]
fn a_release_in_a_hurry_leaves_the_next_call_its_whole_time() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let pool = Pool::builder().max_size(1).connect(&proxy.url()).unwrap();
        let locks = Locks::new(&pool).unwrap();
        let hurried = Options::new().drop_timeout(50 * MS);
        drop(locks.lock("a").with(hurried).acquire(LONG).unwrap());
        thread::sleep(50 * MS);
        proxy.at("EVALSHA").about("lock:b").delay(500 * MS);
        let granted = locks.lock("b").try_acquire();
        assert!(matches!(granted, Ok(Some(_))), "{granted:?}");
    });
}

/// A server that accepts this many connections besides `conn`.
fn with_room_for(connections: u32) -> (Server, Connection) {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxclients").arg(connections + 1);
    set.exec(&mut conn).unwrap();
    (server, conn)
}

fn connections(conn: &mut Connection) -> usize {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(conn).unwrap();
    list.lines().count()
}

/// A waiting thread needs a connection too. The listener's gives way to the watchdog's.
#[test]
fn three_connections_suffice_to_renew_a_lease_after_a_wait() {
    unless_halted(|| {
        let (server, mut conn) = with_room_for(3);
        let locks = Locks::connect(&server.url())
            .unwrap()
            .with(Options::new().lease(1_000 * MS));
        let _: () = conn.set("lock:a", "another's").unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| locks.lock("a").acquire(LONG).unwrap());
            // The pool's, the waiting thread's and the listener's.
            assert!(comes_true(|| connections(&mut conn) == 4));
            thread::sleep(300 * MS);
            let _: () = conn.del("lock:a").unwrap();
            let lease = waiter.join().unwrap();
            thread::sleep(1_500 * MS);
            lease.verify().unwrap();
            lease.release().unwrap();
            let _: () = conn.set("lock:b", "another's").unwrap();
            let waiter = scope.spawn(|| locks.lock("b").acquire(LONG).unwrap());
            thread::sleep(300 * MS);
            let _: () = conn.del("lock:b").unwrap();
            waiter.join().unwrap().release().unwrap();
        });
        // The listener has its place again, and keeps it.
        tell(&mut conn, "CONFIG SET maxclients 100");
        let mut opened = || {
            let stats: redis::InfoDict = redis::cmd("INFO").query(&mut conn).unwrap();
            stats.get::<u64>("total_connections_received").unwrap()
        };
        thread::sleep(1_500 * MS);
        let before = opened();
        thread::sleep(500 * MS);
        assert!(opened() - before <= 2, "{}", opened() - before);
    });
}
