//! Many locks on one thread: the number of its round trips.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{Proxy, Server, hold::take_many};
use leasehold::{Keep, Pool, Renewal, RenewalState, Watchdog};

const LEASE: Duration = Duration::from_millis(3_600);
/// The time for ten thousand renewals.
const THIRD: Duration = Duration::from_millis(1_200);

/// Locks held for a minute, whose renewal starts at different times.
fn keep_all(server: &Server, watchdog: &Watchdog, locks: u32, within: Duration) -> Vec<Renewal> {
    let end = Instant::now() + Duration::from_mins(1);
    let holds = take_many(server, "many:", locks).unwrap();
    let started = Instant::now();
    (0..)
        .zip(&holds)
        .map(|(number, hold)| {
            let begin = started + within * number / locks;
            thread::sleep(begin.saturating_duration_since(Instant::now()));
            let keep = Keep::new(LEASE).held_until(end);
            watchdog.keep_with(hold, keep).unwrap()
        })
        .collect()
}

/// `cargo test --release --test watchdog ten_thousand -- --ignored`
#[test]
#[ignore = "five seconds of both cores: cargo test --test watchdog scale -- --ignored"]
fn ten_thousand_locks_take_a_hundred_round_trips_per_third_of_a_lease() {
    assert_round_trips_a_third(10_000, 100);
}

fn assert_round_trips_a_third(locks: u32, most: usize) {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let watchdog = Watchdog::new(&Pool::connect(&proxy.url()).unwrap()).unwrap();
    let renewals = keep_all(&server, &watchdog, locks, THIRD / 2);
    // The first one includes the connect.
    thread::sleep(THIRD);
    let (took, traffic) = proxy.traffic_of(|| {
        let started = Instant::now();
        thread::sleep((THIRD * 2).saturating_sub(Duration::from_millis(250)));
        started.elapsed()
    });
    // Two, unless the machine was late.
    let thirds = usize::try_from(took.as_millis().div_ceil(THIRD.as_millis())).unwrap();
    let (round_trips, renewed) = (traffic.round_trips, traffic.commands.len());
    assert!(round_trips <= thirds * most, "{round_trips} in {took:?}");
    assert!(renewed >= renewals.len() / 2, "only {renewed}");
    assert!(traffic.commands.iter().all(|command| command == "EVALSHA"));
    let held = |renewal: &Renewal| renewal.state() == RenewalState::Held;
    assert!(renewals.iter().all(held));
}
