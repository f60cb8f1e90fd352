//! The events that lockrun waits for, and the hooks that report on the lease.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender},
};

use leasehold::{
    Events,
    event::{Acquired, Lost, RenewalFailed, Renewed, Retrying},
};
use parking_lot::Mutex;

use crate::{
    arguments::Arguments,
    speaking::{speaker::Speaker, waits::WaitLog, words::reason},
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
    /// With `--verbose` and `--wait`.
    wait: Option<Arc<WaitLog>>,
}

impl JobHooks {
    pub(crate) fn new(arguments: &Arguments, sender: Sender<Event>, speaker: &Speaker) -> Self {
        let says_waits = speaker.says_steps() && !arguments.wait.is_zero();
        Self {
            sender,
            server: arguments.server(),
            wait: says_waits.then(|| WaitLog::new(arguments, speaker)),
        }
    }
}

impl Events for JobHooks {
    fn retrying(&self, retrying: &Retrying<'_>) {
        if let Some(wait) = &self.wait {
            match retrying.error() {
                Some(error) => wait.failed(&reason(&self.server, error)),
                None => wait.refused(retrying.lock()),
            }
        }
    }

    fn acquired(&self, _: &Acquired<'_>) {
        if let Some(wait) = &self.wait {
            wait.acquired();
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
