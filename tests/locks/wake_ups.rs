//! Wake-ups that come at an awkward moment: whoever is to ask next learns of each of them.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Options, RenewalState};
use redis::Commands;

use crate::{
    common::{
        Proxy, Server,
        hold::comes_true,
        monitor::Monitor,
        slack::slack,
        wait::{comes_true_within, unless_halted},
    },
    waiting::waiting,
};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);

/// Whoever holds the lock goes on holding it: nothing but the server's message can wake the next.
#[test]
fn a_wake_up_that_comes_while_the_head_is_being_granted_the_lock_wakes_the_next() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let locks = crate::connect(&proxy.url());
        let others = crate::connect(&server.url());
        let lock = locks.lock("a");
        drop(lock.acquire(LONG).unwrap());
        let held = others.lock("a").acquire(LONG).unwrap();
        thread::scope(|scope| {
            let (got, gets) = mpsc::channel();
            for number in 1..=2 {
                let (lock, got) = (&lock, got.clone());
                scope.spawn(move || got.send(lock.acquire(LONG).unwrap()).unwrap());
                assert!(comes_true(|| waiting(lock) == number));
            }
            // Until the head has asked.
            thread::sleep(50 * MS);
            proxy.at("EVALSHA").delay(200 * MS);
            held.release().unwrap();
            assert!(comes_true(|| conn.exists("lock:a").unwrap()));
            // Granted, and the answer is on its way.
            let () = conn.del("lock:a").unwrap();
            let first = gets.recv_timeout(LONG).unwrap();
            let asked = Instant::now();
            let second = gets.recv_timeout(LONG).unwrap();
            assert!(asked.elapsed() < slack(), "{:?}", asked.elapsed());
            assert!(comes_true(|| matches!(
                first.state(),
                RenewalState::Lost(_)
            )));
            second.release().unwrap();
        });
    });
}

/// The server refuses to tell of changes.
#[test]
fn after_a_holder_of_this_process_the_next_is_in_at_the_end_of_the_lease_though_nobody_says_so() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        redis::cmd("ACL")
            .arg(&["SETUSER", "default", "-client", "+client|id"])
            .exec(&mut server.connection().unwrap())
            .unwrap();
        let lease = 1_000 * MS;
        let dying = Options::new().lease(lease).renewal(false);
        let lock = crate::plainly(&server.url()).lock("a").with(dying);
        let held = lock.acquire(LONG).unwrap();
        thread::scope(|scope| {
            let (got, gets) = mpsc::channel();
            for number in 1..=2 {
                let (lock, got) = (&lock, got.clone());
                scope.spawn(move || {
                    let lease = lock.acquire(LONG).unwrap();
                    got.send(Instant::now()).unwrap();
                    std::mem::forget(lease);
                });
                assert!(comes_true(|| waiting(lock) == number));
            }
            held.release().unwrap();
            let first = gets.recv_timeout(LONG).unwrap();
            let second = gets.recv_timeout(LONG).unwrap();
            assert!(second - first < lease + slack(), "{:?}", second - first);
        });
    });
}

/// In one step, so that whoever waits is told, and finds somebody who was faster.
fn changes_hands(conn: &mut redis::Connection) {
    let mut pipe = redis::pipe();
    pipe.atomic().del("lock:a").ignore();
    pipe.cmd("SET")
        .arg("lock:a")
        .arg("another")
        .arg("PX")
        .arg(60_000)
        .ignore();
    pipe.exec(conn).unwrap();
}

/// The head of one queue that others were faster than, twice.
fn with_a_head_that_looks<T>(
    then: impl Fn(&mut redis::Connection, &mut Monitor) -> T,
) -> (T, leasehold::Error) {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let lock = crate::connect(&server.url()).lock("a");
    changes_hands(&mut conn);
    let mut monitor = Monitor::start(&server).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire(LONG).map(drop).unwrap_err());
        assert!(comes_true(|| asks(&mut monitor) > 0));
        for _ in 0..2 {
            // What it asks when it is told has been answered by then.
            thread::sleep(20 * MS);
            changes_hands(&mut conn);
        }
        thread::sleep(20 * MS);
        monitor.commands().unwrap();
        let seen = then(&mut conn, &mut monitor);
        let mut pipe = redis::pipe();
        pipe.atomic().del("lock:a").rpush("lock:a", "no lock");
        pipe.exec(&mut conn).unwrap();
        (seen, waiter.join().unwrap())
    })
}

/// How often it was asked for the lock since the last time.
fn asks(monitor: &mut Monitor) -> usize {
    let commands = monitor.commands().unwrap();
    commands
        .iter()
        .filter(|command| command.starts_with("EVAL"))
        .count()
}

#[test]
fn a_head_that_others_are_faster_than_costs_the_server_one_command_a_turn() {
    unless_halted(|| {
        let a_turn = |conn: &mut redis::Connection, monitor: &mut Monitor| {
            changes_hands(conn);
            let mut seen = Vec::new();
            comes_true_within(Duration::from_secs(1), || {
                seen.extend(monitor.commands().unwrap());
                seen.iter().any(|command| command.starts_with("PTTL"))
            });
            seen
        };
        // On a busy machine the head may ask for something else beside it.
        let mut last = Vec::new();
        let is_one_command = (0..40).any(|_| {
            let (seen, _) = with_a_head_that_looks(a_turn);
            let of_head = seen.iter().filter(|command| command.contains("lock:a"));
            let names = of_head.map(|command| command.split(' ').next().unwrap());
            let is_one_command = names.eq(["DEL", "SET", "PTTL"]);
            last = seen;
            is_one_command
        });
        assert!(is_one_command, "{last:?}");
    });
}

#[test]
fn a_head_that_looks_first_finds_out_all_the_same_what_is_no_lock() {
    unless_halted(|| {
        let began = Instant::now();
        let ((), found) = with_a_head_that_looks(|_, _| {});
        assert!(
            matches!(found, leasehold::Error::WrongKind { .. }),
            "{found:?}"
        );
        assert!(began.elapsed() < LONG / 4, "{:?}", began.elapsed());
    });
}
