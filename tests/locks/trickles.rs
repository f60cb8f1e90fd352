//! A peer that sends an answer byte by byte, each byte sooner than any time-out: no call waits for
//! the end of it.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Cancel, Error, Lease, Lock, Locks, Pool, PoolBuilder, Result};
use redis::{Commands, Pipeline};

use crate::common::{
    Fake, LONG, MS, Proxy, SLACK, Server,
    fake::TRICKLE,
    hold::every_kind,
    wait::{PATIENCE, at_once, comes_true, unless_halted},
};

/// Each time-out of the pool.
const TIME_OUT: Duration = Duration::from_millis(500);
/// A connection that was idle for longer has not just answered.
const IDLE: Duration = Duration::from_millis(50);

fn settings() -> PoolBuilder {
    Pool::builder()
        .get_timeout(TIME_OUT)
        .connect_timeout(TIME_OUT)
        .io_timeout(TIME_OUT)
}

/// Runs the call on a thread, which is left behind if it does not end, and returns its result and
/// its duration.
fn ends<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> (T, Duration) {
    let (done, result) = mpsc::channel();
    let begun = Instant::now();
    thread::spawn(move || done.send(call()));
    let result = result.recv_timeout(3 * PATIENCE);
    (
        result.unwrap_or_else(|_| panic!("{what} does not end")),
        begun.elapsed(),
    )
}

fn set_a(writes: &mut Pipeline) {
    writes.set("a", 1);
}

fn trickling() -> Fake {
    Fake::saying(|_, _| TRICKLE.to_vec())
}

/// The login, the first question, the sentinels' answer, the map of the cluster.
#[test]
fn nothing_that_trickles_from_the_start_holds_a_call() {
    let fake = trickling();
    let at = format!("127.0.0.1:{}", fake.port());
    let urls = [
        format!("redis://{at}/"),
        format!("redis://:password@{at}/"),
        format!("redis://{at}/?protocol=resp3"),
        format!("redis+sentinel://{at},{at}/mymaster"),
        format!("redis+cluster://{at}/"),
    ];
    at_once(urls, |url| {
        let locks = Locks::connect_with(&url, settings()).unwrap();
        let limit = TIME_OUT + SLACK;
        let lock = locks.lock("a");
        let (tried, took) = ends(&url, move || lock.try_acquire());
        assert!(matches!(tried, Err(Error::Pool { .. })), "{url}: {tried:?}");
        assert!(took < limit, "{url}: {took:?}");
        let lock = locks.lock("a");
        let (waited, took) = ends(&url, move || lock.acquire(TIME_OUT));
        assert!(waited.is_err(), "{url}");
        assert!(took < 2 * TIME_OUT + SLACK, "{url}: {took:?}");
        let cancel = Cancel::new();
        let lock = locks.with(crate::options().cancel(&cancel)).lock("a");
        let canceller = thread::spawn(move || {
            thread::sleep(TIME_OUT);
            cancel.cancel();
        });
        let (called_off, took) = ends(&url, move || lock.acquire(LONG));
        assert!(called_off.is_err(), "{url}");
        assert!(took < 2 * TIME_OUT + SLACK, "{url}: {took:?}");
        canceller.join().unwrap();
        let (probed, _) = ends(&url, move || locks.probe());
        assert!(probed.is_err(), "{url}");
    });
}

/// A call on a lock, or on a lease of it.
#[derive(Clone, Copy)]
enum Call {
    OfLock(fn(&Lock) -> Result<()>),
    OfLease(fn(Lease) -> Result<()>),
}

use Call::{OfLease, OfLock};

const CALLS: [(&str, Call); 12] = [
    ("try_acquire", OfLock(|lock| lock.try_acquire().map(drop))),
    ("release", OfLease(Lease::release)),
    ("acquire", OfLock(|lock| lock.acquire(MS).map(drop))),
    ("run", OfLock(|lock| lock.run(MS, |_| ()).map(drop))),
    ("inspect", OfLock(|lock| lock.inspect().map(drop))),
    (
        "force_release",
        OfLock(|lock| lock.force_release().map(drop)),
    ),
    ("verify", OfLease(|lease| lease.verify())),
    ("renew", OfLease(|lease| lease.renew(LONG))),
    ("commit", OfLease(|lease| lease.commit(set_a))),
    (
        "commit_once",
        OfLease(|lease| lease.commit_once("a", LONG, set_a).map(drop)),
    ),
    (
        "commit_and_release",
        OfLease(|lease| lease.commit_and_release(set_a)),
    ),
    (
        "transaction",
        OfLease(|lease| {
            lease.transaction(&["a"], |conn, writes| {
                set_a(writes);
                Ok(conn.get("a")?)
            })
        }),
    ),
];

/// The answer to one call trickles, on a connection that has answered others.
#[test]
fn no_call_on_an_idle_connection_waits_for_a_trickling_answer() {
    let server = Server::start().unwrap();
    let of_each_kind = (1..6).flat_map(|kind| [(0, kind), (1, kind)]);
    let cases = (0..CALLS.len()).map(|call| (call, 0)).chain(of_each_kind);
    at_once(cases.enumerate(), |(at, (call, kind))| {
        let (name, call) = CALLS[call];
        let proxy = Proxy::in_front_of(&server).unwrap();
        let locks = Locks::connect_with(&proxy.url(), settings()).unwrap();
        let locks = locks.with(crate::options().prefix(&format!("{at}:")));
        let lock = every_kind(&locks)[kind].clone();
        let what = format!("{name} of {}", lock.name());
        let call: Box<dyn FnOnce() -> Result<()> + Send> = match call {
            OfLock(call) => {
                assert!(comes_true(|| lock.inspect().is_ok()));
                Box::new(move || call(&lock))
            }
            OfLease(call) => {
                let lease = lock.acquire(LONG).unwrap();
                Box::new(move || call(lease))
            }
        };
        thread::sleep(IDLE);
        proxy.at_command(1).trickle();
        // Some are sent again, on another connection.
        let (_, took) = ends(&what, call);
        assert!(took < 2 * TIME_OUT + SLACK, "{what}: {took:?}");
        assert!(proxy.happened(), "{what}");
    });
}

/// The watchdog sends the renewal again, on another connection.
#[test]
fn a_lease_outlives_a_trickling_answer_to_its_renewal() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let locks = Locks::connect_with(&proxy.url(), settings()).unwrap();
        let lock = locks.with(crate::options().lease(2_000 * MS)).lock("a");
        let lease = lock.acquire(LONG).unwrap();
        proxy.at_command(1).about("lock:a").trickle();
        assert!(proxy.happened());
        thread::sleep(2_500 * MS);
        assert!(lease.is_held());
    });
}

/// Each lock of a set is asked for just after the answer about the one before.
#[test]
fn no_set_on_a_far_server_waits_for_a_trickling_answer() {
    let server = Server::start().unwrap();
    let cases = (1..=3).flat_map(|at| [(at, false), (at, true)]);
    at_once(cases, |(at, is_cancelled)| {
        let proxy = Arc::new(Proxy::in_front_of(&server).unwrap());
        let locks = Locks::connect_with(&proxy.url(), settings()).unwrap();
        let cancel = Cancel::new();
        let prefix = format!("{at}{is_cancelled}:");
        let locks = locks.with(crate::options().prefix(&prefix).cancel(&cancel));
        assert!(comes_true(|| locks.lock("a").inspect().is_ok()));
        thread::sleep(IDLE);
        proxy.delay_each(20 * MS);
        let key = format!("{prefix}{at}");
        proxy.at_command(1).about(&key).trickle();
        let trickling = Arc::clone(&proxy);
        let canceller = thread::spawn(move || {
            assert!(trickling.happened(), "{key}");
            if is_cancelled {
                cancel.cancel();
            }
        });
        let what = format!("lock {at} of a set, {is_cancelled}");
        let (_, took) = ends(&what, move || {
            locks.all_of(["1", "2", "3"]).acquire(LONG).map(drop)
        });
        assert!(took < 3 * TIME_OUT + SLACK, "{what}: {took:?}");
        canceller.join().unwrap();
    });
}
