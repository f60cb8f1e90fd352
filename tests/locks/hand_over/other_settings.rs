//! A lock between two threads whose settings differ: it is handed over, or goes by the server, and
//! the next thread has it as its own settings say.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, FencingToken, Lease, Options, Owner};
use redis::Commands;

use super::{Bench, LONG, MS, bench, fence, handing};
use crate::common::{SLACK, hold::comes_true, wait::at_once};

/// The way in which the next thread gets the lock.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    HandedOver,
    FromServer,
    Refused,
}
use Way::{FromServer, HandedOver, Refused};

/// The name of the setting, those of the first and of the next thread, and the longest hold of the
/// next.
type Row = (&'static str, Options, Options, Way, Duration);

fn rows() -> [Row; 14] {
    let same = || handing(100).lease(LONG);
    let by = |job| same().owner(Owner::new(job).unwrap());
    let (half, more, much_more) = (LONG / 2, LONG * 3 / 2, LONG * 3);
    let one_replica = same().replicas(1, 50 * MS);
    let long_hold = same().max_hold(LONG);
    [
        ("none", same(), same(), HandedOver, LONG),
        ("longer lease", same(), same().lease(more), HandedOver, more),
        (
            "clock_skew",
            same(),
            same().clock_skew(LONG / 4),
            FromServer,
            LONG,
        ),
        (
            "much longer lease",
            same(),
            same().lease(much_more),
            FromServer,
            much_more,
        ),
        (
            "shorter lease",
            same(),
            same().lease(half),
            FromServer,
            half,
        ),
        (
            "shorter max_hold",
            same(),
            same().max_hold(half),
            FromServer,
            half,
        ),
        ("max_hold", same(), same().max_hold(LONG), HandedOver, LONG),
        (
            "longer max_hold",
            same().max_hold(half),
            long_hold,
            FromServer,
            LONG,
        ),
        ("renewal", same(), same().renewal(false), HandedOver, LONG),
        ("replicas", same(), one_replica, Refused, LONG),
        (
            "drop_timeout",
            same(),
            same().drop_timeout(200 * MS),
            HandedOver,
            LONG,
        ),
        ("owner", by("first"), by("second"), HandedOver, LONG),
        ("fencing", same(), same().fencing(false), FromServer, LONG),
        (
            "hand_over",
            same(),
            same().hand_over(0, LONG),
            FromServer,
            LONG,
        ),
    ]
}

/// At least half of this lease is left, and no more than all of it, here and on the server: a dead
/// holder does not block others for longer.
fn lasts(bench: &mut Bench, lease: &Lease, longest: Duration) {
    let left = lease.remaining();
    assert!(
        left > longest / 2 && left <= longest,
        "{longest:?} {left:?}"
    );
    let left: u64 = bench.conn.pttl("lock:a").unwrap();
    let most = longest.as_millis() + 1;
    assert!(u128::from(left) <= most, "it blocks others for {left} ms");
}

fn its_own_setting_counts(setting: &str, bench: &Bench, lease: Lease, begun: Instant) {
    match setting {
        // The first renewal is of its own length, and due.
        "longer lease" => assert!(comes_true(|| lease.remaining() > LONG)),
        "clock_skew" => {
            for renewed in [false, true] {
                if renewed {
                    lease.renew(LONG).unwrap();
                }
                let left = lease.remaining();
                assert!(left <= LONG * 3 / 4 && left > LONG / 2, "{left:?}");
            }
        }
        // It counts from the start of the next turn.
        "max_hold" => {
            lease.renew(LONG).unwrap();
            let longest = lease.remaining() + begun.elapsed();
            assert!(longest + 250 * MS > LONG, "{longest:?}");
        }
        "drop_timeout" => {
            bench.server.freeze().unwrap();
            let asked = Instant::now();
            drop(lease);
            let took = asked.elapsed();
            bench.server.thaw().unwrap();
            assert!(took >= 200 * MS && took < 200 * MS + SLACK, "{took:?}");
        }
        // A refusal names the present holder, and not the first: by default its thread.
        "owner" | "none" => {
            let refused = bench.lock.acquire(50 * MS).unwrap_err();
            let Error::Contended { holder, .. } = refused else {
                panic!("{refused:?}");
            };
            assert!(holder.as_ref().unwrap().ends_with("second"), "{holder:?}");
        }
        _ => {}
    }
}

#[test]
fn the_next_thread_has_the_lock_as_its_own_settings_say() {
    at_once(rows(), |(setting, first, next, way, longest)| {
        let mut bench = bench(first);
        let next = &bench.lock.clone().with(next);
        let first = bench.lock.acquire(LONG).unwrap();
        let handed = fence(&first) + 1;
        if setting == "max_hold" {
            thread::sleep(1_500 * MS);
        }
        // What too few replicas have is asked for until the end.
        let patience = if way == Refused { 2_000 * MS } else { LONG };
        let (lease, begun) = thread::scope(|scope| {
            let waiter = thread::Builder::new().name("second".into());
            let waiter = waiter
                .spawn_scoped(scope, move || next.acquire(patience))
                .unwrap();
            assert!(comes_true(|| next.inspect().unwrap().waiting_here() == 1));
            let begun = Instant::now();
            first.release().unwrap();
            (waiter.join().unwrap(), begun)
        });
        let fence = |lease: &Lease| lease.fencing_token().map(FencingToken::get);
        let got = match &lease {
            Ok(lease) if fence(lease) == Some(handed) => HandedOver,
            Ok(_) => FromServer,
            Err(Error::TooFewReplicas { .. }) => Refused,
            Err(error) => panic!("{setting}: {error}"),
        };
        assert_eq!(got, way, "{setting}");
        if let Ok(lease) = lease {
            lasts(&mut bench, &lease, longest);
            its_own_setting_counts(setting, &bench, lease, begun);
        }
    });
}
