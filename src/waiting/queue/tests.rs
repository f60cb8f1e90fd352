//! Tests of the queue as a value.

use std::{collections::VecDeque, sync::LazyLock};

use proptest::prelude::*;

use super::*;
use crate::waiting::turns::{IN_A_ROW, IN_A_ROW_ALONE};

#[cfg(feature = "models")]
mod model;

#[derive(Clone, Debug)]
enum Event {
    Join,
    Leave(prop::sample::Index, Leaving),
    Refused,
    Released,
    HandedOver,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let leaving = prop_oneof![
        Just(Leaving::Exclusive),
        Just(shared(1)),
        Just(shared(0)),
        Just(Leaving::WithoutLock)
    ];
    let event = prop_oneof![
        3 => Just(Event::Join),
        2 => (any::<prop::sample::Index>(), leaving).prop_map(|(who, why)| Event::Leave(who, why)),
        1 => Just(Event::Refused),
        2 => Just(Event::Released),
        2 => Just(Event::HandedOver),
    ];
    prop::collection::vec(event, 0..80)
}

/// A grant after which as many more may share the lock.
fn shared(more: u32) -> Leaving {
    let answered = moment(0);
    Leaving::Shared { more, answered }
}

fn moment(millis: u64) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(crate::time::now);
    *START + Duration::from_millis(millis)
}

/// A test's moments are this far apart, so that events that are due soon have happened at the next.
const STEP: u64 = 1_000;

proptest! {
    #[test]
    fn the_first_in_line_is_the_head_and_every_new_head_is_woken(events in events()) {
        let mut queue: Queue<u32, ()> = Queue::default();
        let mut known: VecDeque<(Ticket, u32)> = VecDeque::new();
        let mut names = 0;
        for (n, event) in (0..).zip(events) {
            let now = moment(n * STEP);
            let soon = moment((n + 1) * STEP);
            let head_before = known.front().copied();
            match event {
                Event::Join => {
                    names += 1;
                    let ticket = u64::from(names);
                    queue.join(ticket, names, 2, now);
                    let asks = queue.step(ticket, now) == Step::Ask;
                    prop_assert_eq!(asks, known.is_empty());
                    known.push_back((ticket, names));
                }
                Event::Leave(who, why) if !known.is_empty() => {
                    let place = who.index(known.len());
                    let (ticket, _) = known.remove(place).unwrap();
                    let woken = queue.leave(ticket, why, now, None).1;
                    let expected = (place == 0).then(|| known.front().copied()).flatten();
                    if place == 0 {
                        prop_assert_eq!(woken, Vec::from_iter(expected.map(|(_, name)| name)));
                    } else {
                        let head = known.front().map(|(_, name)| name);
                        prop_assert!(woken.iter().all(|name| Some(name) == head));
                    }
                    if let Some((head, _)) = expected && !matches!(why, Leaving::Exclusive | Leaving::Shared { more: 0, .. }) {
                        prop_assert_eq!(queue.step(head, now), Step::Ask);
                    }
                    prop_assert_eq!(queue.leave(ticket, why, now, None), (None, Vec::new()), "twice");
                }
                Event::Leave(..) => {}
                Event::Refused => if let Some((head, _)) = head_before {
                    queue.refused(head, now, None);
                },
                Event::HandedOver => {
                    let handed = known.pop_front();
                    let woken = queue.hand_over((), now, now);
                    let woken = woken.map(|(holder, head)| (holder, head.copied()));
                    let next = known.front().map(|(_, name)| *name);
                    prop_assert_eq!(woken, handed.map(|(_, name)| (name, next)));
                    if let Some((ticket, _)) = handed {
                        prop_assert_eq!(queue.step(ticket, now), Step::TakeHanded);
                        prop_assert!(!queue.is_over());
                        prop_assert_eq!(queue.leave(ticket, Leaving::WithoutLock, now, None).0, Some(()));
                        prop_assert_eq!(queue.leave(ticket, Leaving::WithoutLock, now, None).0, None, "twice");
                    }
                }
                Event::Released => {
                    let woken = queue.released(now, &here()).copied();
                    prop_assert_eq!(woken, head_before.map(|(_, name)| name));
                    if let Some((head, _)) = head_before {
                        prop_assert_eq!(queue.step(head, soon), Step::Ask);
                    }
                }
            }
            prop_assert_eq!(queue.head(), known.front().map(|(_, name)| name));
            prop_assert_eq!((queue.len(), queue.is_over()), (known.len(), known.is_empty()));
        }
    }
}

/// The hold of a waiter that stood in the queue and asked after every refusal.
fn here() -> PastHold {
    PastHold {
        since: moment(1_000_000_000),
        stood_in_queue: true,
    }
}

/// The hold of a waiter that did not.
fn outside(since: Instant) -> PastHold {
    PastHold {
        since,
        stood_in_queue: false,
    }
}

/// A process that always has a waiter, and whose turns take a millisecond each.
struct Busy {
    queue: Queue<(), ()>,
    head: Ticket,
    now: u64,
}

impl Busy {
    /// A process that has not seen another one.
    fn alone() -> Self {
        let mut queue = Queue::default();
        queue.join(0, (), 1, moment(0));
        Self {
            queue,
            head: 0,
            now: 0,
        }
    }

    /// Another process held the lock when the head asked.
    fn refused_at(now: u64) -> Self {
        let mut busy = Self {
            now,
            ..Self::alone()
        };
        busy.is_refused();
        busy
    }

    fn asks(&mut self) -> bool {
        self.queue.step(self.head, moment(self.now)) == Step::Ask
    }

    fn is_refused(&mut self) {
        self.queue.may_have_changed(moment(self.now));
        assert!(self.asks());
        self.queue.refused(self.head, moment(self.now), None);
    }

    /// The head is granted the lock, and another thread becomes the head.
    fn takes_the_lock(&mut self) {
        self.queue.join(self.head + 1, (), 1, moment(self.now));
        (self.queue).leave(self.head, Leaving::Exclusive, moment(self.now), None);
        self.head += 1;
    }

    fn turn(&mut self) {
        self.takes_the_lock();
        self.now += 1;
        self.queue.released(moment(self.now), &here());
    }

    /// Turns of this process until it stays away, and comes back a millisecond later.
    fn turns_until_away(&mut self) -> u32 {
        for turns in 1..100 {
            self.turn();
            if !self.asks() {
                self.queue.changed(moment(self.now), Duration::ZERO);
                assert!(!self.asks(), "a notification does not end the others' time");
                self.now += 1;
                assert!(self.asks(), "it comes back after a millisecond");
                return turns;
            }
        }
        100
    }
}

#[test]
fn a_process_yields_after_four_holds_if_others_were_seen_lately() {
    let mut busy = Busy::refused_at(0);
    for _ in 0..3 {
        assert_eq!(busy.turns_until_away(), IN_A_ROW);
    }
}

/// Without the delay the process that the server notifies first would get the lock each time.
#[test]
fn a_process_that_yielded_lately_follows_a_change_after_a_random_delay() {
    let spread = Duration::from_micros(200);
    let mut busy = Busy::refused_at(0);
    busy.queue.changed(moment(0), spread);
    assert!(busy.asks(), "it had none yet");
    busy.turns_until_away();
    busy.queue.refused(busy.head, moment(busy.now), None);
    busy.queue.changed(moment(busy.now), spread);
    assert!(!busy.asks());
    let later = moment(busy.now) + spread;
    assert_eq!(busy.queue.step(busy.head, later), Step::Ask);
}

/// Without the delay each of twenty processes asks for every turn, and nineteen are refused.
#[test]
fn a_process_that_is_refused_often_follows_a_change_later() {
    let spread = Duration::from_micros(200);
    for (refusals, factor) in [(3, 0), (4, 0), (5, 2), (7, 8), (10, 64), (100, 64)] {
        let mut busy = Busy::alone();
        for _ in 0..10 {
            (0..refusals).for_each(|_| busy.is_refused());
            busy.turn();
        }
        busy.is_refused();
        busy.queue.changed(moment(busy.now), spread);
        let asks_at = moment(busy.now) + spread * factor;
        let next = busy.queue.step(busy.head, moment(busy.now - 1));
        assert_eq!(next, Step::Sleep(Some(asks_at)), "{refusals} refusals");
        assert_eq!(busy.queue.step(busy.head, asks_at), Step::Ask);
    }
}

#[test]
fn a_process_that_saw_no_others_yields_less_often() {
    let mut busy = Busy::alone();
    for _ in 0..3 {
        assert_eq!(busy.turns_until_away(), IN_A_ROW_ALONE);
    }
}

#[test]
fn other_processes_are_forgotten_after_a_second() {
    let mut busy = Busy::refused_at(0);
    busy.now = 900;
    assert_eq!(busy.turns_until_away(), IN_A_ROW);
    busy.now = 1_000;
    assert_eq!(busy.turns_until_away(), IN_A_ROW_ALONE);
}

#[test]
fn a_hold_of_another_process_resets_the_count() {
    let mut busy = Busy::refused_at(0);
    for _ in 0..2 {
        busy.turn();
        assert!(busy.asks());
    }
    busy.is_refused();
    assert_eq!(busy.turns_until_away(), IN_A_ROW);
}

#[test]
fn a_refusal_while_our_thread_held_the_lock_is_no_sign_of_others() {
    // A waiter that stood in the queue.
    let mut busy = Busy::alone();
    busy.takes_the_lock();
    busy.is_refused();
    busy.queue.released(moment(1), &here());
    assert!(busy.turns_until_away() > IN_A_ROW);
    // A waiter that did not, or whose queue was forgotten.
    let forgotten = PastHold {
        stood_in_queue: true,
        ..outside(moment(0))
    };
    for hold in [forgotten, outside(moment(0))] {
        let mut busy = Busy::refused_at(1);
        busy.queue.released(moment(2), &hold);
        assert!(busy.turns_until_away() > IN_A_ROW);
    }
}

/// The permits that threads of this process have, and a head that waits for one.
fn permits(of: u32, ours: u32) -> Queue<(), ()> {
    let mut queue = Queue::default();
    for ticket in 0..=u64::from(ours) {
        queue.join(ticket, (), of, moment(0));
    }
    for ticket in 0..u64::from(ours) {
        assert_eq!(queue.step(ticket, moment(0)), Step::Ask);
        let leaving = if ticket + 1 < u64::from(ours) {
            shared(1)
        } else {
            shared(0)
        };
        queue.leave(ticket, leaving, moment(0), Some(moment(1_000)));
    }
    queue
}

/// The message is about a release of ours, which has woken the head already.
#[test]
fn a_message_does_not_wake_the_head_while_our_threads_hold_all_permits() {
    for (ours, asks_at) in [(3, 51), (2, 1)] {
        let mut queue = permits(3, ours);
        let head = u64::from(ours);
        queue.changed(moment(1), Duration::ZERO);
        let asks = |at: &u64| queue.step(head, moment(*at)) == Step::Ask;
        assert_eq!((1..100).find(asks), Some(asks_at), "{ours} of 3 are ours");
    }
    let mut queue = permits(3, 3);
    queue.released(moment(1), &here());
    queue.changed(moment(1), Duration::ZERO);
    assert_eq!(queue.step(3, moment(1)), Step::Ask);
    // The message comes again while the head asks for the permit, which it is granted.
    queue.changed(moment(1), Duration::ZERO);
    queue.join(4, (), 3, moment(1));
    let last = shared(0);
    queue.leave(3, last, moment(2), Some(moment(1_000)));
    assert_eq!(queue.step(4, moment(2)), Step::Sleep(Some(moment(52))));
}

#[test]
fn a_refusal_while_our_thread_holds_a_permit_is_no_sign_of_others() {
    for (releases, sees_others) in [(1, false), (2, false), (3, true)] {
        let mut queue = permits(3, 3);
        for _ in 0..releases {
            queue.released(moment(1), &here());
        }
        queue.refused(3, moment(2), None);
        assert_eq!(
            queue.turns.sees_others(moment(3)),
            sees_others,
            "{releases}"
        );
    }
}

#[test]
fn a_process_counts_its_holds_per_permit_before_it_yields() {
    let mut queue = permits(3, 3);
    let stays_away = (3..1_000).find(|ticket| {
        queue.released(moment(1), &here());
        if queue.step(*ticket, moment(1)) != Step::Ask {
            return true;
        }
        queue.join(ticket + 1, (), 3, moment(1));
        let last = shared(0);
        queue.leave(*ticket, last, moment(1), None);
        false
    });
    assert_eq!(stays_away, Some(u64::from(3 * IN_A_ROW_ALONE)));
}

#[test]
fn a_later_acquire_is_not_the_reason_of_a_refusal() {
    let mut busy = Busy::refused_at(1);
    busy.queue.released(moment(3), &outside(moment(2)));
    assert!(busy.turns_until_away() < IN_A_ROW);
}

/// The notification of the release wakes the head, which is granted the lock before the reply to
/// the release is read.
#[test]
fn a_head_waits_for_a_holder_that_preceded_a_known_release() {
    let mut busy = Busy::refused_at(0);
    busy.takes_the_lock();
    busy.queue.released(moment(1), &outside(moment(0)));
    let asks_again = (1..100).find(|now| busy.queue.step(1, moment(*now)) == Step::Ask);
    assert_eq!(asks_again, Some(51), "the previous head has the lock");
}

#[test]
fn a_head_that_lost_to_our_own_thread_delays_nobody() {
    let mut busy = Busy::refused_at(0);
    busy.takes_the_lock();
    busy.now = 4;
    busy.queue.released(moment(4), &outside(moment(3)));
    assert!(busy.asks());
}

#[test]
fn holds_beside_a_head_that_lost_are_counted() {
    let mut busy = Busy::refused_at(0);
    let end = Some(moment(5));
    (busy.queue).leave(0, Leaving::Exclusive, moment(0), end);
    let turns = (10..200).take_while(|now| {
        let goes_on = busy.queue.asks_at_once(moment(*now));
        busy.queue.released(moment(now + 1), &outside(moment(*now)));
        goes_on
    });
    assert!(turns.count() <= 8);
}

#[test]
fn the_next_waiter_retries_a_second_after_a_hand_over() {
    let mut queue: Queue<(), ()> = Queue::default();
    queue.join(0, (), 1, moment(0));
    queue.join(1, (), 1, moment(0));
    assert_eq!(queue.step(0, moment(0)), Step::Ask);
    queue.refused(0, moment(0), None);
    queue.hand_over((), moment(0), moment(60_000));
    assert_eq!(queue.step(1, moment(999)), Step::Sleep(Some(moment(1_000))));
    assert_eq!(queue.step(1, moment(1_000)), Step::Ask);
}

/// The head that is handed the lock has not acted on the wake-up.
#[test]
fn the_next_waiter_gets_the_wake_up_of_a_head_that_is_handed_the_lock() {
    let mut queue = queue_behind_a_head(1);
    queue.hand_over((), moment(1), moment(60_000));
    let soon = moment(1) + RECHECK_AFTER_GRANT;
    assert_eq!(queue.step(1, soon), Step::Ask);
}

/// A queue with a head that is asking, and others behind it.
fn queue_behind_a_head(others: Ticket) -> Queue<(), (), &'static str> {
    let mut queue = Queue::default();
    for ticket in 0..=others {
        queue.join(ticket, (), 2, moment(0));
    }
    assert_eq!(queue.step(0, moment(0)), Step::Ask);
    queue
}

#[test]
fn no_holder_is_assumed_before_an_answer() {
    let queue = queue_behind_a_head(1);
    assert_eq!(queue.last_answer(1), LastAnswer::Missing);
}

#[test]
fn the_whole_queue_shares_the_heads_refusal() {
    let mut refused = queue_behind_a_head(1);
    refused.refused(0, moment(1), Some(moment(1_000)));
    let mut granted = queue_behind_a_head(1);
    granted.leave(0, Leaving::Exclusive, moment(1), Some(moment(1_000)));
    let mut handed = queue_behind_a_head(1);
    handed.hand_over((), moment(1), moment(1_000));
    for queue in [&mut refused, &mut granted, &mut handed] {
        assert_eq!(queue.last_answer(1), LastAnswer::Busy);
        queue.join(2, (), 1, moment(2));
        assert_eq!(
            queue.last_answer(2),
            LastAnswer::Busy,
            "no one has asked since"
        );
    }
}

#[test]
fn a_newcomer_during_a_retry_does_not_share_the_earlier_answer() {
    let mut queue = queue_behind_a_head(1);
    queue.refused(0, moment(1), Some(moment(2)));
    assert_eq!(queue.step(0, moment(2)), Step::Ask);
    queue.join(2, (), 1, moment(3));
    assert_eq!(queue.last_answer(1), LastAnswer::Busy);
    assert_eq!(queue.last_answer(2), LastAnswer::Missing);
}

#[test]
fn the_whole_queue_shares_the_heads_last_failure_until_the_next_answer() {
    let mut queue = queue_behind_a_head(2);
    queue.unanswered(0, moment(10), Some("refused"));
    assert_eq!(queue.last_answer(1), LastAnswer::Failed("refused"));
    queue.leave(0, Leaving::WithoutLock, moment(10), None);
    assert_eq!(queue.last_answer(1), LastAnswer::Failed("refused"));
    assert_eq!(queue.step(1, moment(10)), Step::Ask);
    queue.refused(1, moment(11), None);
    assert_eq!(queue.last_answer(2), LastAnswer::Busy);
}

#[test]
fn a_failure_is_forgotten_with_its_waiters() {
    let mut queue = queue_behind_a_head(0);
    queue.unanswered(0, moment(10), Some("refused"));
    queue.leave(0, Leaving::WithoutLock, moment(10), None);
    queue.join(1, (), 1, moment(20));
    assert_eq!(queue.last_answer(1), LastAnswer::Missing);
}

#[test]
fn a_waiter_behind_the_last_permit_retries_at_the_next_expiry_or_change() {
    let end = moment(500);
    let queue = queue_behind_a_head(1);
    let take_last = |mut queue: Queue<_, _, _>| {
        queue.leave(0, shared(0), moment(1), Some(end));
        queue
    };
    let mut unchanged = take_last(queue.clone());
    assert_eq!(unchanged.step(1, moment(2)), Step::Sleep(Some(end)));
    assert_eq!(unchanged.step(1, end), Step::Ask);

    let mut changed_after = take_last(queue.clone());
    changed_after.changed(moment(2), Duration::ZERO);
    assert_eq!(changed_after.step(1, moment(2)), Step::Ask);

    let mut changed_before = queue;
    changed_before.changed(moment(1), Duration::ZERO);
    let mut changed_before = take_last(changed_before);
    assert_eq!(changed_before.step(1, moment(2)), Step::Ask);
}

/// Waiters that share the lock with as many holders as given here, in this order. The head asks.
fn sharing(most_holders: &[u32]) -> Queue<u64, ()> {
    let mut queue = Queue::default();
    for (ticket, most) in (0..).zip(most_holders) {
        queue.join(ticket, ticket, *most, moment(0));
    }
    assert_eq!(queue.step(0, moment(0)), Step::Ask);
    queue
}

/// The waiter is granted the lock by a reply of this millisecond. Returns those that ask next.
fn granted(queue: &mut Queue<u64, ()>, ticket: Ticket, more: u32, answered: u64) -> Vec<u64> {
    let answered = moment(answered);
    let leaving = Leaving::Shared { more, answered };
    let woken = queue.leave(ticket, leaving, answered, None).1;
    let asks = |who: &u64| queue.step(*who, answered) == Step::Ask;
    woken.into_iter().filter(asks).collect()
}

#[test]
fn as_many_ask_at_once_as_may_share_the_lock() {
    for (more, asks) in [(0, 0), (1, 1), (3, 3), (7, 5)] {
        let woken = granted(&mut sharing(&[9; 6]), 0, more, 1);
        assert_eq!(woken, (1..=asks).collect::<Vec<_>>());
    }
    let readers = vec![u32::MAX; 3 * AT_ONCE];
    let mut queue = sharing(&readers);
    let woken = granted(&mut queue, 0, u32::MAX, 1);
    assert_eq!(woken.len(), AT_ONCE);
    // Of those that ask, some are still out: the next asks for each that was granted the lock.
    let next = AT_ONCE as u64 + 1;
    assert_eq!(granted(&mut queue, 1, u32::MAX, 2), [next]);
}

#[test]
fn nobody_asks_behind_one_that_does_not_share() {
    // A reader, a writer, a reader; permits of another number.
    for others in [[u32::MAX, 1, u32::MAX], [3, 2, 3]] {
        let [same, other, behind] = others;
        let mut queue = sharing(&[same, same, other, behind]);
        assert_eq!(granted(&mut queue, 0, 2, 1), [1]);
        assert_eq!(granted(&mut queue, 1, 2, 2), [2], "the new head");
        queue.refused(2, moment(3), None);
        assert_eq!(queue.step(3, moment(5_000)), Step::Sleep(None));
    }
}

#[test]
fn a_thread_that_is_refused_behind_the_head_sleeps_until_it_is_the_head() {
    let mut queue = sharing(&[9; 4]);
    assert_eq!(granted(&mut queue, 0, 2, 1), [1, 2]);
    queue.refused(2, moment(2), Some(moment(3)));
    assert_eq!(queue.step(2, moment(5_000)), Step::Sleep(None));
    queue.refused(1, moment(2), Some(moment(3)));
    assert_eq!(queue.step(1, moment(3)), Step::Ask);
    let (_, woken) = queue.leave(1, Leaving::WithoutLock, moment(4), None);
    assert_eq!(woken, [2]);
    assert_eq!(queue.step(2, moment(4)), Step::Ask);
}

/// The thread's attempt may have acquired the lock.
#[test]
fn a_thread_without_an_answer_asks_again_behind_the_head_too() {
    let mut queue = sharing(&[9; 4]);
    assert_eq!(granted(&mut queue, 0, 2, 1), [1, 2]);
    queue.unanswered(2, moment(9), None);
    assert_eq!(queue.step(2, moment(8)), Step::Sleep(Some(moment(9))));
    assert_eq!(queue.step(2, moment(9)), Step::Ask);
}

/// Threads leave in another order than the server granted them the lock.
#[test]
fn an_earlier_grant_does_not_say_how_many_are_free() {
    let mut queue = sharing(&[4; 7]);
    assert_eq!(granted(&mut queue, 0, 3, 1), [1, 2, 3]);
    assert_eq!(granted(&mut queue, 3, 0, 4), [0; 0]);
    assert_eq!(granted(&mut queue, 2, 1, 3), [0; 0]);
    // The head leaves: the next asks, and no other.
    assert_eq!(granted(&mut queue, 1, 2, 2), [4]);
}

#[test]
fn the_place_of_one_that_leaves_is_taken_by_the_next_grant() {
    let mut queue = sharing(&[4; 6]);
    assert_eq!(granted(&mut queue, 0, 3, 1), [1, 2, 3]);
    let (_, woken) = queue.leave(2, Leaving::WithoutLock, moment(2), None);
    assert_eq!(woken, [0; 0], "the head has not been answered");
    assert_eq!(granted(&mut queue, 1, 2, 3), [4]);
}

/// The change is reported once, and wakes the head.
#[test]
fn a_thread_that_was_refused_before_others_became_free_asks_again() {
    let mut queue = sharing(&[4; 5]);
    assert_eq!(granted(&mut queue, 0, 3, 1), [1, 2, 3]);
    // Another process takes all, and frees two.
    queue.refused(1, moment(2), Some(moment(5_000)));
    queue.changed(moment(5), Duration::ZERO);
    assert_eq!(queue.step(1, moment(5)), Step::Ask);
    assert_eq!(granted(&mut queue, 1, 1, 6), [0; 0], "the next is out");
    // The two threads read their replies late.
    queue.refused(2, moment(3), Some(moment(5_000)));
    queue.refused(3, moment(4), Some(moment(5_000)));
    assert_eq!(queue.step(2, moment(7)), Step::Ask);
    assert_eq!(queue.step(3, moment(7)), Step::Sleep(None));
    queue.refused(2, moment(8), Some(moment(9)));
    assert_eq!(queue.step(2, moment(8)), Step::Sleep(Some(moment(9))));
}
