//! `Keep`: the settings by which a watchdog keeps a lease.

use std::time::{Duration, Instant};

use crate::{
    error::{Error, Result},
    renewing::entry::Terms,
    time::{MAX_LEASE, check_length},
};

/// The settings by which a [`Watchdog`](crate::Watchdog) keeps a lease, by value.
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

    /// Limits the time for which the lock is held in all, from now on, however often it is renewed.
    /// Default: no limit.
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
    ///
    /// # Errors
    /// [`Error::Invalid`] for a length that is too short or too long.
    pub(crate) fn checked(self, now: Instant, skew: Duration) -> Result<Terms> {
        check_length("lease", self.lease)?;
        let (until, longest) = (self.held_until, self.max_hold);
        if longest.unwrap_or(MAX_LEASE) < Duration::from_millis(1) {
            return Err(Error::invalid("max_hold", "it has to be at least 1 ms"));
        }
        if until.map(|end| end.saturating_duration_since(now)) > Some(MAX_LEASE) {
            let reason = "it has to be at most 24 h ahead";
            return Err(Error::invalid("held_until", reason));
        }
        // A limit further away than the clock can tell is none.
        let cap = longest.and_then(|longest| now.checked_add(longest));
        Ok(Terms {
            lease: self.lease,
            cap,
            end: until.map(|end| cap.map_or(end, |cap| cap.min(end))),
            renews: true,
            look_at: None,
            skew: skew.min(self.lease / 10),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of a server that takes over may be ahead; a short lease bears less of that.
    #[test]
    fn a_lease_ends_sooner_by_the_skew_or_by_a_tenth_of_it() {
        let ms = Duration::from_millis;
        for (lease, skew) in [(10_000, 50), (500, 50), (100, 10)] {
            let terms = Keep::lease(ms(lease)).checked(Instant::now(), ms(50));
            assert_eq!(terms.unwrap().skew, ms(skew));
        }
    }
}
