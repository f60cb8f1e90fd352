//! Requests that a test makes fail.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;

/// A request to a [`StandIn`](super::StandIn), by its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// An attempt to acquire a lock. One acquire may make several.
    Acquire,
    /// A renewal, including those in the background, or the check of
    /// [`Lease::verify`](crate::Lease::verify).
    Renew,
    /// A release, including those in the background, or the mark of a [run](crate::Lock::run_once).
    Release,
    /// [`Lock::inspect`](crate::Lock::inspect), [`Lock::last_run`](crate::Lock::last_run) or
    /// similar.
    Inspect,
    /// The first read of a transaction or a commit, which checks the lock. If its connection
    /// breaks, it is sent once more.
    Read,
    /// The `EXEC` of a transaction or a commit.
    Commit,
}

impl Action {
    pub(super) fn of(script: &str) -> Self {
        let is = |starts: &[&str]| starts.iter().any(|start| script.starts_with(start));
        match script {
            _ if is(&["ACQUIRE", "SET"]) => Self::Acquire,
            _ if is(&["RENEW"]) => Self::Renew,
            _ if is(&["RELEASE", "FORCE_RELEASE", "FINISH_RUN"]) => Self::Release,
            _ => Self::Inspect,
        }
    }
}

/// The way in which a request to a [`StandIn`](super::StandIn) fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The server refuses it with this error, such as `OOM no memory`. It is not executed.
    Refused(&'static str),
    /// It does not reach the server. The caller gets no reply.
    LostRequest,
    /// It is executed. The caller gets no reply.
    LostReply,
}

type Decide = Arc<dyn Fn(Action, &str) -> Option<Failure> + Send + Sync>;

/// The requests that will fail.
#[derive(Default)]
pub(super) struct Failing {
    next: Mutex<VecDeque<(Action, Failure)>>,
    decide: Mutex<Option<Decide>>,
}

impl Failing {
    pub(super) fn fail_next(&self, action: Action, failure: Failure) {
        self.next.lock().push_back((action, failure));
    }

    pub(super) fn fail(&self, decide: Decide) {
        *self.decide.lock() = Some(decide);
    }

    pub(super) fn failure(&self, action: Action, lock: &str) -> Option<Failure> {
        let mut next = self.next.lock();
        if let Some(place) = next.iter().position(|(of, _)| *of == action) {
            return next.remove(place).map(|(_, failure)| failure);
        }
        drop(next);
        // Called with no mutex locked, since it may use the stand-in.
        let decide = self.decide.lock().clone();
        decide?(action, lock)
    }
}
