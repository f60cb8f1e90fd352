//! The schedule in the hands of threads as the watchdog has them, in orders that shuttle chooses.

use std::time::Instant;

use shuttle::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

use super::super::*;
use super::world::{MS, terms};

/// A lease, and what its holder abandons after it was stopped.
const LEASES: usize = 3;
const LEASE: u32 = 30;

#[derive(Default)]
struct World {
    state: Mutex<State>,
    wake: Condvar,
    landed: Condvar,
    call: Condvar,
    server: Mutex<Server>,
}

struct State {
    schedule: Schedule<usize, usize>,
    now: Instant,
    closing: bool,
    /// Which are lost; to tell of it once is the lease's own business.
    told: [bool; LEASES],
}

/// What it has been asked, and how often a question stayed without an answer.
#[derive(Default)]
struct Server {
    stopped: [bool; LEASES],
    given_back: [u32; LEASES],
    silences: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            schedule: Schedule::default(),
            now: Instant::now(),
            closing: false,
            told: [false; LEASES],
        }
    }
}

impl Server {
    /// Every third question gets no answer.
    fn answers(&mut self) -> bool {
        self.silences += 1;
        !self.silences.is_multiple_of(3)
    }
}

impl World {
    fn renew_all(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.closing || state.schedule.orphans.front().is_some() {
            let now = state.now;
            if state.schedule.due_at().is_none_or(|due| due > now) {
                state = self.wake.wait(state).unwrap();
                continue;
            }
            let batch = state.schedule.take(now);
            for (lease, _) in batch.over {
                state.told[lease] = true;
            }
            drop(state);
            let answers: Vec<_> = batch
                .questions
                .iter()
                .map(|question| self.renew(question))
                .collect();
            let given_back: Vec<_> = batch
                .orphans
                .into_iter()
                .map(|orphan| (self.give_back(orphan.item), orphan))
                .collect();
            state = self.state.lock().unwrap();
            for (question, answers) in batch.questions.iter().zip(answers) {
                let answer = if answers {
                    Answer::Ours(now)
                } else {
                    Answer::Unanswered
                };
                let later = state.now;
                if let Some(RenewalOutcome::Lost(_)) =
                    state.schedule.answered(question.id, answer, later)
                {
                    state.told[question.item] = true;
                }
            }
            for (answers, orphan) in given_back {
                let now = state.now;
                let answer = if answers {
                    Answer::NotOurs
                } else {
                    Answer::Unanswered
                };
                state.schedule.given_back(orphan, answer, now);
            }
            self.landed.notify_all();
        }
    }

    fn renew(&self, question: &Question<usize>) -> bool {
        thread::yield_now();
        let mut server = self.server.lock().unwrap();
        assert!(
            !server.stopped[question.item],
            "renewed after it was stopped"
        );
        server.answers()
    }

    fn give_back(&self, lease: usize) -> bool {
        thread::yield_now();
        let mut server = self.server.lock().unwrap();
        let answers = server.answers();
        server.given_back[lease] += u32::from(answers);
        answers
    }

    /// As the end of a lease whose release gets no answer. Says whether it still stood.
    fn stop(&self, id: Id, lease: usize) -> bool {
        let mut state = self.state.lock().unwrap();
        let stood = state.schedule.leases.contains_key(&id);
        state.schedule.stop(id);
        while state.schedule.is_in_flight(id) {
            state = self.landed.wait(state).unwrap();
        }
        self.server.lock().unwrap().stopped[lease] = true;
        let now = state.now;
        state.schedule.abandon(lease, false, now);
        self.wake.notify_one();
        stood
    }

    fn call_all(&self) {
        let mut state = self.state.lock().unwrap();
        loop {
            let now = state.now;
            for (lease, _) in state.schedule.ring(now) {
                state.told[lease] = true;
            }
            if state.closing {
                return;
            }
            state = self.call.wait(state).unwrap();
        }
    }

    fn pass(&self, ticks: u32) {
        for _ in 0..ticks {
            let mut state = self.state.lock().unwrap();
            state.now += MS * 5;
            drop(state);
            self.wake.notify_one();
            self.call.notify_one();
            thread::yield_now();
        }
    }

    fn close(&self) {
        self.state.lock().unwrap().closing = true;
        self.wake.notify_one();
        self.call.notify_one();
    }
}

/// Nothing is renewed once a stop has returned, and each lease is told lost or is given back, or
/// was both: stopped when it was lost already, or when its last renewal was out.
fn nothing_is_renewed_after_a_stop_and_nothing_forgotten(ticks: u32) {
    let world = Arc::new(World::default());
    let ids: Vec<_> = {
        let mut state = world.state.lock().unwrap();
        let now = state.now;
        let keep = |lease| {
            let id = state.schedule.keep(lease, terms(LEASE), now);
            state.schedule.set_alarm(id);
            id
        };
        (0..LEASES).map(keep).collect()
    };
    let spawn = |run: fn(&World)| {
        let world = Arc::clone(&world);
        thread::spawn(move || run(&world))
    };
    let renewing = spawn(World::renew_all);
    let calling = spawn(World::call_all);
    let stopping = {
        let world = Arc::clone(&world);
        thread::spawn(move || [world.stop(ids[0], 0), world.stop(ids[1], 1)])
    };
    world.pass(ticks);
    let stood = stopping.join().unwrap();
    world.close();
    renewing.join().unwrap();
    calling.join().unwrap();

    let state = world.state.lock().unwrap();
    let server = world.server.lock().unwrap();
    assert_eq!(server.given_back, [1, 1, 0]);
    for (lease, stood) in stood.into_iter().enumerate() {
        assert!(stood || state.told[lease], "neither stopped nor told");
    }
    let left = usize::from(!state.told[LEASES - 1]);
    assert_eq!(state.schedule.len(), left, "a lease is forgotten or kept");
    assert!(state.schedule.alarms.len() <= left && state.schedule.due.len() <= left);
}

#[test]
fn in_some_orders() {
    let run = || nothing_is_renewed_after_a_stop_and_nothing_forgotten(8);
    shuttle::check_random(run, 300);
    shuttle::check_pct(run, 300, 3);
}

#[test]
#[ignore = "half a minute: `cargo test --release --lib -- --ignored`"]
fn in_many_orders() {
    let run = || nothing_is_renewed_after_a_stop_and_nothing_forgotten(12);
    shuttle::check_random(run, 50_000);
    shuttle::check_pct(run, 50_000, 4);
}
