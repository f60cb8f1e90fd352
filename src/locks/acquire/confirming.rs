//! What a wait does with a grant that is in question: it was given by a shard of a cluster that was silent for long before, or by a
//! server that is not the master any more.
//!
//! It asks for the lock once more, by a connection of the pool: after 50 ms, in which a deposed master hears of its successor, and when
//! other nodes have been asked who the master is. The lock is ours if it is granted again. If the server was silent a second time before
//! it answered, the other nodes are asked again and that is all: a server that is always slow grants locks. What was not confirmed in
//! time, or for want of a connection of the pool, has failed: the next attempt tells, or at the deadline the answer is `Unknown`.
//!
//! All of it takes [`OVERTIME`] at most after the deadline, and while the server is silent no longer than one answer may take in all, and
//! the time for the others.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{LENT_WHILE_WAITING, Wait};
use crate::{
    connection::UNTIL_CONFIRMED,
    error::{Error, Result},
    locks::attempts::Outcome,
    script::Refusal,
    server::{Patience, Reply},
    time::{self, Deadline},
};

/// After the deadline, for the pause, for the others, and for a connection. A wait ends 250 ms after its deadline at most.
const OVERTIME: Duration = Duration::from_millis(225);
/// Time for the others, half of which they may take, where the wait has none left or may be called off.
const OTHERS: Duration = Duration::from_millis(250);

impl Wait<'_> {
    /// What the reply to an attempt leads to that was made at this epoch. A grant that is in question is confirmed first.
    pub(super) fn judge(&mut self, reply: Reply) -> Result<Outcome> {
        let sent = reply.sent;
        let outcome = self.moved_or_judged(reply)?;
        if matches!(outcome, Outcome::Granted { .. })
            && (self.has_another_master() || self.follows_a_silence(sent))
        {
            return self.confirm(sent);
        }
        Ok(outcome)
    }

    /// Asks for the lock until a grant is not in question: once, unless the master changes meanwhile. `sent`: when the first grant was
    /// asked for.
    fn confirm(&mut self, sent: Instant) -> Result<Outcome> {
        let ready = Deadline::after(self.deadline.remaining().max(OVERTIME));
        if self.follows_a_silence(sent) {
            thread::sleep(UNTIL_CONFIRMED);
            self.asks_the_others();
        }
        loop {
            self.attempts.is_unconfirmed();
            if self.settings.is_cancelled() || ready.has_passed() {
                return Ok(Outcome::Failed);
            }
            let Some(reply) = self.asks_again(ready, sent)? else {
                return Ok(Outcome::Failed);
            };
            let was_silent_again = self.follows_a_silence(reply.sent);
            let outcome = self.moved_or_judged(reply)?;
            if !matches!(outcome, Outcome::Granted { .. }) {
                return Ok(outcome);
            }
            if was_silent_again {
                self.asks_the_others();
            }
            if !self.has_another_master() {
                return Ok(outcome);
            }
        }
    }

    /// The reply to one more attempt. `None`: it was not sent.
    fn asks_again(&mut self, ready: Deadline, first_sent: Instant) -> Result<Option<Reply>> {
        let call = (self.hold).acquiring(self.lease_millis, false, Refusal::Bare);
        let left = self.left_for_an_answer(first_sent);
        let patience = Patience {
            lent: ready.remaining().min(LENT_WHILE_WAITING),
            whole: ready.remaining(),
            answer: Some(Deadline::after(ready.remaining().max(left))),
            tells_of_moves: true,
            cancel: self.settings.cancel.as_ref(),
        };
        self.attempts.made += 1;
        self.epoch = self.stack.server.epoch();
        match self.stack.server.ask(&call.again(), patience) {
            Ok(reply) => Ok(Some(reply)),
            Err(forked @ Error::Forked) => Err(forked),
            Err(error) => {
                self.attempts.was_not_sent(error);
                Ok(None)
            }
        }
    }

    /// How long a server may be silent that is asked after the first attempt, which was sent then: no longer than if there were no other.
    fn left_for_an_answer(&self, first_sent: Instant) -> Duration {
        let since = time::now().saturating_duration_since(first_sent);
        self.stacks.limits().answer.saturating_sub(since)
    }

    /// When a call ends that is led to another server, which may be silent as well: as if there were no attempt but the first.
    pub(super) fn ends_elsewhere(&self, first_sent: Instant) -> Deadline {
        let longest = self.left_for_an_answer(first_sent).max(OVERTIME);
        Deadline::after(self.deadline.remaining().max(longest))
    }

    /// Asks the other nodes whether another server has become the master.
    fn asks_the_others(&self) {
        let left = match self.settings.cancel {
            Some(_) => OTHERS,
            None => self.deadline.remaining().max(OTHERS),
        };
        (self.stack.server).look_for_another_master(self.epoch, Deadline::after(left));
    }

    fn follows_a_silence(&self, sent: Instant) -> bool {
        self.stack.server.follows_a_silence(self.epoch, sent)
    }

    /// Whether another server has become the master since the last attempt was sent.
    pub(super) fn has_another_master(&self) -> bool {
        self.stack.server.epoch() != self.epoch
    }
}
