//! What a user says of how locks are held.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    cancel::Cancel,
    event::{EventSink, Events},
    name::Owner,
    script::Replicas,
};

/// How locks are held: by value. What is not named stays as it was, and is a default at first.
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
    pub(super) prefix: Option<Arc<str>>,
    pub(super) lease: Option<Duration>,
    pub(super) renewal: Option<bool>,
    pub(super) max_hold: Option<Duration>,
    pub(super) backoff: Option<Pauses>,
    pub(super) drop_timeout: Option<Duration>,
    pub(super) fencing: Option<bool>,
    pub(super) replicas: Option<Replicas>,
    pub(super) clock_skew: Option<Duration>,
    pub(super) hand_over: Option<HandOver>,
    pub(super) owner: Option<Owner>,
    pub(super) events: Option<Arc<EventSink>>,
    pub(super) cancel: Option<Cancel>,
}

/// The pauses between attempts: the first, doubled up to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pauses {
    pub(crate) first: Duration,
    pub(crate) last: Duration,
}

/// How often a lock may be handed over before it is released at the server, and for how long in
/// all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandOver {
    pub(super) turns: u32,
    pub(super) longest: Duration,
}

impl Options {
    /// None is named.
    pub fn new() -> Self {
        Self::default()
    }

    /// For how long a lock is ours without being renewed, 1 ms to 24 h. Default 10 s.
    ///
    /// Longer survives a longer outage of the server, and keeps everybody else waiting longer after
    /// a crash.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Whether the lease is renewed, at a third of it, for as long as the guard lives. Default yes.
    ///
    /// Without renewal the lock is lost when the lease has ended, however the work goes: for work
    /// that is known to be short, where a holder that hangs is worse than one that is late.
    pub fn renewal(mut self, renewal: bool) -> Self {
        self.renewal = Some(renewal);
        self
    }

    /// How long a lock may be held in all, however often it is renewed: at least 1 ms. Default no
    /// limit.
    ///
    /// With a limit a holder that hangs lets the others in at last, and work that takes longer
    /// loses its lock.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// What stands before a lock's name in its key, also nothing; at most 128 bytes, no braces.
    /// Default `lock:`.
    ///
    /// If it is the prefix that another library uses, that library's locks and ours exclude each
    /// other.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Pauses between attempts where the server tells us of no release, or does not answer: the
    /// first, doubled up to the last, each shortened by up to a half at random. At least 100 µs, at
    /// most 1 min. Default 1 ms and 10 ms.
    ///
    /// Where the server does tell, as it usually does, no thread waits for a pause.
    pub fn backoff(mut self, first: Duration, last: Duration) -> Self {
        self.backoff = Some(Pauses { first, last });
        self
    }

    /// How long dropping a [`Lease`](crate::Lease) may take, 1 ms to 24 h. Default 1 s.
    ///
    /// What cannot be released in this time is released by the watchdog's thread later, or ends
    /// with its lease.
    pub fn drop_timeout(mut self, timeout: Duration) -> Self {
        self.drop_timeout = Some(timeout);
        self
    }

    /// Whether each hold of a [mutex](crate::Locks::lock) gets a [fencing
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
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.fencing = Some(fencing);
        self
    }

    /// How many replicas must have a lock before it counts as granted, and how long they are waited
    /// for. Default none; 0 is none.
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
    pub fn replicas(mut self, count: u32, wait: Duration) -> Self {
        self.replicas = Some(Replicas { count, wait });
        self
    }

    /// How much sooner than on the server a lease ends by our clock. Default nothing on one server;
    /// 50 ms, but at most a tenth of the lease, on one that sentinels watch and on a cluster. At
    /// most half of the lease.
    ///
    /// The end of a lease is a moment of the server's clock. A replica that is promoted ends it by
    /// its own: one whose clock is ahead by more than this ends a lease while its holder still
    /// believes in it.
    pub fn clock_skew(mut self, skew: Duration) -> Self {
        self.clock_skew = Some(skew);
        self
    }

    /// How often a lock may be handed to the next thread of this process that waits for it without
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
    pub fn hand_over(mut self, turns: u32, longest: Duration) -> Self {
        self.hand_over = Some(HandOver { turns, longest });
        self
    }

    /// Who holds the lock, for people to read in [`Lock::inspect`](crate::Lock::inspect). Default
    /// host, process and thread.
    ///
    /// For a [reentrant](crate::Locks::reentrant) lock it is also who may enter again, and the
    /// default is the [thread](Owner::current_thread).
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// What calls off waits for these locks. Default nothing.
    ///
    /// It ends [`acquire`](crate::Lock::acquire), [`run`](crate::Lock::run) and
    /// [`run_once`](crate::Lock::run_once) before the lock is held, and
    /// [`try_acquire`](crate::Lock::try_acquire) before anything is sent, with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Who is told of what happens. Default nobody.
    pub fn events(mut self, events: Arc<dyn Events>) -> Self {
        self.events = Some(EventSink::new(events));
        self
    }
}

/// What is named, but for the hooks.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named = f.debug_struct("Options");
        let mut field = |name, value: Option<&dyn fmt::Debug>| {
            if let Some(value) = value {
                named.field(name, value);
            }
        };
        field("prefix", self.prefix.as_ref().map(|it| it as _));
        field("lease", self.lease.as_ref().map(|it| it as _));
        field("renewal", self.renewal.as_ref().map(|it| it as _));
        field("max_hold", self.max_hold.as_ref().map(|it| it as _));
        field("backoff", self.backoff.as_ref().map(|it| it as _));
        field("drop_timeout", self.drop_timeout.as_ref().map(|it| it as _));
        field("fencing", self.fencing.as_ref().map(|it| it as _));
        field("replicas", self.replicas.as_ref().map(|it| it as _));
        field("clock_skew", self.clock_skew.as_ref().map(|it| it as _));
        field("hand_over", self.hand_over.as_ref().map(|it| it as _));
        field("owner", self.owner.as_ref().map(|it| it as _));
        field("cancel", self.cancel.as_ref().map(|it| it as _));
        named.finish_non_exhaustive()
    }
}
