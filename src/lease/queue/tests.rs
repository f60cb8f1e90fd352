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
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let leaving = prop_oneof![
        Just(Leaving::Alone),
        Just(Leaving::Among),
        Just(Leaving::InVain)
    ];
    let event = prop_oneof![
        3 => Just(Event::Join),
        2 => (any::<prop::sample::Index>(), leaving).prop_map(|(who, why)| Event::Leave(who, why)),
        1 => Just(Event::Refused),
        2 => Just(Event::Released),
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
                    let (ticket, is_head) = queue.join(names);
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
                        prop_assert_eq!(next == Next::AtRelease, why == Leaving::Alone);
                    }
                    prop_assert!(queue.leave(ticket, why).is_none(), "twice");
                }
                Event::Leave(..) => {}
                Event::Refused => queue.refused(),
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
        queue.join(0);
        queue.leave(ticket, Leaving::Alone);
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
    queue.join(0);
    assert_eq!(turns_before_a_fair_one(&mut queue), IN_A_ROW);
    assert_eq!(turns_before_a_fair_one(&mut queue), IN_A_ROW);
}

#[test]
fn a_turn_of_others_starts_the_count_again() {
    let mut queue = Queue::default();
    queue.join(0);
    for _ in 0..2 {
        let (ticket, _) = (queue.waiting.front().copied()).unwrap();
        queue.join(0);
        queue.leave(ticket, Leaving::Alone);
        queue.released();
    }
    queue.refused();
    assert_eq!(turns_before_a_fair_one(&mut queue), IN_A_ROW);
}

/// A lock on a server that tells of each release, and threads that wait for it as they do in production.
mod model {
    use shuttle::{
        sync::{Arc, Condvar, Mutex},
        thread,
    };

    use super::*;

    #[derive(Default)]
    struct Bell(Mutex<bool>, Condvar);

    impl Bell {
        fn ring(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }

        fn wait(&self) {
            let mut rung = self.0.lock().unwrap();
            while !*rung {
                rung = self.1.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    #[derive(Default)]
    struct World {
        queue: Mutex<Queue<Arc<Bell>>>,
        /// On the server: whether it is held, and whether the next release is told.
        lock: Mutex<(bool, bool)>,
        turns: Mutex<Vec<Ticket>>,
    }

    impl World {
        /// An attempt that is refused arms the message, in one step.
        fn attempt(&self) -> bool {
            let mut lock = self.lock.lock().unwrap();
            if lock.0 {
                lock.1 = true;
                return false;
            }
            *lock = (true, true);
            true
        }

        /// The server's message and the direct ring come in any order, by other threads.
        fn release(self: &Arc<Self>) {
            let told = {
                let mut lock = self.lock.lock().unwrap();
                lock.0 = false;
                std::mem::take(&mut lock.1)
            };
            let message = told.then(|| {
                let world = Arc::clone(self);
                thread::spawn(move || {
                    if let Some(head) = world.queue.lock().unwrap().head() {
                        head.ring();
                    }
                })
            });
            if let Some((bell, Next::Now)) = self.queue.lock().unwrap().released() {
                bell.ring();
            }
            if let Some(message) = message {
                message.join().unwrap();
            }
        }

        fn turn(self: &Arc<Self>, gives_up: bool) {
            let bell = Arc::new(Bell::default());
            let (ticket, is_head) = self.queue.lock().unwrap().join(Arc::clone(&bell));
            if is_head {
                bell.ring();
            }
            let why = if gives_up {
                Leaving::InVain
            } else {
                loop {
                    bell.wait();
                    if self.attempt() {
                        break Leaving::Alone;
                    }
                    self.queue.lock().unwrap().refused();
                }
            };
            if why == Leaving::Alone {
                self.turns.lock().unwrap().push(ticket);
            }
            if let Some((next, Next::Now)) = self.queue.lock().unwrap().leave(ticket, why) {
                next.ring();
            }
            if why == Leaving::Alone {
                self.release();
            }
        }
    }

    /// A lost wake-up would be a deadlock, which the checker reports.
    fn everybody_is_served(givers_up: usize) {
        let world = Arc::new(World::default());
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.turn(number < givers_up))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let turns = world.turns.lock().unwrap();
        assert_eq!(turns.len(), 4 - givers_up);
        assert!(turns.is_sorted(), "out of turn: {turns:?}");
        assert!(world.queue.lock().unwrap().is_empty());
    }

    #[test]
    fn no_wake_up_is_lost() {
        shuttle::check_random(|| everybody_is_served(0), 300);
        shuttle::check_pct(|| everybody_is_served(1), 300, 3);
    }

    #[test]
    #[ignore = "half a minute: `cargo test --release --lib -- --ignored`"]
    fn no_wake_up_is_lost_in_many_orders() {
        shuttle::check_random(|| everybody_is_served(0), 100_000);
        shuttle::check_pct(|| everybody_is_served(2), 100_000, 4);
    }
}
