//! `Outstanding`: commands for one lease that the server may still execute, although we have
//! stopped waiting for the answer.
//!
//! A command whose answer did not come lies somewhere between us and the server: in the socket of a
//! server that is halted, or in a network that sends it again later. It is executed when it
//! arrives, and our clock does not know when that is. So nothing here ends by time: what is out
//! stays out, until the server proves that it cannot come any more.
//!
//! | out | may still | forbids or demands |
//! |---|---|---|
//! | a commit | write, while the key is untouched | a hand-over, which does not touch the key: the release is sent to the server |
//! | a renewal | move the end, while the lock is ours | a hand-over, whose next holder would not know that end |
//! | an acquire | take the lock again after it was released | a hand-over; the release is repeated for a while |
//!
//! The lease's [`LeaseState`](super::lease_state::LeaseState) holds it. Release and hand-over
//! ask it; a [renewal](super::schedule) of the watchdog that is on its way at this moment is the
//! schedule's to know.

/// The commands that were sent for a lease and have not been answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Outstanding {
    /// An attempt to acquire.
    acquire: bool,
    /// A renewal, by the holder or by the watchdog.
    renewal: bool,
    /// The number of commits that are on their way, or were given up.
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

    /// The lock can go to the next holder as it is.
    pub(super) fn is_nothing(self) -> bool {
        !self.acquire && !self.renewal && self.commits == 0
    }

    /// The lock may become ours again after it was released.
    pub(crate) fn may_acquire(self) -> bool {
        self.acquire
    }
}
