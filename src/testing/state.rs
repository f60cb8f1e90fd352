//! The stand-in's state: its locks and data, its clock and its observers.

use std::{
    mem,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use redis::{RedisResult, Value};

use super::{
    failing::{Action, Failing, Failure},
    store::{Now, Store, name_of, server_error},
};
use crate::{
    error::{Error, Result, timed_out},
    pool::Pool,
    server::{Disturbance, Observer, Reply},
    time::Clock,
    wire::Call,
};

/// Longer than anything here takes, except possibly a test's own callback.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// A stand-in for a server, which keeps locks in this process's memory and whose clock a test
/// moves. Clones share one state.
#[derive(Clone, Default)]
pub struct StandIn {
    pub(super) state: Arc<StandInState>,
}

/// The state that all clones of a stand-in share.
pub(super) struct StandInState {
    pub(super) store: Mutex<Store>,
    pub(super) clock: Clock,
    /// The time of creation, by both clocks.
    began: (Instant, SystemTime),
    pub(super) is_there: AtomicBool,
    pub(super) failing: Failing,
    /// The pool of connections to this stand-in, and the port that listens, once it is used.
    pub(super) served: Mutex<Option<(Pool, SocketAddr)>>,
    /// One for each simulated process.
    observers: Mutex<Vec<Weak<dyn Observer>>>,
}

impl Default for StandInState {
    fn default() -> Self {
        let clock = Clock::movable();
        Self {
            store: Mutex::default(),
            clock,
            began: (clock.now(), SystemTime::now()),
            is_there: AtomicBool::new(true),
            failing: Failing::default(),
            served: Mutex::default(),
            observers: Mutex::default(),
        }
    }
}

impl Drop for StandInState {
    fn drop(&mut self) {
        // Wakes the listening thread, which ends.
        if let Some((_, address)) = self.served.get_mut() {
            let _ = TcpStream::connect_timeout(address, LONGEST);
        }
    }
}

impl StandIn {
    pub(super) fn is_there(&self) -> bool {
        self.state.is_there.load(Ordering::SeqCst)
    }

    pub(super) fn now(&self) -> Now {
        let (began, since_1970) = self.state.began;
        let since_1970 = since_1970
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = since_1970 + self.state.clock.since(began);
        Now(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Changes the lock of this name behind its holder's back. Unless the server is unreachable, it
    /// notifies the observers and returns once they have reacted.
    pub(super) fn disturb(
        &self,
        name: &str,
        disturb: impl Fn(&mut Store, &str, Now) -> bool,
    ) -> bool {
        let ((keys, was_any), _) = self.in_store(|store, now| {
            let keys = store.keys_of(name);
            let held = keys.iter().filter(|key| disturb(store, key, now)).count();
            (keys, held > 0)
        });
        if self.is_there() {
            for key in &keys {
                self.for_each_observer(|observer| observer.changed(key));
            }
            self.settle();
        }
        was_any
    }

    /// Returns the result and the keys that have changed.
    pub(super) fn in_store<T>(&self, run: impl FnOnce(&mut Store, Now) -> T) -> (T, Vec<String>) {
        let mut store = self.state.store.lock();
        let done = run(&mut store, self.now());
        (done, mem::take(&mut store.changed))
    }

    /// Runs a call, unless a test makes it fail. Returns the reply and the keys that have changed.
    /// `None`: the server is unreachable.
    pub(super) fn run(&self, call: &Call) -> Option<(RedisResult<Value>, Vec<String>)> {
        if !self.is_there() {
            return None;
        }
        let (script, words) = call.parts();
        let lock = name_of(words.first().copied().unwrap_or_default());
        let failure = self.state.failing.failure(Action::of(script), lock);
        let run = || self.in_store(|store, now| store.run(script, &words, now));
        Some(match failure {
            Some(Failure::Refused(error)) => (server_error(error).extract_error(), Vec::new()),
            Some(Failure::LostRequest) => (Err(timed_out()), Vec::new()),
            Some(Failure::LostReply) => (Err(timed_out()), run().1),
            None => run(),
        })
    }

    /// Returns the reply and the keys that have changed.
    pub(super) fn ask_for(&self, call: &Call, tracked: bool) -> Result<(Reply, Vec<String>)> {
        let sent = self.state.clock.now();
        let (answer, changed) = self.run(call).ok_or_else(disconnected)?;
        let reply = Reply {
            tracked: tracked && answer.is_ok(),
            answer,
            sent,
            // A test may move the clock at any moment. Times in the reply must not count from a
            // later moment.
            answered: sent,
            again: false,
        };
        Ok((reply, changed))
    }

    /// Notifies the observers of changes to the locks of these keys.
    pub(super) fn notify_changed(&self, changed: impl IntoIterator<Item = String>) {
        for key in changed {
            self.for_each_observer(|observer| observer.changed(&key));
        }
    }

    /// Waits until all observers have done the work that is due.
    pub(super) fn settle(&self) {
        self.for_each_observer(|observer| observer.disturbed(Disturbance::Settle(LONGEST)));
    }

    pub(super) fn observe(&self, observer: Weak<dyn Observer>) {
        self.state.observers.lock().push(observer);
    }

    pub(super) fn for_each_observer(&self, run: impl Fn(&dyn Observer)) {
        let mut observers = self.state.observers.lock();
        observers.retain(|observer| observer.strong_count() > 0);
        let all: Vec<_> = observers.iter().filter_map(Weak::upgrade).collect();
        drop(observers);
        for observer in all {
            run(&*observer);
        }
    }
}

pub(super) fn disconnected() -> Error {
    Error::pool("the stand-in is disconnected", None)
}
