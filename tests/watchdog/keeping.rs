//! The watchdog on a healthy server: it renews, notifies and stops.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    MS, Proxy, SLACK, Server,
    hold::{PATIENCE, comes_true, take},
    wait::at_once,
};
use leasehold::{
    Error, Keep, LostReason, Pool, RenewalState, Token, Watchdog, acquire_lock_with_timeout,
    recipes::Hold, release_lock,
};
use redis::{Commands, Connection};

const LONG: Duration = Duration::from_mins(1);

struct Bench {
    watchdog: Watchdog,
    pool: Pool,
    conn: Connection,
    server: Server,
}

fn bench() -> Bench {
    let server = Server::start().unwrap();
    let pool = Pool::builder()
        .max_size(1)
        .build(&redis::Client::open(server.url()).unwrap())
        .unwrap();
    Bench {
        watchdog: Watchdog::new(&pool).unwrap(),
        pool,
        conn: server.connection().unwrap(),
        server,
    }
}

/// Runs concurrently: each mostly waits.
#[test]
fn how_long_a_lock_is_renewed() {
    let cases: [fn(); 4] = [
        a_lock_outlives_its_lease_until_it_is_stopped,
        a_stopped_or_dropped_renewal_runs_out_and_tells_nothing,
        max_hold_ends_a_hold_that_would_go_on,
        a_known_end_saves_the_first_round_trip,
    ];
    at_once(cases, |case| case());
}

fn a_lock_outlives_its_lease_until_it_is_stopped() {
    let mut bench = bench();
    let lease = 1_800 * MS;
    // The pool's only connection stays in use: the watchdog does not need it.
    let mut pooled = bench.pool.get().unwrap();
    let token = acquire_lock_with_timeout(&mut pooled, "a", MS, lease)
        .unwrap()
        .unwrap();
    let renewal = bench
        .watchdog
        .keep(&Hold::mutex("a", &token).unwrap(), lease)
        .unwrap();

    let kept = Instant::now();
    while kept.elapsed() < lease * 2 + 100 * MS {
        assert!(renewal.is_held() && renewal.remaining() <= lease);
        assert_eq!(renewal.state(), RenewalState::Held);
        assert_eq!(
            acquire_lock_with_timeout(&mut pooled, "a", MS, lease).unwrap(),
            None
        );
        thread::sleep(10 * MS);
    }
    let left: i64 = bench.conn.pttl("lock:a").unwrap();
    assert!(left > 0 && left <= 1_800, "{left}");
    assert_eq!(renewal.stop(), RenewalState::Held);
    assert!(release_lock(&mut pooled, "a", &token).unwrap());
}

#[test]
fn a_lock_of_another_holder_is_not_renewed() {
    let mut bench = bench();
    let hold = take(&mut bench.conn, "a", LONG).unwrap();
    let stranger = Hold::mutex("a", &Token::random()).unwrap();
    for hold in [&stranger, &Hold::mutex("free", &Token::random()).unwrap()] {
        let refused = bench.watchdog.keep(hold, LONG).unwrap_err();
        assert!(matches!(refused, Error::Lost { .. }), "{refused}");
    }
    let past = Keep::new(LONG).held_until(Instant::now());
    assert!(matches!(
        bench.watchdog.keep_with(&hold, past),
        Err(Error::Lost { .. })
    ));
    assert_eq!(
        format!("{:?}", bench.watchdog),
        "Watchdog { leases: 0, .. }"
    );
}

#[test]
fn invalid_leases_are_refused() {
    let mut bench = bench();
    let hold = take(&mut bench.conn, "a", LONG).unwrap();
    let day = Duration::from_hours(24);
    for (argument, keep) in [
        ("lease", Keep::new(Duration::ZERO)),
        ("lease", Keep::new(day + MS)),
        ("lease", Keep::new(Duration::MAX)),
        ("max_hold", Keep::new(LONG).max_hold(Duration::ZERO)),
        (
            "held_until",
            Keep::new(LONG).held_until(Instant::now() + day + LONG),
        ),
    ] {
        let refused = bench.watchdog.keep_with(&hold, keep).unwrap_err();
        assert!(
            matches!(refused, Error::Invalid { argument: found, .. } if found == argument),
            "{refused}"
        );
    }
    let for_ever = Keep::new(day).max_hold(Duration::MAX);
    assert!(bench.watchdog.keep_with(&hold, for_ever).unwrap().is_held());
}

#[test]
fn a_renewal_never_shortens() {
    let mut bench = bench();
    let hold = take(&mut bench.conn, "a", LONG).unwrap();
    let renewal = bench.watchdog.keep(&hold, 300 * MS).unwrap();
    assert!(renewal.remaining() <= 300 * MS);
    assert!(bench.conn.pttl::<_, i64>("lock:a").unwrap() > 50_000);
}

/// Runs concurrently: each mostly waits.
#[test]
fn how_a_loss_is_reported() {
    let cases: [fn(); 2] = [
        the_newer_protocol_makes_no_difference,
        a_lock_taken_over_is_told_in_every_way,
    ];
    at_once(cases, |case| case());
}

fn the_newer_protocol_makes_no_difference() {
    let mut bench = bench();
    let url = format!("{}?protocol=resp3", bench.server.url());
    let watchdog = Watchdog::new(&Pool::connect(&url).unwrap()).unwrap();
    let hold = take(&mut bench.conn, "a", LONG).unwrap();
    let renewal = watchdog.keep(&hold, 3_000 * MS).unwrap();
    let () = bench.conn.del("lock:a").unwrap();
    assert!(renewal.lost().wait_for(PATIENCE));
    assert_eq!(renewal.lost().reason(), Some(LostReason::TakenAway));
}

fn a_lock_taken_over_is_told_in_every_way() {
    let mut bench = bench();
    let hold = take(&mut bench.conn, "a", LONG).unwrap();
    let (called, calls) = mpsc::channel();
    let renewal = bench.watchdog.keep(&hold, 3_000 * MS).unwrap();
    let signal = renewal.lost();
    signal
        .notify(move |reason| called.send(reason).unwrap())
        .unwrap();
    assert!(!signal.is_lost() && !signal.wait_for(Duration::ZERO));
    let waiting = thread::spawn(move || renewal.lost().wait_for(PATIENCE).then_some(renewal));

    let () = bench.conn.set("lock:a", "somebody else").unwrap();
    let renewal = waiting.join().unwrap().unwrap();
    assert_eq!(calls.recv_timeout(PATIENCE), Ok(LostReason::TakenAway));
    assert!(signal.is_lost() && !renewal.is_held() && renewal.remaining().is_zero());
    assert_eq!(signal.reason(), Some(LostReason::TakenAway));
    let (called, calls) = mpsc::channel();
    signal
        .notify(move |reason| called.send(reason).unwrap())
        .unwrap();
    assert_eq!(calls.recv_timeout(PATIENCE), Ok(LostReason::TakenAway));
    assert_eq!(renewal.stop(), RenewalState::Lost(LostReason::TakenAway));
    assert!(signal.is_lost());
    assert_eq!(
        bench.conn.get("lock:a"),
        Ok(Some("somebody else".to_owned()))
    );
}

fn a_stopped_or_dropped_renewal_runs_out_and_tells_nothing() {
    let mut bench = bench();
    let (called, calls) = mpsc::channel::<LostReason>();
    for stop in [true, false] {
        let hold = take(&mut bench.conn, "a", 900 * MS).unwrap();
        let renewal = bench.watchdog.keep(&hold, 900 * MS).unwrap();
        let (signal, called) = (renewal.lost(), called.clone());
        signal
            .notify(move |reason| called.send(reason).unwrap())
            .unwrap();
        let waiting = thread::spawn({
            let signal = signal.clone();
            move || signal.wait_for(LONG)
        });
        if stop {
            assert_eq!(renewal.stop(), RenewalState::Held);
        } else {
            drop(renewal);
        }
        assert!(!waiting.join().unwrap(), "a wait continues after the stop");
        assert!(comes_true(|| !bench
            .conn
            .exists::<_, bool>("lock:a")
            .unwrap()));
        assert!(!signal.is_lost());
    }
    drop(called);
    assert_eq!(
        calls.recv_timeout(PATIENCE),
        Err(mpsc::RecvTimeoutError::Disconnected)
    );
}

fn max_hold_ends_a_hold_that_would_go_on() {
    let mut bench = bench();
    let hold = take(&mut bench.conn, "a", 900 * MS).unwrap();
    let (called, calls) = mpsc::channel();
    let kept = Instant::now();
    let keep = Keep::new(3_000 * MS).max_hold(900 * MS);
    let renewal = bench.watchdog.keep_with(&hold, keep).unwrap();
    renewal
        .lost()
        .notify(move |reason| called.send((reason, Instant::now())).unwrap())
        .unwrap();
    while renewal.is_held() {
        assert!(kept.elapsed() < 900 * MS + SLACK);
        thread::sleep(MS);
    }
    assert!(
        kept.elapsed() >= 900 * MS,
        "lost after {:?}",
        kept.elapsed()
    );
    assert_eq!(renewal.state(), RenewalState::Lost(LostReason::MaxHold));
    let (reason, when) = calls.recv_timeout(PATIENCE).unwrap();
    assert!(reason == LostReason::MaxHold && when < kept + 900 * MS + SLACK);
    assert!(comes_true(|| !bench
        .conn
        .exists::<_, bool>("lock:a")
        .unwrap()));
    assert!(kept.elapsed() < 900 * MS + 250 * MS + SLACK);
}

fn a_known_end_saves_the_first_round_trip() {
    let mut bench = bench();
    let proxy = Proxy::in_front_of(&bench.server).unwrap();
    let watchdog = Watchdog::new(&Pool::connect(&proxy.url()).unwrap()).unwrap();
    let (before, lease) = (Instant::now(), 3_000 * MS);
    let hold = take(&mut bench.conn, "a", lease).unwrap();
    let (renewal, traffic) = proxy.traffic_of(|| {
        let keep = Keep::new(lease).held_until(before + lease);
        watchdog.keep_with(&hold, keep).unwrap()
    });
    assert!(
        renewal.is_held() && traffic.commands.is_empty(),
        "{traffic:?}"
    );
    // It is renewed before its end nevertheless.
    assert!(comes_true(|| before.elapsed() > lease));
    assert!(renewal.is_held() && bench.conn.exists::<_, bool>("lock:a").unwrap());
}
