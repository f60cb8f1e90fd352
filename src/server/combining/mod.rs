//! Calls of many threads in one write: command combining.
//!
//! [`RedisServer`](super::RedisServer) calls [`Combiner::ask`] on the caller's thread. A thread that finds nobody leading leads: it
//! takes all that wait, sends them in one write, reads the answers, and gives each to its caller as it comes. Threads
//! that come meanwhile wait for the next write, which one of them leads. No thread waits so that more may come.
//!
//! - [`crowd`] decides whether a call goes in the outbox at all, or alone.
//! - [`outbox`] says who waits and who leads: a plain value.
//! - [`slot`] is what a thread has in the outbox.
//!
//! Whatever happens to a leader, also a panic, its [`Turn`] ends: each caller whose call was taken is told, and another leads. A
//! call that was not taken was not sent. It is not held up by others for long either: after a while it is taken back, to go
//! alone.
//!
//! `outbox` is locked for a moment, and a slot's call within it, for what is copied from there. Nothing is locked while the
//! server is asked.

mod crowd;
mod outbox;
mod slot;

use std::{
    io::{Error as IoError, ErrorKind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{RedisError, RedisResult, Value};

use crowd::Crowd;
use outbox::{Outbox, Withdrawn};
use slot::{Answer, Slot, Stage};

use crate::{error::Result, time};

/// More are not sent in one write.
const MOST: usize = 128;
/// How often a thread looks, and lets others run, before it sleeps: to be woken takes longer than a near server's answer.
const LOOKS: u32 = 30;
/// How long a call waits in the outbox at least before it goes alone.
const PATIENCE: Duration = Duration::from_millis(5);
/// Or for so many round trips.
const TRIPS: u32 = 4;

/// The outbox for one server.
#[derive(Default)]
pub(super) struct Combiner {
    outbox: Mutex<Outbox<Arc<Slot>>>,
    pub(super) crowd: Crowd,
}

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Between writing and the last answer.
    pub(super) io_timeout: Duration,
    /// Before it is sent.
    pub(super) unsent: Duration,
    /// When its caller stops waiting for the answer, if that is sooner than the I/O time-out.
    pub(super) until: Option<Instant>,
}

/// What came of a call.
#[derive(Debug)]
pub(super) enum Came {
    /// It was not sent: it goes alone.
    Unsent,
    Answer(Answer),
}

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Combiner {
    /// Has this sent among others, by this thread or another. `lead` gathers a batch, sends it and answers it, and is an
    /// error if it could do nothing.
    pub(super) fn ask(
        &self,
        packed: &[u8],
        terms: Terms,
        lead: impl Fn(&mut Turn<'_>) -> Result<()>,
    ) -> Result<Came> {
        let Some(own) = Slot::of_this_thread(packed) else {
            return Ok(Came::Unsent);
        };
        if self.outbox.lock().join(Arc::clone(&own), terms.until) {
            self.lead(&own, terms, &lead)?;
        }
        let leaves_at = terms.or_sooner(time::now() + self.patience(terms));
        let mut answered_by = None;
        let mut looks = 0;
        loop {
            let stage = own.stage();
            match stage {
                Stage::Answered => {
                    return Ok(own.take_answer().map_or(Came::Unsent, Came::Answer));
                }
                Stage::Next => {
                    if self.leads_now(&own) {
                        self.lead(&own, terms, &lead)?;
                    }
                    continue;
                }
                Stage::Waiting | Stage::Taken => {}
            }
            if looks < LOOKS && self.crowd.is_dense() && self.crowd.steps_aside() {
                looks += 1;
                continue;
            }
            let now = time::now();
            let until = match stage {
                Stage::Taken => *answered_by.get_or_insert_with(|| terms.answered_by(now)),
                _ => leaves_at,
            };
            if now < until {
                thread::park_timeout(until - now);
            } else if stage == Stage::Taken {
                let silence = IoError::from(ErrorKind::TimedOut).into();
                return Ok(Came::Answer((Err(silence), now)));
            } else if self.leaves(&own) {
                return Ok(Came::Unsent);
            }
        }
    }

    /// How many calls wait for the next write.
    pub(super) fn waiting(&self) -> usize {
        self.outbox.lock().len()
    }

    /// How long a call stays in the outbox.
    fn patience(&self, terms: Terms) -> Duration {
        let longest = (terms.io_timeout / 4).min(terms.unsent);
        if self.crowd.always_goes_together() {
            return longest;
        }
        (self.crowd.trip() * TRIPS).max(PATIENCE).min(longest)
    }

    /// Whether a thread that was woken to lead does so: another may have been faster, and may have taken its call along.
    fn leads_now(&self, own: &Arc<Slot>) -> bool {
        let mut outbox = self.outbox.lock();
        if own.stage() != Stage::Next {
            return false;
        }
        own.set(Stage::Waiting);
        outbox.lead()
    }

    fn lead(
        &self,
        own: &Arc<Slot>,
        terms: Terms,
        lead: impl Fn(&mut Turn<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut turn = Turn {
            combiner: self,
            own,
            terms,
            batch: Vec::new(),
            packed: Vec::new(),
            answered: 0,
            sent: time::now(),
        };
        lead(&mut turn)
    }

    /// Takes a call out of the outbox. False: it has been taken to be sent.
    fn leaves(&self, own: &Arc<Slot>) -> bool {
        let mut outbox = self.outbox.lock();
        let Withdrawn::Gone { wake } = outbox.withdraw(own) else {
            return false;
        };
        own.set(Stage::Answered);
        wake_next(wake);
        true
    }
}

impl Terms {
    fn or_sooner(self, moment: Instant) -> Instant {
        self.until.map_or(moment, |until| until.min(moment))
    }

    /// When the caller stops waiting for a call that another thread is sending at this moment.
    fn answered_by(self, now: Instant) -> Instant {
        self.until.unwrap_or(now + self.io_timeout * 2)
    }
}

/// One write, and the answers to it.
pub(super) struct Turn<'a> {
    combiner: &'a Combiner,
    own: &'a Arc<Slot>,
    terms: Terms,
    batch: Vec<Arc<Slot>>,
    packed: Vec<u8>,
    /// How many of the batch have been told.
    answered: usize,
    sent: Instant,
}

impl Turn<'_> {
    /// Takes all that wait: now they are [sent](Self::packed). False: they may not be sent, and nothing was taken. Whatever a caller knew
    /// before its call was put in the outbox, `may_be_sent` knows as well.
    pub(super) fn gather(&mut self, may_be_sent: impl Fn() -> bool) -> bool {
        if self.combiner.crowd.is_dense() {
            // Those who have just been answered come back with the next.
            self.combiner.crowd.steps_aside();
        }
        let mut outbox = self.combiner.outbox.lock();
        if !may_be_sent() {
            return false;
        }
        outbox.take(self.own, MOST, &mut self.batch);
        for slot in &self.batch {
            slot.set(Stage::Taken);
            slot.pack_into(&mut self.packed);
        }
        drop(outbox);
        self.combiner.crowd.went_together(self.batch.len());
        self.sent = time::now();
        true
    }

    /// What to send.
    pub(super) fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// How many have not been told yet.
    pub(super) fn owed(&self) -> usize {
        self.batch.len() - self.answered
    }

    /// What is left of the time for all answers; nothing any more when it is over.
    pub(super) fn remaining(&self) -> Duration {
        let now = time::now();
        let left = (self.terms.io_timeout).saturating_sub(now.saturating_duration_since(self.sent));
        (self.terms.until).map_or(left, |until| left.min(until.saturating_duration_since(now)))
    }

    /// Tells the next of the batch, in the order in which they were sent.
    pub(super) fn answer(&mut self, answer: RedisResult<Value>) {
        if let Some(slot) = self.batch.get(self.answered) {
            self.answered += 1;
            slot.tell((answer, self.sent));
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let took = time::now().saturating_duration_since(self.sent);
        if self.owed() == 0 && !self.batch.is_empty() {
            self.combiner.crowd.took(took, self.batch.len());
        }
        while self.owed() > 0 {
            let panicked = (redis::ErrorKind::Io, "the client library panicked");
            self.answer(Err(RedisError::from(panicked)));
        }
        let mut outbox = self.combiner.outbox.lock();
        if self.batch.is_empty() {
            outbox.withdraw(self.own);
            self.own.set(Stage::Answered);
        }
        wake_next(outbox.done());
    }
}

/// With the outbox locked, so that nobody takes its call meanwhile.
fn wake_next(next: Option<Arc<Slot>>) {
    if let Some(next) = next {
        next.set(Stage::Next);
        next.wake();
    }
}

#[cfg(test)]
mod tests;
