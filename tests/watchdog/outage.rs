//! The watchdog and a server that is down, temporarily or permanently.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    MS, SLACK, Server,
    hold::{PATIENCE, comes_true, take},
    locks::within,
    tell,
    wait::{TOO_SLOW, at_once},
};
use leasehold::{Error, Keep, LostReason, Renewal, RenewalState, Watchdog, redis::Connection};
use redis::Commands;

const LEASE: Duration = Duration::from_secs(3);

/// Runs concurrently: each mostly waits.
#[test]
fn a_missing_server() {
    let cases: [fn(); 4] = [
        a_restarted_server_that_has_kept_the_locks_costs_nothing,
        a_restarted_server_that_has_lost_the_lock_tells_the_loss,
        what_cannot_be_asked_is_not_kept,
        a_stop_while_connecting_neither_waits_nor_is_overtaken,
    ];
    at_once(cases, |case| case());
}

/// On a busy machine a lease ends before its server is back.
fn has_not_ended(renewal: &Renewal) {
    let has_ended = renewal.state() == RenewalState::Lost(LostReason::Ended);
    assert!(!has_ended, "{TOO_SLOW}");
}

fn a_restarted_server_that_has_kept_the_locks_costs_nothing() {
    let saving = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = Server::start_with(&saving).unwrap();
    let watchdog = Watchdog::new(&within(1_000 * MS).connect(&server.url()).unwrap()).unwrap();
    let mut conn = server.connection().unwrap();
    // So far apart that the first batch after the kill contains only one of them.
    let renewals = [("a", 0), ("b", 300)].map(|(name, later)| {
        thread::sleep(later * MS);
        let lease = LEASE + later * MS * 5;
        let hold = take(&mut conn, name, lease).unwrap();
        watchdog.keep(&hold, lease).unwrap()
    });
    let all_are = |state| renewals.iter().all(|renewal| renewal.state() == state);
    server.kill().unwrap();
    assert!(
        comes_true(|| all_are(RenewalState::Unknown)),
        "{renewals:?}"
    );
    server.restart().unwrap();
    let are_held = comes_true(|| all_are(RenewalState::Held));
    renewals.iter().for_each(has_not_ended);
    assert!(are_held, "{renewals:?}");
    let left: u64 = server.connection().unwrap().pttl("lock:a").unwrap();
    assert!(left > 0);
}

fn a_restarted_server_that_has_lost_the_lock_tells_the_loss() {
    let mut server = Server::start().unwrap();
    let watchdog = Watchdog::new(&within(1_000 * MS).connect(&server.url()).unwrap()).unwrap();
    let hold = take(&mut server.connection().unwrap(), "a", LEASE).unwrap();
    let renewal = watchdog.keep(&hold, LEASE).unwrap();
    server.kill().unwrap();
    server.restart().unwrap();
    assert!(renewal.lost().wait_for(PATIENCE));
    assert_eq!(renewal.state(), RenewalState::Lost(LostReason::TakenAway));
    let mut conn = server.connection().unwrap();
    let hold = take(&mut conn, "a", LEASE).unwrap();
    assert!(watchdog.keep(&hold, LEASE).unwrap().is_held());
}

fn what_cannot_be_asked_is_not_kept() {
    let mut server = Server::start().unwrap();
    // A silent server fails at the time-outs; a server that answers gets all the time it needs.
    let [short, long] = [250 * MS, PATIENCE].map(|io_timeout| {
        Watchdog::new(&within(io_timeout).connect(&server.url()).unwrap()).unwrap()
    });
    let mut conn = server.connection().unwrap();
    let hold = take(&mut conn, "a", 60_000 * MS).unwrap();

    server.freeze().unwrap();
    let asked = Instant::now();
    let failure = short.keep(&hold, LEASE).unwrap_err();
    assert!(
        matches!(failure, Error::Unknown { .. } | Error::Pool { .. }),
        "{failure}"
    );
    assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
    server.thaw().unwrap();

    tell(&mut conn, "ACL SETUSER default -evalsha -eval");
    let failure = long.keep(&hold, LEASE).unwrap_err();
    assert!(matches!(failure, Error::Redis { .. }), "{failure}");

    server.kill().unwrap();
    let failure = short.keep_with(&hold, Keep::new(LEASE)).unwrap_err();
    assert!(matches!(failure, Error::Pool { .. }), "{failure}");
    for watchdog in [short, long] {
        assert_eq!(format!("{watchdog:?}"), "Watchdog { leases: 0, .. }");
    }
}

/// A renewal that waits for a new connection is not in flight, and is not sent after it was
/// stopped.
fn a_stop_while_connecting_neither_waits_nor_is_overtaken() {
    let server = Server::start().unwrap();
    let watchdog = Watchdog::new(&within(2_000 * MS).connect(&server.url()).unwrap()).unwrap();
    let mut conn = server.connection().unwrap();
    let keep = |conn: &mut Connection, name| {
        let hold = take(conn, name, 60_000 * MS).unwrap();
        watchdog.keep(&hold, LEASE).unwrap()
    };
    let (stopped, other) = (keep(&mut conn, "stopped"), keep(&mut conn, "other"));
    tell(&mut conn, "CLIENT KILL TYPE normal SKIPME yes");
    // A renewal would lengthen it.
    let () = conn.pexpire("lock:stopped", 2_900).unwrap();
    let end = Instant::now() + 2_900 * MS;
    server.freeze().unwrap();
    assert!(comes_true(|| other.state() == RenewalState::Unknown));
    // By now it is connecting, which the frozen server neither accepts nor refuses.
    thread::sleep(100 * MS);
    let asked = Instant::now();
    assert_eq!(stopped.stop(), RenewalState::Unknown);
    assert!(asked.elapsed() < 250 * MS + SLACK, "{:?}", asked.elapsed());
    server.thaw().unwrap();
    let is_held = comes_true(|| other.state() == RenewalState::Held);
    has_not_ended(&other);
    assert!(is_held, "{other:?}");
    let longest = end.saturating_duration_since(Instant::now()) + 50 * MS;
    let left: u64 = conn.pttl("lock:stopped").unwrap();
    assert!(Duration::from_millis(left) <= longest, "{left}");
}
