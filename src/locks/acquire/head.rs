//! What the head of a queue does: it asks when its place says so, by the connection that all heads share or by a line of its own.

use std::{sync::Arc, time::Duration};

use super::{Asked, Wait};
use crate::{
    error::{Error, Result},
    locks::{attempts::Outcome, lease::Lease, options::Pauses, settings::Settings, shared::Shared},
    recipes::hold::Kind,
    script::{Call, Refusal},
    server::{Line, News, Unsent},
    time::Backoff,
    waiting::{Manner, Next, PASSED_ON, Place},
};

/// A head that was refused by a look or in brief, and has heard nothing since, makes a whole attempt after so long.
const FINDS_ALL_OUT: Duration = Duration::from_millis(100);

impl Wait<'_> {
    /// Sleeps until the place says that it is time to ask, asks, and sleeps again, until the deadline, or until the key has gone
    /// to another stack.
    pub(super) fn ask_as_head(&mut self, place: &Place<'_, Settings, Lease>) -> Result<Asked> {
        let (shared, key) = (Arc::clone(&self.stack), self.key().to_owned());
        shared.server.want();
        let cancel = self.settings.cancel.as_ref();
        let _woken = cancel.map(|cancel| cancel.wakes(wakes_all(&shared)));
        let Pauses { first, last } = self.settings.backoff;
        let mut pauses = Backoff::between(first, last);
        let mut line: Option<Box<dyn Line>> = None;
        while self.waits_until_it_is_time(place, line.as_deref_mut()) {
            // A silent server costs one time-out after the deadline, and not one more for a wake-up that came late.
            if self.attempts.made > 0 && self.deadline.has_passed() {
                break;
            }
            self.attempts.made += 1;
            let manner = self.manner(place);
            let call = self.call(manner);
            line = line.filter(|line| line.is_open());
            if line.is_none() && self.may_listen(&call) && place.is_alone() {
                line = shared.server.line(&key);
            }
            self.epoch = shared.server.epoch();
            let asked = match &mut line {
                Some(line) => line.ask(&call, manner.looks_first),
                None => (shared.server).ask_for_head(&call, manner.looks_first, self.deadline),
            };
            let reply = match asked {
                Ok(reply) => reply,
                Err(Unsent::NoConnection(error @ (Error::TooOld { .. } | Error::Forked))) => {
                    return Err(error);
                }
                Err(Unsent::NoConnection(error)) => {
                    self.attempts.was_not_sent(error);
                    let pause = self.next_pause(&mut pauses, self.stacks.are_many());
                    place.look_again_at(Some(self.now() + pause));
                    continue;
                }
                Err(Unsent::InUse { has_failed }) => {
                    self.others_had_the_connection(has_failed);
                    break;
                }
            };
            let outcome = self.judge(reply)?;
            if !Arc::ptr_eq(&shared, &self.stack) {
                return Ok(Asked::Moved);
            }
            let has_line = line.is_some();
            if let Some(asked) = self.follows(&outcome, place, manner, has_line, &mut pauses) {
                return Ok(asked);
            }
        }
        (self.attempts.last_failure()).map_or(Ok(Asked::InVain), Err)
    }

    fn call(&self, manner: Manner) -> Call {
        let refusal = if manner.is_brief {
            Refusal::Bare
        } else {
            Refusal::WithItsEnd
        };
        (self.hold).acquiring(self.lease_millis, true, refusal)
    }

    /// What an outcome leads to: an end of the wait, or `None` and another attempt at the moment that the place is told.
    fn follows(
        &mut self,
        outcome: &Outcome,
        place: &Place<'_, Settings, Lease>,
        manner: Manner,
        has_line: bool,
        pauses: &mut Backoff,
    ) -> Option<Asked> {
        match *outcome {
            Outcome::Granted {
                grant,
                next_asks_at,
            } => {
                let next_asks_at = if manner.is_brief {
                    // After a grant in brief the server tells nobody of a change, but a release is near.
                    self.now() + PASSED_ON
                } else if has_line {
                    // The server tells of the next change on the line alone, on which the next head does not read.
                    self.now()
                } else {
                    next_asks_at
                };
                return Some(Asked::Granted(grant, next_asks_at));
            }
            Outcome::HasBeenRun => return Some(Asked::InVain),
            // The same shard at another address.
            Outcome::Moved => place.look_again_at(Some(self.now())),
            Outcome::Refused {
                ask_again_at,
                tracked: true,
            } => {
                pauses.start_again();
                self.doubts.start_again();
                let knows_little = manner.looks_first || manner.is_brief;
                let look_again = knows_little.then(|| self.now() + FINDS_ALL_OUT);
                place.refused(ask_again_at.into_iter().chain(look_again).min());
            }
            Outcome::Refused { tracked: false, .. } => {
                place.refused(Some(self.now() + pauses.next_pause(Duration::MAX)));
            }
            Outcome::Failed => {
                let in_doubt = self.stacks.are_many() && self.attempts.is_in_doubt();
                let pause = self.next_pause(pauses, in_doubt);
                place.look_again_at(Some(self.now() + pause));
            }
        }
        None
    }

    /// The pause after a failure. `in_doubt`: it is not known who the master is.
    fn next_pause(&mut self, usual: &mut Backoff, in_doubt: bool) -> Duration {
        let pauses = if in_doubt { &mut self.doubts } else { usual };
        pauses.next_pause(Duration::MAX)
    }

    /// Sleeps until it is time to ask: reading the line, if the head has it, or else in its place of the queue. False: the head leaves.
    fn waits_until_it_is_time(
        &self,
        place: &Place<'_, Settings, Lease>,
        line: Option<&mut (dyn Line + '_)>,
    ) -> bool {
        let Some(line) = line.filter(|line| line.is_open()) else {
            return place.wait_unless(self.settings.cancel.as_ref(), self.deadline);
        };
        loop {
            let until = match place.next_step(self.deadline) {
                Next::Ask => return true,
                Next::Leave => return false,
                Next::Sleep(until) => until,
            };
            match line.listen(until) {
                News::Changed => {
                    self.stack.queues.changed(self.key());
                    self.stack.tell_siblings(self.key());
                }
                News::Nothing => {}
                News::Lost => place.look_again_at(Some(self.now())),
            }
        }
    }

    /// Whether it may wait on the line: nothing else may have to wake it, a message that comes while replicas are waited for
    /// would be passed over, and an intent is taken back by the connection that all share.
    fn may_listen(&self, call: &Call) -> bool {
        let can_be_called_off = self.settings.cancel.is_some();
        !can_be_called_off && call.replicas().is_none() && self.hold.quitting().is_none()
    }

    /// How it asks now. A look, or a brief refusal, says enough only of a mutex which is not ours already; and what an error says
    /// at the deadline is found out by a whole attempt.
    fn manner(&self, place: &Place<'_, Settings, Lease>) -> Manner {
        if self.hold.kind() != Kind::Mutex || self.attempts.may_be_ours() {
            return Manner::default();
        }
        let manner = place.manner();
        Manner {
            is_brief: manner.is_brief && self.deadline.remaining() > FINDS_ALL_OUT,
            ..manner
        }
    }

    /// Other heads had the shared connection until the deadline, so that this attempt was not sent. If their last one has failed,
    /// nobody knows who has the lock: the answer is an error, and not `Contended`.
    fn others_had_the_connection(&mut self, has_failed: bool) {
        if has_failed && !self.attempts.has_failed() {
            self.attempts.was_not_sent(Error::Pool {
                reason: String::from("the server did not answer others who wait"),
                source: None,
            });
        }
    }
}

/// What a cancel does for those who wait in a stack.
fn wakes_all(shared: &Arc<Shared<Lease>>) -> impl Fn() + Send + Sync + 'static {
    let waiting = Arc::downgrade(shared);
    move || {
        if let Some(shared) = waiting.upgrade() {
            shared.queues.wake_all();
        }
    }
}
