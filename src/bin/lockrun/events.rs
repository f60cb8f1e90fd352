//! The events that lockrun waits for, and the hooks that report on the lease.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender},
};

use leasehold::{
    Events,
    event::{Lost, RenewalFailed, Renewed},
};
use parking_lot::Mutex;

use crate::text::whole;

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
    /// A renewal has failed.
    NotRenewed(String),
}

/// Read by lockrun while the command runs, and then by the thread that waits for signals during the
/// release.
pub(crate) type Inbox = Arc<Mutex<Receiver<Event>>>;

/// Forwards events from the lock's own threads, which must not block.
pub(crate) struct Hooks(pub(crate) Sender<Event>);

impl Events for Hooks {
    fn renewed(&self, _: &Renewed<'_>) {
        let _ = self.0.send(Event::Renewed);
    }

    fn renewal_failed(&self, failed: &RenewalFailed<'_>) {
        let _ = self.0.send(Event::NotRenewed(whole(failed.error())));
    }

    fn lost(&self, _: &Lost<'_>) {
        let _ = self.0.send(Event::Lost);
    }
}
