//! What only the stand-in can do: the clock is a test's own, and there is nothing to wait for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Events, LostReason, Options, event, testing::StandIn};

use crate::common::hold::comes_true;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Default)]
struct Renewals(AtomicU32);

impl Events for Renewals {
    fn renewed(&self, _: &event::Renewed<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_hour_passes_at_once_and_every_lease_is_renewed_in_it() {
    let stand_in = StandIn::new();
    let renewals = Arc::new(Renewals::default());
    let events = Arc::clone(&renewals) as Arc<dyn Events>;
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
    assert!(renewals.0.load(Ordering::SeqCst) >= 3 * 500);
    assert!(
        leases
            .map(|lease| lease.release().is_ok())
            .iter()
            .all(|ok| *ok)
    );
}

#[test]
fn a_leap_over_the_end_is_a_loss() {
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
fn the_holder_knows_of_a_loss_on_return() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let all = [
        locks.lock("m"),
        locks.reentrant("e"),
        locks.read("r"),
        locks.write("w"),
    ];
    for lock in all {
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
        assert_eq!(thief.as_str(), "somebody else");
        assert!(lock.try_acquire().unwrap().is_none());
        stand_in.advance(11 * SECOND);
        assert!(lock.try_acquire().unwrap().is_some());
    }
}

#[test]
fn a_wait_of_an_hour_is_over_when_an_hour_has_passed() {
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

#[test]
fn a_signal_that_is_waited_for_is_raised_when_the_clock_is_moved() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    let lease = lock.acquire(SECOND).unwrap();
    let signal = lease.lost();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| signal.wait_for(HOUR));
        stand_in.advance(11 * SECOND);
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn while_it_is_disconnected_leases_run_out() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    let lease = lock.acquire(SECOND).unwrap();
    stand_in.disconnect();
    stand_in.advance(4 * SECOND);
    assert!(lease.is_held(), "two thirds are left");
    assert!(matches!(lock.acquire(SECOND), Err(Error::Pool { .. })));
    assert!(lease.verify().is_err() && lease.is_held());
    stand_in.advance(7 * SECOND);
    assert!(!lease.is_held());
    stand_in.reconnect();
    assert!(lock.try_acquire().unwrap().is_some());
}

#[test]
fn a_lock_of_another_prefix_goes_by_its_key() {
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
fn two_stand_ins_know_nothing_of_each_other() {
    let [one, other] = [(); 2].map(|()| StandIn::new());
    let lease = one.locks().unwrap().lock("a").acquire(SECOND).unwrap();
    other.advance(HOUR);
    other.steal("a");
    assert!(lease.is_held());
    lease.release().unwrap();
}

#[test]
fn it_says_that_it_cannot_commit() {
    let server = crate::common::Server::start().unwrap();
    let lease = StandIn::new()
        .locks()
        .unwrap()
        .lock("a")
        .acquire(SECOND)
        .unwrap();
    let mut conn = server.connection().unwrap();
    let committed = lease.commit::<()>(&mut conn, |pipe| {
        pipe.set("b", 1);
    });
    let error = committed.unwrap_err();
    assert!(
        matches!(error, Error::Invalid { .. }) && error.to_string().contains("stand-in"),
        "{error}"
    );
    assert!(!redis::Commands::exists::<_, bool>(&mut conn, "b").unwrap());
}
