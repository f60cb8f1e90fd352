//! The events that lockrun waits for, and the hooks that report on the lease.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, Sender},
    },
    time::{Duration, Instant},
};

use leasehold::{
    Events,
    event::{Lost, RenewalFailed, Renewed, Retrying},
};
use parking_lot::Mutex;

use crate::{
    arguments::Arguments,
    repeats::Repeats,
    text::{rounded, say},
    words::reason,
};

/// An event that wakes lockrun.
#[derive(Debug)]
pub(crate) enum Event {
    /// A signal to lockrun.
    Signal(i32),
    /// A child may have ended or stopped.
    Child,
    /// The lease was renewed.
    Renewed,
    /// The lease is lost.
    Lost,
    /// A renewal of this lock has failed, for this reason.
    NotRenewed(String, String),
}

/// Read by lockrun while the command runs, and by the thread that waits for signals during the
/// release.
pub(crate) type Inbox = Arc<Mutex<Receiver<Event>>>;

/// Forwards events from the lock's own threads, which must not block.
pub(crate) struct JobHooks {
    sender: Sender<Event>,
    server: String,
    /// With `--verbose`.
    wait: Option<WaitLog>,
}

impl JobHooks {
    pub(crate) fn new(arguments: &Arguments, sender: Sender<Event>) -> Self {
        let wait = WaitLog {
            of_permits: arguments.permits.is_some(),
            until: Instant::now().checked_add(arguments.wait),
            repeats: Mutex::default(),
        };
        Self {
            sender,
            server: arguments.server(),
            wait: arguments.verbose.then_some(wait),
        }
    }
}

impl Events for JobHooks {
    fn retrying(&self, retrying: &Retrying<'_>) {
        if let Some(wait) = &self.wait {
            let failure = retrying.error().map(|error| reason(&self.server, error));
            wait.tell(retrying.lock(), failure);
        }
    }

    fn renewed(&self, _: &Renewed<'_>) {
        let _ = self.sender.send(Event::Renewed);
    }

    fn renewal_failed(&self, failed: &RenewalFailed<'_>) {
        let why = reason(&self.server, failed.error());
        let _ = (self.sender).send(Event::NotRenewed(failed.lock().into(), why));
    }

    fn lost(&self, _: &Lost<'_>) {
        let _ = self.sender.send(Event::Lost);
    }
}

/// Reports the progress of a wait.
struct WaitLog {
    of_permits: bool,
    /// `None` if the wait is too long for an `Instant`.
    until: Option<Instant>,
    repeats: Mutex<Repeats>,
}

impl WaitLog {
    /// Without a failure, someone else holds the lock.
    fn tell(&self, lock: &str, failure: Option<String>) {
        let now = Instant::now();
        let left = match self.until.map(|until| until.saturating_duration_since(now)) {
            // It was the last attempt.
            Some(Duration::ZERO) => return,
            Some(left) => format!(" for another {}", rounded(left)),
            None => String::new(),
        };
        let mut repeats = self.repeats.lock();
        let (what, goes_on) = match failure {
            Some(why) => (why, "retrying"),
            None if self.of_permits => (format!("others hold all permits of `{lock}`"), "waiting"),
            None => (format!("`{lock}` is held by someone else"), "waiting"),
        };
        if repeats.is_due(&what, now) {
            say(
                &mut io::stderr(),
                &format!("lockrun: {what}; {goes_on}{left}"),
            );
        }
    }
}
