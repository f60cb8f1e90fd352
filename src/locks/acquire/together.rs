//! The first attempts of the waits of a set, sent in one write to each server.

use std::{sync::Arc, time::Duration};

use super::{AttemptOutcome, Wait};
use crate::{
    locks::{lease::Lease, release::ask_together},
    recipes::LockKind,
};

/// Makes the first attempts of these waits, in one write to each server, and to all servers at
/// once.
pub(in crate::locks) fn ask_together_first(waits: &mut [&mut Wait<'_>]) {
    let Some(patience) = waits.first().map(|wait| wait.patience()) else {
        return;
    };
    let call = |wait: &&mut Wait<'_>| (Arc::clone(&wait.stack), wait.first_call(false));
    let calls: Vec<_> = waits.iter().map(call).collect();
    let replies: Vec<_> = ask_together(&calls, patience).collect();
    for (wait, reply) in waits.iter_mut().zip(replies) {
        wait.first = Some(wait.judge(reply));
    }
}

impl Wait<'_> {
    /// Returns true if the first attempt may be sent together with those for other locks. `WAIT`
    /// has to go on the connection that has written, and would hold up other calls.
    pub(in crate::locks) fn asks_at_once(&self) -> bool {
        let is_reentrant = self.hold.kind == LockKind::Reentrant;
        let asks = self.asks_after == Some(Duration::ZERO) || is_reentrant;
        asks && self.hold.replicas.is_none() && !self.part.is_over
    }

    /// Returns true if the first attempt has acquired the lock.
    pub(in crate::locks) fn is_granted(&self) -> bool {
        matches!(self.first, Some(Ok(AttemptOutcome::Granted { .. })))
    }

    /// Ends a wait that is not continued. Returns what its first attempt acquired, for a release,
    /// and leaves to the watchdog's thread what it may have acquired.
    pub(in crate::locks) fn declined(mut self) -> Option<Lease> {
        let acquired = match self.first.take()? {
            Ok(AttemptOutcome::Granted { grant, .. }) => Ok(Some(self.lease(grant))),
            outcome => outcome.map(|_| None),
        };
        self.release_outstanding(&acquired);
        acquired.ok().flatten().map(Lease::declined)
    }
}
