//! Tests of the proxy that the other tests use: a fault that does not happen as described proves
//! nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod cuts;

use std::{collections::HashSet, time::Duration};

use common::{Proxy, Server, monitor::Monitor, server::free_port, wait::comes_true};
use redis::{Commands, Connection, Pipeline, RedisResult, Value};

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

fn transaction() -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.cmd("MULTI");
    pipeline.cmd("SET").arg("a").arg(1);
    pipeline.cmd("SET").arg("b").arg(2);
    pipeline.cmd("EXEC");
    pipeline
}

fn set(conn: &mut Connection, key: &str, value: &str) -> RedisResult<()> {
    conn.set(key, value)
}

fn get(conn: &mut Connection, key: &str) -> RedisResult<Option<String>> {
    conn.get(key)
}

/// A monitor stops at its own mark, and sees those of others.
#[test]
fn two_monitors_of_one_server_each_see_everything() {
    let mut bench = bench();
    let mut first = Monitor::start(&bench.server).unwrap();
    let mut second = Monitor::start(&bench.server).unwrap();
    let mut sees = |monitor: &mut Monitor, key| {
        set(&mut bench.direct, key, "1").unwrap();
        let commands = monitor.commands().unwrap();
        assert!(commands.contains(&format!("SET {key} 1")), "{commands:?}");
    };
    sees(&mut first, "a");
    sees(&mut second, "b");
    sees(&mut first, "c");
}

/// A client of a stopped server would reach the next one.
#[test]
fn no_port_is_assigned_twice() {
    let mut given = HashSet::new();
    for _ in 0..500 {
        assert!(given.insert(free_port().unwrap().number()));
    }
    // After some hundreds more it starts over, and skips a port in use.
    let held = free_port().unwrap();
    for _ in 0..1_000 {
        assert_ne!(free_port().unwrap().number(), held.number());
    }
}

#[test]
fn a_pipeline_is_one_round_trip() {
    let mut bench = bench();
    let ((), traffic) = bench.proxy.traffic_of(|| {
        set(&mut bench.conn, "a", "1").unwrap();
        transaction().exec(&mut bench.conn).unwrap();
        get(&mut bench.conn, "a").unwrap();
    });
    assert_eq!(
        traffic.commands,
        ["SET", "MULTI", "SET", "SET", "EXEC", "GET"]
    );
    assert_eq!(traffic.round_trips, 3);

    let ((), nothing) = bench.proxy.traffic_of(|| ());
    assert_eq!((nothing.round_trips, nothing.commands.len()), (0, 0));
}

#[test]
fn a_burst_in_pieces_is_one_round_trip() {
    let mut bench = bench();
    let mut pipeline = redis::pipe();
    for _ in 0..20 {
        pipeline.set("long", "x".repeat(100_000));
    }
    let ((), traffic) = bench
        .proxy
        .traffic_of(|| pipeline.exec(&mut bench.conn).unwrap());
    assert_eq!((traffic.round_trips, traffic.commands.len()), (1, 20));
    bench.proxy.take_bursts();
    set(&mut bench.conn, "one", "1").unwrap();
    pipeline.exec(&mut bench.conn).unwrap();
    assert_eq!(bench.proxy.take_bursts(), [vec!["SET"; 1], vec!["SET"; 20]]);
}

#[test]
fn each_connection_has_its_own_round_trips() {
    let mut bench = bench();
    let mut other = bench.proxy.connection().unwrap();
    let ((), traffic) = bench.proxy.traffic_of(|| {
        set(&mut bench.conn, "a", "1").unwrap();
        assert_eq!(get(&mut other, "a").unwrap().unwrap(), "1");
    });
    assert_eq!(traffic.commands, ["SET", "GET"]);
    assert_eq!(traffic.round_trips, 2);
}

#[test]
fn something_runs_between_two_commands_of_a_burst() {
    let mut bench = bench();
    bench
        .proxy
        .at("GET")
        .nth(2)
        .run(move || set(&mut bench.direct, "a", "theirs").unwrap());
    let mut pipeline = redis::pipe();
    pipeline.set("a", "ours").ignore().get("a").get("a");
    let values: (String, String) = pipeline.query(&mut bench.conn).unwrap();
    assert!(bench.proxy.happened());
    assert_eq!(values, ("ours".to_owned(), "theirs".to_owned()));
}

#[test]
fn a_write_between_watch_and_multi_aborts() {
    let mut bench = bench();
    bench
        .proxy
        .at("MULTI")
        .run(move || set(&mut bench.direct, "a", "theirs").unwrap());
    redis::cmd("WATCH").arg("a").exec(&mut bench.conn).unwrap();
    let replies: Vec<Value> = transaction().query(&mut bench.conn).unwrap();
    assert_eq!(replies.last(), Some(&Value::Nil));
}

#[test]
fn a_refused_command_is_not_executed() {
    let mut bench = bench();
    bench.proxy.at("SET").refuse("LOADING not yet");
    let error = set(&mut bench.conn, "a", "1").unwrap_err();
    assert!(bench.proxy.happened());
    assert_eq!(error.code(), Some("LOADING"));
    assert_eq!(get(&mut bench.conn, "a").unwrap(), None);
}

/// The client port of this connection, as the server sees it.
fn port(conn: &mut Connection) -> u16 {
    let info: String = redis::cmd("CLIENT").arg("INFO").query(conn).unwrap();
    let address = info
        .split(' ')
        .find_map(|field| field.strip_prefix("addr="));
    let (_, port) = address.unwrap().rsplit_once(':').unwrap();
    port.parse().unwrap()
}

#[test]
fn a_fault_applies_to_one_connection_and_one_key() {
    let mut bench = bench();
    let mut other = bench.proxy.connection().unwrap();
    let point = bench.proxy.at("SET").from(port(&mut other));
    point.about("b").refuse("LOADING not yet");
    set(&mut bench.conn, "b", "1").unwrap();
    set(&mut other, "a", "1").unwrap();
    let error = set(&mut other, "b", "1").unwrap_err();
    assert!(bench.proxy.happened());
    assert_eq!(error.code(), Some("LOADING"));
}

#[test]
fn excluded_connections_are_neither_counted_nor_disturbed() {
    let mut bench = bench();
    let mut other = bench.proxy.connection().unwrap();
    bench.proxy.leave_alone(&[port(&mut other)]);
    bench.proxy.at("SET").refuse("LOADING not yet");
    let (refused, traffic) = bench.proxy.traffic_of(|| {
        set(&mut other, "a", "1").unwrap();
        set(&mut bench.conn, "b", "1").unwrap_err()
    });
    assert!(bench.proxy.happened());
    assert_eq!(refused.code(), Some("LOADING"));
    assert_eq!((traffic.round_trips, traffic.commands.len()), (1, 1));
}

#[test]
fn a_refused_command_aborts_its_transaction() {
    for command in ["SET", "EXEC"] {
        let mut bench = bench();
        bench.proxy.at(command).refuse("OOM no room");
        let error = transaction().exec(&mut bench.conn).unwrap_err();
        assert!(error.to_string().contains("OOM"), "{error}");
        // No MULTI is left open either.
        assert_eq!(get(&mut bench.conn, "b").unwrap(), None);
        transaction().exec(&mut bench.conn).unwrap();
    }
}

#[test]
fn a_replaced_reply_belongs_to_an_executed_command() {
    let mut bench = bench();
    bench.proxy.at("SET").reply(":7\r\n");
    let reply: i64 = redis::cmd("SET")
        .arg("a")
        .arg(1)
        .query(&mut bench.conn)
        .unwrap();
    assert_eq!(reply, 7);
    assert_eq!(get(&mut bench.conn, "a").unwrap().unwrap(), "1");
}

#[test]
fn messages_to_a_subscriber_pass() {
    let mut bench = bench();
    let mut subscriber = bench.conn.as_pubsub();
    subscriber
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    subscriber.subscribe(&["a", "b"]).unwrap();
    let _: () = bench.direct.publish("b", "hello").unwrap();
    let message = subscriber.get_message().unwrap();
    assert_eq!(message.get_payload::<String>().unwrap(), "hello");
    drop(subscriber);
    bench.proxy.at("SET").refuse("LOADING not yet");
    assert!(set(&mut bench.conn, "a", "1").is_err());
}

#[test]
fn a_repeated_action_runs_each_time_without_a_wait() {
    let mut bench = bench();
    let mut meanwhile = bench.server.connection().unwrap();
    bench.proxy.at("GET").nth(2).run_each_time(move || {
        let () = meanwhile.incr("n", 1).unwrap();
    });
    assert!(bench.proxy.happened());
    let seen = [(); 4].map(|()| get(&mut bench.conn, "n").unwrap());
    let expected = [None, Some("1"), Some("2"), Some("3")];
    assert_eq!(seen.each_ref().map(Option::as_deref), expected);

    bench.proxy.at("GET").cut_before();
    assert!(get(&mut bench.conn, "n").is_err());
    assert_eq!(get(&mut bench.direct, "n").unwrap().unwrap(), "4");
}

#[test]
fn a_panic_in_an_action_closes_the_connection() {
    let mut bench = bench();
    bench.proxy.at("GET").run(|| {
        std::panic::resume_unwind(Box::new("no panic message, this one is meant"));
    });
    let error = get(&mut bench.conn, "a").unwrap_err();
    assert!(error.is_connection_dropped(), "{error:?}");
    assert!(!bench.proxy.happened());
}

#[test]
fn a_client_that_keeps_sending_without_answers_is_cut_off() {
    let mut bench = bench();
    let time_out = Some(Duration::from_millis(1));
    bench.proxy.at("SET").swallow();
    bench.conn.set_read_timeout(time_out).unwrap();
    assert!(comes_true(|| {
        set(&mut bench.conn, "a", "1")
            .unwrap_err()
            .is_connection_dropped()
    }));
    assert!(!bench.proxy.happened());
}

#[test]
fn a_down_server_closes_the_connection() {
    let mut server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    server.kill().unwrap();
    assert!(set(&mut conn, "a", "1").is_err());
    assert!(proxy.connection().is_err());
    server.restart().unwrap();
    set(&mut proxy.connection().unwrap(), "a", "1").unwrap();
}
