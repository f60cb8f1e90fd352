//! Guards dropped in hooks and callbacks, and locks dropped while threads wait for them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use leasehold::{Events, Lock, Locks, LostSignal, Options, event};
use redis::Commands;

use crate::common::{
    LONG, MS, SLACK, Server, clients,
    hold::{PATIENCE, comes_true},
    wait::at_once,
};

pub(crate) mod hooks;

/// Without and with hand-over.
const TURNS: [u32; 2] = [0, 100];

fn locks(server: &Server, turns: u32) -> Locks {
    let locks = Locks::connect(&server.url()).unwrap();
    locks.with(Options::new().hand_over(turns, LONG))
}

/// Fails instead of hanging.
fn in_time(run: impl FnOnce() + Send + 'static) {
    let (done, ends) = mpsc::channel();
    let running = thread::spawn(move || {
        run();
        done.send(()).unwrap();
    });
    let ended = ends.recv_timeout(6 * PATIENCE);
    assert_ne!(ended, Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    if let Err(why) = running.join() {
        std::panic::resume_unwind(why);
    }
}

/// Many threads acquire the lock again and again. Returns the number of acquires.
fn storm(lock: &Lock, threads: u32, rounds: u32) -> u32 {
    let (inside, served) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let lease = lock.acquire(LONG).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                    served.fetch_add(1, Ordering::SeqCst);
                    inside.store(false, Ordering::SeqCst);
                    lease.release().unwrap();
                }
            });
        }
    });
    served.into_inner()
}

fn stands_behind(lock: &Lock, number: usize) {
    assert!(comes_true(
        || lock.inspect().unwrap().waiting_here() == number
    ));
}

/// Drops a lease, or another value, on the first event.
struct Letting<T>(Mutex<Option<T>>);

impl<T> Letting<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(None)))
    }

    fn go(&self) {
        let kept = self.0.lock().unwrap().take();
        drop(kept);
    }
}

impl<T: Send + 'static> Events for Letting<T> {
    fn released(&self, _: &event::Released<'_>) {
        self.go();
    }

    fn renewed(&self, _: &event::Renewed<'_>) {
        self.go();
    }

    fn lost(&self, _: &event::Lost<'_>) {
        self.go();
    }
}

#[test]
fn a_lease_may_end_in_a_hook_and_hand_its_lock_over_there() {
    at_once(TURNS, |turns| {
        in_time(move || {
            let server = Server::start().unwrap();
            let locks = locks(&server, turns);
            let (a, b) = (locks.lock("a"), locks.lock("b"));
            let letting = Letting::new();
            let options = Options::new().hand_over(turns, LONG);
            let options = options.events(Arc::clone(&letting) as Arc<dyn Events>);
            let first = a.clone().with(options).acquire(LONG).unwrap();
            *letting.0.lock().unwrap() = Some(b.acquire(LONG).unwrap());
            thread::scope(|scope| {
                for lock in [&a, &b] {
                    scope.spawn(|| lock.acquire(LONG).unwrap().release().unwrap());
                    stands_behind(lock, 1);
                }
                first.release().unwrap();
            });
            assert!(letting.0.lock().unwrap().is_none());
        });
    });
}

#[test]
fn a_lease_may_end_on_the_threads_of_the_watchdog() {
    at_once(TURNS, |turns| {
        in_time(move || {
            let server = Server::start().unwrap();
            let locks = locks(&server, turns);
            let lock = locks.lock("a");
            let letting = Letting::new();
            let options = Options::new().hand_over(turns, LONG).lease(900 * MS);
            let options = options.events(Arc::clone(&letting) as Arc<dyn Events>);
            // In the hook that reports its own renewal.
            let lease = lock.clone().with(options).acquire(LONG).unwrap();
            *letting.0.lock().unwrap() = Some(lease);
            lock.acquire(LONG).unwrap().release().unwrap();

            // In a callback that owns it.
            let lease = lock.acquire(LONG).unwrap();
            let signal = lease.lost();
            let (called, calls) = mpsc::channel();
            let again = lock.clone();
            signal
                .notify(move |_| {
                    drop(lease);
                    let next = again.acquire(LONG).unwrap();
                    called.send(next).unwrap();
                })
                .unwrap();
            thread::sleep(50 * MS); // armed
            let () = server.connection().unwrap().del("lock:a").unwrap();
            calls.recv_timeout(PATIENCE).unwrap().release().unwrap();
        });
    });
}

/// Reads the signal in its `Drop`.
struct Asking(LostSignal);

impl Drop for Asking {
    fn drop(&mut self) {
        assert!(!self.0.is_lost());
    }
}

/// A callback that is never called is dropped, with the values it owns, when the lock is released
/// or handed over.
#[test]
fn a_callback_that_is_never_called_may_own_a_lease() {
    at_once(TURNS, |turns| {
        in_time(move || {
            let server = Server::start().unwrap();
            let locks = locks(&server, turns);
            let (a, b) = (locks.lock("a"), locks.lock("b"));
            let first = a.acquire(LONG).unwrap();
            let owned = b.acquire(LONG).unwrap();
            let owned = (owned, Asking(first.lost()));
            first.lost().notify(move |_| drop(owned)).unwrap();
            thread::scope(|scope| {
                for lock in [&a, &b] {
                    scope.spawn(|| lock.acquire(LONG).unwrap().release().unwrap());
                    stands_behind(lock, 1);
                }
                first.release().unwrap();
            });
        });
    });
}

/// Each thread has a lock of a dropped `Locks`, and the last one drops everything.
#[test]
fn locks_may_be_dropped_during_waits_and_hand_overs() {
    at_once(TURNS, |turns| {
        in_time(move || {
            let server = Server::start().unwrap();
            let lock = locks(&server, turns).lock("a");
            let first = lock.acquire(LONG).unwrap();
            let waiting: Vec<_> = (1..=8)
                .map(|number| {
                    let own = lock.clone();
                    let waiting = thread::spawn(move || {
                        let lease = own.acquire(LONG).unwrap();
                        drop(own);
                        lease.release().unwrap();
                    });
                    stands_behind(&lock, number);
                    waiting
                })
                .collect();
            drop(lock);
            first.release().unwrap();
            for waiting in waiting {
                waiting.join().unwrap();
            }
            let mut admin = server.connection().unwrap();
            assert!(comes_true(|| clients::count(&mut admin) == 0));
            assert!(!admin.exists::<_, bool>("lock:a").unwrap());
        });
    });
}

/// These threads do not wait for anything that only they could do.
#[test]
fn locks_may_be_dropped_on_the_threads_of_the_watchdog() {
    at_once(TURNS, |turns| {
        in_time(move || {
            let server = Server::start().unwrap();
            let letting = Letting::new();
            let options = Options::new().hand_over(turns, LONG).lease(900 * MS);
            let options = options.events(Arc::clone(&letting) as Arc<dyn Events>);
            for by_the_hook in [true, false] {
                let locks = locks(&server, turns).with(options.clone());
                let lease = locks.lock("a").acquire(LONG).unwrap();
                if by_the_hook {
                    *letting.0.lock().unwrap() = Some((lease, locks));
                } else {
                    let signal = lease.lost();
                    let all = (lease, locks);
                    signal.notify(move |_| drop(all)).unwrap();
                    thread::sleep(50 * MS); // armed
                    let () = server.connection().unwrap().del("lock:a").unwrap();
                }
                let begun = Instant::now();
                let mut admin = server.connection().unwrap();
                assert!(comes_true(|| clients::count(&mut admin) == 0));
                assert!(
                    begun.elapsed() < 1_250 * MS + SLACK,
                    "{:?}",
                    begun.elapsed()
                );
            }
        });
    });
}
