//! `Options`, the public builder: each option changes the [`Settings`] of a lock.
//!
//! [`settings`] checks the limits of the options, and decides what follows from them for a hold.

pub(crate) mod settings;

use std::{fmt, sync::Arc, time::Duration};

use settings::{HandOver, Pauses, Settings};

use crate::{
    cancel::Cancel,
    event::{EventSink, Events, Hooks},
    name::Owner,
    wire::Replicas,
};

/// Options of locks, passed by value. An option that is not set keeps its value, at first the
/// default.
///
/// [`Locks::with`](crate::Locks::with) sets them for all locks, [`Lock::with`](crate::Lock::with)
/// for one. Both change only the options that are set.
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

/// The effect of one option.
type Change = Arc<dyn Fn(&mut Settings) + Send + Sync>;

impl Options {
    /// Creates options that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the length of the lease, counted from the acquire or the last renewal: 1 ms to 24 h.
    /// Default 10 s.
    ///
    /// A longer lease survives a longer outage of the server, but makes others wait longer after a
    /// crash.
    #[doc(alias = "ttl")]
    pub fn lease(self, lease: Duration) -> Self {
        self.and(move |settings| settings.lease = lease)
    }

    /// Renews the lease each time a third of it has passed, while the guard lives. Default `true`.
    ///
    /// Without renewal the lock is lost at the end of the lease, even if the work still runs. Turn
    /// it off for short work if a holder that hangs is worse than one that is late.
    pub fn renewal(self, renewal: bool) -> Self {
        self.and(move |settings| settings.renewal = renewal)
    }

    /// Sets the maximum time of a hold, including all renewals: at least 1 ms. Default: no limit.
    ///
    /// A holder that hangs blocks others no longer than this, but work that takes longer loses its
    /// lock.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.and(move |settings| settings.max_hold = Some(max_hold))
    }

    /// Sets the prefix of keys: at most 128 bytes, without braces; may be empty. Default `lock:`.
    ///
    /// With the prefix of another library, a mutex and that library's locks by `SET … NX` exclude
    /// each other. Keys of any other form, such as its semaphores, are
    /// [`Error::WrongKind`](crate::Error::WrongKind).
    pub fn prefix(self, prefix: &str) -> Self {
        let prefix: Arc<str> = prefix.into();
        self.and(move |settings| settings.prefix = Arc::clone(&prefix))
    }

    /// Sets the pauses between attempts, used only while the server sends no notifications or does
    /// not reply. Default 1 ms and 10 ms.
    ///
    /// The pause starts at `first` and doubles up to `last`; each is shortened at random by up to
    /// half. Both are 100 µs to 1 min.
    ///
    /// While the server sends notifications, which is usual, no thread waits for a pause.
    pub fn backoff(self, first: Duration, last: Duration) -> Self {
        self.and(move |settings| settings.backoff = Pauses { first, last })
    }

    /// Sets the longest time that dropping a [`Lease`](crate::Lease) may take: 1 ms to 24 h.
    /// Default 1 s.
    ///
    /// If the release takes longer, the watchdog's thread completes it, or the lock ends with its
    /// lease.
    pub fn drop_timeout(self, timeout: Duration) -> Self {
        self.and(move |settings| settings.drop_timeout = timeout)
    }

    /// Gives each hold of a [mutex](crate::Locks::lock) a [fencing
    /// token](crate::Lease::fencing_token). Default `true`.
    ///
    /// The server keeps the fencing token in a second key, which outlives the lock by a day or ten
    /// leases, whichever is longer: 10,000 lock names leave 10,000 such keys of about 200 bytes
    /// each. Without fencing tokens a free lock leaves no key, and an acquire is a plain `SET … NX
    /// PX`, which costs the server less than the script that makes the token. But then the resource
    /// cannot detect a late holder: `fencing_token` returns `None`, and
    /// [`Lock::inspect`](crate::Lock::inspect) shows neither the holder nor the start of the hold.
    /// [`Lease::commit`](crate::Lease::commit) still protects.
    ///
    /// Locks with and without fencing tokens exclude each other. Without them, if the key has
    /// another type, [`Lock::try_acquire`](crate::Lock::try_acquire) returns `None` as if the lock
    /// were held, as the plain command does; a wait returns
    /// [`Error::WrongKind`](crate::Error::WrongKind). Other kinds of lock ignore this option: a
    /// reentrant lock counts its acquisitions in that key, and a writer keeps its token there.
    pub fn fencing(self, fencing: bool) -> Self {
        self.and(move |settings| settings.fencing = fencing)
    }

    /// Sets the number of replicas that must confirm a lock before it is granted, and the maximum
    /// wait for them. Default 0.
    ///
    /// A granted lock has been in the memory of the master and of `count` replicas at one moment.
    /// It survives the loss of the master if one of those replicas is promoted. If too few replicas
    /// confirm, the attempt is retried with the same token, so that no one else gets the lock
    /// meanwhile. At the deadline of [`acquire`](crate::Lock::acquire) the lock is released, and
    /// the error is [`Error::TooFewReplicas`](crate::Error::TooFewReplicas). A renewal that too few
    /// replicas confirm is retried too; the lease then ends at the last confirmed end. A release
    /// does not wait for replicas.
    ///
    /// If `count` is smaller than the number of replicas, a replica without the lock may be
    /// promoted. If it is equal, no lock is granted, and no renewal counts, while one replica is
    /// down. This is not consensus: if a mistake must not happen, the resource must check the
    /// [fencing token](crate::Lease::fencing_token).
    ///
    /// For the plain functions see
    /// [`Hold::confirm_by_replicas`](crate::recipes::Hold::confirm_by_replicas).
    ///
    /// The last attempt may start just before the deadline of `acquire`, which then returns up to
    /// `wait` later.
    ///
    /// `wait` is at least 1 ms, shorter than the pool's I/O time-out and at most half of the lease.
    /// 100 ms is enough for healthy replication. While too few replicas confirm, each attempt
    /// delays the other threads on the shared connection, and all renewals of the same
    /// [`Locks`](crate::Locks), by up to `wait`: give all of them leases of at least twice `wait`.
    /// An acquire takes no extra round trip, only the time that the replicas need. Waiting threads
    /// with the same `count` and `wait` share round trips, if many locks become free at one moment.
    ///
    /// Choose a [lease that outlasts a crash](crate::docs::servers#a-lease-that-outlasts-a-crash).
    pub fn replicas(self, count: u32, wait: Duration) -> Self {
        let replicas = (count > 0).then_some(Replicas { count, wait });
        self.and(move |settings| settings.replicas = replicas)
    }

    /// Sets how much earlier a lease ends by our clock than on the server: at most half of the
    /// lease.
    ///
    /// Default: zero for a single server; with sentinels or a cluster 50 ms, but at most a tenth of
    /// the lease.
    ///
    /// The end of a lease is a moment on the server's clock. A promoted replica uses its own clock:
    /// if that is ahead by more than this, it ends the lease while the holder still relies on it.
    pub fn clock_skew(self, skew: Duration) -> Self {
        self.and(move |settings| settings.clock_skew = Some(skew))
    }

    /// Hands a lock directly to the next waiting thread of this process, without the server, up to
    /// `turns` times and for `longest` in all. Default 0: every release goes to the server.
    ///
    /// After that the lock is released on the server, so that other processes get their turn. If
    /// either value is 0, nothing is handed over.
    ///
    /// Use it for locks that many threads of one process compete for, and hold for less than the
    /// two round trips of a release and an acquire. Start with 256 turns and 20 ms: more turns gain
    /// little, and other processes wait for all of them. Only [mutexes](crate::Locks::lock) are
    /// handed over, between threads whose options allow it. The time left of the lease must be
    /// between half and all of the next thread's lease.
    ///
    /// Each holder has its own guard, fencing token and loss signal. All share one
    /// [token](crate::Lease::token), so a lease whose token was read is not handed over. A waiting
    /// thread with another value of [`fencing`](Self::fencing) asks the server instead.
    /// [`Lock::inspect`](crate::Lock::inspect) shows the first holder throughout. `turns` is at
    /// most a million; with fencing tokens a lock is handed over at most 10,000 times between
    /// releases, and never from its first hold, nor from the first after the server lost its data.
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
    ///             let ran = lock.run(Duration::from_secs(30), |_lease| { /* very short work */ });
    ///             if let Err(error) = ran.and_then(Ran::unless_lost) {
    ///                 eprintln!("{error}");
    ///             }
    ///         });
    ///     }
    /// });
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn hand_over(self, turns: u32, longest: Duration) -> Self {
        // A zero time allows no turn.
        let turns = if longest.is_zero() { 0 } else { turns };
        self.and(move |settings| settings.hand_over = HandOver { turns, longest })
    }

    /// Sets the owner that [`Lock::inspect`](crate::Lock::inspect) shows. Default: host, process
    /// and thread.
    ///
    /// The same owner can acquire a [reentrant](crate::Locks::reentrant) lock again; its default is
    /// the [thread](Owner::current_thread).
    ///
    /// ```no_run
    /// use leasehold::{Holder, Locks, Options, Owner};
    ///
    /// let address = Owner::new("http://10.0.0.7:8080/")?;
    /// let locks = Locks::connect("redis://127.0.0.1/")?.with(Options::new().owner(address));
    /// // Any process finds the leader's address.
    /// let leader = locks.lock("leader").inspect()?;
    /// let address = leader.holders().first().and_then(Holder::owner);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn owner(self, owner: Owner) -> Self {
        self.and(move |settings| settings.owner = Some(owner.clone()))
    }

    /// Lets this `Cancel` end waits for these locks. Default: none.
    ///
    /// It ends [`acquire`](crate::Lock::acquire), [`run`](crate::Lock::run) and
    /// [`run_once`](crate::Lock::run_once) before the lock is held, and
    /// [`try_acquire`](crate::Lock::try_acquire) before anything is sent. They return
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn cancel(self, cancel: &Cancel) -> Self {
        let cancel = cancel.clone();
        self.and(move |settings| settings.cancel = Some(cancel.clone()))
    }

    /// Adds hooks that receive the events of these locks. Default: none.
    ///
    /// They do not replace earlier hooks: all are called, in the order in which they were added. So
    /// logs and metrics can be combined.
    pub fn events(self, events: Arc<dyn Events>) -> Self {
        let hooks = Hooks::new(events);
        self.and(move |settings| {
            let earlier = settings.events.as_deref();
            settings.events = Some(EventSink::after(earlier, Arc::clone(&hooks)));
        })
    }

    fn and(mut self, change: impl Fn(&mut Settings) + Send + Sync + 'static) -> Self {
        self.changes.push(Arc::new(change));
        self
    }
}

/// Shows the resulting settings.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = Settings::default().changed_by(self.clone());
        f.debug_tuple("Options").field(&settings).finish()
    }
}

impl Settings {
    pub(crate) fn changed_by(mut self, options: Options) -> Self {
        for change in options.changes {
            change(&mut self);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::HandOverBudget;

    fn with(options: Options) -> Settings {
        Settings::default().changed_by(options)
    }

    #[test]
    fn options_change_only_what_they_set() {
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
    fn a_hand_over_budget_never_exceeds_the_fencing_tokens() {
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
