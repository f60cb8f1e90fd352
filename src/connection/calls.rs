//! When the master of a shard was silent for long, as all calls to it have seen it together.
//!
//! A master that was halted does not know, when it goes on, that another has its place: until it hears of that it grants what lies in its
//! sockets, and what it is asked next. One thread alone cannot tell: its call may have been sent at the end of the silence. So all that
//! is asked by connections of the shard's pool, or beside it, is entered here, and whoever waits for a lock learns here that a grant
//! is in question. A call that waits for replicas is not entered: the master answers it late without being silent.
//!
//! Locks: its own state, for a moment.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::RedisResult;

use crate::time;

/// A server that was silent for longer than this may have been replaced in that time. When it goes on, as a halted one does, it says
/// that it is the master and grants locks until it hears of the next one.
pub(crate) const LONG_SILENCE: Duration = Duration::from_millis(250);
/// The pause before it is asked once more: in this time it hears of the next one.
pub(crate) const UNTIL_CONFIRMED: Duration = Duration::from_millis(50);

/// The calls to the master of one shard, and when it was silent for long.
#[derive(Default)]
pub(crate) struct Calls(Mutex<State>);

/// A call that is out, until it [ends](Self::end). If it is dropped before, it has got no answer.
///
/// The default is one that is not entered.
#[derive(Default)]
pub(crate) struct Out<'a> {
    entered: Option<Entered<'a>>,
}

struct Entered<'a> {
    calls: &'a Calls,
    epoch: u64,
    sent: Instant,
}

#[derive(Default)]
struct State {
    /// Of which master this is. Grows when another server takes its place.
    epoch: u64,
    /// How many calls are out.
    out: u32,
    /// Since when the master has answered no call that it was sent.
    unanswered_since: Option<Instant>,
    /// When it answered after a long silence.
    ended: Option<Instant>,
}

impl<'a> Out<'a> {
    /// A call is about to be sent to the master of this epoch.
    pub(crate) fn begin(calls: &'a Calls, epoch: u64) -> Self {
        let sent = time::now();
        calls.begin(epoch, sent);
        let entered = Some(Entered { calls, epoch, sent });
        Self { entered }
    }

    /// This has come of it. An error of the socket is no answer.
    pub(crate) fn end<T>(mut self, answer: &RedisResult<T>) {
        if let Some(Entered { calls, epoch, sent }) = self.entered.take_if(|_| is_answer(answer)) {
            calls.end(epoch, sent, Some(time::now()));
        }
    }

    /// This has come of one of several that were sent together, and others are still to come.
    pub(crate) fn hear<T>(&mut self, answer: &RedisResult<T>) {
        if let Some(Entered { calls, epoch, sent }) =
            self.entered.as_ref().filter(|_| is_answer(answer))
        {
            calls.hear(*epoch, *sent, time::now());
        }
    }
}

fn is_answer<T>(answer: &RedisResult<T>) -> bool {
    !matches!(answer, Err(error) if error.is_io_error())
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        if let Some(Entered { calls, epoch, sent }) = self.entered.take() {
            calls.end(epoch, sent, None);
        }
    }
}

impl Calls {
    fn begin(&self, epoch: u64, now: Instant) {
        if let Some(state) = self.0.lock().of(epoch) {
            state.out += 1;
            state.unanswered_since.get_or_insert(now);
        }
    }

    fn end(&self, epoch: u64, sent: Instant, answered: Option<Instant>) {
        let mut state = self.0.lock();
        let Some(state) = state.of(epoch) else {
            return;
        };
        state.out = state.out.saturating_sub(1);
        if let Some(now) = answered {
            state.answered(sent, now);
        }
    }

    fn hear(&self, epoch: u64, sent: Instant, now: Instant) {
        if let Some(state) = self.0.lock().of(epoch) {
            state.answered(sent, now);
        }
    }

    /// A connection to the master of this epoch was opened, or not. Opening takes time in which the master is not asked, so that only
    /// an attempt that has failed counts as its silence.
    pub(super) fn has_opened(&self, epoch: u64, began: Instant, is_open: bool) {
        let mut state = self.0.lock();
        let Some(state) = state.of(epoch) else {
            return;
        };
        if is_open {
            state.answered(began, time::now());
        } else {
            state.unanswered_since.get_or_insert(began);
        }
    }

    /// Whether what was sent then to the master of this epoch was granted too soon after a silence.
    pub(crate) fn follow_a_silence(&self, epoch: u64, sent: Instant) -> bool {
        let mut state = self.0.lock();
        let ended = state.of(epoch).and_then(|state| state.ended);
        ended.is_some_and(|ended| sent < ended + UNTIL_CONFIRMED)
    }
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

    /// What was sent then has been answered by now. The thread that says so may have slept meanwhile: the master was alive when it was
    /// sent, or later.
    fn answered(&mut self, sent: Instant, now: Instant) {
        let since = self.unanswered_since.take();
        if since.is_some_and(|since| now.saturating_duration_since(since) > LONG_SILENCE) {
            self.ended = Some(now);
        }
        if self.out > 0 {
            self.unanswered_since = since.map(|since| since.max(sent));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use redis::{ErrorKind, RedisError};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The calls of one test, and its clock in milliseconds.
    struct Told(Calls, Instant);

    impl Told {
        fn new() -> Self {
            Self(Calls::default(), Instant::now())
        }

        fn begin(&self, epoch: u64, at: u32) {
            self.0.begin(epoch, self.1 + at * MS);
        }

        fn answered(&self, epoch: u64, sent: u32, at: u32) {
            let (sent, at) = (self.1 + sent * MS, self.1 + at * MS);
            self.0.end(epoch, sent, Some(at));
        }

        fn heard(&self, sent: u32, at: u32) {
            self.0.hear(0, self.1 + sent * MS, self.1 + at * MS);
        }

        fn given_up(&self, sent: u32) {
            self.0.end(0, self.1 + sent * MS, None);
        }

        fn is_in_question(&self, epoch: u64, sent: u32) -> bool {
            self.0.follow_a_silence(epoch, self.1 + sent * MS)
        }
    }

    #[test]
    fn who_asked_at_the_end_of_a_silence_learns_of_it_from_who_asked_at_its_beginning() {
        let told = Told::new();
        told.begin(0, 0);
        told.begin(0, 290);
        told.answered(0, 0, 300);
        assert!(told.is_in_question(0, 290) && told.is_in_question(0, 349));
        assert!(!told.is_in_question(0, 350));
        told.answered(0, 290, 301);
        assert!(!told.is_in_question(0, 351));
        // All have been answered.
        told.begin(0, 1_000);
        told.answered(0, 1_000, 1_001);
        assert!(!told.is_in_question(0, 1_000));
    }

    #[test]
    fn a_call_without_an_answer_is_of_the_silence() {
        let told = Told::new();
        told.begin(0, 0);
        told.given_up(0);
        told.begin(0, 240);
        told.answered(0, 240, 251);
        assert!(told.is_in_question(0, 240));
        // Who has not asked does not know.
        told.begin(0, 9_000);
        told.answered(0, 9_000, 9_001);
        assert!(!told.is_in_question(0, 9_000));
    }

    /// Its thread slept, or its packet was lost. Others are answered at once.
    #[test]
    fn one_late_answer_is_no_silence() {
        let told = Told::new();
        told.begin(0, 0);
        for sent in (10..400).step_by(10) {
            told.begin(0, sent);
            told.answered(0, sent, sent + 1);
            assert!(!told.is_in_question(0, sent));
        }
        told.begin(0, 400);
        for (sent, at) in [(0, 401), (400, 402)] {
            told.answered(0, sent, at);
            assert!(!told.is_in_question(0, 400));
        }
    }

    #[test]
    fn only_a_connection_that_could_not_be_opened_is_of_a_silence() {
        let (calls, now) = (Calls::default(), time::now());
        let Some(long_ago) = now.checked_sub(2 * LONG_SILENCE) else {
            return;
        };
        calls.has_opened(0, long_ago, true);
        assert!(!calls.follow_a_silence(0, now));
        calls.has_opened(0, long_ago, false);
        calls.has_opened(0, now, true);
        assert!(calls.follow_a_silence(0, now));
    }

    #[test]
    fn a_later_silence_counts_as_well() {
        let told = Told::new();
        for sent in [0, 1_000] {
            told.begin(0, sent);
            told.answered(0, sent, sent + 251);
            assert!(told.is_in_question(0, sent + 260));
        }
    }

    /// Its thread has slept for 200 ms before it says that the call was answered.
    #[test]
    fn a_silence_begins_when_the_answered_call_was_sent_at_the_latest() {
        let told = Told::new();
        told.begin(0, 0);
        told.begin(0, 5);
        told.answered(0, 0, 200);
        told.answered(0, 5, 300);
        assert!(told.is_in_question(0, 300));
    }

    /// The others lie in the sockets of a master that is halted when it has answered the first.
    #[test]
    fn of_several_that_were_sent_together_each_is_out_until_the_last_is_answered() {
        let told = Told::new();
        told.begin(0, 0);
        told.heard(0, 100);
        assert!(!told.is_in_question(0, 0));
        told.answered(0, 0, 300);
        assert!(told.is_in_question(0, 0));
        // And then they are not out any more.
        told.begin(0, 2_000);
        told.answered(0, 2_000, 2_001);
        assert!(!told.is_in_question(0, 2_000));
    }

    #[test]
    fn another_master_was_not_silent() {
        let told = Told::new();
        told.begin(1, 0);
        told.begin(2, 300);
        told.answered(1, 0, 301);
        assert!(!told.is_in_question(2, 300) && !told.is_in_question(1, 300));
        told.answered(2, 300, 551);
        assert!(told.is_in_question(2, 552));
    }

    #[test]
    fn an_error_of_the_server_is_an_answer_and_one_of_the_socket_is_none() {
        let calls = Calls::default();
        let is_unanswered = || {
            let state = calls.0.lock();
            assert_eq!(state.out, 0);
            state.unanswered_since.is_some()
        };
        let refusal = RedisError::from((ErrorKind::Client, "no"));
        let silence = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
        for answer in [Ok(()), Err(refusal)] {
            drop(Out::begin(&calls, 0));
            assert!(is_unanswered());
            Out::begin(&calls, 0).end(&answer);
            assert!(!is_unanswered());
            let mut interrupted = Out::begin(&calls, 0);
            interrupted.hear(&Err::<(), _>(silence.clone()));
            interrupted.end(&answer);
            assert!(!is_unanswered());
            Out::begin(&calls, 0).end(&Err::<(), _>(silence.clone()));
            assert!(is_unanswered());
        }
    }
}
