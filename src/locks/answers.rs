//! Whether a server that grants a lock was silent just before, as all threads that ask it for locks have seen it together.
//!
//! A master that was halted does not know, when it goes on, that another has its place: until it hears of that it grants what lies in its
//! sockets, and what it is asked next. One thread alone cannot tell: its call may have been sent at the end of the silence.
//! [`acquire`](super::acquire) enters each call here, and asks for a grant once more that is in question.
//!
//! Locks: its own state, for a moment.

use std::time::Instant;

use parking_lot::Mutex;

use crate::connection::{LONG_SILENCE, UNTIL_CONFIRMED};

/// The calls for locks of one server, and when it was silent for long.
#[derive(Default)]
pub(super) struct Answers(Mutex<State>);

/// What has come of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// The server has said something.
    Answer,
    NoAnswer,
    /// Nothing was sent: all connections were lent, or none could be opened. What opens them asks the other nodes itself.
    NotSent,
}

#[derive(Default)]
struct State {
    /// Of which master this is. Grows when another server takes its place.
    epoch: u64,
    /// How many calls are out.
    out: u32,
    /// When the first call was sent since the last answer.
    unanswered_since: Option<Instant>,
    /// A call that was sent since the last answer has got none.
    is_silent: bool,
    /// When the server answered after a long silence.
    ended: Option<Instant>,
}

impl State {
    fn of(&mut self, epoch: u64) -> Option<&mut Self> {
        if self.epoch < epoch {
            *self = Self {
                epoch,
                ..Self::default()
            };
        }
        (self.epoch == epoch).then_some(self)
    }
}

impl Answers {
    /// A call is about to be sent to the master of this epoch.
    pub(super) fn asks(&self, epoch: u64, now: Instant) {
        if let Some(state) = self.0.lock().of(epoch) {
            state.out += 1;
            state.unanswered_since.get_or_insert(now);
        }
    }

    /// That call is over.
    pub(super) fn is_over(&self, epoch: u64, came: Came, now: Instant) {
        let mut state = self.0.lock();
        let Some(state) = state.of(epoch) else {
            return;
        };
        state.out = state.out.saturating_sub(1);
        state.is_silent |= came == Came::NoAnswer;
        if came == Came::NotSent && state.out == 0 && !state.is_silent {
            state.unanswered_since = None;
        }
        if came == Came::Answer {
            state.is_silent = false;
            let since = state.unanswered_since.take();
            if since.is_some_and(|since| now.saturating_duration_since(since) > LONG_SILENCE) {
                state.ended = Some(now);
            }
            state.unanswered_since = (state.out > 0).then_some(now);
        }
    }

    /// Whether what was sent then to the master of this epoch was granted too soon after a silence.
    pub(super) fn follow_a_silence(&self, epoch: u64, sent: Instant) -> bool {
        let mut state = self.0.lock();
        let ended = state.of(epoch).and_then(|state| state.ended);
        ended.is_some_and(|ended| sent < ended + UNTIL_CONFIRMED)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_asked_at_the_end_of_a_silence_learns_of_it_from_who_asked_at_its_beginning() {
        let (answers, begun) = (Answers::default(), Instant::now());
        let at = |millis| begun + millis * MS;
        answers.asks(0, at(0));
        answers.asks(0, at(290));
        answers.is_over(0, Came::Answer, at(300));
        assert!(answers.follow_a_silence(0, at(290)) && answers.follow_a_silence(0, at(349)));
        assert!(!answers.follow_a_silence(0, at(350)));
        // It was alive by then, so that the other call has not met a silence.
        answers.is_over(0, Came::Answer, at(540));
        assert!(!answers.follow_a_silence(0, at(350)));
    }

    #[test]
    fn a_call_without_an_answer_is_of_the_silence() {
        let (answers, begun) = (Answers::default(), Instant::now());
        let at = |millis| begun + millis * MS;
        answers.asks(0, at(0));
        answers.is_over(0, Came::NoAnswer, at(200));
        answers.asks(0, at(240));
        answers.is_over(0, Came::Answer, at(251));
        assert!(answers.follow_a_silence(0, at(240)));
        // Who has not asked does not know.
        answers.asks(0, at(9_000));
        answers.is_over(0, Came::Answer, at(9_001));
        assert!(!answers.follow_a_silence(0, at(9_000)));
    }

    #[test]
    fn another_master_was_not_silent() {
        let (answers, begun) = (Answers::default(), Instant::now());
        let at = |millis| begun + millis * MS;
        answers.asks(1, at(0));
        answers.asks(2, at(300));
        answers.is_over(1, Came::Answer, at(301));
        assert!(!answers.follow_a_silence(2, at(300)) && !answers.follow_a_silence(1, at(300)));
        answers.is_over(2, Came::Answer, at(551));
        assert!(answers.follow_a_silence(2, at(552)));
    }

    #[test]
    fn a_call_that_was_not_sent_is_no_silence() {
        let (answers, begun) = (Answers::default(), Instant::now());
        let at = |millis| begun + millis * MS;
        answers.asks(0, at(0));
        answers.is_over(0, Came::NotSent, at(200));
        answers.asks(0, at(300));
        answers.is_over(0, Came::Answer, at(301));
        assert!(!answers.follow_a_silence(0, at(300)));
        // Nor does it end one.
        answers.asks(0, at(400));
        answers.asks(0, at(410));
        answers.is_over(0, Came::NotSent, at(500));
        answers.is_over(0, Came::NoAnswer, at(600));
        answers.asks(0, at(610));
        answers.is_over(0, Came::NotSent, at(620));
        answers.asks(0, at(660));
        answers.is_over(0, Came::Answer, at(661));
        assert!(answers.follow_a_silence(0, at(660)));
    }
}
