//! What a wait does when its key has gone to another server, or another server has become the master.
//!
//! A `MOVED` is followed [`HOPS`] times in a row; the next one counts as a failure, after which there is a pause. A grant of a shard
//! that was silent for long, or of a server that is not the master any more, is asked for once more before it counts: see [`LONG_SILENCE`].

use std::time::Duration;

use super::Wait;
use crate::{
    connection::{HOPS, LONG_SILENCE, UNTIL_CONFIRMED},
    error::{Error, Result},
    locks::attempts::Outcome,
    server::Reply,
    time::Deadline,
};

impl Wait<'_> {
    /// What the reply leads to. If the key has moved, the wait takes the stack of the server that has it, unless the key has moved
    /// more than [`HOPS`] times in a row: that is a failure.
    pub(super) fn judge(&mut self, reply: Reply) -> Result<Outcome> {
        let has_moved = reply.has_moved;
        let took = self.now().saturating_duration_since(reply.sent);
        let mut outcome = self.attempts.judge(reply, self.now())?;
        if !has_moved {
            self.hops = 0;
            if matches!(outcome, Outcome::Granted { .. }) {
                let is_late = self.stacks.are_many() && took > LONG_SILENCE;
                // A late grant is confirmed by one more attempt, which is sent when the silence is over. The grant of a server that
                // is not the master any more is confirmed by the new master.
                if is_late && !self.is_confirming || self.has_another_master() {
                    self.attempts.is_unconfirmed();
                    outcome = Outcome::Unconfirmed;
                }
                self.is_confirming = !self.is_confirming && is_late;
            }
            return Ok(outcome);
        }
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

    /// Whether another server has become the master since the last attempt was sent.
    pub(super) fn has_another_master(&self) -> bool {
        self.stack.server.epoch() != self.epoch
    }

    /// The pause before a grant is asked for again.
    pub(super) fn until_confirmed(&self) -> Duration {
        if self.is_confirming {
            UNTIL_CONFIRMED
        } else {
            Duration::ZERO
        }
    }
}
