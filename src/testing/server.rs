//! The stand-in's implementation of [`Server`].

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use redis::{RedisError, RedisResult, Value};

use super::store::{Execution, Now, Store};
use crate::{
    cancel::Cancel,
    error::{Error, Result},
    pool::{Limits, PooledConnection},
    server::{
        CommitOutcome, CommitRequest, Committer, Disturbance, Failure, Observer, Patience,
        RenewalAnswer, Renewals, Replies, Reply, Server, renewal_reply,
    },
    time::{Clock, Deadline},
    wire::Call,
};

/// Longer than anything here takes, except perhaps a test's own callback.
const LONGEST: Duration = Duration::from_secs(1);

/// A stand-in for a server: it keeps locks in this process's memory, and a test moves its clock.
/// Clones share one state.
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
    /// Execute the next request, but lose its reply.
    pub(super) loses_next: AtomicBool,
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
            loses_next: AtomicBool::new(false),
            observers: Mutex::default(),
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
        let (now, mut store) = (self.now(), self.state.store.lock());
        let keys = store.keys_of(name);
        let mut was_any = false;
        for key in &keys {
            was_any |= disturb(&mut store, key, now);
        }
        drop(store);
        if self.is_there() {
            for key in &keys {
                self.for_each_observer(|observer| observer.changed(key));
            }
            self.settle();
        }
        was_any
    }

    /// Runs a call; `None` if the server is unreachable.
    fn run(&self, call: &Call) -> Option<Execution> {
        let run = || self.state.store.lock().run(call.parts(), self.now());
        self.is_there().then(run)
    }

    /// Returns the reply and the key that has changed.
    fn ask_for(&self, call: &Call, tracked: bool) -> Result<(Reply, Option<String>)> {
        let sent = self.state.clock.now();
        let Execution { answer, changed } = self.run(call).ok_or_else(disconnected)?;
        let answer = if self.loses_answer() {
            Err(no_reply())
        } else {
            answer
        };
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

    fn loses_answer(&self) -> bool {
        self.state.loses_next.swap(false, Ordering::SeqCst)
    }

    fn notify_changed(&self, changed: Option<String>) {
        if let Some(key) = changed {
            self.for_each_observer(|observer| observer.changed(&key));
        }
    }

    /// Waits until all observers have done their due work.
    pub(super) fn settle(&self) {
        self.for_each_observer(|observer| observer.disturbed(Disturbance::Settle(LONGEST)));
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

fn no_reply() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn disconnected() -> Error {
    Error::Pool {
        reason: "the stand-in is disconnected".to_owned(),
        source: None,
    }
}

impl Server for StandIn {
    fn clock(&self) -> Clock {
        self.state.clock
    }

    fn limits(&self) -> Limits {
        Limits {
            connect: LONGEST,
            answer: LONGEST,
        }
    }

    fn lend(&self, _key: &str) -> Result<PooledConnection> {
        Err(has_no_connection())
    }

    fn committer(&self) -> Option<&dyn Committer> {
        Some(self)
    }

    fn stores_data(&self) -> Result<()> {
        Err(has_no_connection())
    }

    fn clock_skew(&self) -> Duration {
        Duration::ZERO
    }

    fn ask(&self, call: &Call, _: Patience<'_>) -> Result<Reply> {
        let (reply, changed) = self.ask_for(call, false)?;
        self.notify_changed(changed);
        Ok(reply)
    }

    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>> {
        self.ask(call, Patience::USUAL).map(|asked| asked.answer)
    }

    fn ask_for_head(&self, call: &Call, _: Deadline, _: Option<&Cancel>) -> Result<Option<Reply>> {
        Ok(Some(self.ask_for(call, true)?.0))
    }

    fn renewals(&self) -> Box<dyn Renewals> {
        Box::new(self.clone())
    }

    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()> {
        self.state.observers.lock().push(observer);
        Ok(())
    }

    fn start_telling(&self) {}

    fn close(&self) {}
}

impl Committer for StandIn {
    fn commit(&self, request: &CommitRequest<'_>) -> Result<RedisResult<CommitOutcome>> {
        if !self.is_there() {
            return Err(disconnected());
        }
        let (outcome, changed) = self.state.store.lock().commit(request, self.now())?;
        self.notify_changed(changed);
        let is_executed = matches!(outcome, Ok(CommitOutcome::Executed(_)));
        if is_executed && self.loses_answer() {
            return Ok(Err(no_reply()));
        }
        Ok(outcome)
    }
}

impl Renewals for StandIn {
    fn is_open(&self) -> bool {
        self.is_there()
    }

    fn open(&mut self) -> Result<(), Arc<Failure>> {
        if self.is_open() {
            return Ok(());
        }
        Err(Arc::new(Failure::Unsent(disconnected())))
    }

    fn send(&mut self, calls: &[Call], _: Duration) -> Replies {
        let sent = self.state.clock.now();
        let mut changed = Vec::new();
        let replies = calls.iter().map(|call| match self.run(call) {
            Some(ran) => {
                // A server does not notify a connection of its own renewals. Releases wake the
                // waiters.
                changed.extend(
                    ran.changed
                        .filter(|_| call.parts().0.starts_with("RELEASE")),
                );
                renewal_reply(ran.answer, sent)
            }
            None => (
                RenewalAnswer::Unanswered,
                Some(Arc::new(Failure::Unsent(disconnected()))),
            ),
        });
        let replies = replies.collect();
        for key in changed {
            self.for_each_observer(|observer| observer.changed(&key));
        }
        Replies {
            replies,
            broken: !self.is_open(),
        }
    }
}

fn has_no_connection() -> Error {
    let reason = "the stand-in for tests stores no data and has no connection: \
                  of a lease it takes commits only, which it records";
    Error::invalid("connection", reason)
}
