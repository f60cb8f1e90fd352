//! Features of the stand-in alone: the test controls its clock, and never waits for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Events, LostReason, Once, Options, event,
    testing::{Action, Failure, StandIn},
};

use crate::common::hold::{comes_true, every_kind};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_hours(1);

#[derive(Default)]
struct Told {
    renewed: AtomicU32,
    failed: AtomicU32,
    lost: AtomicU32,
}

impl Events for Told {
    fn renewed(&self, _: &event::Renewed<'_>) {
        self.renewed.fetch_add(1, Ordering::SeqCst);
    }

    fn renewal_failed(&self, _: &event::RenewalFailed<'_>) {
        self.failed.fetch_add(1, Ordering::SeqCst);
    }

    fn lost(&self, _: &event::Lost<'_>) {
        self.lost.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn advancing_an_hour_is_immediate_and_renews_every_lease() {
    let stand_in = StandIn::new();
    let heard = Arc::new(Told::default());
    let events = Arc::clone(&heard) as Arc<dyn Events>;
    let locks = stand_in
        .locks()
        .unwrap()
        .with(Options::new().events(events));
    let leases = ["a", "b", "c"].map(|name| locks.lock(name).acquire(SECOND).unwrap());
    let began = Instant::now();
    for _ in 0..1_200 {
        stand_in.advance(3 * SECOND);
        assert!(leases.iter().all(leasehold::Lease::is_held));
    }
    assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
    // At least every second `advance` finds a renewal due; real time adds one per third of a
    // second.
    let renewed = u128::from(heard.renewed.load(Ordering::SeqCst));
    let at_most = 3 * 600 + 3 * (began.elapsed().as_millis() / 333);
    assert!((3 * 600..=at_most).contains(&renewed), "{renewed}");
    assert!(
        leases
            .map(|lease| lease.release().is_ok())
            .iter()
            .all(|ok| *ok)
    );
}

#[test]
fn jumping_past_the_expiry_is_a_loss() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let lease = locks.lock("a").acquire(SECOND).unwrap();
    stand_in.advance(11 * SECOND);
    assert!(!lease.is_held());
    assert_eq!(lease.lost().reason(), Some(LostReason::Ended));
    assert!(!locks.lock("a").inspect().unwrap().is_held());
    let next = locks.lock("a").try_acquire().unwrap().unwrap();
    assert!(next.fencing_token() > lease.fencing_token());
    assert!(matches!(lease.release(), Err(Error::Lost { .. })));
    assert!(next.is_held());
}

#[test]
fn the_holder_knows_of_a_loss_when_the_call_returns() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    for lock in every_kind(&locks) {
        for stolen in [false, true] {
            let lease = lock.acquire(SECOND).unwrap();
            if stolen {
                stand_in.steal(lock.name());
            } else {
                assert!(stand_in.expire(lock.name()));
            }
            assert_eq!(lease.lost().reason(), Some(LostReason::TakenAway));
            assert!(matches!(lease.release(), Err(Error::Lost { .. })));
        }
        let found = lock.inspect().unwrap();
        let thief = found.holders()[0].owner().unwrap();
        assert_eq!(thief.as_str(), "someone else");
        assert!(lock.try_acquire().unwrap().is_none());
        stand_in.advance(11 * SECOND);
        assert!(lock.try_acquire().unwrap().is_some());
    }
}

/// Repeated, because it is a race.
#[test]
fn all_events_are_delivered_when_the_call_returns() {
    for _ in 0..20 {
        let stand_in = StandIn::new();
        let heard = Arc::new(Told::default());
        let options = Options::new().events(Arc::clone(&heard) as Arc<dyn Events>);
        let lock = stand_in.locks().unwrap().with(options).lock("a");
        let count = |number: &AtomicU32| number.load(Ordering::SeqCst);

        let lease = lock.acquire(SECOND).unwrap();
        stand_in.advance(4 * SECOND);
        assert_eq!(count(&heard.renewed), 1);
        // Soon after the watchdog read it.
        stand_in.steal("a");
        assert!(!lease.is_held());
        assert_eq!(count(&heard.lost), 1);

        stand_in.expire("a");
        let lease = lock.acquire(SECOND).unwrap();
        stand_in.disconnect();
        stand_in.advance(4 * SECOND);
        assert!(lease.is_held() && count(&heard.failed) > 0);
        stand_in.advance(6 * SECOND);
        assert_eq!(count(&heard.lost), 2);
    }
}

#[test]
fn hooks_may_use_the_stand_in() {
    let takes = || {
        let stand_in = StandIn::new();
        let lease = stand_in.locks().unwrap().lock("a").acquire(SECOND).unwrap();
        let other = stand_in.clone();
        lease
            .lost()
            .notify(move |_| assert!(other.expire("a")))
            .unwrap();
        let asked = Instant::now();
        stand_in.steal("a");
        let took = asked.elapsed();
        assert!(!stand_in.expire("a"));
        took
    };
    // `takes` must not wait for a thread that waits for it: that would take a second each time. A
    // busy machine is late now and then.
    assert!((0..10).any(|_| takes() < SECOND / 2));
}

#[test]
fn a_lock_is_free_when_its_lease_expires() {
    let stand_in = StandIn::new();
    let lease = 1_234 * SECOND / 1_000;
    let options = Options::new().lease(lease).renewal(false);
    let locks = stand_in.locks().unwrap().with(options);
    for lock in every_kind(&locks) {
        for _ in 0..50 {
            let before = lock.acquire(SECOND).unwrap();
            stand_in.advance(lease);
            assert!(!before.is_held());
            assert!(!lock.inspect().unwrap().is_held());
            stand_in.steal(lock.name());
            stand_in.advance(10 * SECOND);
            assert!(!lock.inspect().unwrap().is_held());
        }
    }
}

#[test]
fn the_clock_never_goes_back_or_too_far() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    let lease = lock.acquire(SECOND).unwrap();
    stand_in.advance(Duration::MAX);
    assert!(!lease.is_held());
    for _ in 0..2 {
        let next = lock.acquire(SECOND).unwrap();
        assert!(next.fencing_token() > lease.fencing_token());
        stand_in.advance(Duration::MAX);
        assert!(next.remaining() <= 10 * SECOND);
    }
}

#[test]
fn a_wait_of_an_hour_ends_after_an_hour_of_the_clock() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let lock = locks.lock("a");
    let held = stand_in.locks().unwrap().lock("a").acquire(SECOND).unwrap();
    thread::scope(|scope| {
        let waiting = [(); 3].map(|()| scope.spawn(|| lock.acquire(HOUR)));
        assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 3));
        for _ in 0..1_300 {
            stand_in.advance(3 * SECOND);
        }
        for waiting in waiting {
            let came = waiting.join().unwrap();
            assert!(matches!(came, Err(Error::Contended { .. })));
        }
    });
    held.release().unwrap();
}

/// Repeated, because it is a race.
#[test]
fn a_new_waiter_notices_that_time_passes() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    for round in 0..100 {
        let name = round.to_string();
        let lock = if round % 2 == 0 {
            locks.lock(&name)
        } else {
            locks.write(&name)
        };
        let held = lock
            .clone()
            .with(Options::new().renewal(false))
            .acquire(SECOND);
        let asked = Instant::now();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock.acquire(60 * SECOND).unwrap().release());
            while lock.inspect().unwrap().waiting_here() == 0 {
                thread::yield_now();
            }
            stand_in.advance(10 * SECOND);
            waiting.join().unwrap().unwrap();
        });
        assert!(asked.elapsed() < 5 * SECOND, "{:?}", asked.elapsed());
        drop(held);
    }
}

#[test]
fn leases_expire_while_disconnected() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    let lease = lock.acquire(SECOND).unwrap();
    stand_in.disconnect();
    stand_in.advance(4 * SECOND);
    assert!(lease.is_held(), "two thirds remain");
    assert!(matches!(lock.acquire(SECOND), Err(Error::Pool { .. })));
    assert!(lease.verify().is_err() && lease.is_held());
    stand_in.advance(7 * SECOND);
    assert!(!lease.is_held());
    stand_in.reconnect();
    assert!(lock.try_acquire().unwrap().is_some());
}

/// Repeated, because it is a race.
#[test]
fn changes_during_a_disconnection_are_known_afterwards() {
    for round in 0..20 {
        let stand_in = StandIn::new();
        let locks = stand_in.locks().unwrap();
        let [stolen, kept, given_back] =
            ["stolen", "kept", "given back"].map(|name| locks.lock(name).acquire(SECOND).unwrap());
        stand_in.disconnect();
        stand_in.steal("stolen");
        if round % 2 == 0 {
            // Renewals fail, and the pauses grow.
            stand_in.advance(4 * SECOND);
            stand_in.advance(SECOND);
        }
        assert!(given_back.release().is_err() && stolen.is_held());
        stand_in.reconnect();
        assert!(!stolen.is_held());
        assert!(!locks.lock("given back").inspect().unwrap().is_held());
        stand_in.advance(6 * SECOND);
        assert!(kept.is_held());
    }
}

#[test]
fn a_lock_with_another_prefix_is_addressed_by_its_key() {
    let stand_in = StandIn::new();
    let locks = stand_in
        .locks()
        .unwrap()
        .with(Options::new().prefix("job:"));
    let lease = locks.lock("a").acquire(SECOND).unwrap();
    assert!(!stand_in.expire("a"));
    assert!(lease.is_held());
    assert!(stand_in.expire("job:a"));
    assert!(!lease.is_held());
}

#[test]
fn a_never_held_lock_with_another_prefix_can_be_stolen() {
    let stand_in = StandIn::new();
    for name in ["job:a", "a"] {
        stand_in.steal(name);
    }
    let locks = stand_in.locks().unwrap();
    let jobs = locks.with(Options::new().prefix("job:"));
    assert!(jobs.lock("a").try_acquire().unwrap().is_none());
    assert!(locks.lock("a").try_acquire().unwrap().is_none());
    assert!(stand_in.expire("job:a") && stand_in.expire("a"));
    assert!(jobs.lock("a").try_acquire().unwrap().is_some());
    assert!(locks.lock("a").try_acquire().unwrap().is_some());
}

#[test]
fn a_name_takes_precedence_over_a_key() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let [short, long] = ["a", "lock:a"].map(|name| locks.lock(name).acquire(SECOND).unwrap());
    assert!(stand_in.expire("lock:a"));
    assert!(short.is_held() && !long.is_held());
}

#[test]
fn two_stand_ins_are_independent() {
    let [one, other] = [(); 2].map(|()| StandIn::new());
    let lease = one.locks().unwrap().lock("a").acquire(SECOND).unwrap();
    other.advance(HOUR);
    other.steal("a");
    assert!(lease.is_held());
    lease.release().unwrap();
}

#[test]
fn a_lost_answer_is_unknown_for_every_call_and_is_repaired() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let is_unknown = |error: Error| matches!(error, Error::Unknown { .. });
    for lock in every_kind(&locks) {
        // `try_acquire` took the lock: the watchdog releases it. A waiting acquire asks again, and
        // recognises its own token.
        stand_in.fail_next(Action::Acquire, Failure::LostReply);
        assert!(is_unknown(lock.try_acquire().unwrap_err()), "{lock:?}");
        assert!(
            comes_true(|| !lock.inspect().unwrap().is_held()),
            "{lock:?}"
        );
        stand_in.fail_next(Action::Acquire, Failure::LostReply);
        let lease = lock.acquire(SECOND).unwrap();
        // The watchdog may ask too, so every reply is lost.
        stand_in.fail(|action, _| (action == Action::Renew).then_some(Failure::LostReply));
        assert!(is_unknown(lease.verify().unwrap_err()) && lease.is_held());
        assert!(is_unknown(lease.renew(HOUR).unwrap_err()));
        stand_in.fail(|_, _| None);
        let left = lock.inspect().unwrap().holders()[0].remaining();
        assert!(left > Some(HOUR / 2), "executed: {left:?}");
        stand_in.fail_next(Action::Release, Failure::LostReply);
        assert!(is_unknown(lease.release().unwrap_err()));
        assert!(
            comes_true(|| !lock.inspect().unwrap().is_held()),
            "{lock:?}"
        );
    }
    // A mark is sent again until its outcome is known.
    let lock = locks.lock("once");
    let done = lock.run_once(HOUR, SECOND, |_| {
        stand_in.fail_next(Action::Release, Failure::LostReply);
        Ok::<_, Error>(())
    });
    assert_eq!(done.unwrap().done().unwrap(), Some(()));
    assert!(lock.last_run().unwrap().is_some());
    let lock = locks.lock("refused once");
    let done = lock.run_once(HOUR, SECOND, |_| {
        // The watchdog may still repeat the release of the other lock.
        stand_in.fail(|action, name| {
            let is_it = action == Action::Release && name == "refused once";
            is_it.then_some(Failure::Refused("NOPERM not you"))
        });
        Ok::<_, Error>(())
    });
    assert!(matches!(done, Ok(Once::Ran(ran)) if ran.released.is_err()));
}

#[test]
fn a_stolen_lock_lasts_as_long_as_requested() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    stand_in.steal_for("a", HOUR);
    stand_in.advance(HOUR / 2);
    assert!(lock.try_acquire().unwrap().is_none());
    stand_in.advance(HOUR / 2);
    lock.try_acquire().unwrap().unwrap().release().unwrap();
}
