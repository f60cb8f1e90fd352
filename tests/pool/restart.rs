//! The pool while the server is down and when it is back, and the old connections.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener},
    thread,
    time::{Duration, Instant},
};

use crate::common::{Server, clients};
use leasehold::{Error, Pool, PoolBuilder, PooledConnection, Token, release_lock};
use redis::Client;

/// Time-outs that would be noticed if they ended a wait.
const LONG: Duration = Duration::from_secs(30);
/// A wait over this was not ended by a short time-out.
const LIMIT: Duration = Duration::from_secs(10);

fn build(builder: PoolBuilder, url: &str) -> Pool {
    builder.build(&Client::open(url).unwrap()).unwrap()
}

/// A call with two round trips and no change.
fn call(conn: &mut PooledConnection) -> leasehold::Result<bool> {
    release_lock(conn, "a", &Token::random())
}

fn message(error: Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

#[test]
fn a_down_server_is_reported_at_once_and_used_when_it_is_back() {
    let mut server = Server::start().unwrap();
    let pool = build(Pool::builder().get_timeout(LONG), &server.url());
    server.kill().unwrap();
    let asked = Instant::now();
    let message = message(pool.get().unwrap_err());
    assert!(asked.elapsed() < LIMIT);
    let port = server.port();
    let why = format!("cannot reach redis at 127.0.0.1:{port}: Connection refused");
    assert!(message.starts_with(&why), "{message}");
    assert_eq!(message.matches("refused").count(), 1, "{message}");

    server.restart().unwrap();
    call(&mut pool.get().unwrap()).unwrap();
}

#[test]
fn at_most_one_call_fails_after_a_restart() {
    let mut server = Server::start().unwrap();
    let pool = build(Pool::builder(), &server.url());
    let idle: Vec<_> = (0..5).map(|_| pool.get().unwrap()).collect();
    drop(idle);
    server.kill().unwrap();
    server.restart().unwrap();
    assert!(failures_of_five_after_one(&pool) <= 1);
}

#[test]
fn at_most_one_call_fails_after_idle_connections_were_closed() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let pool = build(Pool::builder(), &server.url());
    let mut idle: Vec<_> = (0..5).map(|_| pool.get().unwrap()).collect();
    for conn in &mut idle {
        clients::kill(&mut admin, clients::id(conn));
    }
    drop(idle);
    assert!(failures_of_five_after_one(&pool) <= 1);
}

/// One call, and then one on each of the five connections.
fn failures_of_five_after_one(pool: &Pool) -> usize {
    let first = call(&mut pool.get().unwrap());
    let mut five: Vec<_> = (0..5).map(|_| pool.get().unwrap()).collect();
    let calls = five.iter_mut().map(call);
    calls.chain([first]).filter(Result::is_err).count()
}

#[test]
fn a_connection_lent_during_the_restart_is_checked_too() {
    let mut server = Server::start().unwrap();
    let pool = build(Pool::builder(), &server.url());
    let (mut used, unused) = (pool.get().unwrap(), pool.get().unwrap());
    server.kill().unwrap();
    server.restart().unwrap();
    call(&mut used).unwrap_err();
    drop(used);
    drop(unused);
    call(&mut pool.get().unwrap()).unwrap();
}

#[test]
fn a_call_interrupted_by_a_shutdown_leaves_no_broken_connection() {
    let mut server = Server::start().unwrap();
    let builder = Pool::builder().get_timeout(LONG).io_timeout(LONG);
    let pool = build(builder.max_size(1), &server.url());
    server.kill().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port())).unwrap();
    let stand_in = thread::spawn(move || end_with_a_call_unread(&listener));
    let mut conn = pool.get().unwrap();
    call(&mut conn).unwrap_err();
    stand_in.join().unwrap().unwrap();
    drop(conn);

    server.restart().unwrap();
    call(&mut pool.get().unwrap()).unwrap();
}

/// A fake server: answers the query for its version, and closes when the next call has arrived
/// unread, which makes the system send a reset.
fn end_with_a_call_unread(listener: &TcpListener) -> io::Result<()> {
    let (mut client, _) = listener.accept()?;
    let asked = client.read(&mut [0; 1024])?;
    client.write_all(b"$0\r\n\r\n")?;
    let called = client.peek(&mut [0])?;
    assert!(asked > 0 && called > 0);
    Ok(())
}

#[test]
#[ignore = "waits 31 seconds: cargo test --test pool restart:: -- --ignored"]
fn a_connection_closed_while_idle_is_not_lent() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let pool = build(Pool::builder(), &server.url());
    let idle = clients::id(&mut pool.get().unwrap());
    clients::kill(&mut admin, idle);
    thread::sleep(Duration::from_secs(31));
    call(&mut pool.get().unwrap()).unwrap();
}
