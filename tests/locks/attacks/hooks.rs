//! Hooks that use the locks of their event, or own one.

use std::{
    cell::Cell,
    panic::{self, panic_any},
    sync::{
        Arc, Once, OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use leasehold::{Events, Lease, Locks, Options, event};
use redis::Commands;

use super::{LONG, MS, TURNS, in_time, locks, storm};
use crate::common::{
    SLACK, Server,
    hold::{PATIENCE, comes_true, every_kind},
    wait::{at_once, unless_halted},
};

thread_local! {
    static IN_A_HOOK: Cell<bool> = const { Cell::new(false) };
}

/// Calls everything in each hook, except in the hooks that these calls cause.
struct Meddling {
    locks: OnceLock<Locks>,
    calls: AtomicU32,
    panics: bool,
}

impl Meddling {
    fn new(panics: bool) -> Arc<Self> {
        Arc::new(Self {
            locks: OnceLock::new(),
            calls: AtomicU32::new(0),
            panics,
        })
    }

    fn meddle(&self) {
        if IN_A_HOOK.replace(true) {
            return;
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        let locks = self.locks.get().unwrap();
        let other = locks.lock("other");
        for lock in every_kind(locks).into_iter().chain([other]) {
            let _ = lock.inspect().unwrap();
            drop(lock.try_acquire());
            let _ = lock.acquire(MS).map(Lease::release);
        }
        IN_A_HOOK.set(false);
        assert!(!self.panics, "on purpose");
    }
}

impl Events for Meddling {
    fn acquired(&self, _: &event::Acquired<'_>) {
        self.meddle();
    }

    fn contended(&self, _: &event::Contended<'_>) {
        self.meddle();
    }

    fn released(&self, _: &event::Released<'_>) {
        self.meddle();
    }

    fn renewed(&self, _: &event::Renewed<'_>) {
        self.meddle();
    }

    fn lost(&self, _: &event::Lost<'_>) {
        self.meddle();
    }

    fn failed(&self, _: &event::AcquireFailed<'_>) {
        self.meddle();
    }

    fn already_run(&self, _: &event::AlreadyRun<'_>) {
        self.meddle();
    }
}

#[test]
fn hooks_may_use_the_locks_of_their_events() {
    let cases = TURNS
        .into_iter()
        .flat_map(|turns| [(turns, false), (turns, true)]);
    at_once(cases, |(turns, panics)| {
        in_time(move || {
            let server = Server::start().unwrap();
            let meddling = Meddling::new(panics);
            let options = Options::new().hand_over(turns, LONG);
            let locks = locks(&server, turns)
                .with(options.events(Arc::clone(&meddling) as Arc<dyn Events>));
            meddling.locks.set(locks.clone()).unwrap();
            let [mutex, others @ ..] = every_kind(&locks);
            assert_eq!(storm(&mutex, 4, 6), 24);
            let calls = || meddling.calls.load(Ordering::SeqCst);
            assert!(calls() >= 48);
            // A release that notices a loss, and a failed acquire. Only a mutex is handed over.
            let all = others.into_iter().filter(|_| turns == 0).chain([mutex]);
            for lock in all {
                let (lease, before) = (lock.acquire(LONG).unwrap(), calls());
                let key = format!("lock:{}", lock.name());
                let () = server.connection().unwrap().del(key).unwrap();
                assert!(lease.release().is_err(), "{lock:?}");
                assert!(locks.lock("").acquire(LONG).is_err());
                assert!(calls() >= before + 3, "lost, released, failed");
                assert_eq!(lock.inspect().unwrap().waiting_here(), 0);
            }
        });
    });
}

/// With `RUST_BACKTRACE`, printing a panic takes longer than a lease, and all threads wait for it.
pub(crate) fn without_words() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let payload = panic.payload();
            let is_on_purpose = payload.downcast_ref() == Some(&"on purpose");
            if !is_on_purpose && !payload.is::<Bomb>() {
                usual(panic);
            }
        }));
    });
}

/// Runs concurrently: each mostly waits.
#[test]
fn hooks_on_the_threads_of_the_watchdog() {
    without_words();
    let cases: [fn(); 2] = [
        hooks_of_the_watchdog_may_use_the_locks_they_are_told_of,
        hooks_may_own_a_lease_that_ends_on_the_thread_of_the_watchdog,
    ];
    at_once(cases, |case| case());
}

/// On the renewing thread, and on the calling thread.
fn hooks_of_the_watchdog_may_use_the_locks_they_are_told_of() {
    at_once(TURNS, |turns| {
        in_time(move || {
            let server = Server::start().unwrap();
            let meddling = Meddling::new(true);
            let options = Options::new().hand_over(turns, LONG).lease(1_500 * MS);
            let locks = locks(&server, turns)
                .with(options.events(Arc::clone(&meddling) as Arc<dyn Events>));
            meddling.locks.set(locks.clone()).unwrap();
            let lease = locks.lock("a").acquire(LONG).unwrap();
            thread::sleep(1_700 * MS);
            assert!(lease.is_held());
            // At the acquire, and at each renewal. A busy machine delays one of these.
            assert!(comes_true(|| meddling.calls.load(Ordering::SeqCst) >= 3));
            let calls = meddling.calls.load(Ordering::SeqCst);
            let () = server.connection().unwrap().del("lock:a").unwrap();
            assert!(lease.lost().wait_for(PATIENCE));
            assert!(comes_true(|| meddling.calls.load(Ordering::SeqCst) > calls));
            drop(lease);
            locks.lock("a").acquire(LONG).unwrap().release().unwrap();
        });
    });
}

/// Panics in its `Drop`, and so does its panic payload.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 && !thread::panicking() {
            panic_any(Self(self.0 - 1));
        }
    }
}

struct Exploding;

impl Events for Exploding {
    fn renewed(&self, _: &event::Renewed<'_>) {
        panic_any(Bomb(2));
    }
}

#[test]
fn a_panic_payload_that_panics_on_drop_ends_no_thread() {
    without_words();
    unless_halted(|| {
        in_time(|| {
            let server = Server::start().unwrap();
            let mut conn = server.connection().unwrap();
            let locks = locks(&server, 0);
            let options = Options::new().lease(2_100 * MS);
            let exploding = options.clone().events(Arc::new(Exploding));
            let first = locks.lock("a").with(exploding).acquire(LONG).unwrap();
            let second = locks.lock("b").with(options).acquire(LONG).unwrap();
            first.lost().notify(|_| panic_any(Bomb(2))).unwrap();
            let (called, is_called) = mpsc::channel();
            let call = move |_| called.send(()).unwrap();
            second.lost().notify(call).unwrap();
            thread::sleep(2_500 * MS);
            assert!(first.is_held() && second.is_held(), "no renewal");
            let () = conn.del("lock:a").unwrap();
            assert!(first.lost().wait_for(PATIENCE));
            let () = conn.del("lock:b").unwrap();
            is_called.recv_timeout(PATIENCE).unwrap();
            assert!(first.release().is_err());
            drop(second);
            let ends = Instant::now();
            drop(locks);
            assert!(ends.elapsed() < 750 * MS + SLACK, "a thread did not end");
        });
    });
}

#[test]
fn a_callbacks_captured_value_may_panic_when_the_lease_is_dropped() {
    let server = Server::start().unwrap();
    let lease = locks(&server, 0).lock("a").acquire(LONG).unwrap();
    for _ in 0..2 {
        let bomb = Bomb(2);
        lease.lost().notify(move |_| drop(bomb)).unwrap();
    }
    lease.release().unwrap();
}

/// Ignores all events, but owns a value. Its `Drop` records whether the watchdog dropped it last;
/// the watchdog must survive that.
struct Keeping {
    lease: Option<Lease>,
    by_the_watchdog: mpsc::Sender<bool>,
}

impl Events for Keeping {}

impl Drop for Keeping {
    fn drop(&mut self) {
        drop(self.lease.take());
        let by_the_watchdog = thread::current().name() == Some("leasehold-watchdog");
        let _ = self.by_the_watchdog.send(by_the_watchdog);
        assert!(!by_the_watchdog, "on purpose");
    }
}

fn hooks_may_own_a_lease_that_ends_on_the_thread_of_the_watchdog() {
    at_once(TURNS, |turns| {
        in_time(move || {
            let server = Server::start().unwrap();
            let locks = locks(&server, turns);
            // On a busy machine the answer may come before the other owners have dropped it.
            let is_last =
                (0..8).any(|_| the_watchdog_is_the_last_to_know_them(&server, &locks, turns));
            assert!(is_last);
            // The watchdog still works.
            let short = Options::new().lease(1_500 * MS);
            let renewed = locks.lock("b").with(short).acquire(LONG).unwrap();
            thread::sleep(1_700 * MS);
            renewed.release().unwrap();
        });
    });
}

/// An answer arrives that no caller waits for any more.
fn the_watchdog_is_the_last_to_know_them(server: &Server, locks: &Locks, turns: u32) -> bool {
    let (by_the_watchdog, known) = mpsc::channel();
    let keeping = Keeping {
        lease: Some(locks.lock("b").acquire(LONG).unwrap()),
        by_the_watchdog,
    };
    let options = Options::new().hand_over(turns, LONG);
    let options = options.events(Arc::new(keeping));
    let hasty = locks.lock("a").with(options.drop_timeout(20 * MS));
    let lease = hasty.acquire(LONG).unwrap();
    drop(hasty);
    thread::sleep(50 * MS); // armed

    // A change with an immediate notification, and a read of it with a late answer.
    let mut late = redis::pipe();
    late.pexpire("lock:a", 100_000).ignore();
    late.cmd("CLIENT").arg("PAUSE").arg(300).ignore();
    late.exec(&mut server.connection().unwrap()).unwrap();
    thread::sleep(100 * MS);
    drop(lease);

    let by_the_watchdog = known.recv_timeout(PATIENCE).unwrap();
    assert!(comes_true(|| !locks.lock("b").inspect().unwrap().is_held()));
    by_the_watchdog
}
