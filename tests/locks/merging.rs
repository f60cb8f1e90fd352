//! `with` changes the options that are set, and keeps the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{Error, Events, Lease, Lock, Locks, Options, Owner, event::Acquired};

use crate::common::{LONG, MS, Server, wait::unless_halted};

#[derive(Debug, Default)]
struct Count(AtomicU32);

impl Events for Count {
    fn acquired(&self, _: &Acquired<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Each sets one option; together they set all except the prefix and the events.
fn others() -> [Options; 9] {
    [
        Options::new(),
        Options::new().lease(LONG),
        Options::new().renewal(false),
        Options::new().max_hold(2 * LONG),
        Options::new().backoff(MS, 2 * MS),
        Options::new().drop_timeout(LONG),
        Options::new().fencing(false),
        Options::new().hand_over(4, 20 * MS),
        Options::new().owner(Owner::new("somebody").unwrap()),
    ]
}

/// The two ways to add options.
fn ways() -> [fn(&Locks, Options) -> Lock; 2] {
    [
        |locks, options| locks.with(options).lock("x"),
        |locks, options| locks.lock("x").with(options),
    ]
}

#[test]
fn processes_with_one_prefix_exclude_each_other_whatever_other_options_they_set() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let [mine, theirs] =
            [(); 2].map(|()| crate::connect(&server.url()).with(Options::new().prefix("job:")));
        for way in ways() {
            for options in others() {
                let lease = way(&mine, options.clone()).acquire(LONG).unwrap();
                let second = theirs.lock("x").try_acquire().unwrap();
                assert!(second.is_none(), "both hold it: {options:?}");
                lease.release().unwrap();
            }
        }
    });
}

#[test]
fn hooks_are_called_whatever_other_options_are_set() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let count = Arc::new(Count::default());
        let events = Arc::clone(&count) as Arc<dyn Events>;
        let locks = crate::connect(&server.url()).with(Options::new().events(events));
        for (told, (way, options)) in
            (1..).zip(ways().iter().flat_map(|way| others().map(|o| (way, o))))
        {
            let seen = format!("{options:?}");
            way(&locks, options)
                .acquire(LONG)
                .unwrap()
                .release()
                .unwrap();
            assert_eq!(count.0.load(Ordering::Relaxed), told, "{seen}");
        }
    });
}

#[test]
fn the_last_setting_of_an_option_counts_and_only_for_its_lock() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let locks = crate::connect(&server.url());
        let short = locks.with(Options::new().lease(LONG));
        let shorter = short.lock("x").with(Options::new().lease(10 * LONG));
        let remaining = |lock: &Lock| lock.acquire(LONG).unwrap().remaining();
        assert!(remaining(&shorter) > LONG, "the last one counts");
        assert!(remaining(&short.lock("x")) <= LONG, "and for itself alone");
        // An invalid option is an error although a later call sets another one.
        let wrong = locks.with(Options::new().prefix("{")).lock("x");
        for lock in [wrong.clone(), wrong.with(Options::new().lease(LONG))] {
            let refused = lock.try_acquire();
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        }
    });
}

/// For each bound the last value that is accepted, and the first that is refused with this name.
fn bounds() -> Vec<(&'static str, Options, Options)> {
    let (new, bit) = (Options::new, Duration::from_nanos(1));
    let below = |length: Duration| length.saturating_sub(bit);
    let (minute, day) = (Duration::from_mins(1), Duration::from_hours(24));
    let second = 1_000 * MS;
    let turns = |turns| new().hand_over(turns, MS);
    let dropped = |timeout| new().drop_timeout(timeout);
    let prefix = |bytes| new().prefix(&"p".repeat(bytes));
    let backoff = |first, last| new().backoff(first, last);
    let skew = |skew| new().lease(second).clock_skew(skew);
    let replicas = |count, wait| new().lease(second).replicas(count, wait);
    let at_most = |most, wait| new().max_hold(most).replicas(1, wait);
    vec![
        ("lease", new().lease(MS), new().lease(below(MS))),
        ("lease", new().lease(day), new().lease(day + bit)),
        ("max_hold", new().max_hold(MS), new().max_hold(below(MS))),
        ("prefix", prefix(128), prefix(129)),
        ("backoff", backoff(MS / 10, MS), backoff(below(MS / 10), MS)),
        ("backoff", backoff(MS, MS), backoff(MS, below(MS))),
        ("backoff", backoff(MS, minute), backoff(MS, minute + bit)),
        ("drop_timeout", dropped(MS), dropped(below(MS))),
        ("drop_timeout", dropped(day), dropped(day + bit)),
        ("clock_skew", skew(second / 2), skew(second / 2 + bit)),
        ("replicas", replicas(100, MS), replicas(101, MS)),
        ("replicas", replicas(1, MS), replicas(1, below(MS))),
        (
            "replicas",
            replicas(1, second / 2),
            replicas(1, second / 2 + bit),
        ),
        (
            "replicas",
            at_most(second, second / 2),
            at_most(below(second), second / 2),
        ),
        // The pool's time-out.
        (
            "replicas",
            new().replicas(1, below(2 * second)),
            new().replicas(1, 2 * second),
        ),
        ("hand_over", turns(1_000_000), turns(1_000_001)),
    ]
}

/// Nothing is sent, so no server is needed to refuse one.
#[test]
fn what_is_asked_for_is_accepted_up_to_its_bound() {
    let locks = Locks::connect("redis://127.0.0.1:1/").unwrap();
    let with = |options| locks.lock("x").with(options).try_acquire().map(drop);
    let permits = |most| locks.semaphore("x", most).try_acquire().map(drop);
    let within = |period| {
        let once = |_: &Lease| Ok::<(), Error>(());
        (locks.lock("x").run_once(period, Duration::ZERO, once)).map(drop)
    };
    let (month, bit) = (Duration::from_hours(31 * 24), Duration::from_nanos(1));
    let others = [
        ("permits", permits(1), permits(0)),
        ("permits", permits(10_000), permits(10_001)),
        ("period", within(MS), within(MS.saturating_sub(bit))),
        ("period", within(month), within(month + bit)),
    ];
    let bounds = bounds().into_iter();
    let bounds = bounds.map(|(name, last, first)| (name, with(last), with(first)));
    for (name, accepted, refused) in bounds.chain(others) {
        assert!(matches!(accepted, Err(Error::Pool { .. })), "{accepted:?}");
        assert!(
            matches!(refused, Err(Error::Invalid { argument, .. }) if argument == name),
            "{name}: {refused:?}"
        );
    }
}
