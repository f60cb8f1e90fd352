//! The watchdog when the server, the network or the script cache fails.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    MS, Proxy, Server,
    hold::{comes_true, take},
    locks::within,
    proxy::Point,
    tell,
    wait::{at_once, comes_true_within},
};
use leasehold::{Error, LostReason, Renewal, RenewalState, Watchdog, redis::Connection};
use redis::Commands;

/// Two thirds of it are longer than any pause of a busy machine that a test has to tolerate.
const LEASE: Duration = Duration::from_millis(2_100);

type Arm = fn(Point<'_>);

/// Locks that the watchdog renews, one lease each, and a connection around the proxy.
struct Bench {
    renewals: Vec<Renewal>,
    conn: Connection,
    proxy: Proxy,
    _watchdog: Watchdog,
    server: Server,
}

fn bench(locks: usize, io_timeout: Duration) -> Bench {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let watchdog = Watchdog::new(&within(io_timeout).connect(&proxy.url()).unwrap()).unwrap();
    let mut conn = server.connection().unwrap();
    // A short time-out may end before a busy machine answers.
    let tries = if io_timeout < 1_000 * MS { 5 } else { 1 };
    let renewals = (0..locks)
        .map(|number| {
            let hold = take(&mut conn, &format!("lock{number}"), LEASE).unwrap();
            let mut kept = (0..tries).map(|_| watchdog.keep(&hold, LEASE));
            kept.find_map(Result::ok).unwrap()
        })
        .collect();
    Bench {
        renewals,
        conn,
        proxy,
        _watchdog: watchdog,
        server,
    }
}

impl Bench {
    /// Waits for more than a lease: a lock that is not renewed does not survive it.
    #[track_caller]
    fn assert_all_held_for_a_lease(&mut self) {
        let started = Instant::now();
        while started.elapsed() < LEASE + 100 * MS {
            self.assert_none_believes_too_long();
            assert!(
                self.renewals.iter().all(Renewal::is_held),
                "{:?}",
                self.renewals
            );
            thread::sleep(5 * MS);
        }
        assert!(
            comes_true(|| self.all_are(RenewalState::Held)),
            "{:?}",
            self.renewals
        );
    }

    /// A lock that was missing on the server before is not reported as held afterwards.
    #[track_caller]
    fn assert_none_believes_too_long(&mut self) {
        for (number, renewal) in self.renewals.iter().enumerate() {
            let exists: bool = self.conn.exists(format!("lock:lock{number}")).unwrap();
            assert!(exists || !renewal.is_held(), "{renewal:?}");
        }
    }

    fn all_are(&self, state: RenewalState) -> bool {
        self.renewals.iter().all(|renewal| renewal.state() == state)
    }
}

/// Runs concurrently: each mostly waits.
#[test]
fn faults_that_it_survives() {
    let cases: [fn(); 5] = [
        a_killed_connection_costs_nothing,
        forgotten_scripts_are_taught_again,
        a_connection_cut_or_refused_is_a_doubt_and_no_loss,
        a_connection_that_falls_silent_is_given_up_in_time,
        a_server_that_freezes_for_less_than_the_lease_costs_nothing,
    ];
    at_once(cases, |case| case());
}

fn a_killed_connection_costs_nothing() {
    let mut bench = bench(3, 2_000 * MS);
    let killed: u32 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .query(&mut bench.conn)
        .unwrap();
    assert!(killed > 0);
    bench.assert_all_held_for_a_lease();
}

fn forgotten_scripts_are_taught_again() {
    let mut bench = bench(3, 2_000 * MS);
    let ((), traffic) = bench.proxy.traffic_of(|| {
        tell(&mut bench.conn, "SCRIPT FLUSH");
        let flushed = Instant::now();
        while flushed.elapsed() < LEASE {
            thread::sleep(5 * MS);
        }
    });
    assert!(bench.all_are(RenewalState::Held));
    let whole = traffic
        .commands
        .iter()
        .filter(|name| *name == "EVAL")
        .count();
    assert_eq!(whole, 1, "{:?}", traffic.commands);
    bench.assert_none_believes_too_long();
}

fn a_connection_cut_or_refused_is_a_doubt_and_no_loss() {
    let faults: [Arm; 4] = [
        |point| point.cut_before(),
        |point| point.cut_after(),
        |point| point.refuse("LOADING not yet"),
        |point| point.reply("+neither\r\n"),
    ];
    at_once((0..).zip(faults), |(turn, arm)| {
        let mut bench = bench(3, 2_000 * MS);
        let [is_broken, is_seen] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        // Delays the next command, which ends the doubt, until the test has seen it; a busy machine
        // would miss it.
        let (broken, seen) = (Arc::clone(&is_broken), Arc::clone(&is_seen));
        bench.proxy.at("EVALSHA").run_each_time(move || {
            let go_on = || !broken.load(SeqCst) || seen.load(SeqCst);
            comes_true_within(200 * MS, go_on);
        });
        let second = || bench.proxy.at("EVALSHA").nth(2);
        second().run(move || is_broken.store(true, SeqCst));
        arm(second());
        let doubtful = || {
            bench
                .renewals
                .iter()
                .any(|renewal| renewal.failure().is_some())
        };
        assert!(comes_true(doubtful) && bench.proxy.happened());
        is_seen.store(true, SeqCst);
        assert!(bench.renewals.iter().all(Renewal::is_held));
        assert!(
            comes_true(|| bench.all_are(RenewalState::Held)),
            "{turn} {:?}",
            bench.renewals
        );
        bench.assert_all_held_for_a_lease();
    });
}

/// The server never answers on the connection again, but it stays open: a lease shorter than the
/// time-out survives.
fn a_connection_that_falls_silent_is_given_up_in_time() {
    let mut bench = bench(2, 10_000 * MS);
    bench.proxy.at("EVALSHA").swallow();
    assert!(bench.proxy.happened());
    bench.assert_all_held_for_a_lease();
}

/// Runs concurrently: each mostly waits.
#[test]
fn faults_that_it_does_not_survive() {
    let cases: [fn(); 2] = [
        the_refusal_of_one_delays_no_other,
        a_late_answer_makes_the_lease_no_longer,
    ];
    at_once(cases, |case| case());
}

fn the_refusal_of_one_delays_no_other() {
    let mut bench = bench(2, 2_000 * MS);
    // From now on the watchdog has no access to the key of one of them.
    tell(
        &mut bench.conn,
        "ACL SETUSER default resetkeys ~lock:lock1 ~{lock:lock1}:lease",
    );
    assert!(comes_true(
        || bench.renewals[0].state() == RenewalState::Unknown
    ));
    let why = bench.renewals[0].failure().unwrap();
    assert!(matches!(why, Error::Redis { .. }), "{why}");
    assert!(bench.renewals[0].lost().wait_for(2 * LEASE));
    assert_eq!(
        bench.renewals[0].state(),
        RenewalState::Lost(LostReason::Ended)
    );
    assert_eq!(bench.renewals[1].state(), RenewalState::Held);
    assert!(bench.renewals[1].is_held());
}

fn a_server_that_freezes_for_less_than_the_lease_costs_nothing() {
    let mut bench = bench(3, 250 * MS);
    bench.server.freeze().unwrap();
    assert!(comes_true(|| bench.all_are(RenewalState::Unknown)));
    assert!(bench.renewals.iter().all(Renewal::is_held));
    assert!(matches!(
        bench.renewals[0].failure(),
        Some(Error::Unknown { .. } | Error::Redis { .. })
    ));
    bench.server.thaw().unwrap();
    assert!(
        comes_true(|| bench.all_are(RenewalState::Held)),
        "{:?}",
        bench.renewals
    );
    bench.assert_all_held_for_a_lease();
}

/// A late answer counts from before its question; otherwise the holder would assume a later end.
fn a_late_answer_makes_the_lease_no_longer() {
    let mut bench = bench(1, 2_000 * MS);
    bench.proxy.at("EVALSHA").delay(450 * MS);
    assert!(bench.proxy.happened());
    let mut before = bench.renewals[0].remaining();
    assert!(comes_true(|| {
        let now = bench.renewals[0].remaining();
        mem::replace(&mut before, now) < now
    }));
    // All later renewals fail.
    let nowhere = Proxy::in_front_of(&bench.server).unwrap();
    drop(mem::replace(&mut bench.proxy, nowhere));
    assert!(comes_true(|| {
        bench.assert_none_believes_too_long();
        !bench.conn.exists::<_, bool>("lock:lock0").unwrap()
    }));
    bench.assert_none_believes_too_long();
}
