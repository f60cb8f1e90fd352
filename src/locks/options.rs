//! [`Options`], by which a user says how locks are held, and the [`Settings`] that they change.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    cancel::Cancel,
    error::{Result, ensure},
    event::{EventSink, Events},
    name::Owner,
    server::Server,
    time::lease_millis,
    waiting::HandOverBudget,
    wire::{MOST_REPLICAS, Replicas},
};

/// So many fencing tokens are the last 10 ms.
const MOST_RESERVED: u64 = 10_000;
const MOST_TURNS: u32 = 1_000_000;
const MILLI: Duration = Duration::from_millis(1);

/// Options of locks, passed by value. One that is not named stays as it was, at first the default.
///
/// [`Locks::with`](crate::Locks::with) gives them to all locks, [`Lock::with`](crate::Lock::with)
/// to one of them. Either changes what its options name, and keeps the rest.
///
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{Locks, Options};
///
/// let locks = Locks::connect("redis://127.0.0.1/")?;
/// let locks = locks.with(Options::new().prefix("job:"));
/// let hourly = Options::new()
///     .lease(Duration::from_secs(30))
///     .max_hold(Duration::from_secs(3_600));
/// let lease = locks.lock("report").with(hourly).try_acquire()?; // the key is job:report
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Options {
    changes: Vec<Change>,
}

/// One option.
type Change = Arc<dyn Fn(&mut Settings) + Send + Sync>;

impl Options {
    /// None is named.
    pub fn new() -> Self {
        Self::default()
    }

    /// For how long a lock is ours without being renewed, 1 ms to 24 h. Default 10 s.
    ///
    /// Longer survives a longer outage of the server, and keeps everybody else waiting longer after
    /// a crash.
    pub fn lease(self, lease: Duration) -> Self {
        self.and(move |settings| settings.lease = lease)
    }

    /// Renews the lease, at a third of it, for as long as the guard lives. Default yes.
    ///
    /// Without renewal the lock is lost when the lease has ended, however the work goes: for work
    /// that is known to be short, where a holder that hangs is worse than one that is late.
    pub fn renewal(self, renewal: bool) -> Self {
        self.and(move |settings| settings.renewal = renewal)
    }

    /// Bounds how long a lock is held, however often it is renewed: at least 1 ms. Default no
    /// limit.
    ///
    /// With a limit a holder that hangs lets the others in at last, and work that takes longer
    /// loses its lock.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.and(move |settings| settings.max_hold = Some(max_hold))
    }

    /// The text before a lock's name in its key: at most 128 bytes, or none, without braces.
    /// Default `lock:`.
    ///
    /// If it is the prefix that another library uses, that library's locks and ours exclude each
    /// other.
    pub fn prefix(self, prefix: &str) -> Self {
        let prefix: Arc<str> = prefix.into();
        self.and(move |settings| settings.prefix = Arc::clone(&prefix))
    }

    /// Pauses between attempts where the server tells us of no release, or does not answer: the
    /// first, doubled up to the last, each shortened by up to a half at random. At least 100 µs, at
    /// most 1 min. Default 1 ms and 10 ms.
    ///
    /// Where the server does tell, as it usually does, no thread waits for a pause.
    pub fn backoff(self, first: Duration, last: Duration) -> Self {
        self.and(move |settings| settings.backoff = Pauses { first, last })
    }

    /// Bounds how long dropping a [`Lease`](crate::Lease) takes, 1 ms to 24 h. Default 1 s.
    ///
    /// A lock that is not released in this time is released by the watchdog's thread later, or ends
    /// with its lease.
    pub fn drop_timeout(self, timeout: Duration) -> Self {
        self.and(move |settings| settings.drop_timeout = timeout)
    }

    /// Gives each hold of a [mutex](crate::Locks::lock) a [fencing
    /// token](crate::Lease::fencing_token). Default yes.
    ///
    /// A fencing token is kept beside the lock, in a key of its own that outlives the lock by a
    /// day, or by ten leases where that is longer: 10,000 names leave 10,000 such keys, of some 200
    /// bytes each. Without fencing tokens nothing is left of a lock that is free, and an acquire is
    /// the bare `SET … NX PX`, which costs the server less than the script that makes the number.
    /// But then the resource cannot tell that a holder is late: `fencing_token` answers `None`, and
    /// [`Lock::inspect`](crate::Lock::inspect) knows neither who the holder is nor since when.
    /// [`Lease::commit`](crate::Lease::commit) protects as before.
    ///
    /// Locks with and without fencing tokens exclude each other. Without them
    /// [`Lock::try_acquire`](crate::Lock::try_acquire) says "busy" of a key of another type, as the
    /// bare command does; a wait says [`Error::WrongKind`](crate::Error::WrongKind). The option
    /// changes nothing for other kinds of lock: a reentrant lock keeps its acquisitions in that
    /// key, and a writer its number.
    pub fn fencing(self, fencing: bool) -> Self {
        self.and(move |settings| settings.fencing = fencing)
    }

    /// The number of replicas that must have a lock before it is granted, and the wait for them.
    /// Default none; 0 is none.
    ///
    /// *Granted* means then that the master and so many replicas had the lock in memory, at one
    /// moment. It survives the master's end if one of those is promoted. If too few replicas have
    /// the lock, the attempt is made again with the same token, so that nobody else gets in
    /// meanwhile, until the wait of [`acquire`](crate::Lock::acquire) is over: then the lock is
    /// given back, and the answer is [`Error::TooFewReplicas`](crate::Error::TooFewReplicas). A
    /// renewal that too few replicas have is tried again as well, and the lease ends at the last
    /// end that they have confirmed. A release waits for no replica.
    ///
    /// If `count` is smaller than the number of replicas, one without the lock may be promoted; if
    /// it is equal, one replica that is down means no locks. It is no consensus: where a mistake
    /// must not happen, the resource has to check the [fencing token](crate::Lease::fencing_token).
    ///
    /// For what the plain functions acquire:
    /// [`Hold::confirm_by_replicas`](crate::recipes::Hold::confirm_by_replicas).
    ///
    /// The last attempt may begin just before the wait of `acquire` is over, which then ends later
    /// by up to `wait`.
    ///
    /// `wait` is at least 1 ms, shorter than the pool's I/O time-out and at most half of the lease:
    /// 100 ms is enough where replication is healthy. While too few answer, other threads that wait
    /// on the same shared connection, and all renewals of the same [`Locks`](crate::Locks), are
    /// held up for so long, again and again: no lease of it should be shorter than twice `wait`.
    /// Costs an acquire what the replicas' answer takes, and no round trip. It shares no write with
    /// other threads': of many locks that end at one moment, each is granted a round trip after the
    /// one before.
    pub fn replicas(self, count: u32, wait: Duration) -> Self {
        let replicas = (count > 0).then_some(Replicas { count, wait });
        self.and(move |settings| settings.replicas = replicas)
    }

    /// Ends a lease by our clock so much sooner than on the server. Default nothing on one server;
    /// 50 ms, but at most a tenth of the lease, on one that sentinels watch and on a cluster. At
    /// most half of the lease.
    ///
    /// The end of a lease is a moment of the server's clock. A replica that is promoted ends it by
    /// its own: one whose clock is ahead by more than this ends a lease while its holder still
    /// believes in it.
    pub fn clock_skew(self, skew: Duration) -> Self {
        self.and(move |settings| settings.clock_skew = Some(skew))
    }

    /// Hands a lock so many times to the next thread of this process that waits for it without
    /// asking the server, and for how long in all, before it is released there and other processes
    /// have their chance. Default no times: every release goes to the server, as it does if either
    /// is 0.
    ///
    /// For locks that many threads of a process want all the time, and hold for less than the two
    /// round trips that it takes to release and acquire.
    /// `hand_over(256, Duration::from_millis(20))` is a good beginning: more turns gain little, and
    /// other processes have to wait for all of them. Only [mutexes](crate::Locks::lock) are handed
    /// over, between those that allow it, while at least half of the lease that the next one
    /// expects is left, and no more than that lease.
    ///
    /// Each holder has a guard, a fencing token and a loss signal of its own. All have one
    /// [token](crate::Lease::token), so that a lease whose token was asked for is not handed over.
    /// A waiting thread with another setting of [`fencing`](Self::fencing) asks the server instead.
    /// Other processes see the first holder in [`Lock::inspect`](crate::Lock::inspect) all the
    /// time. At most a million times. With fencing tokens at most 10,000 times until it is released
    /// once, and not from the first hold of a lock, also after the server lost its data.
    ///
    /// ```no_run
    /// use std::{thread, time::Duration};
    ///
    /// use leasehold::{Locks, Options, Ran};
    ///
    /// let options = Options::new().hand_over(256, Duration::from_millis(20));
    /// let locks = Locks::connect("redis://127.0.0.1/")?;
    /// let lock = locks.with(options).lock("counter");
    /// thread::scope(|threads| {
    ///     for _ in 0..8 {
    ///         threads.spawn(|| {
    ///             let ran = lock.run(Duration::from_secs(5), |_lease| { /* next to no work */ });
    ///             if let Err(error) = ran.and_then(Ran::unless_lost) {
    ///                 eprintln!("{error}");
    ///             }
    ///         });
    ///     }
    /// });
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn hand_over(self, turns: u32, longest: Duration) -> Self {
        // In no time at all there is no turn.
        let turns = if longest.is_zero() { 0 } else { turns };
        self.and(move |settings| settings.hand_over = HandOver { turns, longest })
    }

    /// Who holds the lock, for people to read in [`Lock::inspect`](crate::Lock::inspect). Default
    /// host, process and thread.
    ///
    /// For a [reentrant](crate::Locks::reentrant) lock it is also who may enter again, and the
    /// default is the [thread](Owner::current_thread).
    pub fn owner(self, owner: Owner) -> Self {
        self.and(move |settings| settings.owner = Some(owner.clone()))
    }

    /// Lets this `Cancel` call off waits for these locks. Default none.
    ///
    /// It ends [`acquire`](crate::Lock::acquire), [`run`](crate::Lock::run) and
    /// [`run_once`](crate::Lock::run_once) before the lock is held, and
    /// [`try_acquire`](crate::Lock::try_acquire) before anything is sent, with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn cancel(self, cancel: &Cancel) -> Self {
        let cancel = cancel.clone();
        self.and(move |settings| settings.cancel = Some(cancel.clone()))
    }

    /// Who is told of what happens. Default nobody.
    pub fn events(self, events: Arc<dyn Events>) -> Self {
        let events = EventSink::new(events);
        self.and(move |settings| settings.events = Some(Arc::clone(&events)))
    }

    fn and(mut self, change: impl Fn(&mut Settings) + Send + Sync + 'static) -> Self {
        self.changes.push(Arc::new(change));
        self
    }
}

/// Shows the settings that they lead to.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = Settings::default().changed_by(self.clone());
        f.debug_tuple("Options").field(&settings).finish()
    }
}

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
    /// Who has to have a lock before it counts.
    pub(crate) replicas: Option<Replicas>,
    clock_skew: Option<Duration>,
    hand_over: HandOver,
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

/// The times that a lock may be handed over before it is released at the server, and how long in
/// all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandOver {
    turns: u32,
    longest: Duration,
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
    pub(crate) fn changed_by(mut self, options: Options) -> Self {
        for change in options.changes {
            change(&mut self);
        }
        self
    }

    /// For the thread or job that is called so.
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
        let millis = lease_millis("lease", self.lease)?;
        lease_millis("drop_timeout", self.drop_timeout)?;
        let is_long_enough = self.max_hold.is_none_or(|longest| longest >= MILLI);
        ensure(is_long_enough, "max_hold", "it has to be at least 1 ms")?;
        let is_short_enough = self.hand_over.turns <= MOST_TURNS;
        ensure(is_short_enough, "hand_over", "at most a million turns")?;
        let Pauses { first, last } = self.backoff;
        ensure(
            first >= MILLI / 10 && last >= first && last <= 60_000 * MILLI,
            "backoff",
            "it has to be at least 100 µs, then at least as much, and at most 1 min",
        )?;
        let most = self.longest_at_first() / 2;
        let is_small_enough = self.clock_skew.is_none_or(|skew| skew <= most);
        let reason = "it has to be at most half of the lease";
        ensure(is_small_enough, "clock_skew", reason)?;
        match self.max_hold {
            Some(longest) if longest < self.lease => lease_millis("max_hold", longest),
            _ => Ok(millis),
        }
    }

    /// Refuses a wait for replicas that is too long where an answer is waited for this long.
    pub(crate) fn check_wait(&self, answer: Duration) -> Result<()> {
        let Some(Replicas { count, wait }) = self.replicas else {
            return Ok(());
        };
        lease_millis("replicas", wait)?;
        ensure(
            count <= MOST_REPLICAS && wait < answer && wait <= self.longest_at_first() / 2,
            "replicas",
            "at most 100, waited for less than the pool's I/O time-out and at most half of the lease",
        )
    }

    /// A lease ends so much sooner by our clock than on this server.
    pub(crate) fn skew_on(&self, server: &dyn Server) -> Duration {
        self.clock_skew
            .unwrap_or_else(|| server.clock_skew().min(self.longest_at_first() / 10))
    }

    /// The length of a lease before it is renewed.
    pub(crate) fn longest_at_first(&self) -> Duration {
        (self.max_hold).map_or(self.lease, |longest| longest.min(self.lease))
    }

    /// True if a lock that is held by these options may be handed over.
    pub(crate) fn hands_over(&self) -> bool {
        self.hand_over.turns > 0
    }

    /// The number of fencing tokens to reserve for those the lock is handed to: of the last 10
    /// ms, so that a failover that lost the last grants has taken longer.
    pub(crate) fn reserved(&self) -> u64 {
        if !self.fencing {
            return 0;
        }
        u64::from(self.hand_over.turns).min(MOST_RESERVED)
    }

    /// The budget of hand-overs of a lock that was granted at this moment with so many more fencing
    /// tokens.
    pub(crate) fn turns(&self, reserved: u64, granted_at: Instant) -> Option<HandOverBudget> {
        let allowed = self.hand_over.turns;
        let turns = match u32::try_from(reserved) {
            Ok(more) if self.fencing => more.min(allowed),
            _ => allowed,
        };
        // A time further away than the clock can tell is no bound.
        let until = granted_at.checked_add(self.hand_over.longest);
        (turns > 0).then(|| HandOverBudget::new(turns, until))
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
