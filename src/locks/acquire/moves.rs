//! What a wait does when its key has gone to another server, or another server has become the master.
//!
//! A `MOVED` is followed [`HOPS`] times in a row; the next one counts as a failure, after which there is a pause. A grant of a shard
//! that was [silent](super::super::answers) for long, or of a server that is not the master any more, is asked for once more before it counts.

use std::time::{Duration, Instant};

use super::Wait;
use crate::{
    connection::{HOPS, UNTIL_CONFIRMED},
    error::{Error, Result},
    locks::attempts::Outcome,
    server::Reply,
    time::Deadline,
};

/// Time for the others, half of which they may take, where the wait has none left.
const OTHERS: Duration = Duration::from_millis(400);

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

    /// A grant after a long silence is confirmed by one more attempt, which is sent when that is over and the others were asked. The grant
    /// of a server that is not the master any more is confirmed by the new master.
    fn confirmed(&mut self, outcome: Outcome, sent: Instant) -> Outcome {
        let confirms_from = self.confirms_from.take();
        if !matches!(outcome, Outcome::Granted { .. }) {
            return outcome;
        }
        let is_too_soon = confirms_from.is_none_or(|from| sent < from);
        if is_too_soon && self.stack.answers.follow_a_silence(self.epoch, sent) {
            self.confirms_from = confirms_from.or_else(|| Some(self.now() + UNTIL_CONFIRMED));
        }
        if self.confirms_from.is_some() || self.has_another_master() {
            self.attempts.is_unconfirmed();
            return Outcome::Unconfirmed;
        }
        outcome
    }

    /// An attempt is about to be sent: the next one, or one that is to confirm a grant.
    pub(super) fn begins_attempt(&mut self) {
        let server = &self.stack.server;
        if self.confirms_from.is_some() {
            let left = self.deadline.remaining().max(OTHERS);
            server.look_for_another_master(self.epoch, Deadline::after(left));
        }
        self.epoch = server.epoch();
        if self.stacks.are_many() {
            self.stack.answers.asks(self.epoch, self.now());
        }
    }

    /// That attempt is over. `None`: there was no connection.
    pub(super) fn attempt_is_over(&self, reply: Option<&Reply>) {
        let is_answer = |reply: &Reply| !matches!(&reply.answer, Err(error) if error.is_io_error());
        if self.stacks.are_many() {
            let is_answered = reply.is_some_and(is_answer);
            (self.stack.answers).is_over(self.epoch, is_answered, self.now());
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
