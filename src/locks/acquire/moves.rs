//! A wait whose key has gone to another server follows it.
//!
//! A `MOVED` is followed [`HOPS`] times in a row; the next one counts as a failure, after which
//! there is a pause. After a failure the map of the nodes counts as well: the server that had the
//! key may be gone, and answer nothing.

use std::sync::Arc;

use super::Wait;
use crate::{
    connection::HOPS,
    error::{Error, Result},
    locks::attempts::Outcome,
    server::Reply,
    time::Deadline,
};

impl Wait<'_> {
    /// What the reply leads to. If the key has moved, the wait takes the stack of the server that
    /// has it, unless the key has moved more than [`HOPS`] times in a row: that is a failure.
    pub(super) fn judge(&mut self, reply: Reply) -> Result<Outcome> {
        let outcome = self.moved_or_judged(reply)?;
        if matches!(outcome, Outcome::Granted { .. }) && self.has_another_master() {
            self.attempts.is_unconfirmed();
            return Ok(Outcome::Failed);
        }
        Ok(outcome)
    }

    /// Takes the stack that has the key by what the nodes say now. False: that is the same one, or
    /// nobody knows.
    pub(super) fn has_gone_elsewhere(&mut self) -> Result<bool> {
        let stack = match self.stacks.of(self.hold.lock_name().key(), self.deadline) {
            Ok(stack) => stack,
            Err(error @ Error::Thread { .. }) => return Err(error),
            Err(_) => return Ok(false),
        };
        let is_another = !Arc::ptr_eq(&stack, &self.stack);
        self.stack = stack;
        Ok(is_another)
    }

    /// Whether another server has become the master since the last attempt was sent.
    pub(super) fn has_another_master(&self) -> bool {
        self.stack.server.epoch() != self.epoch
    }

    fn moved_or_judged(&mut self, reply: Reply) -> Result<Outcome> {
        let has_moved = reply.has_moved;
        let outcome = self.attempts.judge(reply, self.now())?;
        if !has_moved {
            self.hops = 0;
            return Ok(outcome);
        }
        self.hops += 1;
        if self.hops > HOPS {
            self.hops = 0;
            return Ok(Outcome::Failed);
        }
        let longest = self.deadline.remaining().max(self.stacks.limits.connect);
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
}
