//! How locks are held.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    name::Owner,
    time::lease_millis,
};
use crate::{event::Events, waiting::HandOverBudget};

/// So many fencing tokens are the last 10 ms.
const MOST_RESERVED: u64 = 10_000;
const MOST_TURNS: u32 = 1_000_000;

/// How the locks of a [`Locks`](crate::Locks), or one [`Lock`](crate::Lock), are held: by value, with a default for each.
///
/// ```
/// use std::time::Duration;
///
/// let options = leasehold::Options::new()
///     .lease(Duration::from_secs(30))
///     .max_hold(Duration::from_secs(3_600));
/// ```
#[derive(Clone)]
#[must_use]
pub struct Options {
    pub(crate) prefix: Arc<str>,
    pub(crate) lease: Duration,
    pub(crate) renewal: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) backoff: Pauses,
    pub(crate) drop_timeout: Duration,
    pub(crate) fencing: bool,
    hand_over: HandOver,
    pub(crate) owner: Option<Owner>,
    pub(crate) events: Option<Arc<dyn Events>>,
}

/// The pauses between attempts: the first, doubled up to the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    pub(crate) first: Duration,
    pub(crate) last: Duration,
}

/// How often a lock may be handed over before it is released at the server, and for how long in all.
#[derive(Clone, Copy, Debug)]
struct HandOver {
    turns: u32,
    longest: Duration,
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            prefix: "lock:".into(),
            lease: Duration::from_secs(10),
            renewal: true,
            max_hold: None,
            backoff: Pauses {
                first: Duration::from_millis(1),
                last: Duration::from_millis(10),
            },
            drop_timeout: Duration::from_secs(1),
            fencing: true,
            hand_over: HandOver {
                turns: 0,
                longest: Duration::ZERO,
            },
            owner: None,
            events: None,
        }
    }

    /// For how long a lock is ours without being renewed, 1 ms to 24 h. Default 10 s.
    ///
    /// Longer survives a longer outage of the server, and keeps everybody else waiting longer after a crash.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Whether the lease is renewed, at a third of it, for as long as the guard lives. Default yes.
    ///
    /// Without, the lock is lost when the lease has ended, however the work goes: for work that is known to be short, where
    /// a holder that hangs is worse than one that is late.
    pub fn renewal(mut self, renewal: bool) -> Self {
        self.renewal = renewal;
        self
    }

    /// How long a lock may be held in all, however often it is renewed: at least 1 ms. Default no limit.
    ///
    /// With a limit a holder that hangs lets the others in at last, and work that takes longer loses its lock.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// What stands before a lock's name in its key, also nothing; at most 128 bytes, no braces. Default `lock:`.
    ///
    /// Set to what another library uses, its locks exclude ours and ours its.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Pauses between attempts where the server tells us of no release, or does not answer: the first, doubled up to the
    /// last, each shortened by up to a half at random. At least 100 µs, at most 1 min. Default 1 ms and 10 ms.
    ///
    /// Where it does tell, which is usual, nobody waits for a pause.
    pub fn backoff(mut self, first: Duration, last: Duration) -> Self {
        self.backoff = Pauses { first, last };
        self
    }

    /// How long dropping a [`Lease`](crate::Lease) may take, 1 ms to 24 h. Default 1 s.
    ///
    /// What cannot be released in this time is released by the watchdog's thread later, or ends with its lease.
    pub fn drop_timeout(mut self, timeout: Duration) -> Self {
        self.drop_timeout = timeout;
        self
    }

    /// Whether each hold of a [mutex](crate::Locks::lock) gets a [fencing token](crate::Lease::fencing_token). Default yes.
    ///
    /// A fencing token is kept beside the lock, in a key of its own that outlives the lock by a day, or by ten leases where that
    /// is longer: 10,000 names leave 10,000 such keys, of some 200 bytes each. Without, nothing is left of a lock that is free,
    /// and an acquire is the bare `SET … NX PX`, which takes less than the script that counts. But then nothing tells the
    /// resource that a holder is late: `fencing_token` answers `None`, and [`Lock::inspect`](crate::Lock::inspect) knows neither
    /// who the holder is nor since when. [`Lease::commit`](crate::Lease::commit) protects as before.
    ///
    /// Holders with and without exclude each other; only the former's numbers grow. [`Lock::try_acquire`](crate::Lock::try_acquire)
    /// says "busy" of a key of another type then, as the bare command does; a wait says
    /// [`Error::WrongKind`](crate::Error::WrongKind). The other kinds of lock are as they are: a reentrant lock keeps its
    /// acquisitions in that key, and a writer its number.
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.fencing = fencing;
        self
    }

    /// How often a lock may be handed to the next thread of this process that waits for it without asking the server, and for
    /// how long in all, before it is released there and other processes have their chance. Default no times: every release
    /// goes to the server, as it does for no turns or no time.
    ///
    /// For locks that many threads of a process want all the time, and hold for less than the two round trips that it takes
    /// to release and acquire. `hand_over(256, Duration::from_millis(20))` is a good beginning: more turns gain little, and
    /// other processes wait for so many. Only [mutexes](crate::Locks::lock) are handed over, between those that allow it,
    /// while at least half of the lease that the next one expects is left, and no more than that lease.
    ///
    /// Each holder has a guard, a fencing token and a loss signal of its own. All have one [token](crate::Lease::token),
    /// so that a lease whose token was asked for is not handed over. Of those that wait, one that differs in
    /// [`fencing`](Self::fencing) asks the server. Other processes see the first of them in
    /// [`Lock::inspect`](crate::Lock::inspect). At most a million times. With fencing tokens at most 10,000 times until it is
    /// released once, and not from the first hold of a lock, also after the server lost its data.
    pub fn hand_over(mut self, turns: u32, longest: Duration) -> Self {
        self.hand_over = HandOver { turns, longest };
        self
    }

    /// Who holds the lock, for people to read in [`Lock::inspect`](crate::Lock::inspect). Default host, process and thread.
    ///
    /// For a [reentrant](crate::Locks::reentrant) lock it is also who may enter again, and the default is the
    /// [thread](Owner::current_thread).
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Who is told of what happens. Default nobody.
    pub fn events(mut self, events: Arc<dyn Events>) -> Self {
        self.events = Some(events);
        self
    }

    /// The lease in milliseconds, if all can be used.
    pub(crate) fn checked(&self) -> Result<u64> {
        let shortest = Duration::from_millis(1);
        let millis = lease_millis("lease", self.lease)?;
        lease_millis("drop_timeout", self.drop_timeout)?;
        if self.max_hold.is_some_and(|longest| longest < shortest) {
            return Err(Error::invalid("max_hold", "it has to be at least 1 ms"));
        }
        if self.hand_over.turns > MOST_TURNS {
            return Err(Error::invalid("hand_over", "at most a million turns"));
        }
        let Pauses { first, last } = self.backoff;
        if first < Duration::from_micros(100) || last < first || last > Duration::from_secs(60) {
            return Err(Error::invalid(
                "backoff",
                "it has to be at least 100 µs, then at least as much, and at most 1 min",
            ));
        }
        match self.max_hold {
            Some(longest) if longest < self.lease => lease_millis("max_hold", longest),
            _ => Ok(millis),
        }
    }

    /// How long a lease is before it is renewed.
    pub(crate) fn longest_at_first(&self) -> Duration {
        (self.max_hold).map_or(self.lease, |longest| longest.min(self.lease))
    }

    /// Whether a lock that is held by these options may be handed over.
    pub(crate) fn hands_over(&self) -> bool {
        self.turns_allowed() > 0
    }

    /// How many fencing tokens to reserve for those the lock is handed to. They are of the last 10 ms, so that a failover
    /// that lost the last grants has taken longer.
    pub(crate) fn reserved(&self) -> u64 {
        if !self.fencing {
            return 0;
        }
        u64::from(self.turns_allowed()).min(MOST_RESERVED)
    }

    /// How often a lock that was granted at this moment with so many more fencing tokens may be handed on.
    pub(crate) fn turns(&self, reserved: u64, granted_at: Instant) -> Option<HandOverBudget> {
        let allowed = self.turns_allowed();
        let turns = match u32::try_from(reserved) {
            Ok(more) if self.fencing => more.min(allowed),
            _ => allowed,
        };
        // A time further away than the clock can tell is no bound.
        let until = granted_at.checked_add(self.hand_over.longest);
        (turns > 0).then(|| HandOverBudget::new(turns, until))
    }

    /// In no time at all there is no turn: nothing has to be reserved for it.
    fn turns_allowed(&self) -> u32 {
        if self.hand_over.longest.is_zero() {
            0
        } else {
            self.hand_over.turns
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("prefix", &self.prefix)
            .field("lease", &self.lease)
            .field("renewal", &self.renewal)
            .field("max_hold", &self.max_hold)
            .field("backoff", &self.backoff)
            .field("drop_timeout", &self.drop_timeout)
            .field("fencing", &self.fencing)
            .field("hand_over", &self.hand_over)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_turns_than_fencing_tokens() {
        let now = crate::time::now();
        let options = Options::new().hand_over(1_000_000, Duration::MAX);
        assert_eq!(
            options.turns(999, now),
            Some(HandOverBudget::new(999, None))
        );
        assert_eq!(options.turns(0, now), None);
        let few = Options::new().hand_over(3, Duration::MAX);
        assert_eq!(few.turns(999, now), Some(HandOverBudget::new(3, None)));
        for never in [(0, Duration::MAX), (1_000, Duration::ZERO)] {
            let never = Options::new().hand_over(never.0, never.1);
            assert_eq!(never.turns(1_000, now), None);
            assert!(never.reserved() == 0 && !never.hands_over());
        }
    }
}
