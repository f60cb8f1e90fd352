//! Faults during a wait for a lock.

use std::time::{Duration, Instant};

use leasehold::{Error, acquire_lock_with_timeout, release_lock};
use redis::{Commands, Connection};

use crate::common::{
    Proxy, Server,
    proxy::Point,
    wait::at_once,
    world::{self, LEASE},
};

const SHORT: Duration = Duration::from_millis(500);
/// Less than a lease, and than the ten seconds for which a trade retries.
const SLACK: Duration = Duration::from_secs(3);
const THEIRS: &str = "their token";

/// Faults at an attempt to acquire a lock that was held at first.
const FAULTS: [fn(Point<'_>); 6] = [
    |point| point.cut_before(),
    |point| point.cut_after(),
    |point| point.half_way().cut_after(),
    |point| point.swallow(),
    |point| point.delay(Duration::from_millis(800)),
    |point| point.reply("+QUEUED\r\n"),
];

struct Bench {
    proxy: Proxy,
    conn: Connection,
    direct: Connection,
    server: Server,
}

fn bench() -> Bench {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut direct = server.connection().unwrap();
    world::seed(&mut direct);
    let conn = proxy.connection().unwrap();
    conn.set_read_timeout(Some(SHORT)).unwrap();
    Bench {
        proxy,
        conn,
        direct,
        server,
    }
}

/// Waits for `free`, which another holder has until just before the fault. The result is right or
/// unknown.
fn wait_through(fault: fn(Point<'_>), command: &str, nth: usize) {
    let mut bench = bench();
    let _: () = bench.direct.set("lock:free", THEIRS).unwrap();
    let mut other = bench.server.connection().unwrap();
    let point = || bench.proxy.at(command).nth(nth);
    point().run(move || other.del("lock:free").unwrap());
    fault(point());
    let answer = acquire_lock_with_timeout(&mut bench.conn, "free", 8 * SHORT, LEASE);
    assert!(bench.proxy.happened());

    let holder: Option<String> = bench.direct.get("lock:free").unwrap();
    let token = match &answer {
        Ok(Some(token)) => token,
        Err(error @ Error::Unknown { .. }) => error.token().unwrap(),
        other => unreachable!("{command}: {other:?}"),
    };
    let is_ours = holder == Some(token.to_string());
    assert!(is_ours || answer.is_err(), "{command}: not ours");
    let freed = release_lock(&mut bench.direct, "free", token).unwrap();
    assert_eq!(freed, is_ours, "{command}");
}

/// Runs concurrently: each mostly waits.
#[test]
fn faults_while_waiting() {
    let cases: [fn(); 4] = [
        a_fault_at_the_first_attempt_by_script,
        a_fault_at_a_later_attempt,
        a_refusal_after_an_attempt_without_answer_denies_nothing,
        the_read_time_out_is_put_back,
    ];
    at_once(cases, |case| case());
}

fn a_fault_at_the_first_attempt_by_script() {
    let cases = ["EVALSHA", "EVAL"].map(|command| FAULTS.map(|fault| (fault, command)));
    at_once(cases.into_iter().flatten(), |(fault, command)| {
        wait_through(fault, command, 1);
    });
}

fn a_fault_at_a_later_attempt() {
    at_once(FAULTS, |fault| wait_through(fault, "EVALSHA", 2));
}

fn a_refusal_after_an_attempt_without_answer_denies_nothing() {
    let mut bench = bench();
    // The late answer comes after one time-out and well before the next; the refusal follows it.
    bench.conn.set_read_timeout(Some(4 * SHORT)).unwrap();
    bench.proxy.at("SET").delay(6 * SHORT);
    bench.proxy.at("EVALSHA").refuse("READONLY not any more");
    let unknown = acquire_lock_with_timeout(&mut bench.conn, "free", 12 * SHORT, LEASE);
    assert!(bench.proxy.happened());
    let Err(error @ Error::Unknown { .. }) = &unknown else {
        unreachable!("{unknown:?}");
    };
    let token = error.token().unwrap();
    assert!(release_lock(&mut bench.direct, "free", token).unwrap());
}

fn the_read_time_out_is_put_back() {
    let mut bench = bench();
    bench.proxy.at("WATCH").swallow();
    for _ in 0..2 {
        let begun = Instant::now();
        let silent = release_lock(&mut bench.conn, "held", &world::token());
        let took = begun.elapsed();
        assert!(matches!(silent, Err(Error::Redis { .. })), "{silent:?}");
        assert!(took >= SHORT && took < SHORT + SLACK, "{took:?}");
    }
}
