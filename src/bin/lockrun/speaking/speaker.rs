//! The one thread that writes to stderr.
//!
//! A reader may stall: a full pipe, a terminal stopped by `^S`. Whoever writes then stalls with it.
//! So all other threads only hand their texts to this one, and none waits for it, except that
//! lockrun waits for at most a second before it exits. If a text cannot be written, nothing else is
//! lost: no job, no lock and no exit code.

use std::{
    collections::VecDeque,
    io::{self, Write},
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::SigSet;
use parking_lot::{Condvar, Mutex};

use crate::speaking::messages::Message;

/// Beyond this number the oldest texts are left out: the last one has the outcome.
const MOST: usize = 100;
/// The end of lockrun waits this long for the last text.
const PATIENCE: Duration = Duration::from_secs(1);

/// Hands texts to the thread, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Speaker {
    shared: Arc<Shared>,
    /// With `--verbose`.
    says_steps: bool,
}

#[derive(Debug, Default)]
struct Shared {
    unsaid: Mutex<Unsaid>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Unsaid {
    texts: VecDeque<String>,
    /// The number of older texts that were left out.
    left_out: usize,
    /// True while the thread writes.
    is_writing: bool,
}

impl Speaker {
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("speaker".into());
        thread.spawn(move || {
            // A background job's write to a terminal with `tostop`, and one past the limit of a
            // file's length, would otherwise stop or end all threads of lockrun.
            let _ = SigSet::all().thread_block();
            theirs.write_for_ever();
        })?;
        Ok(Self {
            shared,
            says_steps: false,
        })
    }

    /// Says the steps too if `--verbose` is given.
    pub(crate) fn with_steps(self, says_steps: bool) -> Self {
        Self { says_steps, ..self }
    }

    pub(crate) fn says_steps(&self) -> bool {
        self.says_steps
    }

    /// Never blocks.
    pub(crate) fn say(&self, message: &Message) {
        if message.is_step && !self.says_steps {
            return;
        }
        let mut unsaid = self.shared.unsaid.lock();
        if unsaid.texts.len() == MOST {
            unsaid.texts.pop_front();
            unsaid.left_out += 1;
        }
        unsaid.texts.push_back(message.line());
        self.shared.changed.notify_all();
    }

    /// Waits until every text is written, for at most a second.
    pub(crate) fn finish(&self) {
        let until = Instant::now() + PATIENCE;
        let mut unsaid = self.shared.unsaid.lock();
        let is_busy = |unsaid: &mut Unsaid| unsaid.is_writing || !unsaid.texts.is_empty();
        let changed = &self.shared.changed;
        changed.wait_while_until(&mut unsaid, is_busy, until);
    }
}

impl Shared {
    fn write_for_ever(&self) -> ! {
        loop {
            let text = self.next();
            // A failure cannot be reported anywhere else.
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }

    /// Waits for the next text.
    fn next(&self) -> String {
        let mut unsaid = self.unsaid.lock();
        unsaid.is_writing = false;
        self.changed.notify_all();
        let is_empty = |unsaid: &mut Unsaid| unsaid.texts.is_empty();
        self.changed.wait_while(&mut unsaid, is_empty);
        unsaid.is_writing = true;
        let text = unsaid.texts.pop_front().unwrap_or_default();
        match mem::take(&mut unsaid.left_out) {
            0 => text,
            lines => format!("lockrun: {lines} lines were left out\n{text}"),
        }
    }
}
