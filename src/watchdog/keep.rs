//! How a lease is to be kept.

use std::time::{Duration, Instant};

use crate::{
    error::{Error, Result},
    renewing::entry::Terms,
    time::{MAX_LEASE, lease_millis},
};

/// How a [`Watchdog`](crate::Watchdog) is to keep a lease, by value.
///
/// ```
/// use std::time::Duration;
///
/// let keep = leasehold::Keep::lease(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(3_600));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Keep {
    lease: Duration,
    max_hold: Option<Duration>,
    held_until: Option<Instant>,
}

impl Keep {
    /// Renews the lock at a third of this lease, for this lease from then on: 1 ms to 24 h.
    ///
    /// A longer lease outlasts a longer outage of the server, and keeps the others waiting for
    /// longer after a crash.
    pub fn lease(lease: Duration) -> Self {
        Self {
            lease,
            max_hold: None,
            held_until: None,
        }
    }

    /// How long the lock may be held in all, from now on, however often it is renewed. Default: no
    /// limit.
    ///
    /// The last renewals ask for no more than what is left, so that a holder that hangs keeps the
    /// others out no longer than this. Then the lease is lost with
    /// [`LostReason::MaxHold`](crate::LostReason::MaxHold).
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Until when the lock is known to be ours: the lease it was acquired with, from a moment
    /// *before* the acquire was sent. Default: not known, so that it is renewed at once, and
    /// [`keep`](crate::Watchdog::keep) waits for that.
    ///
    /// Whatever comes from this moment is the caller's promise: one that is too late has
    /// [`is_held`](crate::Renewal::is_held) say yes for too long.
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # use leasehold::{Keep, Watchdog, acquire_lock_with_timeout, recipes::Hold};
    /// # fn f(watchdog: &Watchdog, conn: &mut leasehold::redis::Connection) -> leasehold::Result<()> {
    /// let lease = Duration::from_secs(10);
    /// let before = Instant::now();
    /// // One attempt, no wait: otherwise the moment would lie too far back, which is safe but wasteful.
    /// if let Some(token) = acquire_lock_with_timeout(conn, "report", Duration::ZERO, lease)? {
    ///     let keep = Keep::lease(lease).held_until(before + lease);
    ///     let renewal = watchdog.keep_with(&Hold::mutex("report", &token)?, keep)?;
    ///     assert!(renewal.is_held());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn held_until(mut self, end: Instant) -> Self {
        self.held_until = Some(end);
        self
    }

    /// The terms from now on.
    pub(crate) fn checked(self, now: Instant, skew: Duration) -> Result<Terms> {
        lease_millis("lease", self.lease)?;
        if self
            .max_hold
            .is_some_and(|longest| longest < Duration::from_millis(1))
        {
            return Err(Error::invalid("max_hold", "it has to be at least 1 ms"));
        }
        let until = self.held_until.unwrap_or(now);
        if until.saturating_duration_since(now) > MAX_LEASE {
            return Err(Error::invalid(
                "held_until",
                "it has to be at most 24 h ahead",
            ));
        }
        // A limit further away than the clock can tell is none.
        let cap = self.max_hold.and_then(|longest| now.checked_add(longest));
        let end = self
            .held_until
            .map(|end| cap.map_or(end, |cap| cap.min(end)));
        Ok(Terms {
            lease: self.lease,
            cap,
            end,
            renews: true,
            look_at: None,
            skew: skew.min(self.lease / 10),
        })
    }
}
