//! Tests of the proxy that the other tests use: a fault that does not happen as described proves
//! nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/mod.rs"]
mod common;

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use common::{Proxy, Server, clients, wait::comes_true};
use redis::{Commands, Connection, Pipeline, RedisResult};

/// A server, a proxy in front of it, a connection through the proxy and one around it.
struct Bench {
    proxy: Proxy,
    conn: Connection,
    direct: Connection,
    server: Server,
}

fn bench() -> Bench {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    Bench {
        conn: proxy.connection().unwrap(),
        direct: server.connection().unwrap(),
        proxy,
        server,
    }
}

fn set(conn: &mut Connection, key: &str, value: &str) -> RedisResult<()> {
    conn.set(key, value)
}

fn get(conn: &mut Connection, key: &str) -> Option<String> {
    conn.get(key).unwrap()
}

/// Sets `a` and `b` in one burst.
fn both() -> Pipeline {
    let mut both = redis::pipe();
    both.set("a", 1).ignore().set("b", 2).ignore();
    both
}

#[test]
fn bursts_round_trips_and_commands_are_counted() {
    let mut bench = bench();
    let mut other = bench.proxy.connection().unwrap();
    let ((), traffic) = bench.proxy.traffic_of(|| {
        set(&mut bench.conn, "a", "1").unwrap();
        both().exec(&mut bench.conn).unwrap();
        get(&mut other, "a").unwrap();
    });
    assert_eq!(traffic.commands, ["SET", "SET", "SET", "GET"]);
    assert_eq!(traffic.round_trips, 3);
    let ((), nothing) = bench.proxy.traffic_of(|| ());
    assert_eq!((nothing.round_trips, nothing.commands.len()), (0, 0));

    // A burst that arrives in pieces is one.
    let mut long = redis::pipe();
    for _ in 0..20 {
        long.set("long", "x".repeat(100_000));
    }
    bench.proxy.take_bursts();
    set(&mut bench.conn, "one", "1").unwrap();
    long.exec(&mut bench.conn).unwrap();
    assert_eq!(bench.proxy.take_bursts(), [vec!["SET"; 1], vec!["SET"; 20]]);
}

/// Each fault, with what it leaves of two commands in one burst: the first one's, the second one's.
#[test]
fn a_fault_happens_before_or_after_its_command() {
    type Fault = fn(&Proxy);
    let faults: [(Fault, [bool; 2]); 5] = [
        (|proxy| proxy.at("SET").nth(2).cut_before(), [true, false]),
        (|proxy| proxy.at("SET").cut_before(), [false, false]),
        (|proxy| proxy.at("SET").cut_after(), [true, false]),
        (|proxy| proxy.at_command(2).cut_after(), [true, true]),
        (|proxy| proxy.at("SET").refuse("OOM no"), [false, true]),
    ];
    for (at, (fault, executed)) in faults.into_iter().enumerate() {
        let mut bench = bench();
        fault(&bench.proxy);
        let error = both().exec(&mut bench.conn).unwrap_err();
        assert!(bench.proxy.happened());
        let is_refused = error.to_string().contains("OOM");
        assert_eq!(error.is_connection_dropped(), !is_refused, "{at}: {error}");
        let seen = ["a", "b"].map(|key| get(&mut bench.direct, key).is_some());
        assert_eq!(seen, executed, "{at}");
        // The next connection is untouched.
        set(&mut bench.proxy.connection().unwrap(), "a", "1").unwrap();
    }
}

#[test]
fn faults_wait_for_their_connection_their_key_and_their_turn() {
    let mut bench = bench();
    let mut other = bench.proxy.connection().unwrap();
    let mut left_alone = bench.proxy.connection().unwrap();
    let mut port = |conn: &mut Connection| {
        let id = clients::id(conn);
        let list: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut bench.direct)
            .unwrap();
        let line = list
            .lines()
            .find(|line| line.starts_with(&format!("id={id} ")));
        let address = line
            .unwrap()
            .split(' ')
            .find_map(|word| word.strip_prefix("addr="));
        address
            .unwrap()
            .rsplit_once(':')
            .unwrap()
            .1
            .parse::<u16>()
            .unwrap()
    };
    let (from, alone) = (port(&mut other), port(&mut left_alone));
    bench.proxy.leave_alone(&[alone]);
    let point = bench.proxy.at("SET").from(from).about("b");
    point.nth(2).refuse("LOADING not yet");
    let ((), traffic) = bench.proxy.traffic_of(|| {
        for (conn, key) in [
            (&mut left_alone, "b"),
            (&mut bench.conn, "b"),
            (&mut other, "a"),
        ] {
            set(conn, key, "1").unwrap();
        }
    });
    assert_eq!(traffic.commands.len(), 2);
    set(&mut other, "b", "1").unwrap();
    assert!(set(&mut other, "b", "2").is_err());
    assert!(bench.proxy.happened());
    assert_eq!(get(&mut bench.direct, "b").unwrap(), "1");
}

#[test]
fn something_runs_just_before_a_command_of_a_burst_once_or_each_time() {
    let mut bench = bench();
    let mut meanwhile = bench.server.connection().unwrap();
    let theirs = move || set(&mut bench.direct, "a", "theirs").unwrap();
    bench.proxy.at("GET").nth(2).run(theirs);
    let mut pipeline = redis::pipe();
    pipeline.set("a", "ours").ignore().get("a").get("a");
    let values: (String, String) = pipeline.query(&mut bench.conn).unwrap();
    assert!(bench.proxy.happened());
    assert_eq!(values, ("ours".to_owned(), "theirs".to_owned()));

    bench.proxy.at("GET").nth(2).run_each_time(move || {
        let () = meanwhile.incr("n", 1).unwrap();
    });
    let seen = [(); 4].map(|()| get(&mut bench.conn, "n"));
    let expected = [None, Some("1"), Some("2"), Some("3")];
    assert_eq!(seen.each_ref().map(Option::as_deref), expected);
}

#[test]
fn a_swallowed_command_is_executed_without_an_answer_and_a_delayed_one_at_once() {
    let mut bench = bench();
    bench.proxy.at("SET").delay(Duration::from_millis(300));
    let begun = Instant::now();
    let packed = redis::cmd("SET").arg("a").arg(1).get_packed_command();
    bench.conn.send_packed_command(&packed).unwrap();
    assert!(bench.proxy.happened());
    assert_eq!(get(&mut bench.direct, "a").unwrap(), "1");
    bench.conn.recv_response().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(300));
    bench.proxy.at("SET").reply(":7\r\n");
    let replaced = redis::cmd("SET").arg("a").arg(2).query(&mut bench.conn);
    assert_eq!(
        (replaced, get(&mut bench.conn, "a").unwrap()),
        (Ok(7), "2".to_owned())
    );

    let time_out = Some(Duration::from_millis(50));
    bench.conn.set_read_timeout(time_out).unwrap();
    bench.proxy.at("SET").swallow();
    // Nor are the commands behind it answered.
    for key in ["b", "c"] {
        assert!(set(&mut bench.conn, key, "1").unwrap_err().is_timeout());
        assert!(comes_true(|| get(&mut bench.direct, key).is_some()));
    }
    assert!(bench.proxy.happened());
}

#[test]
fn half_a_reply_arrives_before_the_rest_is_delayed_or_cut() {
    let mut bench = bench();
    set(&mut bench.direct, "long", "0123456789").unwrap();
    let packed = redis::cmd("GET").arg("long").get_packed_command();
    let mut raw = std::net::TcpStream::connect(("127.0.0.1", bench.proxy.port())).unwrap();
    let mut bytes = [0; 8];
    let pause = Duration::from_millis(50);
    bench.proxy.at("GET").half_way().delay(pause);
    raw.write_all(&packed).unwrap();
    raw.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"$10\r\n012");
    raw.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"3456789\r");
    raw.read_exact(&mut bytes[..1]).unwrap();

    bench.proxy.at("GET").half_way().cut_after();
    raw.write_all(&packed).unwrap();
    let mut rest = Vec::new();
    raw.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"$10\r\n012");
}
