//! Broken connections and stopped servers.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Lock, Locks, Pool};
use redis::Commands;

use crate::common::{
    LONG, MS, SLACK, Server,
    hold::{comes_true, every_kind},
    locks, start, tell,
    wait::{at_once, tracked_keys, unless_halted},
};

/// Short enough for a test to wait for.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_millis(1_500);

fn waiting(lock: &Lock) -> usize {
    lock.inspect().map_or(usize::MAX, |it| it.waiting_here())
}

/// A thread waits through an incident, and gets the lock on its release.
fn wait_through(locks: &Locks, lease: Lease, happens: impl FnOnce()) -> Duration {
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lease = locks.lock("a").acquire(LONG).unwrap();
            (Instant::now(), lease)
        });
        assert!(comes_true(|| waiting(&locks.lock("a")) == 1));
        thread::sleep(50 * MS);
        happens();
        let released = Instant::now();
        lease.release().unwrap();
        let (got, _lease) = waiter.join().unwrap();
        got - released
    })
}

/// Closes the connections whose line in `CLIENT LIST` matches.
pub(crate) fn kill(server: &Server, is_one: impl Fn(&str) -> bool) -> usize {
    let mut conn = server.connection().unwrap();
    let mut list = redis::cmd("CLIENT");
    let list: String = list.arg("LIST").query(&mut conn).unwrap();
    let own: i64 = redis::cmd("CLIENT").arg("ID").query(&mut conn).unwrap();
    let ids = list.lines().filter(|line| is_one(line)).filter_map(|line| {
        let id = line.split_whitespace().next()?.strip_prefix("id=")?;
        (id != own.to_string()).then(|| id.to_owned())
    });
    let mut killed = 0;
    for id in ids.collect::<Vec<_>>() {
        let () = redis::cmd("CLIENT")
            .arg(&["KILL", "ID", &id])
            .query::<i64>(&mut conn)
            .map(|_| ())
            .unwrap();
        killed += 1;
    }
    killed
}

/// Runs concurrently: each mostly waits.
#[test]
fn broken_connections_are_replaced() {
    let cases: [fn(); 3] = [
        who_waits_survives_the_loss_of_each_connection,
        who_waits_survives_a_server_that_is_silent_for_a_while,
        who_waits_survives_a_restart,
    ];
    at_once(cases, |case| case());
}

fn who_waits_survives_the_loss_of_each_connection() {
    let server = Server::start().unwrap();
    let holding = crate::connect(&server.url());
    for (connection, is_one) in [
        (
            "the listener's",
            (|line| line.contains("cmd=subscribe") || line.contains("cmd=ping sub"))
                as fn(&str) -> bool,
        ),
        ("tracked ones", |line| {
            line.contains("redir=") && !line.contains("redir=-1")
        }),
        ("all", |_| true),
    ] {
        let locks = crate::connect(&server.url());
        let lease = holding.lock("a").acquire(LONG).unwrap();
        let took = wait_through(&locks, lease, || {
            // It may not be open yet.
            assert!(comes_true(|| kill(&server, is_one) > 0), "{connection}");
            // The holder's own connection may be among them: its next use finds out.
            thread::sleep(20 * MS);
            let _ = holding.lock("b").try_acquire();
        });
        assert!(took < 2_250 * MS + SLACK, "{connection}: {took:?}");
    }
}

/// Runs concurrently: each mostly waits.
#[test]
fn every_call_ends_in_time() {
    let cases: [fn(); 6] = [
        a_loss_is_told_after_the_watchdogs_connection_was_killed,
        a_wait_ends_one_time_out_later_while_the_server_is_silent,
        a_short_wait_ends_one_time_out_later_while_the_server_is_silent,
        heads_of_queues_wait_no_longer_for_each_other_than_they_may,
        a_drop_takes_no_longer_than_it_may,
        a_releasing_commit_waits_for_one_time_out_while_the_server_is_silent,
    ];
    at_once(cases, |case| case());
}

/// The lease is not renewed for three seconds, so no renewal finds out first.
fn a_loss_is_told_after_the_watchdogs_connection_was_killed() {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url());
    let lease = locks.lock("a").acquire(LONG).unwrap();
    thread::sleep(50 * MS);
    let is_tracked = |line: &str| line.contains("redir=") && !line.contains("redir=-1");
    assert!(comes_true(|| kill(&server, is_tracked) > 0));
    thread::sleep(2_000 * MS);
    assert!(lease.is_held());
    let () = server.connection().unwrap().del("lock:a").unwrap();
    let deleted = Instant::now();
    assert!(lease.lost().wait_for(LONG));
    assert!(deleted.elapsed() < 250 * MS + SLACK);
}

fn who_waits_survives_a_server_that_is_silent_for_a_while() {
    let server = Server::start().unwrap();
    let locks = quick(&server.url());
    let holding = crate::connect(&server.url());
    let lease = holding.lock("a").acquire(LONG).unwrap();
    let took = wait_through(&locks, lease, || {
        server.freeze().unwrap();
        thread::sleep(2_500 * MS);
        server.thaw().unwrap();
    });
    assert!(took < 2_250 * MS + SLACK, "{took:?}");
}

/// With time-outs short enough for a test.
pub(crate) fn quick(url: &str) -> Locks {
    locks::quick(url, IO_TIMEOUT)
}

fn a_wait_ends_one_time_out_later_while_the_server_is_silent() {
    let server = Server::start().unwrap();
    let locks = quick(&server.url());
    let held = crate::connect(&server.url());
    let lease = held.lock("a").acquire(LONG).unwrap();
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..5)
            .map(|_| {
                scope.spawn(|| {
                    let asked = Instant::now();
                    let failed = locks.lock("a").acquire(3_000 * MS);
                    (failed.map(|_| ()), asked.elapsed())
                })
            })
            .collect();
        assert!(comes_true(|| waiting(&locks.lock("a")) == 5));
        server.freeze().unwrap();
        for waiter in waiters {
            let (failed, took) = waiter.join().unwrap();
            assert!(failed.is_err());
            assert!(
                took >= 3_000 * MS && took < 3_000 * MS + IO_TIMEOUT + SLACK,
                "{took:?}"
            );
        }
        server.thaw().unwrap();
    });
    drop(lease);
}

/// All connections are open and checked before the server falls silent, so nothing fails earlier.
fn a_short_wait_ends_one_time_out_later_while_the_server_is_silent() {
    // Longer than a test may be late, so a second time-out would show.
    const LONG_IO_TIMEOUT: Duration = Duration::from_millis(900);
    let kinds: [fn(&Locks, &str) -> Lock; 4] =
        [Locks::lock, Locks::reentrant, Locks::read, Locks::write];
    at_once(kinds, |kind| {
        let server = Server::start().unwrap();
        let pool = Pool::builder().io_timeout(LONG_IO_TIMEOUT);
        let locks = crate::connect_with(&server.url(), pool);
        for wait in [Duration::ZERO, 100 * MS, 600 * MS] {
            drop(locks.lock("warm").acquire(LONG).unwrap());
            let held = locks.lock("waited for").acquire(LONG).unwrap();
            assert!(locks.lock("waited for").acquire(20 * MS).is_err());
            drop(held);
            server.freeze().unwrap();
            let asked = Instant::now();
            let failed = kind(&locks, "a").acquire(wait);
            let took = asked.elapsed();
            server.thaw().unwrap();
            assert!(matches!(failed, Err(Error::Unknown { .. })), "{failed:?}");
            let latest = wait + LONG_IO_TIMEOUT + SLACK;
            assert!(took >= wait && took < latest, "{wait:?} took {took:?}");
            let free = || !kind(&locks, "a").inspect().unwrap().is_held();
            assert!(comes_true(free), "not released");
        }
    });
}

/// The heads of many queues share a connection, on which they would wait one after the other.
fn heads_of_queues_wait_no_longer_for_each_other_than_they_may() {
    let server = Server::start().unwrap();
    let pool = locks::within(IO_TIMEOUT).connect(&server.url()).unwrap();
    let locks = Locks::new(&pool).unwrap().with(crate::options());
    let mut open = Vec::new();
    assert!(comes_true(|| {
        open.extend(pool.get());
        open.len() == 6
    }));
    drop(open);
    server.freeze().unwrap();
    // After an attempt by the pool there is time for one on the shared connection.
    let wait = IO_TIMEOUT + 600 * MS;
    at_once(0..6, |number| {
        let asked = Instant::now();
        let failed = locks.lock(&number.to_string()).acquire(wait);
        let took = asked.elapsed();
        // Not `Contended`: the holder is unknown.
        assert!(matches!(failed, Err(Error::Unknown { .. })), "{failed:?}");
        assert!(took >= wait && took < wait + IO_TIMEOUT + SLACK, "{took:?}");
    });
    server.thaw().unwrap();
    let mut conn = server.connection().unwrap();
    let free = || conn.keys::<_, Vec<String>>("lock:*").unwrap().is_empty();
    assert!(comes_true(free), "not released");
}

fn who_waits_survives_a_restart() {
    let mut server = Server::start().unwrap();
    let locks = quick(&server.url());
    let mut conn = server.connection().unwrap();
    let () = conn.set("lock:a", "somebody").unwrap();
    drop(conn);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.lock("a").acquire(LONG).unwrap());
        assert!(comes_true(|| waiting(&locks.lock("a")) == 1));
        server.kill().unwrap();
        thread::sleep(300 * MS);
        server.restart().unwrap(); // the lock is lost
        let back = Instant::now();
        let lease = waiter.join().unwrap();
        assert!(back.elapsed() < 2_250 * MS + SLACK, "{:?}", back.elapsed());
        lease.verify().unwrap();
    });
}

#[test]
fn forgotten_scripts_and_a_flush_in_the_middle() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        let lease = locks.lock("a").acquire(LONG).unwrap();
        let took = wait_through(&locks, lease, || {
            tell(&mut server.connection().unwrap(), "SCRIPT FLUSH");
        });
        assert!(took < 250 * MS + SLACK, "{took:?}");
    });
}

/// Also at the end of the last `Locks`.
fn a_drop_takes_no_longer_than_it_may() {
    at_once([false, true], a_drop_takes_no_longer);
}

fn a_drop_takes_no_longer(is_the_last: bool) {
    let server = Server::start().unwrap();
    let locks = crate::connect(&server.url()).with(crate::options().drop_timeout(200 * MS));
    let lease = locks.lock("a").acquire(LONG).unwrap();
    let _locks = (!is_the_last).then_some(locks);
    server.freeze().unwrap();
    thread::sleep(60 * MS); // the watchdog is waiting for an answer
    let dropped = Instant::now();
    drop(lease);
    let took = dropped.elapsed();
    server.thaw().unwrap();
    assert!(took >= 200 * MS && took < 200 * MS + SLACK, "{took:?}");
    let mut conn = server.connection().unwrap();
    // With the last `Locks` the watchdog's thread ends, and the lock expires.
    let is_free = || !conn.exists::<_, bool>("lock:a").unwrap();
    assert!(is_the_last || comes_true(is_free));
}

/// A release of its own would wait for 4 s more.
fn a_releasing_commit_waits_for_one_time_out_while_the_server_is_silent() {
    at_once(0..6, |kind: usize| {
        let server = Server::start().unwrap();
        let options = crate::options().drop_timeout(4_000 * MS).lease(4 * LONG);
        let lock = every_kind(&quick(&server.url()).with(options))[kind].clone();
        let lease = lock.acquire(LONG).unwrap();
        let mut conn = server.connection().unwrap();
        assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
        thread::sleep(100 * MS); // the watchdog's first look has its answer
        server.freeze().unwrap();
        let asked = Instant::now();
        let failed = lease.commit_and_release(|pipe| _ = pipe.set("written", 1));
        let took = asked.elapsed();
        server.thaw().unwrap();
        assert!(matches!(failed, Err(Error::Redis { .. })), "{failed:?}");
        assert!(took < IO_TIMEOUT + SLACK, "{took:?}");
        let is_free = || !lock.inspect().unwrap().is_held();
        assert!(comes_true(is_free), "not released");
    });
}

#[test]
fn a_try_fails_at_once_without_a_server() {
    unless_halted(|| {
        let locks = crate::connect("redis://127.0.0.1:1/");
        let asked = Instant::now();
        let refused = locks.lock("a").try_acquire();
        assert!(matches!(refused, Err(Error::Pool { .. })), "{refused:?}");
        assert!(asked.elapsed() < 250 * MS + SLACK);
    });
}

#[test]
fn threads_and_connections_end_with_the_last_handle() {
    unless_halted(|| {
        let (server, mut conn) = start();
        let clients = |conn: &mut redis::Connection| {
            let list: String = redis::cmd("CLIENT").arg("LIST").query(conn).unwrap();
            list.lines().count()
        };
        let locks = crate::connect(&server.url());
        let lease = locks.lock("a").acquire(LONG).unwrap();
        // A thread with a short wait may leave before the listener is up.
        assert!(comes_true(|| {
            assert!(locks.lock("a").acquire(50 * MS).is_err());
            clients(&mut conn) >= 4
        }));
        drop(locks);
        assert!(lease.is_held());
        let ended = Instant::now();
        drop(lease);
        assert!(ended.elapsed() < 250 * MS + SLACK, "{:?}", ended.elapsed());
        assert!(comes_true(|| clients(&mut conn) == 1));
    });
}
