//! The queue driven by threads, as [`Queues`](crate::waiting::Queues) and
//! [`Place`](crate::waiting::Place) drive it, in orders that shuttle chooses: a lock on a server
//! that tells of each release, and threads that wait for it and hand it over. A wake-up or a turn
//! that is lost would be a deadlock, which shuttle reports.

use std::mem;

use shuttle::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

use crate::waiting::HandOverBudget;
use crate::waiting::queue::{tests::here, *};

/// A hold as its guard knows it.
#[derive(Debug)]
struct Hold {
    number: u64,
    left: HandOverBudget,
}

#[derive(Default)]
struct Server {
    held: bool,
    /// Whether the next release is told.
    armed: bool,
    /// How many holds there were before the one that is.
    hold: u64,
    /// Since the server was asked.
    in_a_row: u32,
}

type ThreadQueue = Queue<Arc<Condvar>, Hold>;

struct World {
    queue: Mutex<(ThreadQueue, Ticket)>,
    server: Mutex<Server>,
    served: Mutex<Vec<Ticket>>,
    hand_overs: u32,
    start: Instant,
}

const LEASE: Duration = Duration::from_secs(10);

impl World {
    fn new(hand_overs: u32) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            server: Mutex::default(),
            served: Mutex::default(),
            hand_overs,
            start: crate::time::now(),
        })
    }

    /// Whatever is to happen before the lease ends is due at this moment: a thread that would sleep
    /// until then need not.
    fn soon(&self) -> Instant {
        self.start + LEASE / 2
    }

    /// An attempt that is refused arms the message, in one step.
    fn attempt(&self) -> Option<Hold> {
        let mut server = self.server.lock().unwrap();
        server.armed = true;
        if server.held {
            return None;
        }
        server.held = true;
        server.hold += 1;
        server.in_a_row = 0;
        Some(Hold {
            number: server.hold,
            left: HandOverBudget::new(self.hand_overs, Some(self.start + LEASE)),
        })
    }

    /// The server's message and the direct wake-up come in any order, by other threads.
    fn release(self: &Arc<Self>, hold: &Hold) {
        let told = {
            let mut server = self.server.lock().unwrap();
            assert_eq!(server.hold, hold.number, "released by an earlier hold");
            server.held = false;
            mem::take(&mut server.armed)
        };
        let message = told.then(|| {
            let world = Arc::clone(self);
            thread::spawn(move || world.wake(Queue::changed))
        });
        self.wake(|queue, now| queue.released(now, &here()));
        if let Some(message) = message {
            message.join().unwrap();
        }
    }

    fn wake(&self, change: impl FnOnce(&mut ThreadQueue, Instant) -> Option<&Arc<Condvar>>) {
        let woken = change(&mut self.queue.lock().unwrap().0, self.start).cloned();
        if let Some(sleeper) = woken {
            sleeper.notify_one();
        }
    }

    fn hand_over(&self, hold: &Hold) -> bool {
        let mut queue = self.queue.lock().unwrap();
        let left = hold.left.spend(self.start, self.start + LEASE, LEASE);
        let Some(left) = left.filter(|_| queue.0.head().is_some()) else {
            return false;
        };
        let mut server = self.server.lock().unwrap();
        assert_eq!(server.hold, hold.number, "handed over by an earlier hold");
        server.hold += 1;
        server.in_a_row += 1;
        assert!(server.in_a_row <= self.hand_overs, "more than are allowed");
        let next = Hold {
            number: server.hold,
            left,
        };
        let woken = queue
            .0
            .hand_over(next, self.start, self.start + LEASE)
            .unwrap();
        let (holder, head) = (woken.0, woken.1.cloned());
        drop(queue);
        holder.notify_one();
        if let Some(head) = head {
            head.notify_one();
        }
        true
    }

    /// The server's yes; `None` if the lock has been handed over.
    fn wait(&self, ticket: Ticket, sleeper: &Condvar) -> Option<Hold> {
        let mut queue = self.queue.lock().unwrap();
        loop {
            match queue.0.step(ticket, self.soon()) {
                Step::Ask => {
                    drop(queue);
                    if let Some(hold) = self.attempt() {
                        return Some(hold);
                    }
                    queue = self.queue.lock().unwrap();
                    queue
                        .0
                        .refused(ticket, self.start, Some(self.start + LEASE));
                }
                Step::TakeHanded => return None,
                Step::Sleep(_) => queue = sleeper.wait(queue).unwrap(),
            }
        }
    }

    fn leave(&self, ticket: Ticket, leaving: Leaving) -> Option<Hold> {
        let mut queue = self.queue.lock().unwrap();
        let end = Some(self.start + LEASE);
        let (handed, woken) = queue.0.leave(ticket, leaving, self.start, end);
        let woken = woken.cloned();
        drop(queue);
        if let Some(head) = woken {
            head.notify_one();
        }
        handed
    }

    fn run(self: &Arc<Self>, gives_up: bool) {
        let sleeper = Arc::new(Condvar::default());
        let ticket = {
            let mut queue = self.queue.lock().unwrap();
            let ticket = queue.1;
            queue.1 += 1;
            queue.0.join(ticket, Arc::clone(&sleeper), self.start);
            ticket
        };
        let granted = (!gives_up).then(|| self.wait(ticket, &sleeper)).flatten();
        let leaving = match granted {
            Some(_) => Leaving::Exclusive,
            None => Leaving::WithoutLock,
        };
        // Who was chosen before it left has the lock.
        let handed = self.leave(ticket, leaving);
        let Some(hold) = granted.or(handed) else {
            return;
        };
        assert_eq!(self.server.lock().unwrap().hold, hold.number, "two have it");
        self.served.lock().unwrap().push(ticket);
        if !self.hand_over(&hold) {
            self.release(&hold);
        }
    }
}

fn everybody_is_served(givers_up: usize, hand_overs: u32) {
    let world = World::new(hand_overs);
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
    assert!(world.queue.lock().unwrap().0.is_over());
    assert!(!world.server.lock().unwrap().held, "nobody has released it");
}

#[test]
fn no_wake_up_and_no_turn_is_lost() {
    for hand_overs in [0, 2, 8] {
        shuttle::check_random(move || everybody_is_served(0, hand_overs), 200);
        shuttle::check_pct(move || everybody_is_served(1, hand_overs), 200, 3);
    }
}

#[test]
#[ignore = "half a minute: `cargo test --release --lib -- --ignored`"]
fn no_wake_up_and_no_turn_is_lost_in_many_orders() {
    for hand_overs in [0, 1, 8] {
        shuttle::check_random(move || everybody_is_served(0, hand_overs), 40_000);
        shuttle::check_pct(move || everybody_is_served(2, hand_overs), 40_000, 4);
    }
}
