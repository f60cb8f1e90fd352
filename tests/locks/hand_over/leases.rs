//! Each turn has its own token, end and loss.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use leasehold::{Error, Events, Options, RenewalState, event};
use redis::Commands;

use super::{LONG, MS, bench, fence, handing};
use crate::common::{
    SLACK, clients, clock,
    hold::comes_true,
    tell,
    wait::{at_once, unless_halted},
};

pub(super) fn a_lease_lasts_through_all_turns() {
    // All turns together take longer than the lease, and one of them much less.
    let bench = bench(handing(100).lease(3_200 * MS));
    let signals = Mutex::new(Vec::new());
    bench.one_after_the_other(5, |_, lease| {
        thread::sleep(800 * MS);
        assert!(lease.is_held());
        lease.verify().unwrap();
        signals.lock().unwrap().push(lease.lost());
        lease.release().unwrap();
    });
    assert!(!bench.lock.inspect().unwrap().is_held());
    let signals = signals.into_inner().unwrap();
    assert!(
        signals.iter().all(|signal| !signal.is_lost()),
        "over long ago"
    );
}

#[derive(Default)]
struct Told {
    acquired: AtomicU32,
    released: AtomicU32,
    lost: AtomicU32,
}

impl Events for Told {
    fn acquired(&self, _: &event::Acquired<'_>) {
        self.acquired.fetch_add(1, Ordering::SeqCst);
    }

    fn released(&self, _: &event::Released<'_>) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }

    fn lost(&self, _: &event::Lost<'_>) {
        self.lost.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) fn a_loss_is_told_to_whose_turn_it_is() {
    // With one turn, the third waiting thread gets it from one that was just granted it.
    at_once([100, 1], |turns| {
        let told = Arc::new(Told::default());
        let events = Arc::clone(&told) as Arc<dyn Events>;
        let bench = bench(handing(turns).events(events));
        let others = Mutex::new(Vec::new());
        bench.one_after_the_other(4, |number, lease| {
            let signal = lease.lost();
            if number == 2 {
                thread::sleep(150 * MS); // armed
                let () = bench.server.connection().unwrap().del("lock:a").unwrap();
                let harmed = Instant::now();
                assert!(signal.wait_for(LONG));
                assert!(harmed.elapsed() < 50 * MS + SLACK, "{:?}", harmed.elapsed());
                assert!(!lease.is_held() && lease.check().is_err());
                assert!(matches!(lease.release(), Err(Error::Lost { .. })));
            } else {
                others.lock().unwrap().push(signal);
                lease.release().unwrap();
            }
        });
        assert!(comes_true(|| told.lost.load(Ordering::SeqCst) == 1));
        let others = others.into_inner().unwrap();
        assert!(others.iter().all(|signal| !signal.is_lost()));
        assert_eq!(told.acquired.load(Ordering::SeqCst), 5);
        assert_eq!(told.released.load(Ordering::SeqCst), 5);
    });
}

/// The lock is deleted; the next thread gets it from the server while the old holder hands over
/// what it assumes to hold.
#[test]
fn a_waiter_that_also_got_it_from_the_server_keeps_that_grant() {
    unless_halted(|| {
        let told = Arc::new(Told::default());
        let mut bench = bench(handing(100).events(Arc::clone(&told) as Arc<dyn Events>));
        bench.keep_silent();
        let first = bench.lock.acquire(LONG).unwrap();
        let believed = fence(&first);
        thread::scope(|scope| {
            let (next, has_it) = mpsc::channel();
            for number in 1..=2 {
                let (lock, next) = (&bench.lock, next.clone());
                scope.spawn(move || next.send(lock.acquire(LONG).unwrap()).unwrap());
                assert!(comes_true(
                    || lock.inspect().unwrap().waiting_here() == number
                ));
            }
            thread::sleep(300 * MS); // read by the watchdog
            // Whoever asks now gets the answer after the first has released.
            let mut conn = bench.server.connection().unwrap();
            let mut late = redis::pipe();
            late.del("lock:a").ignore();
            late.cmd("CLIENT").arg("PAUSE").arg(2_000).arg("WRITE");
            late.ignore().exec(&mut conn).unwrap();
            assert!(comes_true(|| clients::are_held_back(&mut conn)));
            first.release().unwrap();
            redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut conn).unwrap();

            let second = has_it.recv_timeout(LONG).unwrap();
            second.verify().unwrap();
            assert!(fence(&second) > believed + 100, "not the handed-over lease");
            assert!(has_it.recv_timeout(50 * MS).is_err(), "two hold it");
            assert_eq!(told.acquired.load(Ordering::SeqCst), 2);
            assert_eq!(told.released.load(Ordering::SeqCst), 1, "of whom?");
            drop(second);
            drop(has_it.recv_timeout(LONG).unwrap());
        });
        assert!(bench.lock.try_acquire().unwrap().is_some());
    });
}

#[test]
fn a_loss_signal_of_an_earlier_hold_calls_nothing() {
    unless_halted(|| {
        let mut bench = bench(handing(100));
        let called = Arc::new(AtomicBool::new(false));
        let last = Mutex::new(None);
        bench.one_after_the_other(2, |number, lease| {
            if number == 0 {
                let called = Arc::clone(&called);
                let call = move |_| called.store(true, Ordering::SeqCst);
                lease.lost().notify(call).unwrap();
            } else {
                *last.lock().unwrap() = Some(lease);
            }
        });
        let last = last.into_inner().unwrap().unwrap();
        thread::sleep(150 * MS); // armed
        let () = bench.conn.del("lock:a").unwrap();
        assert!(last.lost().wait_for(LONG));
        thread::sleep(20 * MS);
        assert!(!called.load(Ordering::SeqCst));
    });
}

#[test]
fn the_token_of_an_earlier_hold_cannot_release_the_next() {
    unless_halted(|| {
        let bench = bench(handing(100));
        let tokens = Mutex::new(Vec::new());
        bench.one_after_the_other(3, |_, lease| {
            tokens.lock().unwrap().push(lease.token().clone());
        });
        let mut tokens = tokens.into_inner().unwrap();
        tokens.sort_by_key(ToString::to_string);
        tokens.dedup();
        assert_eq!(tokens.len(), 3);

        bench.one_after_the_other(2, |number, lease| {
            if number == 0 {
                let (token, left) = lease.detach();
                assert!(left > LONG / 4);
                assert!(bench.lock.try_acquire().unwrap().is_none());
                let mut conn = bench.server.connection().unwrap();
                assert!(leasehold::release_lock(&mut conn, "a", &token).unwrap());
            }
        });
        assert!(!bench.lock.inspect().unwrap().is_held());
    });
}

pub(super) fn a_lease_that_is_not_to_be_renewed_ends() {
    let bench = bench(handing(100).lease(3_000 * MS));
    let next = bench.lock.clone().with(Options::new().renewal(false));
    bench.those(&[next], |_, lease| {
        let left = lease.remaining();
        assert!(lease.lost().wait_for(left + SLACK));
    });
}

/// The thread holds a handed-over lock and dies without notice.
pub(super) fn a_turn_that_is_never_given_back_ends_with_its_lease() {
    let mut bench = bench(handing(100).lease(4_000 * MS).renewal(false));
    bench.keep_silent();
    let first = bench.lock.acquire(LONG).unwrap();
    let (lock, ended) = (&bench.lock, first.remaining());
    let (begun, handed) = (Instant::now(), fence(&first) + 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let dies = lock.acquire(LONG).unwrap();
            assert_eq!(fence(&dies), handed);
            std::mem::forget(dies);
        });
        assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
        scope.spawn(|| lock.acquire(LONG).unwrap().release().unwrap());
        assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 2));
        first.release().unwrap();
    });
    let took = begun.elapsed();
    assert!(took < ended + SLACK, "{took:?}");
}

pub(super) fn what_may_have_been_renewed_without_our_knowing_goes_to_the_server() {
    let mut bench = bench(handing(100).lease(1_800 * MS));
    // The first acquire within its thousand seconds sets the companion's expiry.
    while clock::millis(&mut bench.conn) % 1_000_000 > 997_000 {
        thread::sleep(100 * MS);
    }
    let admin = Mutex::new(bench.server.connection().unwrap());
    let fences = Mutex::new(Vec::new());
    bench.one_after_the_other(2, |number, lease| {
        fences.lock().unwrap().push(fence(&lease));
        if number == 0 {
            // Of the scripts used here, only the renewal sets an expiry in a command of its own.
            tell(&mut admin.lock().unwrap(), "ACL SETUSER default -pexpire");
            assert!(comes_true(|| lease.state() == RenewalState::Unknown));
            lease.release().unwrap();
        }
    });
    let fences = fences.into_inner().unwrap();
    assert!(fences[0] + 1 < fences[1], "{fences:?}");
}

pub(super) fn a_renewal_that_is_on_its_way_is_not_for_the_next() {
    let mut bench = bench(handing(100).lease(6_000 * MS));
    let short = handing(100).lease(6_000 * MS).max_hold(4_000 * MS);
    let next = bench.lock.clone().with(short);
    let first = bench.lock.acquire(LONG).unwrap();
    thread::scope(|scope| {
        let next = scope.spawn(|| next.acquire(LONG).unwrap());
        assert!(comes_true(
            || bench.lock.inspect().unwrap().waiting_here() == 1
        ));
        // Due after a third, and answered after a half.
        thread::sleep(first.remaining().saturating_sub(4_600 * MS));
        tell(&mut bench.conn, "CLIENT PAUSE 1500");
        thread::sleep(first.remaining().saturating_sub(3_700 * MS));
        first.release().unwrap();
        let next = next.join().unwrap();
        assert!(next.is_held());
        let left: u32 = bench.conn.pttl("lock:a").unwrap();
        assert!(left <= 4_001, "it blocks others for {left} ms");
    });
}
