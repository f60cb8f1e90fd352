//! The events that may happen next.

use stateright::Property;

use super::{
    effects::Fate,
    state::{Holder, Lock, Phase, State, moment},
    *,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Pass,
    // The renewing and the callback thread.
    Take,
    FindUnreachable,
    Receive,
    Ring,
    // The server.
    Execute(Fate),
    ExecuteLate(usize),
    Delete(Lock),
    TellChange(Lock),
    FailOver,
    TellFailover,
    // Holders.
    HandOver(Holder),
    Extend(Holder),
    Release(Holder),
    Abandon(Holder),
}

impl World {
    fn of_threads(&self, state: &State, actions: &mut Vec<Action>) {
        match &state.flight {
            None if state.is_due() => {
                actions.push(Action::Take);
                if state.happened.breaks < self.breaks {
                    actions.push(Action::FindUnreachable);
                }
            }
            None => {}
            Some(flight) if flight.answers.is_some() => actions.push(Action::Receive),
            Some(flight) => {
                actions.push(Action::Execute(Fate::Answered));
                let count = flight.questions.len() + flight.orphans.len();
                if state.happened.refusals < self.refusals {
                    let each = |fate: fn(usize) -> Fate| (0..count).map(fate).map(Action::Execute);
                    actions.extend(each(Fate::Refused).chain(each(Fate::Forgotten)));
                }
                if state.happened.breaks < self.breaks {
                    actions.push(Action::Execute(Fate::BreaksBefore));
                    actions.push(Action::Execute(Fate::BreaksAfter));
                }
            }
        }
        let alarm = state.schedule.next_alarm();
        if alarm.is_some_and(|alarm| alarm <= moment(state.now)) {
            actions.push(Action::Ring);
        }
        actions.extend((0..state.late.len()).map(Action::ExecuteLate));
    }

    fn of_server(&self, state: &State, actions: &mut Vec<Action>) {
        for (lock, key) in state.keys.iter().enumerate() {
            if key.is_some() && state.happened.deletions < self.deletions {
                actions.push(Action::Delete(lock));
            }
        }
        actions.extend(state.changed.iter().copied().map(Action::TellChange));
        if state.failed_over {
            actions.push(Action::TellFailover);
        }
        if state.happened.failovers < self.failovers {
            actions.push(Action::FailOver);
        }
    }

    fn of_holders(&self, state: &State, actions: &mut Vec<Action>) {
        let now = moment(state.now);
        for (holder, held) in state.holders.iter().enumerate() {
            if held.phase != Phase::Held || held.end <= now {
                continue;
            }
            if state.happened.hand_overs < self.hand_overs {
                actions.push(Action::HandOver(holder));
            }
            if state.happened.extensions < self.extensions {
                actions.push(Action::Extend(holder));
            }
            if state.happened.releases < self.releases {
                actions.push(Action::Release(holder));
                actions.push(Action::Abandon(holder));
            }
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.of_threads(state, actions);
        self.of_server(state, actions);
        let is_busy = state.flight.is_some()
            || state.is_due()
            || !state.changed.is_empty()
            || state.failed_over;
        self.of_holders(state, actions);
        if state.now < self.last && !(self.is_prompt && is_busy) {
            actions.push(Action::Pass);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::Pass => {
                state.now += 1;
                // A key that has expired looks like one that is gone.
                let now = state.now;
                for key in &mut state.keys {
                    *key = key.filter(|key| key.end > now);
                }
            }
            Action::Take => Self::take(state),
            Action::FindUnreachable => Self::find_unreachable(state),
            Action::Receive => self.receive(state)?,
            Action::Ring => {
                let over = state.schedule.ring(moment(state.now));
                Self::tell(state, over);
            }
            Action::Execute(fate) => Self::execute(state, fate)?,
            Action::ExecuteLate(index) => {
                let command = state.late.remove(index);
                Self::run(state, command);
            }
            Action::Delete(lock) => {
                state.keys[lock] = None;
                state.changed.push(lock);
                state.happened.deletions += 1;
            }
            Action::TellChange(lock) => self.tell_change(state, lock),
            Action::FailOver => Self::fail_over(state),
            Action::TellFailover => self.tell_failover(state),
            Action::HandOver(holder) => self.hand_over(state, holder)?,
            Action::Extend(holder) => self.extend(state, holder)?,
            Action::Release(holder) => self.send_release(state, holder, Phase::Released),
            Action::Abandon(holder) => self.send_release(state, holder, Phase::Abandoned),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BELIEVED, |_, state: &State| state.is_believed_rightly()),
            Property::always(NOT_BY_THE_FORMER, |_, state: &State| {
                state.wrong != Some(NOT_BY_THE_FORMER)
            }),
            Property::always(TOLD_ONCE, |_, state: &State| state.wrong != Some(TOLD_ONCE)),
            Property::always(GIVEN_BACK, |_, state: &State| state.judge_release()),
            Property::always(ON_TIME, |world: &Self, state: &State| {
                !world.is_prompt || state.is_on_time(world)
            }),
            Property::always(LOOKED_AT, |world: &Self, state: &State| {
                !world.is_prompt || state.is_looked_at()
            }),
            Property::sometimes(GOES_ON, |world: &Self, state: &State| {
                state.now == world.last && state.believers().next().is_some()
            }),
        ]
    }
}
