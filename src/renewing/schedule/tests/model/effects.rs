//! The effects of the server, the threads and the holders on a state.

use super::{
    state::{Command, Flight, Held, Holder, Key, Lock, Phase, Said, State, length, moment, ticks},
    *,
};

/// The fate of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// One of the commands is refused.
    Refused(usize),
    /// The server no longer has the script of one command.
    Forgotten(usize),
    /// The whole batch is executed, and the connection breaks.
    BreaksAfter,
    /// The connection breaks, and the commands may be executed at any later time.
    BreaksBefore,
}

impl World {
    pub(super) fn terms(&self, end: Instant) -> Terms {
        Terms {
            lease: length(self.lease),
            cap: None,
            end: Some(end),
            renews: true,
            look_at: None,
            skew: Duration::ZERO,
        }
    }

    /// Executes a command, as the scripts do.
    pub(super) fn run(state: &mut State, command: Command) -> Said {
        let now = state.now;
        match command {
            Command::Renewal(holder, ask) => {
                let Held {
                    lock, token, phase, ..
                } = state.holders[holder];
                let Some(key) = state.key_of(lock, token) else {
                    return Said::NotOurs;
                };
                state.holders[holder].is_to_be_renewed &= !ask.is_renewal();
                let end = match ask {
                    Ask::Look => key.end,
                    Ask::Renew(lease) => key.end.max(now + ticks(lease)),
                };
                if end > key.end {
                    let end_before = key.end;
                    state.keys[lock] = Some(Key {
                        end,
                        end_before,
                        ..key
                    });
                    if phase == Phase::HandedOver {
                        state.wrong = Some(NOT_BY_THE_FORMER);
                    }
                }
                Said::Ours
            }
            Command::Release(token) => {
                let has_it = |key: &&mut Option<Key>| key.is_some_and(|key| key.token == token);
                match state.keys.iter_mut().find(has_it) {
                    Some(key) => {
                        *key = None;
                        Said::Ours
                    }
                    None => Said::NotOurs,
                }
            }
        }
    }

    pub(super) fn execute(state: &mut State, fate: Fate) -> Option<()> {
        let commands = state.flight.as_ref()?.commands();
        let mut answers = Vec::new();
        for (index, command) in commands.into_iter().enumerate() {
            answers.push(match fate {
                Fate::Refused(which) if which == index => Said::Refused,
                Fate::Forgotten(which) if which == index => Said::Forgotten,
                Fate::BreaksBefore => {
                    state.late.push(command);
                    Said::Nothing
                }
                Fate::BreaksAfter => {
                    Self::run(state, command);
                    Said::Nothing
                }
                _ => Self::run(state, command),
            });
        }
        match fate {
            Fate::Answered => {}
            Fate::Refused(_) | Fate::Forgotten(_) => state.happened.refusals += 1,
            Fate::BreaksAfter | Fate::BreaksBefore => state.happened.breaks += 1,
        }
        state.flight.as_mut()?.answers = Some(answers);
        Some(())
    }

    /// Reports the leases that the schedule has ended.
    pub(super) fn tell(state: &mut State, over: Vec<Over<Holder>>) {
        for (holder, reason) in over {
            let now = moment(state.now);
            let held = &mut state.holders[holder];
            let is_over = reason == LostReason::Ended && held.end <= now;
            if held.phase != Phase::Held || !is_over {
                state.wrong = Some(TOLD_ONCE);
            }
            held.phase = Phase::Lost;
        }
    }

    pub(super) fn take(state: &mut State) {
        let batch = state.schedule.take(moment(state.now));
        Self::tell(state, batch.over);
        if !batch.questions.is_empty() || !batch.orphans.is_empty() {
            state.flight = Some(Flight {
                sent: state.now,
                questions: batch.questions,
                orphans: batch.orphans,
                answers: None,
            });
        }
    }

    pub(super) fn find_unreachable(state: &mut State) {
        let now = moment(state.now);
        let batch = state.schedule.take(now);
        state.happened.breaks += 1;
        Self::tell(state, batch.over);
        for question in batch.questions {
            state
                .schedule
                .answered(question.id, RenewalAnswer::Unanswered, now);
        }
        for orphan in batch.orphans {
            state
                .schedule
                .was_released(orphan, RenewalAnswer::Unanswered, now);
        }
        state.schedule.pause(now + length(1));
    }

    /// Records the replies to a batch.
    pub(super) fn receive(&self, state: &mut State) -> Option<()> {
        let flight = state.flight.take()?;
        let answers = flight.answers?;
        let now = moment(state.now);
        let since = if self.has(Rule::CountsFromBefore) {
            moment(flight.sent)
        } else {
            now
        };
        let is_broken = answers.contains(&Said::Nothing);
        let mut answers = answers.into_iter().map(|said| match said {
            Said::Ours => RenewalAnswer::Ours(since),
            Said::NotOurs => RenewalAnswer::NotOurs,
            Said::Forgotten => RenewalAnswer::Forgotten,
            Said::Refused => RenewalAnswer::Refused,
            Said::Nothing => RenewalAnswer::Unanswered,
        });
        for (question, answer) in flight.questions.into_iter().zip(answers.by_ref()) {
            Self::answer(state, &question, answer);
        }
        for (orphan, answer) in flight.orphans.into_iter().zip(answers) {
            if answer != RenewalAnswer::Unanswered || self.has(Rule::GivesBackAgain) {
                state.schedule.was_released(orphan, answer, now);
            }
        }
        if is_broken {
            state.schedule.pause(now + length(1));
        } else if !self.has(Rule::RestsOnlyWhenBroken) {
            state.schedule.pause(now + length(self.lease / 2));
        }
        Some(())
    }

    fn answer(state: &mut State, question: &Question<Holder>, answer: RenewalAnswer) {
        let now = moment(state.now);
        let outcome = state.schedule.answered(question.id, answer, now);
        let held = &mut state.holders[question.item];
        if answer == RenewalAnswer::Unanswered && question.ask.is_renewal() {
            held.out.renewal = true;
        }
        // A holder that has seen the end, or stopped its lease, gets no outcome.
        if held.phase != Phase::Held {
            return;
        }
        match outcome {
            Some(RenewalOutcome::Held(end)) => held.end = end,
            Some(RenewalOutcome::Lost) => {
                if answer != RenewalAnswer::NotOurs && held.end > now {
                    state.wrong = Some(TOLD_ONCE);
                }
                held.phase = Phase::Lost;
            }
            None => {}
        }
    }

    pub(super) fn fail_over(state: &mut State) {
        for key in state.keys.iter_mut().flatten() {
            key.end = key.end_before;
        }
        state.failed_over = true;
        state.happened.failovers += 1;
    }

    pub(super) fn tell_change(&self, state: &mut State, lock: Lock) {
        state.changed.retain(|changed| *changed != lock);
        state.told[lock] = Some(state.now);
        let now = moment(state.now);
        let of_key = state.holders.iter().filter(|held| held.lock == lock);
        for held in of_key.filter(|_| self.has(Rule::Looks)) {
            state.schedule.look(held.id, now);
        }
    }

    pub(super) fn tell_failover(&self, state: &mut State) {
        state.failed_over = false;
        let now = moment(state.now);
        if self.has(Rule::Repeats) {
            state.schedule.renew_all(now);
            for held in &mut state.holders {
                held.is_to_be_renewed = true;
            }
        } else {
            for held in &state.holders {
                state.schedule.look(held.id, now);
            }
        }
    }

    /// Hands a lock over. The key does not change.
    pub(super) fn hand_over(&self, state: &mut State, holder: Holder) -> Option<()> {
        let (now, next) = (moment(state.now), state.holders.len());
        let held = &state.holders[holder];
        if !held.out.is_nothing() && self.has(Rule::AsksWhatIsOut) {
            return None;
        }
        let terms = self.terms(held.end);
        let id = if self.has(Rule::KeepsLooks) {
            state.schedule.hand_over(held.id, next, terms, now)?
        } else {
            state.schedule.stop(held.id);
            state.schedule.keep(next, terms, now)
        };
        state.schedule.set_alarm(id);
        let next = Held {
            id,
            out: Outstanding::default(),
            ..held.clone()
        };
        state.holders[holder].phase = Phase::HandedOver;
        state.holders.push(next);
        state.happened.hand_overs += 1;
        Some(())
    }

    /// Renews the lease by its holder, with an immediate reply.
    pub(super) fn extend(&self, state: &mut State, holder: Holder) -> Option<()> {
        let renewal = Command::Renewal(holder, Ask::Renew(length(self.lease)));
        state.happened.extensions += 1;
        if Self::run(state, renewal) == Said::Ours {
            let end = moment(state.now + self.lease);
            let held = &mut state.holders[holder];
            held.end = state.schedule.extend(held.id, end)?;
        }
        Some(())
    }

    pub(super) fn send_release(&self, state: &mut State, holder: Holder, phase: Phase) {
        let held = &mut state.holders[holder];
        held.phase = phase;
        if self.has(Rule::Stops) {
            state.schedule.stop(held.id);
        }
        let token = held.token;
        state.happened.releases += 1;
        if phase == Phase::Abandoned {
            state.schedule.abandon(token, false, moment(state.now));
        } else {
            Self::run(state, Command::Release(token));
        }
    }
}
