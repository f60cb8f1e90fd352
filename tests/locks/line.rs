//! A waiting thread that is told by the server itself, on a connection of its own.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lock, Locks, Options};
use redis::{Commands, Connection};

use crate::{
    common::{
        LONG, MS, Proxy, Server,
        hold::comes_true,
        slack::slack,
        wait::{tracked_keys, unless_halted},
    },
    faults::kill,
    waiting::waiting,
};

/// The server's list of those that are told themselves.
fn lines(conn: &mut Connection) -> Vec<String> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(conn).unwrap();
    let lines = list.lines().filter(|line| is_line(line));
    lines.map(str::to_owned).collect()
}

fn is_line(line: &str) -> bool {
    line.split_whitespace().any(|field| field == "redir=0")
}

/// From which a line of the server's list is.
fn port(line: &str) -> Option<u16> {
    let address = line
        .split(' ')
        .find_map(|field| field.strip_prefix("addr="))?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// Not handed over: who takes a lock from a thread of its process is woken by that.
fn lock(server: &Server) -> Lock {
    Locks::connect(&server.url()).unwrap().lock("a")
}

/// How long a thread that waits for the lock, once the rest has been done, takes to have it after it was freed.
fn woken_after(
    lock: &Lock,
    conn: &mut Connection,
    free: impl FnOnce(&mut Connection) -> Instant,
) -> Duration {
    let before = tracked_keys(conn).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lease = lock.acquire(LONG).unwrap();
            let got = Instant::now();
            lease.release().unwrap();
            got
        });
        // Wait until it has been refused, which the server tells of, and longer than it waits for news before it asks once more.
        assert!(comes_true(|| tracked_keys(conn).unwrap() > before));
        thread::sleep(200 * MS);
        let freed = free(conn);
        waiter.join().unwrap().saturating_duration_since(freed)
    })
}

fn is_held_for_long(conn: &mut Connection) {
    conn.pset_ex::<_, _, ()>("lock:a", "another", 60_000)
        .unwrap();
}

type Freeing = (&'static str, fn(&mut Connection));

#[test]
fn whoever_frees_the_lock_wakes_the_one_that_waits_on_the_line() {
    const WAYS: [Freeing; 4] = [
        ("deleted", |conn| conn.del("lock:a").unwrap()),
        ("flushed", |conn| redis::cmd("FLUSHALL").exec(conn).unwrap()),
        ("renamed", |conn| {
            conn.rename::<_, _, ()>("lock:a", "elsewhere").unwrap();
        }),
        ("ended early", |conn| conn.pexpire("lock:a", 1).unwrap()),
    ];
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let lock = lock(&server);
        for (way, free) in WAYS {
            is_held_for_long(&mut conn);
            let took = woken_after(&lock, &mut conn, |conn| {
                assert_eq!(lines(conn).len(), 1, "{way}");
                let freed = Instant::now();
                free(conn);
                freed
            });
            assert!(took < slack(), "{way}: {took:?}");
        }
    });
}

/// redis-rs takes each time without a message for an answer that is late, and passes over another one for it.
#[test]
fn a_line_that_was_silent_for_seconds_goes_on_and_asks_for_itself_whether_the_server_is_there() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let lock = lock(&server);
        for _ in 0..2 {
            is_held_for_long(&mut conn);
            let mut before = Vec::new();
            let took = woken_after(&lock, &mut conn, |conn| {
                thread::sleep(1_600 * MS);
                before = lines(conn);
                assert!(before[0].contains("cmd=ping"), "{before:?}");
                let freed = Instant::now();
                conn.del::<_, ()>("lock:a").unwrap();
                freed
            });
            assert!(took < slack(), "{took:?}");
            let after = lines(&mut conn);
            assert_eq!(port(&before[0]), port(&after[0]), "the same connection");
        }
    });
}

#[test]
fn one_whose_line_is_lost_asks_again_at_once() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let lock = lock(&server);
        is_held_for_long(&mut conn);
        let took = woken_after(&lock, &mut conn, |conn| {
            let freed = Instant::now();
            // Nobody is told.
            redis::cmd("MULTI").exec(conn).unwrap();
            assert_eq!(kill(&server, is_line), 1);
            redis::cmd("DEL").arg("lock:a").exec(conn).unwrap();
            redis::cmd("EXEC").exec(conn).unwrap();
            freed
        });
        assert!(took < slack(), "{took:?}");
    });
}

#[test]
fn one_whose_line_is_silent_finds_it_out_one_time_out_after_it_has_asked() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let locks = Locks::new(&crate::connections::pool(&proxy.url(), 600 * MS)).unwrap();
        let lock = locks.lock("a");
        is_held_for_long(&mut conn);
        let took = woken_after(&lock, &mut conn, |conn| {
            // The answer to this one, and whatever comes behind it, is on its way for longer than anybody waits.
            let from = port(&lines(conn)[0]).unwrap();
            proxy.at("PING").from(from).delay(5_000 * MS);
            assert!(comes_true(|| proxy.happened()));
            let freed = Instant::now();
            conn.del::<_, ()>("lock:a").unwrap();
            freed
        });
        assert!(took < 600 * MS + slack(), "{took:?}");
    });
}

#[test]
fn others_of_the_process_that_wait_behind_it_are_woken_as_ever() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let lock = lock(&server);
        is_held_for_long(&mut conn);
        thread::scope(|scope| {
            let mut waiters = Vec::new();
            for number in 1..=3 {
                waiters.push(scope.spawn(|| lock.acquire(LONG).unwrap()));
                assert!(comes_true(|| waiting(&lock) == number));
            }
            for left in [2, 1, 0] {
                thread::sleep(50 * MS);
                let freed = Instant::now();
                // The one that has the lock is not asked.
                conn.del::<_, ()>("lock:a").unwrap();
                assert!(comes_true(|| waiting(&lock) == left));
                assert!(freed.elapsed() < slack(), "{left}: {:?}", freed.elapsed());
            }
            for waiter in waiters {
                drop(waiter.join().unwrap());
            }
        });
    });
}

#[test]
fn where_the_server_does_not_let_it_be_told_itself_it_is_woken_by_the_listener() {
    unless_halted(|| {
        let server = Server::start_with(&["--rename-command", "HELLO", ""]).unwrap();
        let mut conn = server.connection().unwrap();
        let pauses = Options::new().backoff(LONG, LONG);
        let lock = lock(&server).with(pauses);
        is_held_for_long(&mut conn);
        let took = woken_after(&lock, &mut conn, |conn| {
            assert!(lines(conn).is_empty());
            let freed = Instant::now();
            conn.del::<_, ()>("lock:a").unwrap();
            freed
        });
        assert!(took < slack(), "{took:?}");
    });
}

#[test]
fn a_writer_waits_by_the_connection_by_which_its_intent_is_taken_back() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let mut conn = server.connection().unwrap();
        let locks = [(); 2].map(|()| Locks::connect(&server.url()).unwrap());
        let _reads = locks[0].read("a").acquire(LONG).unwrap();
        assert!(locks[1].write("a").acquire(300 * MS).is_err());
        assert!(lines(&mut conn).is_empty());
    });
}
