//! The stand-in behind the seam.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use redis::{RedisError, RedisResult, Value};

use super::{
    commit::Commit,
    store::{Now, Ran, Store},
};
use crate::{
    cancel::Cancel,
    error::{Error, Result},
    pool::{Limits, PooledConnection},
    server::{
        self, Answer, CommitOutcome, CommitRequest, Committer, Disturbance, Failure, Observer,
        Patience, Renewals, Replies, Reply, renewal_reply,
    },
    time::{Clock, Deadline, whole_millis},
    token::Token,
    wire::Call,
};

/// Nothing here takes this long, but a callback of a test's own might.
const LONGEST: Duration = Duration::from_secs(1);

pub(super) struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    store: Mutex<Store>,
    clock: Clock,
    /// When it was made, by both clocks.
    began: (Instant, SystemTime),
    is_there: AtomicBool,
    /// What is asked next is done, and the answer does not arrive.
    loses_next: AtomicBool,
    /// All processes.
    observers: Mutex<Vec<Weak<dyn Observer>>>,
}

impl Server {
    pub(super) fn new() -> Self {
        let clock = Clock::movable();
        let shared = Arc::new(Shared {
            store: Mutex::default(),
            clock,
            began: (clock.now(), SystemTime::now()),
            is_there: AtomicBool::new(true),
            loses_next: AtomicBool::new(false),
            observers: Mutex::default(),
        });
        Self { shared }
    }

    pub(super) fn advance(&self, by: Duration) {
        self.shared.clock.advance(by);
        self.shared
            .of_each(|observer| observer.disturbed(Disturbance::ClockMoved));
        self.shared.settle();
    }

    pub(super) fn expire(&self, name: &str) -> bool {
        let key = self.key(name);
        let was_there = self.shared.store.lock().expire(&key, self.shared.now());
        self.shared.report_change(&key);
        was_there
    }

    pub(super) fn steal(&self, name: &str, lease: Duration) -> Token {
        let lease = whole_millis(lease);
        let (key, token) = (self.key(name), Token::random());
        let mut store = self.shared.store.lock();
        store.steal(&key, token.as_str(), lease, self.shared.now());
        drop(store);
        self.shared.report_change(&key);
        token
    }

    pub(super) fn connect(&self, is_there: bool) {
        self.shared.is_there.store(is_there, Ordering::SeqCst);
        // As after any new connection: nobody knows what has happened meanwhile.
        if is_there {
            self.shared
                .of_each(|observer| observer.disturbed(Disturbance::Reachable));
            self.shared.settle();
        }
    }

    pub(super) fn lose_next_answer(&self) {
        self.shared.loses_next.store(true, Ordering::SeqCst);
    }

    pub(super) fn commits(&self) -> Vec<Commit> {
        self.shared.store.lock().commits.executed()
    }

    pub(super) fn answer_next_commit(&self, answers: Vec<Value>) {
        self.shared.store.lock().commits.answer_next(answers);
    }

    pub(super) fn fail_over(&self, lost: Duration) {
        let nanos = u64::try_from(lost.as_nanos()).unwrap_or(u64::MAX / 2);
        let now = self.shared.now();
        self.shared.store.lock().forget_the_last(nanos, now);
        // Nobody knows what the new master has.
        self.connect(self.shared.is_there.load(Ordering::SeqCst));
    }

    fn key(&self, name: &str) -> String {
        self.shared.store.lock().key_of(name)
    }
}

impl Shared {
    fn now(&self) -> Now {
        let (began, since_1970) = self.began;
        let since_1970 = since_1970
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = since_1970 + self.clock.since(began);
        Now(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Runs it, unless the server is gone.
    fn run(&self, call: &Call) -> Option<Ran> {
        self.run_parts(call.parts())
    }

    fn run_parts(&self, parts: (&str, Vec<&str>)) -> Option<Ran> {
        let is_there = self.is_there.load(Ordering::SeqCst);
        is_there.then(|| self.store.lock().run(parts, self.now()))
    }

    /// The reply, and the key that was changed.
    fn ask(&self, parts: (&str, Vec<&str>), tracked: bool) -> Result<(Reply, Option<String>)> {
        let sent = self.clock.now();
        let Ran { answer, changed } = self.run_parts(parts).ok_or_else(gone)?;
        let is_lost = self.loses_next.swap(false, Ordering::SeqCst);
        let answer = if is_lost { Err(silence()) } else { answer };
        let reply = Reply {
            tracked: tracked && answer.is_ok(),
            answer,
            sent,
            // A test may move the clock at any moment: no time in the answer counts from after
            // that.
            answered: sent,
            again: false,
        };
        Ok((reply, changed))
    }

    /// Waits until everybody has done what is due.
    fn settle(&self) {
        self.of_each(|observer| observer.disturbed(Disturbance::Settle(LONGEST)));
    }

    fn of_each(&self, run: impl Fn(&dyn Observer)) {
        let mut observers = self.observers.lock();
        observers.retain(|observer| observer.strong_count() > 0);
        let all: Vec<_> = observers.iter().filter_map(Weak::upgrade).collect();
        drop(observers);
        for observer in all {
            run(&*observer);
        }
    }

    /// Who is told has done what there is to do about it on return.
    fn report_change(&self, key: &str) {
        if self.is_there.load(Ordering::SeqCst) {
            self.of_each(|observer| observer.changed(key));
            self.settle();
        }
    }
}

fn silence() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn gone() -> Error {
    Error::Pool {
        reason: "the stand-in is disconnected".to_owned(),
        source: None,
    }
}

impl server::Server for Server {
    fn clock(&self) -> Clock {
        self.shared.clock
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
        let (reply, changed) = self.shared.ask(call.parts(), false)?;
        if let Some(key) = changed {
            self.shared.of_each(|observer| observer.changed(&key));
        }
        Ok(reply)
    }

    fn ask_once(&self, call: &Call) -> Result<RedisResult<Value>> {
        self.ask(call, Patience::USUAL).map(|asked| asked.answer)
    }

    fn ask_for_head(&self, call: &Call, _: Deadline, _: Option<&Cancel>) -> Result<Option<Reply>> {
        Ok(Some(self.shared.ask(call.parts(), true)?.0))
    }

    fn renewals(&self) -> Box<dyn Renewals> {
        Box::new(StandInRenewals(Arc::clone(&self.shared)))
    }

    fn report_to(&self, observer: Weak<dyn Observer>) -> Result<()> {
        self.shared.observers.lock().push(observer);
        Ok(())
    }

    fn want(&self) {}

    fn close(&self) {}
}

impl Committer for Server {
    fn commit(&self, request: &CommitRequest<'_>) -> Result<RedisResult<CommitOutcome>> {
        let shared = &self.shared;
        if !shared.is_there.load(Ordering::SeqCst) {
            return Err(gone());
        }
        let (outcome, changed) = shared.store.lock().commit(request, shared.now())?;
        if let Some(key) = changed {
            shared.of_each(|observer| observer.changed(&key));
        }
        let is_executed = matches!(outcome, Ok(CommitOutcome::Executed(_)));
        if is_executed && shared.loses_next.swap(false, Ordering::SeqCst) {
            return Ok(Err(silence()));
        }
        Ok(outcome)
    }
}

struct StandInRenewals(Arc<Shared>);

impl Renewals for StandInRenewals {
    fn is_open(&self) -> bool {
        self.0.is_there.load(Ordering::SeqCst)
    }

    fn open(&mut self) -> Result<(), Arc<Failure>> {
        if self.is_open() {
            return Ok(());
        }
        Err(Arc::new(Failure::Unsent(gone())))
    }

    fn send(&mut self, calls: &[Call], _: Duration) -> Replies {
        let sent = self.0.clock.now();
        let mut changed = Vec::new();
        let answers = calls.iter().map(|call| match self.0.run(call) {
            Some(ran) => {
                // A connection is not told of its own renewals. What is given back wakes the
                // threads that wait.
                changed.extend(
                    ran.changed
                        .filter(|_| call.parts().0.starts_with("RELEASE")),
                );
                renewal_reply(ran.answer, sent)
            }
            None => (Answer::Unanswered, Some(Arc::new(Failure::Unsent(gone())))),
        });
        let answers = answers.collect();
        for key in changed {
            self.0.of_each(|observer| observer.changed(&key));
        }
        Replies {
            answers,
            broken: !self.is_open(),
        }
    }
}

fn has_no_connection() -> Error {
    let reason = "the stand-in for tests stores no data and has no connection: \
                  of a lease it takes commits only, which it records";
    Error::invalid("connection", reason)
}
