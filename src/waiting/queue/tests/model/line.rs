//! What a thread does on the line that it has for itself.

use std::mem;

use super::{
    state::{LEASE, Line, OnTheLine, PAUSE, Phase, START, State, Thread, Token, end, ticket},
    *,
};

impl World {
    /// It asks on the line, if it has it or may have it.
    pub(super) fn asks_on_the_line(&self, state: &mut State, thread: Thread) -> bool {
        let may_take = state.queues[self.wants[thread]].is_alone();
        let line = &mut state.line;
        if line.used_by.is_none() && self.has_line && may_take {
            line.used_by = Some(thread);
        }
        line.used_by == Some(thread)
    }

    pub(super) fn execute_on_the_line(&self, state: &mut State, thread: Thread) {
        let lock = self.wants[thread];
        let held_by = state.held_by[lock].get_or_insert(Token::Of(thread));
        let is_granted = *held_by == Token::Of(thread);
        state.line.tracked[lock] = true;
        // What was told before the answer is passed over.
        state.line.told = [false; 2];
        state.threads[thread] = Phase::OnTheLine(OnTheLine::Answered(is_granted));
    }

    pub(super) fn receive_on_the_line(&self, state: &mut State, thread: Thread, is_granted: bool) {
        if is_granted {
            return self.leave(state, thread, Leaving::Exclusive);
        }
        state.queues[self.wants[thread]].refused(ticket(thread), *START, Some(end()));
        self.listen(state, thread);
    }

    pub(super) fn receive_what_came(&self, state: &mut State, thread: Thread) -> Option<()> {
        match state.threads[thread] {
            Phase::OnTheLine(_) if state.line.is_broken => {
                self.line_is_lost(state, thread, *START + PAUSE);
            }
            Phase::OnTheLine(OnTheLine::Answered(is_granted)) => {
                self.receive_on_the_line(state, thread, is_granted);
            }
            _ if state.shared.is_broken => self.fail(state, thread),
            Phase::Answered(sent, is_granted) => self.receive(state, thread, sent, is_granted),
            _ => return None,
        }
        Some(())
    }

    /// Asks, leaves, or listens for as long as the queue says now.
    pub(super) fn listen(&self, state: &mut State, thread: Thread) {
        let now = *START + LEASE / 2;
        match state.queues[self.wants[thread]].step(ticket(thread), now) {
            Step::Ask => state.threads[thread] = Phase::OnTheLine(OnTheLine::Sent),
            Step::TakeHanded => self.leave(state, thread, Leaving::WithoutLock),
            Step::Sleep(until) => {
                state.threads[thread] = Phase::OnTheLine(OnTheLine::Listening(until));
            }
        }
    }

    /// The thread that has the line finds that it is lost, and goes on with the connection that all share.
    pub(super) fn line_is_lost(&self, state: &mut State, thread: Thread, ask_again: Instant) {
        state.line = Line::default();
        state.queues[self.wants[thread]].unanswered(ticket(thread), ask_again);
        state.threads[thread] = Phase::InQueue;
    }

    pub(super) fn hear(&self, state: &mut State, thread: Thread) -> Option<()> {
        let lock = self.wants[thread];
        if state.line.is_broken {
            self.line_is_lost(state, thread, *START);
            return Some(());
        }
        mem::take(&mut state.line.told[lock]).then_some(())?;
        state.queues[lock].changed(*START);
        self.listen(state, thread);
        Some(())
    }
}
