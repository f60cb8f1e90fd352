//! The queue as a value.

use std::{collections::VecDeque, sync::LazyLock};

use proptest::prelude::*;

use super::*;
use crate::waiting::fairness::IN_A_ROW;

mod model;
mod threads;

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
        Just(Leaving::Shared),
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

fn moment(millis: u64) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(crate::time::now);
    *START + Duration::from_millis(millis)
}

/// A test's moments are this far apart, so that whatever is to happen soon has happened at the next.
const STEP: u64 = 1_000;

proptest! {
    #[test]
    fn the_head_is_who_came_first_and_every_new_head_is_woken(events in events()) {
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
                    queue.join(ticket, names, now);
                    let asks = queue.step(ticket, now) == Step::Ask;
                    prop_assert_eq!(asks, known.is_empty());
                    known.push_back((ticket, names));
                }
                Event::Leave(who, why) if !known.is_empty() => {
                    let place = who.index(known.len());
                    let (ticket, _) = known.remove(place).unwrap();
                    let woken = queue.leave(ticket, why, now, None).1.copied();
                    let expected = (place == 0).then(|| known.front().copied()).flatten();
                    prop_assert_eq!(woken, expected.map(|(_, name)| name));
                    if let Some((head, _)) = expected && why != Leaving::Exclusive {
                        prop_assert_eq!(queue.step(head, now), Step::Ask);
                    }
                    prop_assert_eq!(queue.leave(ticket, why, now, None), (None, None), "twice");
                }
                Event::Leave(..) => {}
                Event::Refused => if let Some((head, _)) = head_before {
                    queue.refused(head, now, None);
                },
                Event::HandedOver => {
                    let handed = known.pop_front();
                    let woken = queue.hand_over((), &here(), now, now);
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

/// What one had who stood in the queue, and has asked after every refusal.
fn here() -> PastHold {
    PastHold {
        since: moment(1_000_000_000),
        stood_in_queue: true,
    }
}

/// What one had who did not.
fn outside(since: Instant) -> PastHold {
    PastHold {
        since,
        stood_in_queue: false,
    }
}

/// A process of which somebody always waits, with the lock on a server that tells of each release.
struct Busy {
    queue: Queue<(), ()>,
    head: Ticket,
    now: u64,
}

impl Busy {
    fn new() -> Self {
        let mut queue = Queue::default();
        queue.join(0, (), moment(0));
        Self {
            queue,
            head: 0,
            now: 0,
        }
    }

    /// When the head asks, in milliseconds.
    fn asks_after(&mut self) -> u64 {
        let asks = |queue: &mut Queue<(), ()>, now: u64, after: u64| {
            queue.step(self.head, moment(now + after)) == Step::Ask
        };
        let after = (0..STEP).find(|after| asks(&mut self.queue, self.now, *after));
        after.unwrap()
    }

    /// The head has a turn and the next is refused meanwhile, as if a message came late.
    fn turn(&mut self) {
        self.now += STEP;
        let _ = self.queue.step(self.head, moment(self.now));
        self.queue.join(self.head + 1, (), moment(self.now));
        let end = Some(moment(self.now + 100 * STEP));
        (self.queue).leave(self.head, Leaving::Exclusive, moment(self.now), end);
        self.head += 1;
        self.queue.refused(self.head, moment(self.now), end);
    }

    /// Turns of this process until others have a fair chance.
    fn turns_before_a_fair_one(&mut self) -> u32 {
        for turns in 1..100 {
            self.turn();
            self.queue.released(moment(self.now), &here());
            if self.asks_after() > 0 {
                return turns;
            }
        }
        100
    }

    /// Fair chances until others are let go first.
    fn chances_until_others_go_first(&mut self) -> u32 {
        for chances in 1..1_000 {
            self.turns_before_a_fair_one();
            self.queue.changed(moment(self.now));
            if self.asks_after() > 0 {
                return chances;
            }
        }
        1_000
    }
}

#[test]
fn after_four_turns_in_a_row_others_have_a_fair_chance() {
    let mut busy = Busy::new();
    assert_eq!(busy.turns_before_a_fair_one(), IN_A_ROW);
    assert_eq!(busy.turns_before_a_fair_one(), IN_A_ROW);
}

/// The server sends its message and the answer to the release at one time.
#[test]
fn a_message_that_is_faster_than_the_answer_to_the_release_is_not_waited_for() {
    let mut busy = Busy::new();
    assert_eq!(busy.chances_until_others_go_first(), 1);
    for _ in 0..IN_A_ROW {
        busy.turn();
        busy.queue.changed(moment(busy.now));
        busy.queue.released(moment(busy.now), &here());
        assert_eq!(busy.asks_after(), 0);
    }
}

/// Such as one of a renewal.
#[test]
fn a_message_of_long_before_the_release_is_not_taken_for_one_of_it() {
    let mut busy = Busy::new();
    assert_eq!(busy.chances_until_others_go_first(), 1);
    for _ in 0..IN_A_ROW {
        busy.turn();
        busy.queue.changed(moment(busy.now));
        busy.now += 6;
        busy.queue.released(moment(busy.now), &here());
    }
    assert_eq!(busy.asks_after(), 5);
}

/// As where the server did not tell of the release before at all.
#[test]
fn a_message_long_after_the_release_before_is_of_the_next() {
    let mut busy = Busy::new();
    assert_eq!(busy.chances_until_others_go_first(), 1);
    for _ in 1..IN_A_ROW {
        busy.turn();
        busy.queue.released(moment(busy.now), &here());
    }
    busy.turn();
    busy.queue.changed(moment(busy.now));
    busy.queue.released(moment(busy.now), &here());
    assert_eq!(busy.asks_after(), 0);
}

#[test]
fn a_late_message_of_the_release_before_is_not_taken_for_the_next() {
    let mut busy = Busy::new();
    assert_eq!(busy.chances_until_others_go_first(), 1);
    for _ in 1..IN_A_ROW {
        busy.turn();
        busy.queue.released(moment(busy.now), &here());
    }
    busy.now -= STEP - 1;
    busy.turn();
    busy.queue.changed(moment(busy.now));
    busy.queue.released(moment(busy.now), &here());
    assert_eq!(busy.asks_after(), 5);
}

#[test]
fn a_turn_of_others_starts_the_count_again() {
    let mut busy = Busy::new();
    for _ in 0..2 {
        busy.turn();
        busy.queue.released(moment(busy.now), &here());
    }
    assert_eq!(busy.asks_after(), 0);
    busy.queue.refused(busy.head, moment(busy.now), None);
    assert_eq!(busy.turns_before_a_fair_one(), IN_A_ROW);
}

#[test]
fn others_are_let_go_first_less_and_less_often_while_none_is_seen() {
    let mut busy = Busy::new();
    let times: Vec<u32> = (0..9)
        .map(|_| busy.chances_until_others_go_first())
        .collect();
    assert_eq!(times, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    busy.queue.refused(busy.head, moment(busy.now), None);
    let times: Vec<u32> = (0..3)
        .map(|_| busy.chances_until_others_go_first())
        .collect();
    assert_eq!(times, [1, 2, 4]);
}

/// A head that has been refused once, which told it that somebody else has the lock.
fn waiting_head() -> (Queue<(), ()>, Ticket) {
    let mut queue = Queue::default();
    queue.join(0, (), moment(0));
    assert_eq!(queue.step(0, moment(0)), Step::Ask);
    queue.refused(0, moment(0), None);
    (queue, 0)
}

/// How the head asks, once it does.
fn asks(queue: &mut Queue<(), ()>, head: Ticket, now: u64) -> Manner {
    assert_eq!(queue.step(head, moment(now + STEP)), Step::Ask);
    queue.manner(moment(now))
}

/// The server tells of a release, and the head asks in vain. How it asked.
fn is_too_late(queue: &mut Queue<(), ()>, head: Ticket, now: u64) -> Manner {
    queue.changed(moment(now));
    let manner = asks(queue, head, now);
    queue.refused(head, moment(now), None);
    manner
}

/// The head asks though nothing was heard, and in vain. How it asked.
fn asks_unheard(queue: &mut Queue<(), ()>, head: Ticket, now: u64) -> Manner {
    queue.may_have_changed(moment(now));
    let manner = asks(queue, head, now);
    queue.refused(head, moment(now), None);
    manner
}

#[test]
fn a_head_looks_first_after_others_were_faster_and_until_its_next_turn() {
    let (mut queue, head) = waiting_head();
    let first = is_too_late(&mut queue, head, 1);
    assert!(!first.looks_first, "the first release may be for us");
    let unheard = asks_unheard(&mut queue, head, 2);
    assert!(!unheard.looks_first, "it has heard nothing");
    queue.changed(moment(3));
    assert!(asks(&mut queue, head, 3).looks_first);
    queue.join(1, (), moment(3));
    queue.leave(head, Leaving::Exclusive, moment(3), None);
    queue.released(moment(4), &here());
    let ours = asks(&mut queue, 1, 4);
    assert!(!ours.looks_first, "we know best of our own release");
}

#[test]
fn a_head_that_came_after_its_own_release_was_not_too_late() {
    for waits in [false, true] {
        let (mut queue, head) = waiting_head();
        let joins = |queue: &mut Queue<(), ()>, now| queue.join(1, (), moment(now));
        if waits {
            joins(&mut queue, 1);
        }
        queue.leave(head, Leaving::Exclusive, moment(1), None);
        queue.released(moment(2), &here());
        if !waits {
            joins(&mut queue, 3);
        }
        asks(&mut queue, 1, 3);
        queue.refused(1, moment(3), None);
        queue.changed(moment(4));
        let manner = asks(&mut queue, 1, 4);
        assert_eq!(manner.looks_first, waits, "others were faster: {waits}");
    }
}

#[test]
fn a_release_that_is_told_while_the_head_asks_is_news_to_its_next_attempt() {
    let (mut queue, head) = waiting_head();
    is_too_late(&mut queue, head, 1);
    queue.changed(moment(2));
    assert!(asks(&mut queue, head, 2).looks_first);
    queue.changed(moment(3));
    queue.refused(head, moment(3), None);
    assert!(asks(&mut queue, head, 4).looks_first);
}

#[test]
fn a_head_asks_in_brief_where_the_lock_goes_from_process_to_process() {
    let mut queue = Queue::default();
    queue.join(0, (), moment(0));
    assert!(!asks(&mut queue, 0, 0).is_brief, "nobody else was seen");
    queue.refused(0, moment(0), None);
    assert!(is_too_late(&mut queue, 0, 1).is_brief);
    let unheard = asks_unheard(&mut queue, 0, 2);
    assert!(!unheard.is_brief, "the next release may be far");
    queue.changed(moment(3));
    assert!(asks(&mut queue, 0, 3).is_brief);
    queue.join(1, (), moment(3));
    queue.leave(0, Leaving::Exclusive, moment(3), Some(moment(4)));
    let beside = asks(&mut queue, 1, 4);
    assert!(
        !beside.is_brief,
        "a thread of ours may keep the lock for long"
    );
    queue.released(moment(5), &here());
    assert!(asks(&mut queue, 1, 5).is_brief, "it is still our turn");
    queue.refused(1, moment(5), None);
    queue.changed(moment(5_000));
    let lately = asks(&mut queue, 1, 5_000);
    assert!(!lately.is_brief, "nobody else was seen lately");
}

#[test]
fn a_refusal_while_a_thread_of_ours_had_the_lock_outside_the_queue_is_no_sign_of_others() {
    // Or where the queue that knew of it has been forgotten.
    let forgotten = PastHold {
        stood_in_queue: true,
        ..outside(moment(0))
    };
    for hold in [forgotten, outside(moment(0))] {
        let (mut queue, head) = waiting_head();
        queue.released(moment(1), &hold);
        assert!(!asks(&mut queue, head, 1).is_brief, "it was our own");
    }
    let (mut queue, head) = waiting_head();
    queue.released(moment(1), &outside(moment(0)));
    asks(&mut queue, head, 1);
    queue.refused(head, moment(1), None);
    queue.join(1, (), moment(2));
    queue.leave(head, Leaving::Exclusive, moment(2), None);
    queue.released(moment(3), &here());
    assert!(asks(&mut queue, 1, 3).is_brief, "others were seen before");
    queue.refused(1, moment(3), None);
    queue.released(moment(4), &outside(moment(3)));
    assert!(
        asks(&mut queue, 1, 4).is_brief,
        "they have not been forgotten"
    );
}

/// The server's message of the release wakes the head, which has the lock before the answer to the release is read.
#[test]
fn the_same_if_the_head_has_the_lock_before_that_thread_knows_that_it_has_released_it() {
    let (mut queue, head) = waiting_head();
    queue.changed(moment(1));
    asks(&mut queue, head, 1);
    queue.join(1, (), moment(1));
    queue.leave(head, Leaving::Exclusive, moment(1), None);
    queue.released(moment(2), &outside(moment(0)));
    let asks_again = (2..100).find(|now| queue.step(1, moment(*now)) == Step::Ask);
    assert_eq!(asks_again, Some(52), "the head of before has the lock");
    queue.refused(1, moment(52), None);
    queue.released(moment(53), &here());
    assert!(!asks(&mut queue, 1, 53).is_brief, "it was our own");
}

#[test]
fn a_head_that_has_lost_the_lock_to_another_thread_of_ours_delays_nobody() {
    let (mut queue, head) = waiting_head();
    queue.changed(moment(1));
    asks(&mut queue, head, 1);
    queue.join(1, (), moment(1));
    queue.leave(head, Leaving::Exclusive, moment(1), None);
    queue.released(moment(4), &outside(moment(3)));
    assert_eq!(queue.step(1, moment(4)), Step::Ask);
}

#[test]
fn what_others_had_long_ago_does_not_hide_a_thread_of_ours() {
    let (mut queue, head) = waiting_head();
    queue.leave(head, Leaving::WithoutLock, moment(100), None);
    queue.join(1, (), moment(10_001));
    assert_eq!(queue.step(1, moment(10_001)), Step::Ask);
    queue.refused(1, moment(10_001), None);
    queue.released(moment(10_002), &outside(moment(10_000)));
    assert!(!asks(&mut queue, 1, 10_002).is_brief, "it was our own");
}

#[test]
fn one_that_has_handed_the_lock_over_was_the_reason_of_refusals_too() {
    let mut queue = Queue::default();
    queue.join(0, (), moment(1));
    assert_eq!(queue.step(0, moment(1)), Step::Ask);
    queue.refused(0, moment(1), None);
    queue.join(1, (), moment(1));
    queue.hand_over((), &outside(moment(0)), moment(2), moment(9_000));
    queue.leave(0, Leaving::WithoutLock, moment(2), None);
    queue.released(moment(3), &here());
    assert!(!asks(&mut queue, 1, 3).is_brief, "it was our own");
}

#[test]
fn turns_beside_a_head_that_has_lost_the_lock_are_counted() {
    let (mut queue, head) = waiting_head();
    queue.changed(moment(1));
    asks(&mut queue, head, 1);
    queue.leave(head, Leaving::Exclusive, moment(1), Some(moment(5)));
    let turns = (10..200).take_while(|now| {
        let goes_on = queue.asks_at_once(moment(*now));
        queue.released(moment(now + 1), &outside(moment(*now)));
        goes_on
    });
    assert!(turns.count() <= 8);
}

#[test]
fn one_that_asked_for_the_lock_after_a_refusal_was_not_its_reason() {
    let (mut queue, head) = waiting_head();
    queue.changed(moment(1));
    asks(&mut queue, head, 1);
    queue.leave(head, Leaving::Exclusive, moment(1), None);
    queue.released(moment(2), &here());
    queue.join(1, (), moment(4));
    queue.released(moment(4), &outside(moment(3)));
    assert!(
        asks(&mut queue, 1, 4).is_brief,
        "others had the lock at first"
    );
}

/// The refusal was sent before the release, and is read after it.
#[test]
fn a_refusal_that_is_read_when_a_thread_of_ours_has_released_the_lock_is_no_sign_of_others() {
    for stands in [true, false] {
        let mut queue = Queue::default();
        queue.join(0, (), moment(0));
        if stands {
            asks(&mut queue, 0, 0);
            queue.join(1, (), moment(0));
            queue.leave(0, Leaving::Exclusive, moment(0), None);
        }
        let head = Ticket::from(stands);
        queue.may_have_changed(moment(1));
        asks(&mut queue, head, 1);
        let hold = if stands { here() } else { outside(moment(0)) };
        queue.released(moment(2), &hold);
        queue.refused(head, moment(2), None);
        queue.changed(moment(2));
        assert!(!asks(&mut queue, head, 2).is_brief, "{stands}");
    }
}

#[test]
fn not_every_time_does_a_head_look_first() {
    let (mut queue, head) = waiting_head();
    let looks = (1..200).map(|now| is_too_late(&mut queue, head, now).looks_first);
    assert!(looks.filter(|looks| !looks).count() >= 3);
}

#[test]
fn a_process_stays_away_after_all_its_turns_while_others_were_seen_lately() {
    let mut queue: Queue<(), ()> = Queue::default();
    queue.join(0, (), moment(0));
    queue.refused(0, moment(0), None);
    let mut now = 0;
    for head in 0..40 {
        queue.join(head + 1, (), moment(now));
        queue.leave(head, Leaving::Exclusive, moment(now), None);
        now += 1;
        queue.released(moment(now), &here());
        let is_last = (head + 1) % u64::from(IN_A_ROW) == 0;
        let asks_now = queue.step(head + 1, moment(now)) == Step::Ask;
        assert_eq!(asks_now, !is_last, "after {} turns", head + 1);
        queue.changed(moment(now));
        let asks_when_told = queue.step(head + 1, moment(now)) == Step::Ask;
        assert!(!(is_last && asks_when_told), "after {} turns", head + 1);
        now += 20;
    }
}
