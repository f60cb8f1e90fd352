//! `Outstanding`: commands for one lease that the server may still execute, although we no longer
//! wait for the reply.
//!
//! A command without a reply may be in the socket of a halted server, or in a network that delivers
//! it later. The server executes it on arrival, at a time that we cannot know. So nothing here
//! expires: a command stays outstanding until the server proves that it cannot arrive any more.
//!
//! - **A commit** may still write, as long as the key is untouched. A hand-over does not touch the
//!   key, so it is forbidden: the release goes to the server.
//! - **A renewal** may still move the end of the lease, as long as the lock is ours. A hand-over is
//!   forbidden, since the next holder would not know that end.
//! - **An acquire** may take the lock again after it was released. A hand-over is forbidden, and
//!   the release is repeated for a while.
//!
//! The lease's [`LeaseState`](super::lease_state::LeaseState) owns it. Release and hand-over check
//! it. A [renewal](super::schedule) by the watchdog that is on its way is in the schedule instead.

/// The commands for a lease that got no reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Outstanding {
    /// An attempt to acquire.
    acquire: bool,
    /// A renewal, by the holder or by the watchdog.
    renewal: bool,
    /// The number of commits that are on their way, or got no reply.
    commits: u32,
}

impl Outstanding {
    pub(crate) fn acquire_is_out(&mut self) {
        self.acquire = true;
    }

    pub(crate) fn renewal_is_out(&mut self) {
        self.renewal = true;
    }

    pub(crate) fn commit_is_out(&mut self) {
        self.commits = self.commits.saturating_add(1);
    }

    pub(crate) fn commit_is_answered(&mut self) {
        self.commits = self.commits.saturating_sub(1);
    }

    /// Returns true if nothing prevents a hand-over.
    pub(super) fn is_nothing(self) -> bool {
        !self.acquire && !self.renewal && self.commits == 0
    }

    /// Returns true if an acquire may still take the lock after it was released.
    pub(crate) fn may_acquire(self) -> bool {
        self.acquire
    }
}
