//! The watch on the master: for as long as anybody waits or holds, it asks each second which server
//! is the master, and checks the leases' connection.
//!
//! A master that was replaced goes on granting locks until it learns of its replacement. So the
//! watch depends on nothing that a server may refuse: the listener's thread keeps it, even while
//! the server does not let that thread listen. What it learns changes the [`Connector::epoch`], by
//! which all connections to the old master are closed.

use std::{
    sync::Weak,
    time::{Duration, Instant},
};

use super::Observer;
use crate::{pool::Connector, time};

/// The pause between two checks.
pub(super) const EACH_SECOND: Duration = Duration::from_secs(1);
/// The pause between two looks for announcements of a failover.
pub(super) const OFTEN: Duration = Duration::from_millis(100);

pub(super) struct MasterWatch {
    connector: Connector,
    /// Checks the leases' connection.
    check_leases: Box<dyn Fn() + Send>,
    observer: Weak<dyn Observer>,
    checked: Instant,
    looked: Option<Instant>,
}

impl MasterWatch {
    pub(super) fn new(
        connector: Connector,
        check_leases: impl Fn() + Send + 'static,
        observer: Weak<dyn Observer>,
    ) -> Self {
        Self {
            connector,
            check_leases: Box::new(check_leases),
            observer,
            checked: time::now(),
            looked: None,
        }
    }

    /// Checks what is due. Returns `None` if the observer is gone, or if `server_answers`, which is
    /// called once the master is known, returns `None`: then the leases are not checked.
    pub(super) fn look(&mut self, server_answers: impl FnOnce() -> Option<()>) -> Option<()> {
        if self.looked.is_none_or(|at| at.elapsed() >= OFTEN) {
            self.connector.listen();
            self.looked = Some(time::now());
        }
        if self.checked.elapsed() < EACH_SECOND {
            return Some(());
        }
        // The observer is dropped before anything is asked: dropping its last clone ends its owner.
        let needs_notifications = self.observer.upgrade()?.needs_notifications();
        let looked = if needs_notifications {
            self.connector.check(EACH_SECOND / 2);
            server_answers().map(|()| (self.check_leases)())
        } else {
            Some(())
        };
        // The pause counts from the end of the check: after a slow check, messages that came
        // meanwhile are read first.
        self.checked = time::now();
        looked
    }
}
