//! The outbox driven by threads, as [`Combiner`](super::super::Combiner) drives it, in orders that shuttle chooses. A lead that is
//! lost, or a caller that nobody wakes, would be a deadlock, which shuttle reports.

use shuttle::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

use super::super::outbox::{Outbox, Withdrawn};

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Waiting,
    Taken,
    Answered,
    /// Not sent.
    Withdrawn,
}

struct State {
    outbox: Outbox<usize>,
    fates: Vec<Fate>,
    woken: Vec<bool>,
}

/// What a caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Waits,
    /// Leaves the outbox after a while, if it does not lead.
    GivesUp,
    /// Cannot send anything when it leads.
    Fails,
}

struct World {
    state: Mutex<State>,
    sleepers: Vec<Condvar>,
    most: usize,
}

impl World {
    fn run(&self, own: usize, manner: Manner) {
        let mut state = self.state.lock().unwrap();
        if state.outbox.join(own, None) {
            drop(state);
            self.lead(own, manner);
            state = self.state.lock().unwrap();
        }
        let mut slept = false;
        loop {
            if matches!(state.fates[own], Fate::Answered | Fate::Withdrawn) {
                return;
            }
            // Also when it has just been woken to lead.
            if manner == Manner::GivesUp
                && slept
                && let Withdrawn::Gone { wake } = state.outbox.withdraw(&own)
            {
                state.fates[own] = Fate::Withdrawn;
                self.wake(&mut state, wake);
            } else if state.woken[own] {
                state.woken[own] = false;
                if state.outbox.lead() {
                    drop(state);
                    self.lead(own, manner);
                    state = self.state.lock().unwrap();
                }
            } else if manner == Manner::GivesUp {
                drop(state);
                thread::yield_now();
                state = self.state.lock().unwrap();
                slept = true;
            } else {
                state = self.sleepers[own].wait(state).unwrap();
            }
        }
    }

    fn lead(&self, own: usize, manner: Manner) {
        let mut batch = Vec::new();
        let mut state = self.state.lock().unwrap();
        if manner == Manner::Fails {
            drop(state);
            state = self.state.lock().unwrap();
            assert_eq!(state.outbox.withdraw(&own), Withdrawn::Gone { wake: None });
            state.fates[own] = Fate::Withdrawn;
        } else {
            state.outbox.take(&own, self.most, &mut batch);
            assert!(batch.contains(&own) && batch.len() <= self.most);
        }
        for call in &batch {
            assert_eq!(state.fates[*call], Fate::Waiting, "sent twice");
            state.fates[*call] = Fate::Taken;
        }
        drop(state);
        thread::yield_now();
        let mut state = self.state.lock().unwrap();
        for call in batch {
            state.fates[call] = Fate::Answered;
            self.sleepers[call].notify_one();
        }
        let next = state.outbox.done();
        self.wake(&mut state, next);
    }

    fn wake(&self, state: &mut State, next: Option<usize>) {
        if let Some(next) = next {
            state.woken[next] = true;
            self.sleepers[next].notify_one();
        }
    }
}

fn everybody_is_answered(manners: &'static [Manner], most: usize) {
    let world = Arc::new(World {
        state: Mutex::new(State {
            outbox: Outbox::default(),
            fates: vec![Fate::Waiting; manners.len()],
            woken: vec![false; manners.len()],
        }),
        sleepers: manners.iter().map(|_| Condvar::default()).collect(),
        most,
    });
    let threads: Vec<_> = (0..)
        .zip(manners)
        .map(|(own, manner)| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.run(own, *manner))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let state = world.state.lock().unwrap();
    for (fate, manner) in state.fates.iter().zip(manners) {
        let is_answered = *fate == Fate::Answered;
        assert!(is_answered || *manner != Manner::Waits, "{:?}", state.fates);
    }
    assert!(state.outbox.is_over());
}

const CROWDS: [&[Manner]; 3] = [
    &[Manner::Waits; 4],
    &[
        Manner::Waits,
        Manner::GivesUp,
        Manner::Waits,
        Manner::GivesUp,
    ],
    &[Manner::Fails, Manner::Waits, Manner::GivesUp, Manner::Fails],
];

fn in_many_orders(orders: usize) {
    for manners in CROWDS {
        for most in [1, 2, 8] {
            shuttle::check_random(move || everybody_is_answered(manners, most), orders);
            shuttle::check_pct(move || everybody_is_answered(manners, most), orders, 3);
        }
    }
}

#[test]
fn no_lead_is_lost_and_no_call_is_sent_twice() {
    in_many_orders(30);
}

#[test]
#[ignore = "half a minute: `cargo test --release --lib -- --ignored`"]
fn no_lead_is_lost_and_no_call_is_sent_twice_in_many_orders() {
    in_many_orders(20_000);
}
