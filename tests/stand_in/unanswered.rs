//! An attempt without a reply, and what comes after it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use leasehold::{
    Error, Events, Leases, Options, RenewalState,
    event::{RenewalFailed, Renewed, Retrying},
    testing::{Action, Failure, StandIn},
};

use crate::common::{LONG, MS, hold::comes_true};

/// A network may deliver the attempt for 100 s.
#[test]
fn what_an_attempt_may_still_take_is_released_until_it_is_100_s_old() {
    for is_refused in [false, true] {
        let stand_in = StandIn::new();
        let [lock, other] = [(); 2].map(|()| stand_in.locks().unwrap().lock("a"));
        let held = is_refused.then(|| other.try_acquire().unwrap().unwrap());
        stand_in.fail_next(Action::Acquire, Failure::LostRequest);
        match (lock.acquire(100 * MS), held) {
            (Ok(lease), None) => lease.release().unwrap(),
            (Err(Error::Contended { .. }), Some(held)) => held.release().unwrap(),
            (acquired, _) => panic!("{is_refused}: {acquired:?}"),
        }
        let sent = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&sent);
        stand_in.fail(move |action, _| {
            count.fetch_add(u32::from(action == Action::Release), Ordering::SeqCst);
            None
        });
        let releases = |seconds| {
            stand_in.advance(Duration::from_secs(seconds));
            sent.swap(0, Ordering::SeqCst)
        };
        // The first one was sent at the end of the wait, or of the hold.
        releases(1);
        assert_eq!([98, 100, 1_000].map(releases), [1, 1, 0], "{is_refused}");
    }
}

/// The first release gets no reply, and its repeat takes a while.
#[test]
fn moving_the_clock_waits_for_a_release_that_is_repeated() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    let lease = lock.try_acquire().unwrap().unwrap();
    let (asked, answered) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&answered);
    stand_in.fail(move |action, _| {
        if action != Action::Release {
            return None;
        }
        if asked.fetch_add(1, Ordering::SeqCst) == 0 {
            return Some(Failure::LostRequest);
        }
        thread::sleep(250 * MS);
        count.fetch_add(1, Ordering::SeqCst);
        None
    });
    assert!(lease.release().is_err());
    stand_in.advance(MS);
    assert_eq!(answered.load(Ordering::SeqCst), 1);
    assert!(!lock.inspect().unwrap().is_held());
}

/// The attempt may have taken the lock, whatever the server tells another thread.
#[test]
fn a_reply_to_another_thread_does_not_settle_an_attempt() {
    for told_the_other in [None, Some(Failure::Refused("LOADING not yet"))] {
        let stand_in = StandIn::new();
        let [lock, other] = [(); 2].map(|()| stand_in.locks().unwrap().lock("a"));
        let _held = other.try_acquire().unwrap().unwrap();
        let (asks, is_asking) = mpsc::channel();
        let (attempts, waiting) = (AtomicU32::new(0), lock.clone());
        stand_in.fail(move |action, _| {
            if action != Action::Acquire {
                return None;
            } else if attempts.fetch_add(1, Ordering::SeqCst) > 0 {
                return told_the_other;
            }
            asks.send(()).unwrap();
            assert!(comes_true(|| waiting.inspect().unwrap().waiting_here() == 1));
            Some(Failure::LostRequest)
        });
        thread::scope(|scope| {
            let unanswered = scope.spawn(|| lock.acquire(1_000 * MS));
            is_asking.recv().unwrap();
            // It is the head of the queue before the other joins it.
            let ahead = scope.spawn(|| lock.acquire(LONG).map(drop));
            let unanswered = unanswered.join().unwrap();
            stand_in.fail(|_, _| None);
            assert!(other.force_release().unwrap().is_held());
            ahead.join().unwrap().unwrap();
            assert!(
                matches!(unanswered, Err(Error::Unknown { .. })),
                "{told_the_other:?}: {unanswered:?}"
            );
        });
    }
}

/// The server may still execute what got no reply, in the next thread's turn.
#[test]
fn locks_of_a_set_are_handed_over_unless_a_command_got_no_reply() {
    type Before = fn(&StandIn, &Leases);
    let cases: [(&str, Before); 3] = [
        ("", |_, leases| {
            leases.commit(|pipe| _ = pipe.set("a", 1)).unwrap();
        }),
        ("ab", |stand_in, leases| {
            stand_in.fail_next(Action::Commit, Failure::LostReply);
            leases.commit(|pipe| _ = pipe.set("a", 1)).unwrap_err();
        }),
        // The renewals after them were answered.
        ("ab", |stand_in, leases| {
            for _ in ["a", "b"] {
                stand_in.fail_next(Action::Renew, Failure::LostReply);
            }
            stand_in.advance(Duration::from_secs(4));
            let state = |name| leases.get(name).unwrap().state();
            assert_eq!(["a", "b"].map(state), [RenewalState::Held; 2]);
        }),
    ];
    for (number, (asked_for, before)) in cases.into_iter().enumerate() {
        let (stand_in, asked) = (StandIn::new(), Arc::new(Mutex::new(String::new())));
        let (ours, rows) = (Options::new().fencing(false), Arc::new(Rows::default()));
        let ours = ours.hand_over(100, Duration::MAX).events(rows.clone());
        let locks = stand_in.locks().unwrap().with(ours);
        let leases = locks.all_of(["a", "b"]).acquire(LONG).unwrap();
        before(&stand_in, &leases);
        let note = Arc::clone(&asked);
        stand_in.fail(move |action, lock| {
            note.lock()
                .unwrap()
                .push_str(if action == Action::Acquire { lock } else { "" });
            None
        });
        thread::scope(|scope| {
            let waiters = ["a", "b"].map(|name| {
                let lock = locks.lock(name);
                scope.spawn(move || lock.acquire(LONG).map(drop))
            });
            // Each was refused before it joined its queue, and as its head.
            let is_refused = |row: &&u32| **row == u32::MAX;
            let refused = || rows.0.lock().unwrap().iter().filter(is_refused).count();
            assert!(comes_true(|| refused() == 4));
            asked.lock().unwrap().clear();
            leases.release().unwrap();
            let waits = waiters.map(|waiter| waiter.join().unwrap());
            assert!(waits.iter().all(Result::is_ok), "{waits:?}");
        });
        let was_asked = |name: &&str| asked.lock().unwrap().contains(*name);
        let asked: String = ["a", "b"].into_iter().filter(was_asked).collect();
        assert_eq!(asked, asked_for, "{number}");
    }
}

#[derive(Default)]
struct Rows(Mutex<Vec<u32>>);

impl Events for Rows {
    fn retrying(&self, _: &Retrying<'_>) {
        self.0.lock().unwrap().push(u32::MAX);
    }
    fn renewed(&self, _: &Renewed<'_>) {
        self.0.lock().unwrap().push(0);
    }
    fn renewal_failed(&self, failed: &RenewalFailed<'_>) {
        self.0.lock().unwrap().push(failed.in_a_row());
    }
}

/// Renewals count in the series of failures, and a successful one ends it.
#[test]
fn failed_renewals_are_numbered_until_one_succeeds() {
    let (stand_in, rows) = (StandIn::new(), Arc::new(Rows::default()));
    let options = Options::new().lease(60 * LONG).events(rows.clone());
    let locks = stand_in.locks().unwrap().with(options);
    let _lease = locks.lock("a").acquire(LONG).unwrap();
    for _ in 0..2 {
        stand_in.disconnect();
        stand_in.advance(20 * LONG);
        let failed = || rows.0.lock().unwrap().ends_with(&[1, 2, 3]);
        assert!(comes_true(failed), "{:?}", rows.0);
        stand_in.reconnect();
        let renewed = || rows.0.lock().unwrap().last() == Some(&0);
        assert!(comes_true(renewed), "{:?}", rows.0);
    }
}
