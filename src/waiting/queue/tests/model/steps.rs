//! The events that may happen next, and the state after each.

use std::collections::VecDeque;

use stateright::Property;

use super::{
    super::here,
    state::{
        Answer, LEASE, Lock, PAUSE, Phase, START, Sent, Shared, State, Thread, Token, answered,
        end, ticket,
    },
    *,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    // The events that never have to happen.
    Join(Thread),
    GiveUp(Thread),
    Release(Thread),
    HandOver(Thread),
    ReleaseElsewhere(Lock),
    Delete(Lock),
    LoseShared,
    LoseListener,
    // The events that happen by themselves.
    Wake(Thread),
    Send,
    Execute(Thread),
    Receive(Thread),
    WakeAfterRelease(Thread),
    GiveBack(Thread),
    Tell,
    WakeChosen,
    Heartbeat,
    FindListenerLost,
    ListenAgain,
}

impl Action {
    fn is_nobodys_duty(self) -> bool {
        use Action::*;
        matches!(
            self,
            Join(_)
                | GiveUp(_)
                | Release(_)
                | HandOver(_)
                | ReleaseElsewhere(_)
                | Delete(_)
                | LoseShared
                | LoseListener
        )
    }
}

impl World {
    fn leave(&self, state: &mut State, thread: Thread, leaving: Leaving) {
        let queue = &mut state.queues[self.wants[thread]];
        if leaving == Leaving::Exclusive
            && self.rules.passes_on == PassesOn::No
            && let Some(waiter) = queue.waiter(ticket(thread))
        {
            waiter.asks_at = None;
        }
        let (handed, _) = queue.leave(ticket(thread), leaving, *START, Some(end()));
        state.threads[thread] = match (leaving, handed) {
            (Leaving::WithoutLock, Some(token)) => Phase::Holding(token),
            (Leaving::WithoutLock, None) => Phase::Gone,
            _ => Phase::Holding(Token::Of(thread)),
        };
    }

    /// All attempts that wait go out in one write, on a new connection if there is none.
    fn send(state: &mut State) -> Option<()> {
        if !state.threads.contains(&Phase::Asking) || state.is_used() {
            return None;
        }
        let on_new_connection = !state.shared.is_open;
        state.shared.is_open = true;
        if state.listener.is_some() {
            state.shared.told = state.listener;
        }
        for phase in &mut state.threads {
            if *phase == Phase::Asking {
                *phase = Phase::Sent(Sent {
                    tracked: state.listener.is_some(),
                    on_new_connection,
                });
            }
        }
        Some(())
    }

    fn execute(&self, state: &mut State, thread: Thread, sent: Sent) {
        let lock = self.wants[thread];
        let (ours, held_by) = (Token::Of(thread), &mut state.held_by[lock]);
        let permits = self.permits as usize;
        let is_held = held_by.contains(&ours);
        let answer = if is_held || held_by.len() < permits {
            held_by.extend((!is_held).then_some(ours));
            state.grants += u32::from(self.permits > 1);
            let more = u32::try_from(permits - held_by.len()).unwrap();
            Answer::Granted(more, state.grants)
        } else {
            Answer::Refused(state.grants)
        };
        // The script reads the key last.
        state.tracked[lock] = sent.tracked;
        state.threads[thread] = Phase::Answered(sent, answer);
    }

    /// The way in which a thread leaves that was granted the lock.
    fn leaving(&self, more: u32, number: u32) -> Leaving {
        let says_it = self.rules.grant_says == GrantSays::HowManyAreFree;
        match self.permits {
            1 => Leaving::Exclusive,
            _ => Leaving::Shared {
                more: if says_it { more } else { 0 },
                answered: answered(number),
            },
        }
    }

    fn receive(&self, state: &mut State, thread: Thread, sent: Sent, answer: Answer) {
        if sent.on_new_connection && self.rules.loss_is_told == LossIsTold::ByWhoeverOpensTheNext {
            state.all_may_have_changed();
        }
        let after = match answer {
            Answer::Granted(more, number) => {
                self.leave(state, thread, self.leaving(more, number));
                return;
            }
            Answer::Refused(after) => after,
        };
        let ask_again = if sent.tracked { end() } else { *START + PAUSE };
        let queue = &mut state.queues[self.wants[thread]];
        queue.refused(ticket(thread), answered(after), Some(ask_again));
        queue.turns.forget_refusals();
        state.threads[thread] = Phase::InQueue;
    }

    /// A thread that waited for a reply on the connection notices that it is lost.
    fn fail(&self, state: &mut State, thread: Thread) {
        if state.threads[thread] != Phase::Unanswered {
            state.shared_is_lost(self.rules, false);
        }
        state.queues[self.wants[thread]].unanswered(ticket(thread), *START + PAUSE, None);
        state.threads[thread] = Phase::InQueue;
    }

    fn hand_over(&self, state: &mut State, thread: Thread, token: Token) -> Option<()> {
        state.queues[self.wants[thread]].hand_over(token, *START, end())?;
        state.hand_overs += 1;
        state.threads[thread] = Phase::Gone;
        Some(())
    }

    fn tell(&self, state: &mut State) -> Option<()> {
        let lock = state.messages.pop_front()?;
        match self.rules.wakes {
            Wakes::InOneStep => drop(state.queues[lock].changed(*START, Duration::ZERO)),
            Wakes::InTwoSteps => {
                let head = state.queues[lock].head().copied();
                state.chosen = head.map(|head| (lock, head));
            }
        }
        Some(())
    }

    fn wake_chosen(state: &mut State) -> Option<()> {
        let (lock, head) = state.chosen.take()?;
        if let Some(waiter) = state.queues[lock].waiter(ticket(head)) {
            waiter.ask_at(Some(*START));
        }
        Some(())
    }

    /// The events that may happen to a thread, by its next step.
    fn of_thread(&self, state: &State, thread: Thread, actions: &mut Vec<Action>) {
        use Action::*;
        let lock = self.wants[thread];
        match state.threads[thread] {
            // Threads join in the order of their tickets.
            Phase::Outside if thread == 0 || state.threads[thread - 1] != Phase::Outside => {
                actions.push(Join(thread));
            }
            Phase::InQueue => {
                actions.push(Wake(thread));
                actions.extend((thread < self.givers_up).then_some(GiveUp(thread)));
            }
            Phase::Sent(_) if !state.shared.is_broken => actions.push(Execute(thread)),
            Phase::Sent(_) | Phase::Answered(..) | Phase::Unanswered => {
                actions.push(Receive(thread));
            }
            Phase::Holding(_) => {
                actions.push(Release(thread));
                let may = state.hand_overs < self.hand_overs;
                actions.extend(may.then_some(HandOver(thread)));
            }
            Phase::Released => actions.push(WakeAfterRelease(thread)),
            // The thread gave up before it knew that it has the lock: the watchdog's thread
            // releases the lock.
            Phase::Gone if state.held_by[lock].contains(&Token::Of(thread)) => {
                let is_handed = state.threads.contains(&Phase::Holding(Token::Of(thread)));
                let is_on_its_way = (state.queues[lock].handed.iter())
                    .any(|(_, lease)| *lease == Token::Of(thread));
                actions.extend((!is_handed && !is_on_its_way).then_some(GiveBack(thread)));
            }
            _ => {}
        }
    }

    fn goes_on(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions
            .into_iter()
            .filter(|action| !action.is_nobodys_duty())
            .any(|action| self.next_state(state, action).is_some())
    }

    fn nobody_sleeps(&self, state: &State) -> bool {
        let is_free = |lock: Lock| state.held_by[lock].len() < self.permits as usize;
        let sleeps = |lock: Lock| is_free(lock) && state.queues[lock].len() > 0;
        !(0..2).any(sleeps) || self.goes_on(state)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            queues: [Queue::default(), Queue::default()],
            chosen: None,
            threads: vec![Phase::Outside; self.wants.len()],
            shared: Shared::default(),
            listener: Some(0),
            listens: Some(0),
            held_by: [0, 1].map(|lock| {
                let holders = if self.wants.contains(&lock) {
                    self.permits
                } else {
                    0
                };
                vec![Token::Elsewhere; holders as usize]
            }),
            grants: 0,
            tracked: [false; 2],
            messages: VecDeque::new(),
            deletions: 0,
            shared_losses: 0,
            listener_losses: 0,
            hand_overs: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for thread in 0..self.wants.len() {
            self.of_thread(state, thread, actions);
        }
        for lock in 0..2 {
            let held_by = &state.held_by[lock];
            if held_by.contains(&Token::Elsewhere) {
                actions.push(Action::ReleaseElsewhere(lock));
            }
            let is_ours = held_by.iter().any(|held| *held != Token::Elsewhere);
            if (is_ours || self.permits > 1) && !held_by.is_empty() {
                actions.extend((state.deletions < self.deletions).then_some(Action::Delete(lock)));
            }
        }
        if state.shared.is_open
            && !state.shared.is_broken
            && state.shared_losses < self.shared_losses
        {
            actions.push(Action::LoseShared);
        }
        if state.listens.is_some() && state.listener_losses < self.listener_losses {
            actions.push(Action::LoseListener);
        }
        actions.extend([
            Action::Send,
            Action::Tell,
            Action::WakeChosen,
            Action::Heartbeat,
            Action::FindListenerLost,
            Action::ListenAgain,
        ]);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::Join(thread) => {
                state.queues[self.wants[thread]].join(ticket(thread), thread, self.permits, *START);
                state.threads[thread] = Phase::InQueue;
            }
            Action::GiveUp(thread) => self.leave(state, thread, Leaving::WithoutLock),
            Action::Wake(thread) => {
                // Anything that happens before the lease ends may happen now.
                let now = *START + LEASE / 2;
                match state.queues[self.wants[thread]].step(ticket(thread), now) {
                    Step::Ask => state.threads[thread] = Phase::Asking,
                    Step::TakeHanded => self.leave(state, thread, Leaving::WithoutLock),
                    Step::Sleep(_) => return None,
                }
            }
            Action::Send => Self::send(state)?,
            Action::Execute(thread) => match state.threads[thread] {
                Phase::Sent(sent) => self.execute(state, thread, sent),
                _ => return None,
            },
            Action::Receive(thread) => match state.threads[thread] {
                Phase::Unanswered => self.fail(state, thread),
                _ if state.shared.is_broken => self.fail(state, thread),
                Phase::Answered(sent, answer) => self.receive(state, thread, sent, answer),
                _ => return None,
            },
            Action::Release(thread) => {
                let lock = self.wants[thread];
                if let Phase::Holding(token) = state.threads[thread] {
                    state.free(lock, token);
                }
                state.threads[thread] = Phase::Released;
            }
            Action::HandOver(thread) => match state.threads[thread] {
                Phase::Holding(token) => self.hand_over(state, thread, token)?,
                _ => return None,
            },
            Action::WakeAfterRelease(thread) => {
                state.queues[self.wants[thread]].released(*START, &here());
                state.threads[thread] = Phase::Gone;
            }
            Action::GiveBack(thread) => state.free(self.wants[thread], Token::Of(thread)),
            Action::ReleaseElsewhere(lock) => state.free(lock, Token::Elsewhere),
            Action::Delete(lock) => {
                state.deletions += 1;
                state.delete(lock);
            }
            Action::LoseShared => {
                state.shared_losses += 1;
                state.shared.is_broken = true;
                state.tracked = [false; 2];
            }
            Action::Heartbeat => {
                if !state.somebody_waits() || state.is_used() || !state.shared.is_broken {
                    return None;
                }
                state.shared_is_lost(self.rules, true);
            }
            Action::LoseListener => {
                state.listener_losses += 1;
                state.listens = None;
                state.messages.clear();
            }
            Action::FindListenerLost => {
                if state.listens.is_some() || state.listener.is_none() {
                    return None;
                }
                state.listener = None;
                state.all_may_have_changed();
            }
            Action::ListenAgain => {
                if state.listener.is_some() {
                    return None;
                }
                state.listens = Some(state.listener_losses);
                state.listener = state.listens;
                state.all_may_have_changed();
            }
            Action::Tell => self.tell(state)?,
            Action::WakeChosen => Self::wake_chosen(state)?,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOBODY_SLEEPS, Self::nobody_sleeps),
            Property::sometimes("all have had the lock", |_, state: &State| {
                state.threads.iter().all(|phase| *phase == Phase::Gone)
            }),
        ]
    }
}
