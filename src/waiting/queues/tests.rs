//! Wake-ups when the head leaves, with the queues that threads use. No thread is needed: a wait
//! that does not sleep returns at once.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::*;

const KEY: &str = "lock:a";
const SOON: Duration = Duration::from_millis(100);
/// Longer than a test waits.
const LATE: Duration = Duration::from_mins(1);

/// The lifetime of a lock that is handed over.
type Lease = Arc<()>;
type TestQueues = Queues<(), Lease>;

fn queues() -> TestQueues {
    Queues::new(Clock::REAL)
}

fn after(time: Duration) -> Instant {
    time::now() + time
}

/// True if it has to ask the server within a few seconds.
fn asks(place: &Place<'_, (), Lease>) -> bool {
    place.wait(None, Deadline::after(Duration::from_secs(5)))
}

fn sleeps(place: &Place<'_, (), Lease>) -> bool {
    !place.wait(None, Deadline::after(SOON))
}

/// Hands a lease to the head.
fn hand_over(queues: &TestQueues, end: Instant) -> Weak<()> {
    let lease = Arc::new(());
    let handed = Arc::downgrade(&lease);
    let taker = queues.next_taker(KEY).unwrap();
    assert!(queues.hand_over(KEY, &taker, lease, end).is_ok());
    handed
}

#[test]
fn a_wake_up_during_a_grant_is_for_the_next_waiter() {
    let wake_ups: [fn(&TestQueues); 2] =
        [|queues| queues.changed(KEY), Queues::all_may_have_changed];
    for wake_up in wake_ups {
        let queues = queues();
        let (first, second) = (queues.join(KEY, None, 1), queues.join(KEY, None, 1));
        assert!(asks(&first));
        wake_up(&queues);
        first.leave_granted(Leaving::Exclusive, after(LATE));
        assert!(asks(&second));
    }
}

#[test]
fn after_an_undisturbed_grant_the_next_waiter_sleeps() {
    let queues = queues();
    let (first, second) = (queues.join(KEY, None, 1), queues.join(KEY, None, 1));
    queues.changed(KEY);
    assert!(asks(&first));
    first.leave_granted(Leaving::Exclusive, after(LATE));
    assert!(sleeps(&second));
    queues.released(KEY, &hold(true));
    assert!(asks(&second));
}

#[test]
fn a_head_in_a_request_retries_when_all_are_woken() {
    let queues = queues();
    let first = queues.join(KEY, None, 1);
    assert!(asks(&first));
    queues.all_may_have_changed();
    first.refused(time::now(), Some(after(LATE)));
    assert!(asks(&first));
    first.refused(time::now(), Some(after(LATE)));
    assert!(sleeps(&first));
}

#[test]
fn the_next_waiter_retries_when_the_previous_lease_expires() {
    let queues = queues();
    let (first, second) = (queues.join(KEY, None, 1), queues.join(KEY, None, 1));
    assert!(asks(&first));
    let end = after(SOON);
    first.leave_granted(Leaving::Exclusive, end);
    assert!(asks(&second));
    assert!(time::now() >= end);
}

#[test]
fn the_next_waiter_retries_when_a_handed_over_lease_expires() {
    let queues = queues();
    let (first, second) = (queues.join(KEY, Some(()), 1), queues.join(KEY, Some(()), 1));
    assert!(asks(&first));
    first.refused(time::now(), None);
    let end = after(SOON);
    hand_over(&queues, end);
    assert!(first.leave_with_what_was_handed().is_some());
    assert!(asks(&second));
    assert!(time::now() >= end);
}

#[test]
fn an_unused_wake_up_of_a_handed_over_head_is_for_the_next_waiter() {
    let queues = queues();
    let (first, second) = (queues.join(KEY, Some(()), 1), queues.join(KEY, Some(()), 1));
    assert!(asks(&first));
    first.refused(time::now(), None);
    queues.changed(KEY);
    hand_over(&queues, after(LATE));
    assert!(asks(&second), "it came before the lock was handed over");
    second.refused(time::now(), None);
    assert!(first.leave_with_what_was_handed().is_some());
    assert!(sleeps(&second));
}

#[test]
fn the_next_waiter_repeats_an_unanswered_attempt_of_a_handed_over_head() {
    let queues = queues();
    let (first, second) = (queues.join(KEY, Some(()), 1), queues.join(KEY, Some(()), 1));
    assert!(asks(&first));
    hand_over(&queues, after(LATE));
    first.failed(None, after(SOON));
    assert!(
        !first.wait(None, Deadline::after(LATE)),
        "the lock was handed to it"
    );
    assert!(first.leave_with_what_was_handed().is_some());
    assert!(asks(&second));
}

#[test]
fn a_lease_made_for_a_waiter_that_left_comes_back() {
    let queues = queues();
    let (first, second) = (queues.join(KEY, Some(()), 1), queues.join(KEY, Some(()), 1));
    let taker = queues.next_taker(KEY).unwrap();
    assert!(first.leave_with_what_was_handed().is_none());
    let lease = Arc::new(());
    assert!(queues.hand_over(KEY, &taker, lease, after(LATE)).is_err());
    assert!(second.leave_with_what_was_handed().is_none() && queues.next_taker(KEY).is_none());
}

#[test]
fn a_lease_handed_to_a_waiter_with_a_server_grant_is_dropped() {
    let queues = queues();
    let first = queues.join(KEY, Some(()), 1);
    assert!(asks(&first));
    let handed = hand_over(&queues, after(LATE));
    assert!(handed.upgrade().is_some());
    first.leave_granted(Leaving::Exclusive, after(LATE));
    assert!(handed.upgrade().is_none(), "it would be renewed forever");
    assert!(queues.is_empty());
}

#[test]
fn a_lease_handed_to_a_waiter_that_gives_up_is_kept_for_it() {
    let queues = queues();
    let first = queues.join(KEY, Some(()), 1);
    assert!(asks(&first));
    first.refused(time::now(), None);
    let handed = hand_over(&queues, after(LATE));
    assert!(!first.wait(None, Deadline::after(Duration::ZERO)));
    let lease = first.leave_with_what_was_handed();
    assert!(lease.is_some() && handed.upgrade().is_some());
    assert!(queues.is_empty());
}

fn hold(stood_in_queue: bool) -> PastHold {
    let since = after(Duration::ZERO);
    PastHold {
        since,
        stood_in_queue,
    }
}

#[test]
fn a_thread_that_reacquires_at_once_yields_after_four_holds_if_others_were_seen() {
    for others in [false, true] {
        let queues = queues();
        let first = queues.join(KEY, None, 1);
        assert!(asks(&first));
        if others {
            first.refused(time::now(), None);
            queues.changed(KEY);
            assert!(asks(&first));
        }
        first.leave_granted(Leaving::Exclusive, after(LATE));
        for turn in 0..4 {
            assert!(queues.asks_after(KEY, LATE).is_some());
            queues.released(KEY, &hold(turn == 0));
        }
        assert_eq!(queues.asks_after(KEY, LATE).is_some(), !others);
        assert!(queues.asks_after(KEY, Duration::ZERO).is_some() && queues.is_empty());
        let again = queues.join(KEY, None, 1);
        assert!(asks(&again));
    }
}

/// Other processes are notified of a release later than a thread of the process that released the
/// lock.
#[test]
fn a_thread_that_reacquires_an_uncontended_lock_pauses_occasionally() {
    let queues = queues();
    let end = after(Duration::from_secs(5));
    let pauses = || {
        queues.released(KEY, &hold(false));
        queues.asks_after(KEY, LATE) > Some(Duration::ZERO)
    };
    while !pauses() {
        assert!(time::now() < end, "it blocks others");
    }
}

mod streaks {
    use super::super::*;

    const KEY: &str = "lock:a";
    const STEP: Duration = Duration::from_micros(100);

    /// Returns the moments at which a thread that comes back at once pauses.
    fn pauses(streaks: &mut Streaks, turns: u32) -> Vec<Duration> {
        let began = time::now();
        let (mut now, mut pauses) = (began, Vec::new());
        for _ in 0..turns {
            let pause = streaks.pause(KEY, now);
            if !pause.is_zero() {
                pauses.push(now - began);
            }
            now += pause + STEP;
            streaks.released(KEY, now);
            now += STEP / 10;
        }
        pauses
    }

    #[test]
    fn a_streak_pauses_after_10_ms_and_then_less_often_up_to_every_100_ms() {
        let pauses = pauses(&mut Streaks::new(), 4_000);
        let millis: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis[..5], [10, 31, 72, 153, 254]);
    }

    #[test]
    fn a_thread_that_leaves_gaps_never_pauses() {
        let mut streaks = Streaks::new();
        let mut now = time::now();
        for _ in 0..1_000 {
            assert_eq!(streaks.pause(KEY, now), Duration::ZERO);
            now += STEP;
            streaks.released(KEY, now);
            now += STREAK_GAP;
        }
    }
}
