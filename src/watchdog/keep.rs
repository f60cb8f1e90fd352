//! `Keep`: the settings of one lease that a watchdog keeps.

use std::time::{Duration, Instant};

use crate::{
    error::{Error, Result},
    renewing::entry::Terms,
    time::{MAX_LEASE, check_length},
};

/// The settings of one lease that a [`Watchdog`](crate::Watchdog) keeps. Passed by value.
///
/// ```
/// use std::time::Duration;
///
/// let keep = leasehold::Keep::new(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(3_600));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Keep {
    lease: Duration,
    max_hold: Option<Duration>,
    held_until: Option<Instant>,
}

impl Keep {
    /// Renews the lock after each third of this lease, 1 ms to 24 h.
    ///
    /// A longer lease survives a longer outage of the server, but makes others wait longer after a
    /// crash.
    pub fn new(lease: Duration) -> Self {
        Self {
            lease,
            max_hold: None,
            held_until: None,
        }
    }

    /// Sets the maximum time that the lock is held from now on, including all renewals: at least 1
    /// ms. Default: no limit.
    ///
    /// The last renewals extend the lease only to this limit, so a holder that hangs blocks others
    /// no longer. Then the lease is lost with [`LostReason::MaxHold`](crate::LostReason::MaxHold).
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets the known end of the lease: a moment *before* the acquire was sent, plus the acquired
    /// lease. Default: unknown.
    ///
    /// Without it the lease is renewed at once, and [`keep_with`](crate::Watchdog::keep_with) waits
    /// for the reply.
    ///
    /// The caller must ensure that this value is not too late: otherwise
    /// [`is_held`](crate::Renewal::is_held) returns true for too long.
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # use leasehold::{Keep, Watchdog, acquire_lock_with_timeout, recipes::Hold};
    /// # use leasehold::redis::Connection;
    /// # fn f(watchdog: &Watchdog, conn: &mut Connection) -> leasehold::Result<()> {
    /// let lease = Duration::from_secs(10);
    /// let before = Instant::now();
    /// // One attempt without a wait, which would make `before` too early: safe but wasteful.
    /// if let Some(token) = acquire_lock_with_timeout(conn, "report", Duration::ZERO, lease)? {
    ///     let keep = Keep::new(lease).held_until(before + lease);
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

    /// Checks the settings, and converts them to terms that start now.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a duration is too short or too long.
    pub(crate) fn checked(self, now: Instant, skew: Duration) -> Result<Terms> {
        check_length("lease", self.lease)?;
        let (until, longest) = (self.held_until, self.max_hold);
        if longest.unwrap_or(MAX_LEASE) < Duration::from_millis(1) {
            return Err(Error::invalid("max_hold", "it must be at least 1 ms"));
        }
        if until.map(|end| end.saturating_duration_since(now)) > Some(MAX_LEASE) {
            let reason = "it must be at most 24 h ahead";
            return Err(Error::invalid("held_until", reason));
        }
        // A limit beyond the range of the clock has no effect.
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

    /// The clock of a promoted replica may be ahead. A short lease allows less for that.
    #[test]
    fn a_lease_ends_earlier_by_the_skew_but_at_most_a_tenth_of_the_lease() {
        let ms = Duration::from_millis;
        for (lease, skew) in [(10_000, 50), (500, 50), (100, 10)] {
            let terms = Keep::new(ms(lease)).checked(Instant::now(), ms(50));
            assert_eq!(terms.unwrap().skew, ms(skew));
        }
    }

    #[test]
    fn max_hold_comes_before_a_known_end() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let keep = Keep::new(9 * second).held_until(now + 9 * second);
        let terms = keep.max_hold(second).checked(now, Duration::ZERO);
        assert_eq!(terms.unwrap().end, Some(now + second));
    }
}
