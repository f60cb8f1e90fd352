//! What a wait does when its key has gone to another server, or another server has become the master.
//!
//! A `MOVED` is followed [`HOPS`] times in a row; the next one counts as a failure, after which there is a pause. A grant of a shard
//! that was [silent](super::super::answers) for long, or of a server that is not the master any more, is asked for once more before it counts.

use std::time::{Duration, Instant};

use super::Wait;
use crate::{
    connection::{HOPS, UNTIL_CONFIRMED},
    error::{Error, Result},
    locks::{answers::Came, attempts::Outcome},
    server::Reply,
    time::Deadline,
};

/// Time for the others, a quarter of which they may take, where the wait has none left or may be called off.
const OTHERS: Duration = Duration::from_millis(600);

impl Wait<'_> {
    /// What the reply leads to. If the key has moved, the wait takes the stack of the server that has it, unless the key has moved
    /// more than [`HOPS`] times in a row: that is a failure.
    pub(super) fn judge(&mut self, reply: Reply) -> Result<Outcome> {
        let (has_moved, sent) = (reply.has_moved, reply.sent);
        let outcome = self.attempts.judge(reply, self.now())?;
        if !has_moved {
            self.hops = 0;
            return Ok(self.confirmed(outcome, sent));
        }
        self.confirms_from = None;
        self.hops += 1;
        if self.hops > HOPS {
            self.hops = 0;
            return Ok(Outcome::Failed);
        }
        let longest = self.deadline.remaining().max(self.stacks.limits().connect);
        match self
            .stacks
            .of(self.hold.lock_name().key(), Deadline::after(longest))
        {
            Ok(stack) => self.stack = stack,
            Err(error @ Error::Thread { .. }) => return Err(error),
            Err(error) => {
                self.attempts.was_not_sent(error);
                return Ok(Outcome::Failed);
            }
        }
        Ok(outcome)
    }

    /// A grant after a long silence is confirmed by one more attempt, which is sent 50 ms later, after the others were asked. If the server
    /// was silent for long before it answered that attempt, only the others are asked again, so that a server that is always slow grants
    /// locks. The grant of a server that is not the master any more is confirmed by the new master.
    fn confirmed(&mut self, outcome: Outcome, sent: Instant) -> Outcome {
        let confirms_from = self.confirms_from.take();
        if !matches!(outcome, Outcome::Granted { .. }) {
            return outcome;
        }
        if self.stack.answers.follow_a_silence(self.epoch, sent) {
            if confirms_from.is_none_or(|from| sent < from) {
                self.confirms_from = confirms_from.or_else(|| Some(self.now() + UNTIL_CONFIRMED));
            } else {
                self.asks_the_others();
            }
        }
        if self.confirms_from.is_some() || self.has_another_master() {
            self.attempts.is_unconfirmed();
            return Outcome::Unconfirmed;
        }
        outcome
    }

    /// An attempt is about to be sent: the next one, or one that is to confirm a grant.
    pub(super) fn begins_attempt(&mut self) {
        if self.confirms_from.is_some() {
            self.asks_the_others();
        }
        self.epoch = self.stack.server.epoch();
        if self.stacks.are_many() {
            self.stack.answers.asks(self.epoch, self.now());
        }
    }

    /// Asks the other nodes whether another server has become the master.
    fn asks_the_others(&self) {
        let left = match self.settings.cancel {
            Some(_) => OTHERS,
            None => self.deadline.remaining().max(OTHERS),
        };
        (self.stack.server).look_for_another_master(self.epoch, Deadline::after(left));
    }

    /// That attempt is over. `None`: there was no connection.
    pub(super) fn attempt_is_over(&self, reply: Option<&Reply>) {
        if self.stacks.are_many() {
            let came = match reply.map(|reply| &reply.answer) {
                None => Came::NotSent,
                Some(Err(error)) if error.is_io_error() => Came::NoAnswer,
                Some(_) => Came::Answer,
            };
            (self.stack.answers).is_over(self.epoch, came, self.now());
        }
    }

    /// Whether another server has become the master since the last attempt was sent.
    pub(super) fn has_another_master(&self) -> bool {
        self.stack.server.epoch() != self.epoch
    }

    /// When a grant that does not count yet is asked for once more.
    pub(super) fn confirms_at(&self) -> Instant {
        self.confirms_from.unwrap_or_else(|| self.now())
    }
}
