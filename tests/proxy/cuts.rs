//! A connection that is cut, silent or slow at a command.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use redis::Value;

use super::{bench, get, set, transaction};
use crate::common::wait::comes_true;

#[test]
fn cut_before_executes_only_earlier_commands() {
    let mut bench = bench();
    bench.proxy.at("SET").nth(2).cut_before();
    set(&mut bench.conn, "a", "1").unwrap();
    let error = set(&mut bench.conn, "b", "2").unwrap_err();
    assert!(bench.proxy.happened());
    assert!(error.is_connection_dropped(), "{error:?}");
    assert_eq!(get(&mut bench.direct, "a").unwrap().unwrap(), "1");
    assert_eq!(get(&mut bench.direct, "b").unwrap(), None);

    set(&mut bench.proxy.connection().unwrap(), "b", "2").unwrap();
}

#[test]
fn cut_before_delivers_earlier_replies() {
    let mut bench = bench();
    bench.proxy.at("EXEC").cut_before();
    let packed = transaction().get_packed_pipeline();
    bench.conn.send_packed_command(&packed).unwrap();
    assert_eq!(bench.conn.recv_response().unwrap(), Value::Okay);
    for _ in 0..2 {
        let queued = bench.conn.recv_response().unwrap();
        assert_eq!(queued, Value::SimpleString("QUEUED".to_owned()));
    }
    assert!(
        bench
            .conn
            .recv_response()
            .unwrap_err()
            .is_connection_dropped()
    );
}

#[test]
fn cut_after_executes_that_command_and_no_later_one() {
    let mut bench = bench();
    bench.proxy.at("SET").cut_after();
    let mut pipeline = redis::pipe();
    pipeline.set("a", 1).set("b", 2);
    let error = pipeline.exec(&mut bench.conn).unwrap_err();
    assert!(bench.proxy.happened());
    assert!(error.is_connection_dropped(), "{error:?}");
    assert_eq!(get(&mut bench.direct, "a").unwrap().unwrap(), "1");
    assert_eq!(get(&mut bench.direct, "b").unwrap(), None);
}

#[test]
fn a_transaction_cut_before_exec_does_nothing() {
    let mut bench = bench();
    bench.proxy.at_command(3).cut_after();
    transaction().exec(&mut bench.conn).unwrap_err();
    assert!(bench.proxy.happened());
    assert_eq!(get(&mut bench.direct, "a").unwrap(), None);
}

#[test]
fn swallow_neither_executes_nor_answers() {
    let mut bench = bench();
    bench
        .conn
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    bench.proxy.at("SET").swallow();
    for (key, value) in [("a", "1"), ("b", "2")] {
        assert!(set(&mut bench.conn, key, value).unwrap_err().is_timeout());
        assert!(bench.proxy.happened());
        assert!(comes_true(|| get(&mut bench.direct, key)
            .unwrap()
            .as_deref()
            == Some(value)));
    }
    assert!(redis::ConnectionLike::is_open(&bench.conn));
    set(&mut bench.proxy.connection().unwrap(), "b", "3").unwrap();
}

#[test]
fn a_command_with_a_delayed_reply_is_executed_at_once() {
    let mut bench = bench();
    let delay = Duration::from_millis(200);
    bench.proxy.at("SET").delay(delay);
    let begun = Instant::now();
    let packed = redis::cmd("SET").arg("a").arg(1).get_packed_command();
    bench.conn.send_packed_command(&packed).unwrap();
    assert!(bench.proxy.happened());
    assert_eq!(get(&mut bench.direct, "a").unwrap().unwrap(), "1");
    assert_eq!(bench.conn.recv_response().unwrap(), Value::Okay);
    assert!(begun.elapsed() >= delay);
    assert_eq!(get(&mut bench.conn, "a").unwrap().unwrap(), "1");
}

#[test]
fn half_a_reply_arrives_before_the_rest_is_delayed_or_cut() {
    let mut bench = bench();
    set(&mut bench.direct, "long", "0123456789").unwrap();
    let packed = redis::cmd("GET").arg("long").get_packed_command();
    let mut raw = std::net::TcpStream::connect(("127.0.0.1", bench.proxy.port())).unwrap();
    let mut bytes = [0; 8];

    bench
        .proxy
        .at("GET")
        .half_way()
        .delay(Duration::from_millis(50));
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
