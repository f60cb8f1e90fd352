//! The head of a queue: it asks when its place says so, by the connection that all heads share.

use std::{sync::Arc, time::Duration};

use super::{Asked, Wait};
use crate::{
    error::{Error, Result, unanswered_ahead},
    locks::{
        attempts::Outcome,
        lease::Lease,
        options::{Pauses, Settings},
        stack::Stack,
    },
    script::Refusal,
    time::{Backoff, Deadline},
    waiting::{LastAnswer, Place},
};

/// At its deadline a thread waits so long for the answer to the one ahead that is asking: a server
/// that is far away is not called silent.
const ANSWERED_AHEAD: Duration = Duration::from_millis(100);

impl Wait<'_> {
    /// Sleeps until the place says that it is time to ask, asks, and sleeps again, until the
    /// deadline, or until the key has gone to another stack.
    pub(super) fn ask_as_head(
        &mut self,
        place: &Place<'_, Settings, Lease, Error>,
    ) -> Result<Asked> {
        let shared = Arc::clone(&self.stack);
        shared.server.want();
        let cancel = self.settings.cancel.as_ref();
        let _woken = cancel.map(|cancel| cancel.wakes(wakes_all(&shared)));
        let Pauses { first, last } = self.settings.backoff;
        let mut pauses = Backoff::between(first, last);
        while place.wait_unless(cancel, self.deadline) {
            // A silent server costs one time-out after the deadline, and not one more for a wake-up
            // that came late.
            if self.attempts.made > 0 && self.deadline.has_passed() {
                break;
            }
            if self.attempts.has_failed() && self.has_gone_elsewhere()? {
                return Ok(Asked::Moved);
            }
            self.attempts.made += 1;
            let call = (self.hold)
                .acquiring(self.lease_millis, true, Refusal::WithItsEnd)
                .again();
            self.epoch = shared.server.epoch();
            let asked = (shared.server).ask_for_head(&call, self.deadline, cancel);
            let reply = match asked {
                Ok(Some(reply)) => reply,
                // Others were asked for until the deadline or the cancel.
                Ok(None) => break,
                Err(error) if !error.may_pass() => return Err(error),
                Err(error) => {
                    self.attempts.was_not_sent(error);
                    let pause = self.next_pause(&mut pauses, true);
                    place.failed(self.attempts.failure(), self.now() + pause);
                    continue;
                }
            };
            let outcome = self.judge(reply)?;
            if !Arc::ptr_eq(&shared, &self.stack) {
                return Ok(Asked::Moved);
            }
            if let Some(asked) = self.follows(&outcome, place, &mut pauses) {
                return Ok(asked);
            }
        }
        let answered_by = if self.settings.is_cancelled() {
            Duration::ZERO
        } else {
            ANSWERED_AHEAD
        };
        self.in_vain(&place.last_answer_by(Deadline::after(answered_by)))
    }

    /// The deadline has come. Who has the lock is known by the last attempt of this queue, or else
    /// by an attempt of this thread before it joined. What may be ours is in doubt, whatever others
    /// were told.
    fn in_vain(&mut self, last: &LastAnswer<Error>) -> Result<Asked> {
        match last {
            LastAnswer::Busy if !self.attempts.may_be_ours() => return Ok(Asked::InVain),
            LastAnswer::Failed(failure) if !self.attempts.may_be_ours() => {
                return Err(self.operation.failed_as(failure));
            }
            _ => {}
        }
        match self.attempts.last_failure() {
            Some(failure) => Err(failure),
            None if self.attempts.was_refused() => Ok(Asked::InVain),
            None => Err(unanswered_ahead(None)),
        }
    }

    /// What an outcome leads to: an end of the wait, or `None` and another attempt at the moment
    /// that the place is told.
    fn follows(
        &mut self,
        outcome: &Outcome,
        place: &Place<'_, Settings, Lease, Error>,
        pauses: &mut Backoff,
    ) -> Option<Asked> {
        match *outcome {
            Outcome::Granted {
                grant,
                next_asks_at,
            } => {
                return Some(Asked::Granted(grant, next_asks_at));
            }
            Outcome::AlreadyRun => return Some(Asked::InVain),
            // The same shard at another address.
            Outcome::Moved => place.failed(None, self.now()),
            Outcome::Refused {
                ask_again_at,
                tracked: true,
            } => {
                pauses.start_again();
                self.doubts.start_again();
                place.refused(Some(ask_again_at));
            }
            Outcome::Refused { tracked: false, .. } => {
                place.refused(Some(self.now() + pauses.next_pause(Duration::MAX)));
            }
            Outcome::Failed => {
                let in_doubt = self.stacks.are_many() && self.attempts.is_in_doubt();
                let pause = self.next_pause(pauses, in_doubt);
                place.failed(self.attempts.failure(), self.now() + pause);
            }
        }
        None
    }

    /// The pause after a failure. `in_doubt`: no server is reached, or it is not known who the
    /// master is.
    fn next_pause(&mut self, usual: &mut Backoff, in_doubt: bool) -> Duration {
        let pauses = if in_doubt { &mut self.doubts } else { usual };
        pauses.next_pause(Duration::MAX)
    }
}

/// What a cancel does for those who wait in a stack.
fn wakes_all(shared: &Arc<Stack<Lease>>) -> impl Fn() + Send + Sync + 'static {
    let waiting = Arc::downgrade(shared);
    move || {
        if let Some(shared) = waiting.upgrade() {
            shared.queues.wake_all();
        }
    }
}
