//! Answers that take their time: the guard's clock has started before the question was sent.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Locks, Options};
use redis::{Commands, Connection};

use crate::common::{Proxy, Server, hold::comes_true};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);
const DELAY: Duration = Duration::from_millis(200);

struct Bench {
    proxy: Proxy,
    locks: Locks,
    /// Not by way of the proxy.
    others: Locks,
    conn: Connection,
    _server: Server,
}

fn bench(options: Options) -> Bench {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let locks = Locks::connect(&proxy.url()).unwrap().with(options);
    drop(locks.lock("warm").acquire(LONG).unwrap());
    Bench {
        proxy,
        locks,
        others: Locks::connect(&server.url()).unwrap(),
        conn: server.connection().unwrap(),
        _server: server,
    }
}

impl Bench {
    /// The server, asked first, has to let it last at least as long as the guard believes afterwards.
    #[track_caller]
    fn ends_first(&mut self, lease: &Lease) {
        assert!(self.proxy.happened());
        let left: u64 = self.conn.pttl(format!("lock:{}", lease.name())).unwrap();
        let (left, believed) = (Duration::from_millis(left + 1), lease.remaining());
        assert!(
            !believed.is_zero() && believed <= left,
            "{believed:?} of {left:?}"
        );
    }
}

#[test]
fn a_late_answer_does_not_make_a_lease_longer() {
    let mut bench = bench(Options::new().lease(1_000 * MS).renewal(false));
    bench.proxy.at("EVALSHA").delay(DELAY);
    let lease = bench.locks.lock("free").acquire(LONG).unwrap();
    bench.ends_first(&lease);

    bench.proxy.at("EVALSHA").delay(DELAY);
    lease.renew(3_000 * MS).unwrap();
    bench.ends_first(&lease);

    let held = bench.others.lock("held").acquire(LONG).unwrap();
    let lock = bench.locks.lock("held");
    let lease = thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire(LONG).unwrap());
        assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
        thread::sleep(50 * MS);
        bench.proxy.at("EVALSHA").delay(DELAY);
        held.release().unwrap();
        waiter.join().unwrap()
    });
    bench.ends_first(&lease);
}

#[test]
fn a_late_renewal_does_not_make_a_lease_longer() {
    let mut bench = bench(Options::new().lease(900 * MS));
    let lease = bench.locks.lock("a").acquire(LONG).unwrap();
    thread::sleep(100 * MS); // the watchdog has asked once
    bench.proxy.at("EVALSHA").delay(DELAY);
    assert!(comes_true(|| lease.remaining() < 650 * MS));
    assert!(comes_true(|| lease.remaining() > 650 * MS));
    bench.ends_first(&lease);
}

#[test]
fn an_answer_that_comes_after_the_lease_gives_none() {
    let bench = bench(Options::new().lease(DELAY / 2).renewal(false));
    let lock = bench.locks.lock("a");
    bench.proxy.at("EVALSHA").delay(DELAY);
    let late = lock.try_acquire();
    assert!(matches!(late, Err(Error::Unknown { .. })), "{late:?}");
    bench.proxy.at("EVALSHA").delay(DELAY);
    let asked = Instant::now();
    let lease = lock.acquire(LONG).unwrap();
    assert!(asked.elapsed() >= DELAY && lease.is_held());
    assert!(bench.proxy.happened());
}
