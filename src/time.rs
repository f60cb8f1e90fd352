//! Clocks, deadlines, pauses, and the only conversion of a `Duration` to Redis' milliseconds.

#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::{Condvar, MutexGuard};
use uuid::Uuid;

use crate::error::{Error, Result};

/// The longest lease.
pub(crate) const MAX_LEASE: Duration = Duration::from_hours(24);
/// The longest period of `run_once`: 31 days.
pub(crate) const MAX_PERIOD: Duration = Duration::from_hours(31 * 24);

pub(crate) fn now() -> Instant {
    Clock::REAL.now()
}

/// The machine's monotonic clock, or that of the stand-in, which a test can move ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The nanoseconds that a test has added; `None` for the machine's clock.
    #[cfg(feature = "testing")]
    ahead: Option<&'static AtomicU64>,
}

impl Clock {
    pub(crate) const REAL: Self = Self {
        #[cfg(feature = "testing")]
        ahead: None,
    };

    pub(crate) fn now(self) -> Instant {
        Instant::now() + self.ahead()
    }

    #[cfg(not(feature = "testing"))]
    #[allow(clippy::unused_self, reason = "a movable clock needs it")]
    const fn ahead(self) -> Duration {
        Duration::ZERO
    }

    /// Returns the time since a moment of this clock.
    pub(crate) fn since(self, moment: Instant) -> Duration {
        self.now().saturating_duration_since(moment)
    }

    /// Returns the deadline of a wait. A wait beyond the range of the clock never ends.
    pub(crate) fn after(self, wait: Duration) -> Deadline {
        self.at(self.now().checked_add(wait))
    }

    /// Returns the deadline at this moment of this clock; `None`: never.
    pub(crate) fn at(self, end: Option<Instant>) -> Deadline {
        Deadline { end, clock: self }
    }

    /// Converts a moment of this clock to the machine's clock, by which threads sleep.
    pub(crate) fn real(self, moment: Instant) -> Instant {
        moment.checked_sub(self.ahead()).unwrap_or(moment)
    }
}

/// The limit to which a test can move a clock: a hundred years, in nanoseconds.
#[cfg(feature = "testing")]
const FURTHEST: u64 = 100 * 365 * 24 * 60 * 60 * 1_000_000_000;

#[cfg(feature = "testing")]
impl Clock {
    /// Creates a clock that a test can move. Leaks eight bytes, so that clocks can be `Copy`.
    pub(crate) fn movable() -> Self {
        Self {
            ahead: Some(Box::leak(Box::default())),
        }
    }

    fn ahead(self) -> Duration {
        let nanos = self.ahead.map_or(0, |nanos| nanos.load(Ordering::SeqCst));
        Duration::from_nanos(nanos)
    }

    /// Moves the clock. The caller must wake the threads that sleep until a moment of it.
    pub(crate) fn advance(self, by: Duration) {
        if let Some(ahead) = self.ahead {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            let moved = |nanos: u64| Some(nanos.saturating_add(by).min(FURTHEST));
            let _ = ahead.fetch_update(Ordering::SeqCst, Ordering::SeqCst, moved);
        }
    }
}

/// A moment on a clock, or never. Computed once and used for every retry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    end: Option<Instant>,
    clock: Clock,
}

impl Deadline {
    /// Returns the deadline of a wait on the machine's clock.
    pub(crate) fn after(wait: Duration) -> Self {
        Clock::REAL.after(wait)
    }

    pub(crate) fn remaining(self) -> Duration {
        self.end.map_or(Duration::MAX, |end| {
            end.saturating_duration_since(self.clock.now())
        })
    }

    /// Returns the moment on the machine's clock; `None` for never.
    pub(crate) fn moment(self) -> Option<Instant> {
        self.end.map(|end| self.clock.real(end))
    }

    /// Returns the earlier of the two.
    pub(crate) fn or_sooner(self, moment: Option<Instant>) -> Self {
        let end = self.end.into_iter().chain(moment).min();
        Self { end, ..self }
    }

    /// Returns the time left, at most `limit` and at least 1 ms: a socket's time-out must not be
    /// zero.
    pub(crate) fn remaining_up_to(self, limit: Duration) -> Duration {
        self.remaining().min(limit).max(Duration::from_millis(1))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// Sleeps until a notification or the deadline. Returns true if the deadline has passed.
    pub(crate) fn wait<T>(self, woken: &Condvar, locked: &mut MutexGuard<'_, T>) -> bool {
        if let Some(moment) = self.moment() {
            return woken.wait_until(locked, moment).timed_out();
        }
        woken.wait(locked);
        false
    }
}

/// Pauses between attempts: 1 ms at first, doubled up to 10 ms, each shortened at random by up to
/// half, so that waiters do not retry in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    last: Duration,
    longest: Duration,
    /// 0 until first used: a seed costs a system call.
    random: u64,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(1);
    const LAST: Duration = Duration::from_millis(10);

    pub(crate) fn new() -> Self {
        Self::between(Self::FIRST, Self::LAST)
    }

    /// Starts with pauses of `first`, doubled up to `last`.
    pub(crate) fn between(first: Duration, last: Duration) -> Self {
        Self {
            first,
            last,
            longest: first,
            random: 0,
        }
    }

    /// Makes the next pause as short as the first.
    pub(crate) fn start_again(&mut self) {
        self.longest = self.first;
    }

    /// Sleeps for the next pause, never past the deadline. Returns false, without sleeping, if the
    /// deadline has passed.
    pub(crate) fn pause(&mut self, deadline: Deadline) -> bool {
        let remaining = deadline.remaining();
        thread::sleep(self.next_pause(remaining));
        !remaining.is_zero()
    }

    pub(crate) fn next_pause(&mut self, remaining: Duration) -> Duration {
        let longest = self.longest;
        self.longest = longest.saturating_mul(2).min(self.last);
        if self.random == 0 {
            let (high, low) = Uuid::new_v4().as_u64_pair();
            self.random = high ^ low | 1;
        }
        // Marsaglia's xorshift. It only has to spread the pauses.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let shorter_by = longest / 2 * u32::from(self.random.to_be_bytes()[0]) / 255;
        longest.saturating_sub(shorter_by).min(remaining)
    }
}

/// # Errors
/// [`Error::Invalid`]: the length is not between 1 ms and 24 h.
pub(crate) fn check_length(argument: &'static str, length: Duration) -> Result<()> {
    lease_millis(argument, length).map(drop)
}

/// Converts a lease for Redis' `PX`: whole milliseconds, rounded up so that it never ends early.
///
/// # Errors
/// [`Error::Invalid`]: the lease is not between 1 ms and 24 h.
pub(crate) fn lease_millis(argument: &'static str, lease: Duration) -> Result<u64> {
    let invalid = || Error::invalid(argument, "it must be between 1 ms and 24 h");
    millis_up_to(MAX_LEASE, lease).ok_or_else(invalid)
}

/// Converts a period to whole milliseconds, rounded up.
///
/// # Errors
/// [`Error::Invalid`]: the period is not between 1 ms and 31 days.
pub(crate) fn period_millis(period: Duration) -> Result<u64> {
    let invalid = || Error::invalid("period", "it must be between 1 ms and 31 days");
    millis_up_to(MAX_PERIOD, period).ok_or_else(invalid)
}

fn millis_up_to(longest: Duration, length: Duration) -> Option<u64> {
    let is_valid = (Duration::from_millis(1)..=longest).contains(&length);
    is_valid.then(|| whole_millis(length))
}

/// Converts to milliseconds, rounded up.
pub(crate) fn whole_millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Converts to milliseconds since 1970, rounded up. `None` before 1970 and after the year 9999.
pub(crate) fn epoch_millis(moment: SystemTime) -> Option<u64> {
    const YEAR_10000: u64 = 253_402_300_800_000;
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let millis = u64::try_from(since.as_nanos().div_ceil(1_000_000)).ok()?;
    (1..YEAR_10000).contains(&millis).then_some(millis)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_endless_wait_never_passes() {
        let never = Deadline::after(Duration::MAX);
        assert!(!never.has_passed());
        assert_eq!(never.remaining(), Duration::MAX);
    }

    #[test]
    fn a_zero_wait_has_passed_and_does_not_pause() {
        let over = Deadline::after(Duration::ZERO);
        assert!(over.has_passed());
        assert!(!Backoff::new().pause(over));
    }

    #[test]
    fn pauses_grow_to_ten_milliseconds_and_differ() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..64).map(|_| backoff.next_pause(Duration::MAX)).collect();
        assert!(pauses[0] >= Duration::from_micros(500) && pauses[0] <= Backoff::FIRST);
        assert!(pauses.iter().all(|pause| *pause <= Backoff::LAST));
        assert!(pauses[8..].iter().all(|pause| *pause >= Backoff::LAST / 2));
        assert!(pauses[8..].iter().any(|pause| *pause != pauses[8]));
    }

    proptest! {
        #[test]
        fn a_pause_is_at_most_the_remaining_time(micros in 0_u64..20_000, earlier in 0..8) {
            let remaining = Duration::from_micros(micros);
            let mut backoff = Backoff::new();
            for _ in 0..earlier {
                backoff.next_pause(Duration::MAX);
            }
            prop_assert!(backoff.next_pause(remaining) <= remaining);
        }

        #[test]
        fn a_lease_is_rounded_up_or_refused(nanos in prop_oneof![0_u64..5_000_000, any::<u64>()]) {
            let lease = Duration::from_nanos(nanos);
            match lease_millis("lease", lease) {
                Ok(millis) => {
                    let sent = Duration::from_millis(millis);
                    prop_assert!(sent >= lease && sent < lease + Duration::from_millis(1));
                }
                Err(_) => prop_assert!(lease < Duration::from_millis(1) || lease > MAX_LEASE),
            }
        }

        #[test]
        fn no_wait_overflows(seconds in any::<u64>(), nanos in 0_u32..1_000_000_000) {
            let wait = Duration::new(seconds, nanos);
            prop_assert!(Deadline::after(wait).remaining() >= wait.saturating_sub(Duration::from_mins(1)));
        }
    }

    #[test]
    fn the_shortest_and_the_longest_lease() {
        assert!(lease_millis("lease", Duration::ZERO).is_err());
        assert!(lease_millis("lease", Duration::from_nanos(1)).is_err());
        assert!(lease_millis("lease", Duration::MAX).is_err());
        assert_eq!(
            lease_millis("lease", Duration::from_millis(1)).ok(),
            Some(1)
        );
        assert_eq!(
            lease_millis("lease", Duration::from_micros(1_001)).ok(),
            Some(2)
        );
        assert_eq!(lease_millis("lease", MAX_LEASE).ok(), Some(86_400_000));
    }
}
