//! The queue as a value, and driven by threads in every order that a model checker finds.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

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

proptest! {
    #[test]
    fn the_head_is_who_came_first_and_every_new_head_is_told(events in events()) {
        let mut queue = Queue::default();
        let mut known: VecDeque<(Ticket, u32)> = VecDeque::new();
        let mut names = 0;
        for event in events {
            let head_before = known.front().copied();
            match event {
                Event::Join => {
                    names += 1;
                    let ticket = u64::from(names);
                    let is_head = queue.join(ticket, names);
                    prop_assert_eq!(is_head, known.is_empty());
                    known.push_back((ticket, names));
                }
                Event::Leave(who, why) if !known.is_empty() => {
                    let place = who.index(known.len());
                    let (ticket, _) = known.remove(place).unwrap();
                    let told = queue.leave(ticket, why);
                    let expected = (place == 0).then(|| known.front()).flatten();
                    prop_assert_eq!(told.map(|(name, _)| *name), expected.map(|(_, name)| *name));
                    if let Some((_, next)) = told {
                        prop_assert_eq!(next == Next::AtRelease, why == Leaving::Exclusive);
                    }
                    prop_assert!(queue.leave(ticket, why).is_none(), "twice");
                }
                Event::Leave(..) => {}
                Event::Refused => queue.refused(),
                Event::HandedOver => {
                    let handed = known.pop_front();
                    let told = queue.hand_over().copied();
                    prop_assert_eq!(told, known.front().map(|(_, name)| *name));
                    if let Some((ticket, _)) = handed {
                        prop_assert!(queue.leave(ticket, Leaving::WithoutLock).is_none(), "twice");
                    }
                }
                Event::Released => {
                    let told = queue.released().map(|(name, _)| *name);
                    prop_assert_eq!(told, head_before.map(|(_, name)| name));
                }
            }
            prop_assert_eq!(queue.head(), known.front().map(|(_, name)| name));
            prop_assert_eq!((queue.len(), queue.is_empty()), (known.len(), known.is_empty()));
        }
    }
}

/// Turns of this process until others have a fair chance.
fn turns_before_a_fair_one(queue: &mut Queue<u32>) -> u32 {
    for turns in 1..100 {
        let (ticket, _) = (queue.waiting.front().copied()).unwrap();
        queue.join(ticket + 1, 0);
        queue.leave(ticket, Leaving::Exclusive);
        // A message that comes late has the new head ask while one of us has the lock.
        queue.refused();
        if queue.released().is_some_and(|(_, next)| next == Next::Soon) {
            return turns;
        }
    }
    100
}

#[test]
fn after_four_turns_in_a_row_others_have_a_fair_chance() {
    let mut queue = Queue::default();
    queue.join(0, 0);
    assert_eq!(turns_before_a_fair_one(&mut queue), IN_A_ROW);
    assert_eq!(turns_before_a_fair_one(&mut queue), IN_A_ROW);
}

#[test]
fn a_turn_of_others_starts_the_count_again() {
    let mut queue = Queue::default();
    queue.join(0, 0);
    for _ in 0..2 {
        let (ticket, _) = (queue.waiting.front().copied()).unwrap();
        queue.join(ticket + 1, 0);
        queue.leave(ticket, Leaving::Exclusive);
        queue.released();
    }
    queue.refused();
    assert_eq!(turns_before_a_fair_one(&mut queue), IN_A_ROW);
}

/// Breaks of the line until others are let go first.
fn breaks_until_others_go_first(queue: &mut Queue<u32>) -> u32 {
    for breaks in 1..1_000 {
        turns_before_a_fair_one(queue);
        if queue
            .changed()
            .is_some_and(|(_, next)| next == Next::AfterOthers)
        {
            return breaks;
        }
    }
    1_000
}

#[test]
fn others_are_let_go_first_less_and_less_often_while_none_is_seen() {
    let mut queue = Queue::default();
    queue.join(0, 0);
    let times: Vec<u32> = (0..9)
        .map(|_| breaks_until_others_go_first(&mut queue))
        .collect();
    assert_eq!(times, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    queue.refused();
    let times: Vec<u32> = (0..3)
        .map(|_| breaks_until_others_go_first(&mut queue))
        .collect();
    assert_eq!(times, [1, 2, 4]);
}

/// A lock on a server that tells of each release, and threads that wait for it, and hand it on, as they do in production.
mod model {
    use std::time::Duration;

    use shuttle::{
        sync::{Arc, Condvar, Mutex},
        thread,
    };

    use super::*;
    use crate::waiting::HandOverBudget;

    #[derive(Default)]
    struct News {
        rung: bool,
        handed: Option<Turn>,
    }

    #[derive(Default)]
    struct Bell(Mutex<News>, Condvar);

    impl Bell {
        fn ring(&self) {
            self.0.lock().unwrap().rung = true;
            self.1.notify_one();
        }

        fn hand(&self, turn: Turn) {
            self.0.lock().unwrap().handed = Some(turn);
            self.1.notify_one();
        }

        /// A turn, or a reason to ask the server.
        fn wait(&self) -> Option<Turn> {
            let mut news = self.0.lock().unwrap();
            while !news.rung && news.handed.is_none() {
                news = self.1.wait(news).unwrap();
            }
            news.rung = false;
            news.handed.take()
        }
    }

    /// A hold as its guard knows it.
    struct Turn {
        number: u64,
        left: HandOverBudget,
    }

    #[derive(Default)]
    struct Server {
        held: bool,
        /// Whether the next release is told.
        armed: bool,
        /// Of whoever has it: how many were before.
        turn: u64,
        /// Since the server was asked.
        in_a_row: u32,
    }

    struct World {
        queue: Mutex<(Queue<Arc<Bell>>, Ticket)>,
        server: Mutex<Server>,
        served: Mutex<Vec<Ticket>>,
        turns: u32,
    }

    const LEASE: Duration = Duration::from_secs(10);

    impl World {
        fn new(turns: u32) -> Arc<Self> {
            Arc::new(Self {
                queue: Mutex::default(),
                server: Mutex::default(),
                served: Mutex::default(),
                turns,
            })
        }

        /// An attempt that is refused arms the message, in one step.
        fn attempt(&self) -> Option<Turn> {
            let mut server = self.server.lock().unwrap();
            server.armed = true;
            if server.held {
                return None;
            }
            server.held = true;
            server.turn += 1;
            server.in_a_row = 0;
            Some(Turn {
                number: server.turn,
                left: HandOverBudget::new(self.turns, Some(crate::time::now() + LEASE)),
            })
        }

        /// The server's message and the direct ring come in any order, by other threads.
        fn release(self: &Arc<Self>, turn: &Turn) {
            let told = {
                let mut server = self.server.lock().unwrap();
                assert_eq!(server.turn, turn.number, "released by an earlier turn");
                server.held = false;
                mem::take(&mut server.armed)
            };
            let message = told.then(|| {
                let world = Arc::clone(self);
                thread::spawn(move || {
                    if let Some(head) = world.queue.lock().unwrap().0.head() {
                        head.ring();
                    }
                })
            });
            // Whoever waits for the message is rung here: it may have come before.
            if let Some((bell, Next::Now | Next::Soon)) = self.queue.lock().unwrap().0.released() {
                bell.ring();
            }
            if let Some(message) = message {
                message.join().unwrap();
            }
        }

        fn hand_over(&self, turn: &Turn) -> bool {
            let now = crate::time::now();
            let mut queue = self.queue.lock().unwrap();
            let next = queue
                .0
                .head()
                .cloned()
                .zip(turn.left.spend(now, now + LEASE, LEASE));
            let Some((bell, left)) = next else {
                return false;
            };
            queue.0.hand_over();
            let mut server = self.server.lock().unwrap();
            assert_eq!(server.turn, turn.number, "handed over by an earlier turn");
            server.turn += 1;
            server.in_a_row += 1;
            assert!(server.in_a_row <= self.turns, "more turns than are allowed");
            let number = server.turn;
            bell.hand(Turn { number, left });
            true
        }

        /// A turn, if the lock has been handed over or the server says yes.
        fn wait(&self, bell: &Bell) -> (Turn, Leaving) {
            loop {
                if let Some(turn) = bell.wait() {
                    return (turn, Leaving::WithoutLock);
                }
                if let Some(turn) = self.attempt() {
                    return (turn, Leaving::Exclusive);
                }
                self.queue.lock().unwrap().0.refused();
            }
        }

        fn leave(&self, ticket: Ticket, why: Leaving) {
            if let Some((next, Next::Now)) = self.queue.lock().unwrap().0.leave(ticket, why) {
                next.ring();
            }
        }

        fn run(self: &Arc<Self>, gives_up: bool) {
            let bell = Arc::new(Bell::default());
            let ticket = {
                let mut queue = self.queue.lock().unwrap();
                let ticket = queue.1;
                queue.1 += 1;
                if queue.0.join(ticket, Arc::clone(&bell)) {
                    bell.ring();
                }
                ticket
            };
            let turn = if gives_up {
                self.leave(ticket, Leaving::WithoutLock);
                // Who was chosen before it left has the lock.
                bell.0.lock().unwrap().handed.take()
            } else {
                let (turn, why) = self.wait(&bell);
                self.leave(ticket, why);
                Some(turn)
            };
            let Some(turn) = turn else {
                return;
            };
            assert_eq!(self.server.lock().unwrap().turn, turn.number, "two have it");
            self.served.lock().unwrap().push(ticket);
            if !self.hand_over(&turn) {
                self.release(&turn);
            }
        }
    }

    /// A lost wake-up, or a lost turn, would be a deadlock, which the checker reports.
    fn everybody_is_served(givers_up: usize, turns: u32) {
        let world = World::new(turns);
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.run(number < givers_up))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let served = world.served.lock().unwrap();
        assert!(served.len() >= 4 - givers_up);
        assert!(served.is_sorted(), "out of turn: {served:?}");
        assert!(world.queue.lock().unwrap().0.is_empty());
        assert!(!world.server.lock().unwrap().held, "nobody has released it");
    }

    #[test]
    fn no_wake_up_and_no_turn_is_lost() {
        for turns in [0, 2, 8] {
            shuttle::check_random(move || everybody_is_served(0, turns), 200);
            shuttle::check_pct(move || everybody_is_served(1, turns), 200, 3);
        }
    }

    #[test]
    #[ignore = "half a minute: `cargo test --release --lib -- --ignored`"]
    fn no_wake_up_and_no_turn_is_lost_in_many_orders() {
        for turns in [0, 1, 8] {
            shuttle::check_random(move || everybody_is_served(0, turns), 40_000);
            shuttle::check_pct(move || everybody_is_served(2, turns), 40_000, 4);
        }
    }
}
