//! What a wait does when its key has gone to another server, or another server has become the master.
//!
//! `MOVED` is followed [`HOPS`] times in a row; after that a pause comes first, as after a failure. A grant of a shard that was silent
//! for long, or of a server that is not the master any more, is asked for once more before it counts.

use std::time::Duration;

use super::Wait;
use crate::{
    connection::HOPS,
    error::{Error, Result},
    locks::attempts::Outcome,
    server::Reply,
    time::Deadline,
};

/// A shard that has been silent for so long may have another master by now, and what it was asked before is granted by the one that
/// had the shard when it was asked. So it is asked again, by the same token,
const LONG_SILENCE: Duration = Duration::from_millis(250);
/// when a master that comes back has heard that it is none.
const UNTIL_CONFIRMED: Duration = Duration::from_millis(50);

impl Wait<'_> {
    /// What the reply leads to. Where the key is elsewhere, it goes there, unless it has been sent from one to another for too
    /// long.
    pub(super) fn judge(&mut self, reply: Reply) -> Result<Outcome> {
        let has_moved = reply.has_moved;
        let took = self.now().saturating_duration_since(reply.sent);
        let mut outcome = self.attempts.judge(reply, self.now())?;
        if !has_moved {
            self.hops = 0;
            if matches!(outcome, Outcome::Granted { .. }) {
                let is_late = self.stacks.are_many() && took > LONG_SILENCE;
                // The second was sent when the silence was over. What another server has granted than the one that is the master
                // now is asked of that one.
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

    /// Whether another server has become the master since it was asked.
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
