//! How one lock is held, with every option known.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use super::options::{HandOver, Options, Pauses};
use crate::{
    cancel::Cancel,
    error::{Error, Result},
    event::EventSink,
    name::Owner,
    script::{MOST_REPLICAS, Replicas},
    server::Server,
    time::lease_millis,
    waiting::HandOverBudget,
};

/// So many fencing tokens are the last 10 ms.
const MOST_RESERVED: u64 = 10_000;
const MOST_TURNS: u32 = 1_000_000;

/// What the [`Options`] that were given one after another have come to, and the defaults for the
/// rest.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) prefix: Arc<str>,
    pub(crate) lease: Duration,
    pub(crate) renewal: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) backoff: Pauses,
    pub(crate) drop_timeout: Duration,
    pub(crate) fencing: bool,
    replicas: Option<Replicas>,
    clock_skew: Option<Duration>,
    hand_over: HandOver,
    pub(crate) owner: Option<Owner>,
    pub(crate) events: Option<Arc<EventSink>>,
    pub(crate) cancel: Option<Cancel>,
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
    /// The same, but for what these options name.
    pub(crate) fn changed_by(self, options: Options) -> Self {
        Self {
            prefix: options.prefix.unwrap_or(self.prefix),
            lease: options.lease.unwrap_or(self.lease),
            renewal: options.renewal.unwrap_or(self.renewal),
            max_hold: options.max_hold.or(self.max_hold),
            backoff: options.backoff.unwrap_or(self.backoff),
            drop_timeout: options.drop_timeout.unwrap_or(self.drop_timeout),
            fencing: options.fencing.unwrap_or(self.fencing),
            replicas: options.replicas.or(self.replicas),
            clock_skew: options.clock_skew.or(self.clock_skew),
            hand_over: options.hand_over.unwrap_or(self.hand_over),
            owner: options.owner.or(self.owner),
            events: options.events.or(self.events),
            cancel: options.cancel.or(self.cancel),
        }
    }

    /// The same, for the thread or job that is called so.
    pub(crate) fn of(self, owner: &Owner) -> Self {
        Self {
            owner: Some(owner.clone()),
            ..self
        }
    }

    /// Waits by these settings are called off.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
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
        if self
            .clock_skew
            .is_some_and(|skew| skew > self.longest_at_first() / 2)
        {
            return Err(Error::invalid(
                "clock_skew",
                "it has to be at most half of the lease",
            ));
        }
        match self.max_hold {
            Some(longest) if longest < self.lease => lease_millis("max_hold", longest),
            _ => Ok(millis),
        }
    }

    /// Whether replicas can be waited for so long, where an answer is waited for this long.
    pub(crate) fn check_wait(&self, answer: Duration) -> Result<()> {
        let Some(Replicas { count, wait }) = self.replicas() else {
            return Ok(());
        };
        lease_millis("replicas", wait)?;
        if count > MOST_REPLICAS || wait >= answer || wait > self.longest_at_first() / 2 {
            let reason = "at most 100, waited for less than the pool's I/O time-out and at most half of the lease";
            return Err(Error::invalid("replicas", reason));
        }
        Ok(())
    }

    /// Who has to have a lock before it counts.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas.filter(|replicas| replicas.count > 0)
    }

    /// How much sooner a lease ends by our clock than on this server.
    pub(crate) fn skew_on(&self, server: &dyn Server) -> Duration {
        self.clock_skew
            .unwrap_or_else(|| server.clock_skew().min(self.longest_at_first() / 10))
    }

    /// How long a lease is before it is renewed.
    pub(crate) fn longest_at_first(&self) -> Duration {
        (self.max_hold).map_or(self.lease, |longest| longest.min(self.lease))
    }

    /// Whether a lock that is held by these options may be handed over.
    pub(crate) fn hands_over(&self) -> bool {
        self.turns_allowed() > 0
    }

    /// How many fencing tokens to reserve for those the lock is handed to. They are of the last 10
    /// ms, so that a failover that lost the last grants has taken longer.
    pub(crate) fn reserved(&self) -> u64 {
        if !self.fencing {
            return 0;
        }
        u64::from(self.turns_allowed()).min(MOST_RESERVED)
    }

    /// How often a lock that was granted at this moment with so many more fencing tokens may be
    /// handed on.
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

/// Without the hooks.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("prefix", &self.prefix)
            .field("lease", &self.lease)
            .field("renewal", &self.renewal)
            .field("max_hold", &self.max_hold)
            .field("backoff", &self.backoff)
            .field("drop_timeout", &self.drop_timeout)
            .field("fencing", &self.fencing)
            .field("replicas", &self.replicas)
            .field("clock_skew", &self.clock_skew)
            .field("hand_over", &self.hand_over)
            .field("owner", &self.owner)
            .field("cancel", &self.cancel)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(options: Options) -> Settings {
        Settings::default().changed_by(options)
    }

    #[test]
    fn options_change_what_they_name_and_nothing_else() {
        let ms = Duration::from_millis;
        let named = [
            Options::new(),
            Options::new().prefix("job:"),
            Options::new().lease(ms(1)),
            Options::new().renewal(false),
            Options::new().max_hold(ms(2)),
            Options::new().backoff(ms(3), ms(4)),
            Options::new().drop_timeout(ms(5)),
            Options::new().fencing(false),
            Options::new().replicas(2, ms(8)),
            Options::new().clock_skew(ms(9)),
            Options::new().hand_over(6, ms(7)),
            Options::new().owner(Owner::new("me").unwrap()),
        ];
        let lines = |settings: &Settings| format!("{settings:#?}");
        let together = named
            .iter()
            .cloned()
            .fold(Settings::default(), Settings::changed_by);
        for options in &named {
            let again = together.clone().changed_by(options.clone());
            assert_eq!(lines(&again), lines(&together), "{options:?}");
            let alone = Settings::default().changed_by(options.clone());
            let back = alone.clone().changed_by(Options::new());
            assert_eq!(lines(&back), lines(&alone), "{options:?}");
        }
        for key in [
            "prefix",
            "lease",
            "renewal",
            "max_hold",
            "drop_timeout",
            "fencing",
            "replicas",
            "clock_skew",
            "owner",
        ] {
            let line = |settings: &Settings| {
                let lines = lines(settings);
                let (_, rest) = lines.split_once(&format!("    {key}: ")).unwrap();
                rest.lines().take(2).collect::<String>()
            };
            assert_ne!(line(&together), line(&Settings::default()), "{key}");
        }
        assert_ne!(together.backoff, Settings::default().backoff);
        assert_ne!(together.hand_over, Settings::default().hand_over);
    }

    #[test]
    fn there_are_no_more_turns_than_fencing_tokens() {
        let now = crate::time::now();
        let options = with(Options::new().hand_over(1_000_000, Duration::MAX));
        assert_eq!(
            options.turns(999, now),
            Some(HandOverBudget::new(999, None))
        );
        assert_eq!(options.turns(0, now), None);
        let few = with(Options::new().hand_over(3, Duration::MAX));
        assert_eq!(few.turns(999, now), Some(HandOverBudget::new(3, None)));
        for never in [(0, Duration::MAX), (1_000, Duration::ZERO)] {
            let never = with(Options::new().hand_over(never.0, never.1));
            assert_eq!(never.turns(1_000, now), None);
            assert!(never.reserved() == 0 && !never.hands_over());
        }
    }
}
