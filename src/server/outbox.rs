//! Sends the calls of many threads in one write.
//!
//! While few calls are under way, a call goes alone. Otherwise its thread puts it in the [`Outbox`]
//! as a [`Letter`]. A thread that finds a free lane leads: it takes all letters, sends them in one
//! [`SharedWrite`], and passes on each reply as it comes. When all lanes are in use, the first
//! thread that finishes wakes another to lead. No thread waits for more letters to arrive.
//!
//! - No letter is forgotten: as long as one waits, either a lane is in use, or the thread of a
//!   waiting letter has been woken to lead. Another thread that comes first leads in its place, and
//!   sends its letter too.
//! - A lane is returned when its [`SharedWrite`] is dropped, also on an error or a panic. Then the
//!   next thread is woken.
//! - Calls that wait for the same replicas share a write, and one `WAIT` after it. They share none
//!   with other calls, which would have to wait for the replicas too.
//! - A letter that no leader has taken was not sent. Its thread takes it back when its time is over
//!   or the call is cancelled.
//! - A letter that was taken has a reply or an error by the end of the shared write. Its thread
//!   waits for that, or until its own deadline for the reply. Each call has its own letter, so a
//!   late reply cannot reach another call.
//! - The replies to a shared write are awaited for one I/O time-out. A thread with less time than
//!   that (`until`) sends its letter along but does not lead: if a lane is free, `ask` returns
//!   `Ok(None)` and the caller sends the call alone.
//! - The heads of the queues share one connection. When it fails, all waiting heads get the error:
//!   otherwise each would wait for a time-out in turn.
//!
//! Locks: `letters` for a moment, and within it the stage of a letter. Neither is locked during
//! I/O.

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{Connection, RedisResult, Value};

use super::Reply;
use crate::{
    cancel::Cancel,
    error::{Result, timed_out},
    time::{self, Deadline},
    wire::{Replicas, exchange_each},
};

/// A thread yields this often before it sleeps: a wake-up takes longer than a reply from a near
/// server.
const SPINS: u32 = 30;

/// The calls to one server that have not been sent yet.
pub(super) struct Outbox {
    lanes: usize,
    /// If a shared write fails, all waiting threads get the error.
    shares_failures: bool,
    letters: Mutex<Letters>,
}

#[derive(Default)]
struct Letters {
    /// The lanes in use.
    lanes_in_use: usize,
    /// In the order of arrival.
    waiting: VecDeque<Arc<Letter>>,
}

/// One call of one thread.
struct Letter {
    packed: Vec<u8>,
    replicas: Option<Replicas>,
    stage: Mutex<Stage>,
    changed: Condvar,
}

enum Stage {
    /// In the outbox, or taken by another thread that leads.
    Waiting,
    /// In the outbox, and its thread was woken to lead.
    Next,
    /// The reply, or an error if the call was not sent.
    Told(Result<Reply>),
}

/// One write with the calls of several threads, and the right to send it.
pub(super) struct SharedWrite<'a> {
    outbox: &'a Outbox,
    own: Arc<Letter>,
    /// The letters without a reply yet, in the order in which they are sent.
    batch: VecDeque<Arc<Letter>>,
}

impl Outbox {
    /// At most `lanes` shared writes are under way at a time. `shares_failures`: the calls use one
    /// connection, so if it fails all waiting threads get the error.
    pub(super) fn new(lanes: usize, shares_failures: bool) -> Self {
        Self {
            lanes,
            shares_failures,
            letters: Mutex::default(),
        }
    }

    /// Sends this call, in a write of this thread or of another. If this thread leads, `send`
    /// [gathers](SharedWrite::gather) and sends the shared write. `replicas`: those that must have
    /// the write. `until`: the time at which this thread stops waiting for the reply, if that is
    /// sooner than an I/O time-out. `None`: the call was not sent.
    pub(super) fn ask(
        &self,
        (packed, replicas): (Vec<u8>, Option<Replicas>),
        send_by: Deadline,
        until: Option<Instant>,
        mut cancel: Option<&Cancel>,
        send: impl FnOnce(&mut SharedWrite<'_>) -> Result<()>,
    ) -> Result<Option<Reply>> {
        let posted = time::now();
        let own = Arc::new(Letter {
            packed,
            replicas,
            stage: Mutex::new(Stage::Waiting),
            changed: Condvar::new(),
        });
        let _woken = cancel.map(|cancel| {
            let own = Arc::clone(&own);
            cancel.wakes(move || own.wake())
        });
        let may_lead = until.is_none();
        let mut letters = self.letters.lock();
        if !may_lead && letters.lanes_in_use < self.lanes {
            return Ok(None);
        }
        letters.waiting.push_back(Arc::clone(&own));
        drop(letters);
        let mut gives_up_at = send_by.moment().into_iter().chain(until).min();
        let mut is_taken = false;
        loop {
            if let Some(write) = may_lead.then(|| self.try_to_lead(&own)).flatten() {
                return write.run(send);
            }
            let stage = own.wait(gives_up_at, cancel);
            if let Some(Stage::Told(told)) = stage {
                return told.map(Some);
            }
            if may_lead && stage.is_some() {
                // Woken to lead.
                continue;
            }
            if self.withdraw(&own) {
                return Ok(None);
            }
            if is_taken {
                return Ok(Some(Reply::untracked(Err(timed_out()), posted, false)));
            }
            // Another thread is sending it: from now on only its own time for the reply counts.
            is_taken = true;
            gives_up_at = until;
            cancel = None;
        }
    }

    /// Makes this thread the leader, if its letter has not been taken and a lane is free.
    fn try_to_lead(&self, own: &Arc<Letter>) -> Option<SharedWrite<'_>> {
        let mut letters = self.letters.lock();
        if letters.lanes_in_use >= self.lanes || !letters.remove(own) {
            return None;
        }
        letters.lanes_in_use += 1;
        Some(SharedWrite {
            outbox: self,
            own: Arc::clone(own),
            batch: VecDeque::new(),
        })
    }

    /// False: another thread is sending it.
    fn withdraw(&self, own: &Arc<Letter>) -> bool {
        let mut letters = self.letters.lock();
        let was_there = letters.remove(own);
        if was_there && letters.lanes_in_use < self.lanes {
            // This thread may be the one that was woken to lead.
            letters.wake_next();
        }
        was_there
    }
}

impl Letters {
    /// False: the letter was not there.
    fn remove(&mut self, letter: &Arc<Letter>) -> bool {
        let count = self.waiting.len();
        (self.waiting).retain(|waiting| !Arc::ptr_eq(waiting, letter));
        self.waiting.len() < count
    }

    fn wake_next(&self) {
        if let Some(next) = self.waiting.front() {
            *next.stage.lock() = Stage::Next;
            next.changed.notify_one();
        }
    }
}

impl Letter {
    fn tell(&self, told: Result<Reply>) {
        *self.stage.lock() = Stage::Told(told);
        self.changed.notify_one();
    }

    /// Makes the letter's thread check whether it was cancelled.
    fn wake(&self) {
        drop(self.stage.lock());
        self.changed.notify_one();
    }

    /// Waits for the reply, or to be woken to lead. `None`: the time is over, or the call was
    /// cancelled.
    fn wait(&self, gives_up_at: Option<Instant>, cancel: Option<&Cancel>) -> Option<Stage> {
        let mut spins = 0;
        let mut stage = self.stage.lock();
        loop {
            if !matches!(*stage, Stage::Waiting) {
                return Some(mem::replace(&mut stage, Stage::Waiting));
            }
            if spins < SPINS {
                spins += 1;
                MutexGuard::unlocked(&mut stage, thread::yield_now);
                continue;
            }
            let now = time::now();
            let is_over = gives_up_at.is_some_and(|moment| moment <= now);
            if is_over || cancel.is_some_and(Cancel::is_cancelled) {
                return None;
            }
            let poll = (cancel.and_then(Cancel::poll_after)).map(|pause| now + pause);
            match gives_up_at.into_iter().chain(poll).min() {
                Some(moment) => drop(self.changed.wait_until(&mut stage, moment)),
                None => self.changed.wait(&mut stage),
            }
        }
    }
}

impl SharedWrite<'_> {
    fn run(mut self, send: impl FnOnce(&mut Self) -> Result<()>) -> Result<Option<Reply>> {
        let done = send(&mut self);
        if let (Err(failure), true) = (&done, self.outbox.shares_failures) {
            for letter in self.outbox.letters.lock().waiting.drain(..) {
                letter.tell(Err(failure.clone()));
            }
        }
        let own = Arc::clone(&self.own);
        drop(self);
        match mem::replace(&mut *own.stage.lock(), Stage::Waiting) {
            Stage::Told(told) => told.map(Some),
            // Not sent: before `gather` the leader's own letter is in no list, so no other thread
            // took it.
            Stage::Waiting | Stage::Next => done.map(|()| None),
        }
    }

    /// Takes the letter of this thread and all that wait for the same replicas. False: they may not
    /// be sent, and none was taken. `may_be_sent` runs under the lock of the letters, so it sees
    /// everything that their threads saw before they queued.
    pub(super) fn gather(&mut self, may_be_sent: impl Fn() -> bool) -> bool {
        // Lets threads that were just answered post their next call.
        thread::yield_now();
        let mut letters = self.outbox.letters.lock();
        if !may_be_sent() {
            return false;
        }
        self.batch.push_back(Arc::clone(&self.own));
        let waiting = mem::take(&mut letters.waiting).into_iter();
        let (mut together, others) =
            waiting.partition(|letter| letter.replicas == self.own.replicas);
        letters.waiting = others;
        self.batch.append(&mut together);
        true
    }

    /// Sends everything that was gathered, and passes each reply, or the error, to its thread.
    /// After one I/O time-out it waits for no further reply. An error says why the connection is
    /// finished.
    pub(super) fn exchange(
        &mut self,
        conn: &mut Connection,
        io_timeout: Duration,
        tracked: bool,
    ) -> RedisResult<()> {
        let packed = self.batch.iter().flat_map(|letter| letter.packed.iter());
        let mut packed: Vec<u8> = packed.copied().collect();
        let (count, sent) = (self.batch.len(), time::now());
        let Some(replicas) = self.own.replicas else {
            return exchange_each(conn, &packed, count, io_timeout, |answer| {
                self.tell_next(answer.and_then(Value::extract_error), sent, tracked);
            });
        };
        replicas.question().write_packed_command(&mut packed);
        let mut answers = Vec::new();
        let exchanged = exchange_each(conn, &packed, count + 1, io_timeout, |answer| {
            answers.push(answer);
        });
        let had = answers.pop().unwrap_or_else(|| Err(timed_out()));
        for answer in answers {
            let confirmed = answer.and_then(|answer| replicas.confirmed(answer, had.clone()));
            self.tell_next(confirmed, sent, tracked);
        }
        exchanged
    }

    /// Passes this reply to the next thread.
    fn tell_next(&mut self, answer: RedisResult<Value>, sent: Instant, tracked: bool) {
        if let Some(letter) = self.batch.pop_front() {
            letter.tell(Ok(Reply::now(answer, sent, tracked)));
        }
    }
}

impl Drop for SharedWrite<'_> {
    fn drop(&mut self) {
        // Letters are left here only after a panic of the client library.
        while !self.batch.is_empty() {
            self.tell_next(Err(timed_out()), time::now(), false);
        }
        let mut letters = self.outbox.letters.lock();
        letters.lanes_in_use -= 1;
        letters.wake_next();
    }
}

#[cfg(test)]
mod tests;
