//! `with` changes the options that are set, and keeps the others.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use leasehold::{Error, Events, Lock, Locks, Options, Owner, event::Acquired};

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
