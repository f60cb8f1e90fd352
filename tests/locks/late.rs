//! Late answers: the guard's clock starts before the request is sent.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Events, Lease, Locks, LostReason, Options, Pool, RenewalState, event::Renewed,
};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Proxy, SLACK, Server,
    hold::comes_true,
    wait::{at_once, calls, unless_halted},
};

const DELAY: Duration = Duration::from_millis(200);

/// Reports each renewal.
struct Renewals(mpsc::Sender<()>);

impl Events for Renewals {
    fn renewed(&self, _: &Renewed<'_>) {
        let _ = self.0.send(());
    }
}

struct Bench {
    proxy: Proxy,
    locks: Locks,
    /// Not through the proxy.
    others: Locks,
    conn: Connection,
    server: Server,
}

fn bench(options: Options) -> Bench {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let locks = crate::connect(&proxy.url()).with(options);
    let others = crate::connect(&server.url());
    // The server knows the scripts, and the pool has a connection. The watchdog has none; with a
    // lease of these locks, a slow machine would let it open one.
    drop(others.lock("warm").acquire(LONG).unwrap());
    assert!(!locks.lock("warm").inspect().unwrap().is_held());
    Bench {
        proxy,
        locks,
        others,
        conn: server.connection().unwrap(),
        server,
    }
}

impl Bench {
    /// Asserts that the server's time, read first, is at least what the guard still assumes
    /// afterwards.
    #[track_caller]
    fn ends_first(&mut self, lease: &Lease) {
        assert!(self.proxy.happened());
        let (left, believed) = loop {
            let before = lease.remaining();
            let left: u64 = self.conn.pttl(format!("lock:{}", lease.name())).unwrap();
            let believed = lease.remaining();
            // Otherwise it was renewed in between.
            if believed <= before {
                break (Duration::from_millis(left + 1), believed);
            }
        };
        assert!(
            !believed.is_zero() && believed <= left,
            "{believed:?} of {left:?}"
        );
    }
}

/// Runs concurrently: each mostly waits.
#[test]
fn late_answers() {
    let cases: [fn(); 7] = [
        a_renewal_that_is_answered_after_the_end_revives_nothing,
        a_late_answer_does_not_make_a_lease_longer,
        a_late_renewal_does_not_make_a_lease_longer,
        an_answer_that_comes_after_the_lease_gives_none,
        a_short_lease_survives_that_no_answer_comes_about_a_long_one,
        the_end_is_told_in_every_way_while_the_server_is_silent,
        why_it_was_not_renewed_is_told_after_the_end,
    ];
    at_once(cases, |case| case());
}

/// The server renewed the hold, but our clock ended it before the answer came, while the watchdog
/// was waiting.
fn a_renewal_that_is_answered_after_the_end_revives_nothing() {
    let bench = bench(crate::options().lease(240 * MS));
    let warm = bench.others.reentrant("warm").acquire(LONG).unwrap();
    warm.renew(LONG).unwrap();
    warm.release().unwrap();
    bench.proxy.at("EVAL").swallow(); // The watchdog's first batch.
    let lease = bench.locks.reentrant("a").acquire(LONG).unwrap();
    thread::sleep(60 * MS);
    bench.proxy.at("EVALSHA").delay(1_000 * MS);
    let renewed = lease.renew(LONG);
    assert!(bench.proxy.happened(), "{renewed:?}");
    assert!(
        matches!(
            &renewed,
            Err(Error::Lost {
                reason: Some(LostReason::Ended),
                ..
            })
        ),
        "{renewed:?}"
    );
    assert!(!lease.is_held());
    assert_eq!(lease.state(), RenewalState::Lost(LostReason::Ended));
    // Neither does the same thread's next hold.
    let again = bench.locks.reentrant("a").acquire(LONG).unwrap();
    assert!(matches!(lease.renew(LONG), Err(Error::Lost { .. })));
    assert!(matches!(lease.verify(), Err(Error::Lost { .. })));
    assert!(!lease.is_held() && again.is_held());
}

fn a_late_answer_does_not_make_a_lease_longer() {
    let mut bench = bench(crate::options().lease(1_000 * MS).renewal(false));
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

fn a_late_renewal_does_not_make_a_lease_longer() {
    let mut bench = bench(crate::options().lease(4_500 * MS));
    let lease = bench.locks.lock("a").acquire(LONG).unwrap();
    thread::sleep(100 * MS); // the watchdog has asked once
    bench.proxy.at("EVALSHA").delay(DELAY);
    assert!(comes_true(|| lease.remaining() < 3_250 * MS));
    assert!(comes_true(|| lease.remaining() > 3_250 * MS));
    bench.ends_first(&lease);
}

fn an_answer_that_comes_after_the_lease_gives_none() {
    let (lease, delay) = (700 * MS, 950 * MS);
    let mut bench = bench(crate::options().lease(lease).renewal(false));
    let lock = bench.locks.lock("a");
    let mut scripts =
        || calls(&mut bench.conn, "evalsha").unwrap() + calls(&mut bench.conn, "eval").unwrap();
    let before = scripts();
    bench.proxy.at("EVALSHA").delay(delay);
    let late = lock.try_acquire();
    assert!(matches!(late, Err(Error::Unknown { .. })), "{late:?}");
    // Released by the watchdog, which otherwise would hit the next delay.
    assert!(comes_true(|| scripts() >= before + 2));
    bench.proxy.at("EVALSHA").delay(delay);
    let asked = Instant::now();
    let lease = lock.acquire(LONG).unwrap();
    let took = asked.elapsed();
    assert!(took >= delay, "{took:?}");
    assert!(lease.is_held(), "{took:?} {lease:?}");
    assert!(bench.proxy.happened());
}

/// The watchdog waits for an answer about a long lease only while the short one can spare the time.
fn a_short_lease_survives_that_no_answer_comes_about_a_long_one() {
    let mut bench = bench(crate::options());
    // With this time-out alone, the wait would outlast the short lease.
    let pool = Pool::builder().io_timeout(LONG);
    let locks = crate::connect_with(&bench.proxy.url(), pool);
    let lease = |time: Duration| Options::new().lease(time);
    let long = locks.lock("long").with(lease(60_000 * MS));
    let long = long.acquire(LONG).unwrap();
    let (renewed, renewals) = mpsc::channel();
    let short = lease(3_900 * MS).events(Arc::new(Renewals(renewed)));
    let short = locks.lock("short").with(short).acquire(LONG).unwrap();
    // The watchdog has read both, and the connection has answered.
    for _ in 0..2 {
        renewals.recv_timeout(LONG).unwrap();
    }
    bench.proxy.at("EVALSHA").about("lock:long").swallow();
    let () = bench.conn.pexpire("lock:long", 60_000).unwrap();
    assert!(bench.proxy.happened());
    assert!(!short.lost().wait_for(4_800 * MS), "{short:?}");
    assert!(long.is_held());
}

fn the_end_is_told_in_every_way_while_the_server_is_silent() {
    let bench = bench(crate::options().lease(600 * MS));
    let acquired = Instant::now();
    let lease = bench.locks.lock("a").acquire(LONG).unwrap();
    let lost = lease.lost();
    // Another lease, because a registered callback has a thread that watches the clock and would
    // notify all.
    let calling = bench.locks.lock("b").acquire(LONG).unwrap();
    let (called, calls) = mpsc::channel();
    let call = move |reason| called.send((reason, Instant::now())).unwrap();
    calling.lost().notify(call).unwrap();
    thread::sleep(50 * MS);
    bench.server.freeze().unwrap();
    let frozen = Instant::now();
    let told = thread::scope(|scope| {
        let waiter = scope.spawn(|| lost.wait_for(LONG).then(Instant::now).unwrap());
        while lease.is_held() {
            thread::sleep(MS);
        }
        assert_eq!(lost.reason(), Some(LostReason::Ended));
        assert_eq!(lease.state(), RenewalState::Lost(LostReason::Ended));
        let error = lease.check().unwrap_err().to_string();
        assert!(error.ends_with("its lease ended before a renewal succeeded"));
        waiter.join().unwrap()
    });
    let (reason, called) = calls.recv_timeout(LONG).unwrap();
    assert_eq!(reason, LostReason::Ended);
    for moment in [told, called, Instant::now()] {
        let took = (moment - acquired, moment - frozen);
        assert!(took.0 > 500 * MS && took.1 < 600 * MS + SLACK, "{took:?}");
    }
    bench.server.thaw().unwrap();
}

/// The watchdog waits for an answer for longer than the lease.
fn why_it_was_not_renewed_is_told_after_the_end() {
    // To its first batch, and while its connection and the listener's are opened.
    for (asked, times, lease) in [("EVAL", 1, 200 * MS), ("INFO", 2, 300 * MS)] {
        let bench = bench(crate::options());
        let locks = crate::connect(&bench.proxy.url()).with(crate::options().lease(lease));
        drop(locks.lock("warm").inspect().unwrap());
        for n in 1..=times {
            bench.proxy.at(asked).nth(n).swallow();
        }
        let not_renewed = locks.lock("b").with(crate::options().renewal(false));
        let not_renewed = (asked == "INFO").then(|| not_renewed.acquire(LONG).unwrap());
        let lease = locks.lock("a").acquire(LONG).unwrap();
        let is_lost = lease.lost().wait_for(LONG);
        assert!(is_lost && bench.proxy.happened(), "{asked}");
        let is_told = comes_true(|| lease.failure().is_some());
        assert!(is_told, "{asked} {:?}", bench.proxy.take_bursts());
        // A lease without renewal has no failure.
        assert!(not_renewed.is_none_or(|lease| lease.failure().is_none()));
    }
}

#[test]
fn a_nonsensical_answer_is_not_a_lock() {
    unless_halted(|| {
        let bench = bench(crate::options());
        drop(bench.locks.read("warm-read").acquire(LONG).unwrap());
        bench.proxy.at("EVALSHA").about("lock:a").reply(":7\r\n");
        let acquired = bench.locks.read("a").try_acquire();
        assert!(
            matches!(acquired, Err(Error::Unknown { .. })),
            "{acquired:?}"
        );
        assert!(bench.proxy.happened());
    });
}
