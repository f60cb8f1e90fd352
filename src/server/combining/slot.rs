//! One thread's place in the outbox: what it wants to have sent, and what came of it.

use std::{
    cell::RefCell,
    mem,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread::{self, Thread},
    time::Instant,
};

use parking_lot::Mutex;
use redis::{RedisResult, Value};

/// Where a call is. Its caller looks here again and again, so it is no part of what is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// In the outbox.
    Waiting,
    /// In the outbox, and its caller has been woken to lead.
    Next,
    /// Taken by the leader, and sent soon.
    Taken,
    /// There is an answer, or none will come.
    Answered,
}

/// What the server said, or why it did not, and a moment before it was asked.
pub(super) type Answer = (RedisResult<Value>, Instant);

/// A thread, and its call.
pub(super) struct Slot {
    thread: Thread,
    stage: AtomicU8,
    /// Locked for a moment, while nothing else is waited for.
    call: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    packed: Vec<u8>,
    answer: Option<Answer>,
}

thread_local! {
    static OWN: RefCell<Arc<Slot>> = RefCell::new(Slot::new());
}

impl Slot {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            stage: AtomicU8::new(Stage::Answered as u8),
            call: Mutex::default(),
        })
    }

    /// This thread's, with this call in it. `None` while the thread ends, and its slot is gone.
    pub(super) fn of_this_thread(packed: &[u8]) -> Option<Arc<Self>> {
        let filled = OWN.try_with(|own| {
            let mut own = own.try_borrow_mut().ok()?;
            if own.stage() != Stage::Answered {
                // Given up earlier: the leader that sends that call still has the old slot.
                *own = Self::new();
            }
            own.set(Stage::Waiting);
            let mut call = own.call.lock();
            call.packed.clear();
            call.packed.extend_from_slice(packed);
            call.answer = None;
            drop(call);
            Some(Arc::clone(&own))
        });
        filled.ok().flatten()
    }

    pub(super) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Waiting,
            1 => Stage::Next,
            2 => Stage::Taken,
            _ => Stage::Answered,
        }
    }

    /// Except for [`Answered`](Stage::Answered), under the lock of the outbox.
    pub(super) fn set(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    pub(super) fn wake(&self) {
        self.thread.unpark();
    }

    pub(super) fn pack_into(&self, batch: &mut Vec<u8>) {
        batch.extend_from_slice(&self.call.lock().packed);
    }

    /// Tells the caller.
    pub(super) fn tell(&self, answer: Answer) {
        self.call.lock().answer = Some(answer);
        self.set(Stage::Answered);
        self.wake();
    }

    /// What it was told.
    pub(super) fn take_answer(&self) -> Option<Answer> {
        mem::take(&mut self.call.lock().answer)
    }
}
