//! The part of a wait that stands in the queue of its lock.
//!
//! The [head](Wait::ask_as_head) of a queue asks the server, on the connection that all heads
//! share; after a grant that others may share, as many threads behind it ask with it. The place of
//! a thread wakes it for the events that the header of [`waiting`](crate::waiting) lists, and at
//! the time set after its last attempt: the end of the holder's lease, the renewal of a writer's
//! intent, or the end of a pause. At its [deadline](Wait::at_deadline) a thread gets the result of
//! the last reply to any thread of the queue. If the server may answer it otherwise than the
//! others, and it has not asked, it asks once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{AttemptOutcome, Standing, WAIT_WHILE_ALL_LENT, Wait};
use crate::{
    error::{Error, Result, unanswered_ahead},
    locks::lease::Lease,
    options::settings::Settings,
    server::Reply,
    time::Deadline,
    waiting::{LastAnswer, Place},
    wire::BusyReply,
};

/// At its deadline a thread waits at most this long for the reply to the head of its queue, so that
/// a slow connection does not look like a silent server.
const ANSWERED_AHEAD: Duration = Duration::from_millis(100);

impl Wait<'_> {
    /// Waits in the queue, behind the threads of this process that came earlier.
    pub(super) fn in_turn(&mut self) -> Result<Option<Lease>> {
        loop {
            let shared = Arc::clone(&self.stack);
            let most_holders = self.hold.most_holders();
            let place = (shared.queues).join(self.key(), self.takes(), most_holders);
            if self.has_intent && !place.is_head() {
                // The intent would keep out the readers that are ahead in this queue. The server
                // does not notify this process of the removal, since that comes on the heads' own
                // connection: so the queue is told here.
                self.withdraw_intent(self.attempts.failure.as_ref());
                shared.queues.changed(self.key());
            }
            let outcome = self.ask_as_head(&place);
            if let Ok(AttemptOutcome::Granted {
                grant,
                leaving,
                next_asks_at,
            }) = outcome
            {
                place.leave_granted(leaving, next_asks_at);
                return Ok(Some(self.lease(grant).after_queue()));
            }
            let goes_on = matches!(outcome, Ok(AttemptOutcome::Moved));
            self.has_intent = goes_on;
            if !goes_on {
                self.withdraw_intent(outcome.as_ref().err());
            }
            if let Some(handed) = place.leave_with_what_was_handed() {
                return Ok(Some(handed.claimed()));
            }
            if !goes_on {
                return outcome.map(|_| None);
            }
        }
    }

    /// Runs as the head of a queue: sleeps until its place wakes it, asks the server, and sleeps
    /// again, until the deadline, or until the key has moved to another stack.
    ///
    /// Returns `Refused` if the deadline passed, or the wait was cancelled.
    fn ask_as_head(&mut self, place: &Place<'_, Settings, Lease, Error>) -> Result<AttemptOutcome> {
        let made_before = self.attempts.made;
        let shared = Arc::clone(&self.stack);
        shared.server.start_notifications();
        let cancel = self.cancel.clone();
        let cancel = cancel.as_ref();
        let waiting = Arc::downgrade(&shared);
        let wake_all = move || {
            if let Some(shared) = waiting.upgrade() {
                shared.queues.wake_all();
            }
        };
        let _woken = cancel.map(|cancel| cancel.wakes(wake_all));
        while place.wait(cancel, self.deadline) {
            // A silent server delays the end by one time-out past the deadline. A wake-up after the
            // deadline must not add another.
            if self.attempts.made > 0 && self.deadline.has_passed() {
                break;
            }
            if self.attempts.failure.is_some() {
                self.follow(self.deadline)?;
                if !Arc::ptr_eq(&shared, &self.stack) {
                    return Ok(AttemptOutcome::Moved);
                }
            }
            self.attempts.made += 1;
            let call = (self.hold).acquiring(self.lease_millis, true, BusyReply::NoWithTimeLeft);
            let call = call.again();
            let mut answered = self.stack.clock.now();
            let outcome = match (shared.server).ask_for_head(&call, self.deadline, cancel) {
                Ok(Some(reply)) => {
                    answered = reply.answered;
                    self.attempts.judge(reply, self.stack.clock.now())?
                }
                // The shared connection served other heads until the deadline or the cancel.
                Ok(None) => break,
                Err(error) if !error.may_pass() => return Err(error),
                Err(error) => {
                    self.attempts.failure = Some(error);
                    AttemptOutcome::Failed
                }
            };
            match outcome {
                AttemptOutcome::Granted { .. } | AttemptOutcome::AlreadyRun => return Ok(outcome),
                outcome => self.asks_again(&outcome, answered, place),
            }
        }
        let has_asked = self.attempts.made > made_before;
        self.at_deadline(place, has_asked)
    }

    /// Sets the time of the next attempt after this outcome, which came at the moment `answered`.
    fn asks_again(
        &mut self,
        outcome: &AttemptOutcome,
        answered: Instant,
        place: &Place<'_, Settings, Lease, Error>,
    ) {
        self.report_retry();
        let now = self.stack.clock.now();
        match outcome {
            AttemptOutcome::Refused {
                ask_again_at: Some(ask_again_at),
            } => {
                self.pauses.start_again();
                self.failure_pauses.start_again();
                place.refused(answered, Some(*ask_again_at));
            }
            AttemptOutcome::Refused { ask_again_at: None } => {
                let pause = self.pauses.next_pause(Duration::MAX);
                place.refused(answered, Some(now + pause));
            }
            _ => {
                let pause = self.failure_pauses.next_pause(Duration::MAX);
                place.failed(self.attempts.failure.clone(), now + pause);
            }
        }
    }

    /// Ends the wait at its deadline with the result of the last reply to any thread of this queue,
    /// or else of this thread's attempt before it joined. If an attempt of this thread may have
    /// acquired the lock, the replies to other threads do not count. A thread that has not asked in
    /// this queue asks now, once, if the server may answer it otherwise than the others.
    fn at_deadline(
        &mut self,
        place: &Place<'_, Settings, Lease, Error>,
        has_asked: bool,
    ) -> Result<AttemptOutcome> {
        let is_cancelled = self.is_cancelled();
        let longest = if is_cancelled {
            Duration::ZERO
        } else {
            ANSWERED_AHEAD
        };
        let last = place.last_answer_by(Deadline::after(longest));
        if !has_asked && !is_cancelled && !self.is_told_by(&last) {
            return self.ask_for_the_last_time();
        }
        let refused = AttemptOutcome::Refused { ask_again_at: None };
        match last {
            LastAnswer::Busy if !self.attempts.may_be_ours() => return Ok(refused),
            LastAnswer::Failed(failure) if !self.attempts.may_be_ours() => {
                return Err(self.operation.failed_as(&failure));
            }
            _ => {}
        }
        match self.attempts.last_failure() {
            Some(failure) => Err(failure),
            None if matches!(self.attempts.standing, Standing::Busy(_)) => Ok(refused),
            None => Err(unanswered_ahead(None)),
        }
    }

    /// Returns true if the server's reply to another thread of the queue is its reply to this one.
    fn is_told_by(&self, answer: &LastAnswer<Error>) -> bool {
        match answer {
            LastAnswer::Busy => !self.is_judged_alone(),
            LastAnswer::Failed(Error::TooFewReplicas { wanted, .. }) => {
                let ours = self.hold.replicas.map(|replicas| replicas.count);
                ours == Some(*wanted)
            }
            LastAnswer::Failed(_) | LastAnswer::Missing => true,
        }
    }

    /// Removes a writer's intent before the next thread of the queue asks, since it could block
    /// that thread. Sends nothing to a silent server: the intent expires within a second.
    fn withdraw_intent(&self, failure: Option<&Error>) {
        let is_silent = matches!(failure, Some(Error::Unknown { .. } | Error::Pool { .. }));
        if let Some(call) = self.hold.withdrawing_intent().filter(|_| !is_silent) {
            // Uses the connection of the heads, since all connections of the pool may be lent.
            let sent =
                (self.stack.server).ask_for_head(&call, Deadline::after(WAIT_WHILE_ALL_LENT), None);
            let is_refusal = |reply: Reply| reply.answer.is_err_and(|it| !it.is_io_error());
            if sent.is_ok_and(|reply| reply.is_none_or(is_refusal)) {
                self.send_unheeded(&call);
            }
        }
    }

    /// Returns the settings for a lock that is handed to this thread; `None` if it takes no
    /// hand-over.
    fn takes(&self) -> Option<Settings> {
        let takes = self.settings.hands_over() && !self.is_judged_alone();
        takes.then(|| self.settings.clone().of(&self.hold.owner))
    }
}
