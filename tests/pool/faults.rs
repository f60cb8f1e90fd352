//! The pool while the server is silent, full, or down.

use std::{
    iter,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::common::{SLACK, Server, clients, server::free_port, wait};
use leasehold::{Error, Pool, PoolBuilder, PooledConnection, Token, redis, release_lock};
use redis::Client;

/// A time-out that ends the wait for a server that is down.
const SHORT: Duration = Duration::from_millis(200);
/// The same, but long enough for a healthy server to answer. Seven in a row take longer than
/// [`LIMIT`].
const FAIR: Duration = Duration::from_millis(1_500);
/// Time-outs that would be noticed if they ended a wait.
const LONG: Duration = Duration::from_secs(30);
/// A wait over this was not ended by the short time-out.
const LIMIT: Duration = Duration::from_secs(10);

fn build(builder: PoolBuilder, url: &str) -> Pool {
    builder.build(&Client::open(url).unwrap()).unwrap()
}

/// A builder whose other time-outs cannot end a wait.
fn io_timeout(timeout: Duration) -> PoolBuilder {
    Pool::builder()
        .get_timeout(LONG)
        .connect_timeout(LONG)
        .io_timeout(timeout)
}

/// A call with two round trips and no change.
fn call(conn: &mut PooledConnection) -> leasehold::Result<bool> {
    release_lock(conn, "a", &Token::random())
}

fn message(error: Error) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// The call fails after the short time-out, and not before it, because no answer came.
fn assert_no_answer(pool: &Pool, address: SocketAddr) {
    let asked = Instant::now();
    let error = pool.get().unwrap_err();
    let took = asked.elapsed();
    assert!(took >= SHORT / 2 && took < LIMIT, "{took:?}");
    let message = message(error);
    assert!(
        message.contains(&format!("no answer from redis at {address} within")),
        "{message}"
    );
}

/// The wait for a connection ends by the pool's time-out and by that of the attempt.
fn assert_waits_end(address: SocketAddr) {
    let url = format!("redis://{address}/");
    let by_get = Pool::builder().get_timeout(SHORT).connect_timeout(LONG);
    let pool = build(by_get.max_size(1), &url);
    assert_no_answer(&pool, address);
    // That attempt ends too, and frees the only place.
    assert!(wait::comes_true(
        || message(pool.get().unwrap_err()).contains("no answer")
    ));
    let by_connect = Pool::builder().get_timeout(LONG).connect_timeout(SHORT);
    assert_no_answer(&build(by_connect, &url), address);
}

/// Runs concurrently: each mostly waits.
#[test]
fn nothing_listens() {
    let cases: [fn(); 5] = [
        a_wait_for_a_listener_that_never_answers_ends,
        a_wait_for_a_host_that_does_not_take_the_connection_ends,
        nobody_connects_for_a_call_that_has_given_up,
        after_a_fault_nobody_waits_for_an_attempt_that_was_put_off,
        a_login_in_several_steps_takes_no_longer_than_the_pools_time_out,
    ];
    wait::at_once(cases, |case| case());
}

fn a_wait_for_a_listener_that_never_answers_ends() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert_waits_end(listener.local_addr().unwrap());
}

fn a_wait_for_a_host_that_does_not_take_the_connection_ends() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    // A listener with a full queue silently drops further attempts.
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, SHORT) {
        queue.push(stream);
    }
    assert_waits_end(address);
}

fn nobody_connects_for_a_call_that_has_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let pool = build(Pool::builder().get_timeout(SHORT), &url);
    for _ in 0..3 {
        pool.get().unwrap_err();
    }
    // Each call makes one attempt or more while it waits.
    let attempts = || iter::from_fn(|| listener.accept().ok()).count();
    assert!(attempts() >= 1);
    thread::sleep(4 * SHORT);
    assert!(
        attempts() <= 3,
        "each of the three threads may have been about to"
    );
}

fn after_a_fault_nobody_waits_for_an_attempt_that_was_put_off() {
    let mut server = Server::start().unwrap();
    let pool = build(Pool::builder().max_size(1).get_timeout(LONG), &server.url());
    server.kill().unwrap();
    // While it is down, the pauses between attempts grow: r2d2's own would grow to 6.4 s in this
    // time.
    let down = Instant::now();
    while down.elapsed() < Duration::from_secs(3) {
        pool.get().unwrap_err();
    }
    server.restart().unwrap();
    let asked = Instant::now();
    call(&mut pool.get().unwrap()).unwrap();
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(3) + SLACK, "{took:?}");
}

fn a_login_in_several_steps_takes_no_longer_than_the_pools_time_out() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    // redis-rs waits for a time-out per reply, here to AUTH, SELECT, and twice CLIENT SETINFO.
    let url = format!("redis://:password@{address}/3");
    let client = Client::open(url).unwrap();
    let info = client.get_connection_info().clone();
    let login = info.redis_settings().clone().set_lib_name("mine", "1");
    let client = Client::open(info.set_redis_settings(login)).unwrap();
    // The attempt takes four times as long.
    let timeout = 3 * SHORT;
    let pool = Pool::builder().get_timeout(timeout).build(&client).unwrap();

    let asked = Instant::now();
    let error = pool.get().unwrap_err();
    assert!(asked.elapsed() < LIMIT);
    // The attempt has not ended; otherwise the error would have its source.
    assert!(matches!(error, Error::Pool { source: None, .. }));
    assert_eq!(
        message(error),
        format!("no answer from redis at {address} within {timeout:?}")
    );
}

#[test]
fn a_host_without_an_address_is_named() {
    let port = free_port().unwrap();
    let pool = build(Pool::builder(), &format!("redis://host.invalid:{port}/"));
    let asked = Instant::now();
    let message = message(pool.get().unwrap_err());
    assert!(asked.elapsed() < LIMIT);
    assert!(
        message.contains(&format!("host.invalid:{port}")),
        "{message}"
    );
}

/// Runs concurrently: each mostly waits.
#[test]
fn a_silent_server() {
    let cases: [fn(); 5] = [
        a_connection_whose_read_timed_out_is_closed_and_never_lent_again,
        a_blocking_call_is_not_left_behind_on_the_server,
        a_write_to_a_server_that_reads_nothing_times_out,
        a_frozen_server_is_said_in_time_and_used_when_it_is_thawed,
        many_doubtful_connections_take_no_longer_than_one,
    ];
    wait::at_once(cases, |case| case());
}

fn a_connection_whose_read_timed_out_is_closed_and_never_lent_again() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let pool = build(io_timeout(FAIR).max_size(1), &server.url());
    let mut conn = pool.get().unwrap();
    let silent = clients::id(&mut conn);

    server.freeze().unwrap();
    let asked = Instant::now();
    let owed: redis::RedisResult<String> = redis::cmd("ECHO").arg("owed").query(&mut conn);
    let error = owed.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(asked.elapsed() >= FAIR && asked.elapsed() < LIMIT);
    drop(conn);
    server.thaw().unwrap();

    let mut conn = pool.get().unwrap();
    let answer: String = redis::cmd("ECHO").arg("mine").query(&mut conn).unwrap();
    assert_eq!(answer, "mine");
    assert_ne!(clients::id(&mut conn), silent);
    assert!(wait::comes_true(|| !clients::exists(&mut admin, silent)));
}

fn a_blocking_call_is_not_left_behind_on_the_server() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let pool = build(io_timeout(FAIR), &server.url());
    let mut conn = pool.get().unwrap();
    let blocked = redis::cmd("BLPOP").arg("queue").arg(0).exec(&mut conn);
    let error = blocked.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    drop(conn);

    assert!(wait::comes_true(|| clients::count(&mut admin) == 0));
    let pushed: u64 = redis::cmd("RPUSH")
        .arg("queue")
        .arg("x")
        .query(&mut admin)
        .unwrap();
    let left: u64 = redis::cmd("LLEN").arg("queue").query(&mut admin).unwrap();
    assert_eq!((pushed, left), (1, 1));
}

fn a_write_to_a_server_that_reads_nothing_times_out() {
    let server = Server::start().unwrap();
    let pool = build(io_timeout(FAIR), &server.url());
    let mut conn = pool.get().unwrap();
    let more_than_the_sockets_hold = vec![b'x'; 32 << 20];
    server.freeze().unwrap();
    let asked = Instant::now();
    let written = conn.send_packed_command(&more_than_the_sockets_hold);
    let error = written.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(asked.elapsed() >= FAIR && asked.elapsed() < LIMIT);
}

fn a_frozen_server_is_said_in_time_and_used_when_it_is_thawed() {
    let server = Server::start().unwrap();
    let builder = Pool::builder().get_timeout(FAIR).io_timeout(FAIR);
    let pool = build(builder, &server.url());
    let mut conn = pool.get().unwrap();
    server.freeze().unwrap();
    assert!(matches!(call(&mut conn), Err(Error::Redis { .. })));
    drop(conn);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
    assert_no_answer(&pool, address);

    server.thaw().unwrap();
    let is_used = || pool.get().is_ok_and(|mut conn| call(&mut conn).is_ok());
    assert!(wait::comes_true_within(3 * FAIR + SLACK, is_used));
}

fn many_doubtful_connections_take_no_longer_than_one() {
    let server = Server::start().unwrap();
    let mut admin = server.connection().unwrap();
    let builder = Pool::builder().get_timeout(FAIR).io_timeout(LONG);
    let pool = build(builder, &server.url());
    let mut lent: Vec<_> = (0..8).map(|_| pool.get().unwrap()).collect();
    let broken = clients::id(&mut lent[0]);
    clients::kill(&mut admin, broken);
    call(&mut lent[0]).unwrap_err();
    drop(lent);

    server.freeze().unwrap();
    for _ in 0..2 {
        let asked = Instant::now();
        let message = message(pool.get().unwrap_err());
        assert!(asked.elapsed() < LIMIT, "{:?}", asked.elapsed());
        assert!(message.contains("no answer from"), "{message}");
    }
    server.thaw().unwrap();
    let is_used = || pool.get().is_ok_and(|mut conn| call(&mut conn).is_ok());
    assert!(wait::comes_true_within(3 * FAIR + SLACK, is_used));
}

#[test]
fn a_server_with_too_many_clients_says_so_and_accepts_us_later() {
    let server = Server::start().unwrap();
    let pool = build(Pool::builder(), &server.url());
    let mut admin = server.connection().unwrap();
    let mut limit = |clients: u32| {
        let set = ["SET", "maxclients", &clients.to_string()];
        redis::cmd("CONFIG").arg(&set).exec(&mut admin).unwrap();
    };
    limit(1);
    // The server closes so soon that its message is seldom read.
    assert!(matches!(
        pool.get(),
        Err(Error::Pool {
            source: Some(_),
            ..
        })
    ));
    limit(100);
    call(&mut pool.get().unwrap()).unwrap();
}
