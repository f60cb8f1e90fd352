//! The settings of one lock, their limits, and what follows from them for a hold.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    cancel::Cancel,
    error::{Result, ensure},
    event::EventSink,
    name::Owner,
    recipes::Hold,
    renewing::entry::Terms,
    server::Server,
    time::lease_millis,
    waiting::HandOverBudget,
    wire::{MOST_REPLICAS, Replicas},
};

/// Fencing tokens count microseconds: hand-overs reserve at most those of the last 10 ms.
const MOST_RESERVED: u64 = 10_000;
const MOST_TURNS: u32 = 1_000_000;
const MILLI: Duration = Duration::from_millis(1);

/// The options of one lock, with a value for each.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: Arc<str>,
    pub(crate) lease: Duration,
    pub(crate) renewal: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) backoff: Pauses,
    pub(crate) drop_timeout: Duration,
    pub(crate) fencing: bool,
    /// The replicas that must confirm a lock.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) clock_skew: Option<Duration>,
    pub(crate) hand_over: HandOver,
    pub(crate) owner: Option<Owner>,
    pub(crate) events: Option<Arc<EventSink>>,
    pub(crate) cancel: Option<Cancel>,
}

/// The pauses between attempts: the first, doubled up to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pauses {
    pub(crate) first: Duration,
    pub(crate) last: Duration,
}

/// The limits of hand-overs before a lock is released on the server: their number and total time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandOver {
    pub(crate) turns: u32,
    pub(crate) longest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
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
            replicas: None,
            clock_skew: None,
            hand_over: HandOver {
                turns: 0,
                longest: Duration::ZERO,
            },
            owner: None,
            events: None,
            cancel: None,
        }
    }
}

impl Settings {
    /// Returns these settings with this owner.
    pub(crate) fn of(self, owner: &Owner) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self
        }
    }

    /// Returns the hold with what these settings demand: fencing tokens, replicas.
    pub(crate) fn demanded_of(&self, hold: Hold) -> Hold {
        hold.demanding(self.fencing, self.reserved(), self.replicas)
    }

    /// Returns true if waits with these settings are cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Checks all settings, and returns the lease in milliseconds.
    pub(crate) fn checked(&self) -> Result<u64> {
        let millis = lease_millis("lease", self.lease)?;
        lease_millis("drop_timeout", self.drop_timeout)?;
        let is_long_enough = self.max_hold.is_none_or(|longest| longest >= MILLI);
        ensure(is_long_enough, "max_hold", "it must be at least 1 ms")?;
        let is_short_enough = self.hand_over.turns <= MOST_TURNS;
        let reason = "it must be at most a million turns";
        ensure(is_short_enough, "hand_over", reason)?;
        let Pauses { first, last } = self.backoff;
        let is_backoff = first >= MILLI / 10 && last >= first && last <= 60_000 * MILLI;
        let reason = "`first` must be at least 100 µs, and `last` between `first` and 1 min";
        ensure(is_backoff, "backoff", reason)?;
        let most = self.longest_at_first() / 2;
        let is_small_enough = self.clock_skew.is_none_or(|skew| skew <= most);
        let reason = "it must be at most half of the lease";
        ensure(is_small_enough, "clock_skew", reason)?;
        match self.max_hold {
            Some(longest) if longest < self.lease => lease_millis("max_hold", longest),
            _ => Ok(millis),
        }
    }

    /// Refuses a wait for replicas that is not shorter than this I/O time-out.
    pub(crate) fn check_wait(&self, answer: Duration) -> Result<()> {
        let Some(Replicas { count, wait }) = self.replicas else {
            return Ok(());
        };
        lease_millis("replicas", wait)?;
        ensure(
            count <= MOST_REPLICAS && wait < answer && wait <= self.longest_at_first() / 2,
            "replicas",
            "the count must be at most 100, and the wait shorter than the pool's I/O time-out and \
             at most half of the lease",
        )
    }

    /// Returns the time by which a lease ends earlier by our clock than on this server.
    pub(crate) fn skew_on(&self, server: &dyn Server) -> Duration {
        self.clock_skew
            .unwrap_or_else(|| server.clock_skew().min(self.longest_at_first() / 10))
    }

    /// Returns the length of a lease before its first renewal.
    pub(crate) fn longest_at_first(&self) -> Duration {
        (self.max_hold).map_or(self.lease, |longest| longest.min(self.lease))
    }

    /// Returns the terms of a lease that was granted at `since` and ends at `end`, unless it is
    /// renewed.
    pub(crate) fn terms(
        &self,
        since: Instant,
        end: Instant,
        look_at: Option<Instant>,
        skew: Duration,
    ) -> Terms {
        // A limit beyond the range of the clock has no effect.
        let cap = (self.max_hold).and_then(|longest| since.checked_add(longest));
        Terms {
            lease: self.lease,
            cap,
            end: Some(cap.map_or(end, |cap| cap.min(end))),
            renews: self.renewal,
            look_at,
            skew,
        }
    }

    /// Returns true if a lock with these settings may be handed over.
    pub(crate) fn hands_over(&self) -> bool {
        self.hand_over.turns > 0
    }

    /// Returns the number of fencing tokens to reserve for hand-overs: those of the last 10 ms. A
    /// failover that loses the last grants takes longer than that, so no token is repeated.
    pub(crate) fn reserved(&self) -> u64 {
        if !self.fencing {
            return 0;
        }
        u64::from(self.hand_over.turns).min(MOST_RESERVED)
    }

    /// Returns the hand-over budget of a lock that was granted at this moment with `reserved` more
    /// fencing tokens.
    pub(crate) fn turns(&self, reserved: u64, granted_at: Instant) -> Option<HandOverBudget> {
        let allowed = self.hand_over.turns;
        let turns = match u32::try_from(reserved) {
            Ok(more) if self.fencing => more.min(allowed),
            _ => allowed,
        };
        // A moment beyond the range of the clock has no effect.
        let until = granted_at.checked_add(self.hand_over.longest);
        (turns > 0).then(|| HandOverBudget::new(turns, until))
    }
}
