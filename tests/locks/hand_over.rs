//! A lock that goes from thread to thread of one process without the server.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Events, FencingToken, Lease, Lock, Locks, Options, RenewalState, event};
use redis::{Commands, Connection};

use crate::common::{
    Server,
    hold::comes_true,
    wait::{at_once, calls},
};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);
const COMPANION: &str = "{lock:a}:lease";

struct Bench {
    lock: Lock,
    conn: Connection,
    server: Server,
}

fn handing(turns: u32) -> Options {
    Options::new().hand_over(turns, LONG)
}

fn bench(options: Options) -> Bench {
    let server = Server::start().unwrap();
    Bench {
        lock: lock(&server, options),
        conn: server.connection().unwrap(),
        server,
    }
}

fn lock(server: &Server, options: Options) -> Lock {
    let locks = Locks::connect(&server.url()).unwrap();
    locks.lock("a").with(options)
}

fn fence(lease: &Lease) -> u64 {
    lease.fencing_token().map(FencingToken::get).unwrap()
}

impl Bench {
    fn stored(&mut self, field: &str) -> u64 {
        let stored: Option<u64> = self.conn.hget(COMPANION, field).unwrap();
        stored.unwrap_or(0)
    }

    /// Nobody is told of a change.
    fn keep_silent(&mut self) {
        redis::cmd("ACL")
            .arg("SETUSER")
            .arg("default")
            .arg(&["-client", "+client|id", "+client|pause"])
            .exec(&mut self.conn)
            .unwrap();
    }

    /// Each of so many threads waits for the lock, one behind the other, then runs when its turn has come. How many scripts
    /// the server has been sent since the first turn.
    fn one_after_the_other(&self, threads: usize, run: impl Fn(usize, Lease) + Sync) -> u64 {
        self.those(&vec![self.lock.clone(); threads], run)
    }

    fn those(&self, locks: &[Lock], run: impl Fn(usize, Lease) + Sync) -> u64 {
        let first = self.lock.acquire(LONG).unwrap();
        let scripts = AtomicU64::new(0);
        thread::scope(|scope| {
            for (number, lock) in locks.iter().enumerate() {
                let run = &run;
                scope.spawn(move || run(number, lock.acquire(LONG).unwrap()));
                let waits = || self.lock.inspect().unwrap().waiting_here() == number + 1;
                assert!(comes_true(waits));
            }
            scripts.store(self.scripts(), Ordering::SeqCst);
            first.release().unwrap();
        });
        self.scripts() - scripts.into_inner()
    }

    fn scripts(&self) -> u64 {
        let mut conn = self.server.connection().unwrap();
        calls(&mut conn, "evalsha").unwrap()
    }
}

#[test]
fn all_have_their_turns_in_order_and_the_server_is_asked_once() {
    let mut bench = bench(handing(100));
    let order = Mutex::new(Vec::new());
    let inside = AtomicBool::new(false);
    let scripts = bench.one_after_the_other(20, |number, lease| {
        assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
        assert!(lease.is_held());
        order.lock().unwrap().push((number, fence(&lease)));
        inside.store(false, Ordering::SeqCst);
        lease.release().unwrap();
    });
    let order = order.into_inner().unwrap();
    assert!(order.is_sorted() && order.iter().is_sorted_by(|a, b| a.1 < b.1));
    assert_eq!(order.len(), 20);
    assert!(!bench.conn.exists::<_, bool>("lock:a").unwrap());
    // The last release, and what the watchdog may ask meanwhile.
    assert!(scripts <= 3, "{scripts}");
}

#[test]
fn the_bound_on_turns_holds() {
    let mut bench = bench(handing(2));
    let started = Mutex::new(Vec::new());
    bench.one_after_the_other(8, |_, lease| {
        started.lock().unwrap().push(fence(&lease));
    });
    // Handed over, a fencing token is the next; from the server it is the clock.
    let fences = started.into_inner().unwrap();
    let handed = |pair: &[u64]| pair[0] + 1 == pair[1];
    let kinds: Vec<bool> = fences.windows(2).map(handed).collect();
    assert_eq!(
        kinds,
        [true, false, true, true, false, true, true],
        "{fences:?}"
    );
    assert!(bench.stored("fence") <= *fences.last().unwrap());
}

/// Each waits for most of its time: all at the same time.
#[test]
fn how_long_turns_last() {
    let cases: [fn(); 10] = [
        the_bound_on_time_holds,
        a_lease_lasts_through_all_turns,
        a_loss_is_told_to_whose_turn_it_is,
        each_has_its_own_longest_hold,
        each_is_renewed_as_it_wants,
        a_turn_that_is_never_given_back_ends_with_its_lease,
        what_is_reserved_is_handed_back_late,
        a_renewal_that_is_on_its_way_is_not_for_the_next,
        those_who_give_up_leave_nothing_behind,
        what_may_have_been_renewed_without_our_knowing_goes_to_the_server,
    ];
    at_once(cases, |case| case());
}

fn the_bound_on_time_holds() {
    let bench = bench(Options::new().hand_over(1_000, 30 * MS));
    let fences = Mutex::new(Vec::new());
    bench.one_after_the_other(4, |_, lease| {
        fences.lock().unwrap().push(fence(&lease));
        thread::sleep(60 * MS);
    });
    let fences = fences.into_inner().unwrap();
    assert!(
        fences.windows(2).all(|pair| pair[0] + 1 < pair[1]),
        "{fences:?}"
    );
}

#[test]
fn what_is_reserved_is_handed_back_and_seen_by_others() {
    let mut bench = bench(handing(500));
    let other = lock(&bench.server, Options::new());
    let first = bench.lock.acquire(LONG).unwrap();
    assert_eq!(bench.stored("fence"), fence(&first) + 500);
    let found = other.inspect().unwrap();
    assert_eq!(found.holders()[0].fencing_token(), first.fencing_token());
    let used = fence(&first);
    drop(first);
    assert_eq!((bench.stored("fence"), bench.stored("reserved")), (used, 0));

    let last = AtomicU32::new(0);
    let beginning = used;
    bench.one_after_the_other(3, |_, lease| {
        let since = u32::try_from(fence(&lease) - beginning).unwrap();
        last.store(since, Ordering::SeqCst);
    });
    let used = beginning + u64::from(last.load(Ordering::SeqCst));
    assert_eq!((bench.stored("fence"), bench.stored("reserved")), (used, 0));
}

#[test]
fn a_release_needs_nothing_of_the_companion() {
    let mut bench = bench(handing(500));
    let harms: [fn(&mut Connection); 3] = [
        |conn| conn.del(COMPANION).unwrap(),
        |conn| {
            let () = conn.del(COMPANION).unwrap();
            conn.rpush::<_, _, ()>(COMPANION, 1).unwrap();
        },
        |conn| conn.hset(COMPANION, "token", "somebody's").unwrap(),
    ];
    for harm in harms {
        let lease = bench.lock.acquire(LONG).unwrap();
        harm(&mut bench.conn);
        let before: Option<Vec<u8>> = redis::cmd("DUMP")
            .arg(COMPANION)
            .query(&mut bench.conn)
            .unwrap();
        lease.release().unwrap();
        assert!(!bench.conn.exists::<_, bool>("lock:a").unwrap());
        let after: Option<Vec<u8>> = redis::cmd("DUMP")
            .arg(COMPANION)
            .query(&mut bench.conn)
            .unwrap();
        assert_eq!(before, after);
        let () = bench.conn.del(COMPANION).unwrap();
    }
}

/// By the watchdog, since the release was refused.
fn what_is_reserved_is_handed_back_late() {
    let mut bench = bench(handing(500));
    let ask = |conn: &mut Connection, rule: &str| {
        let mut setting = redis::cmd("ACL");
        let setting = setting.arg("SETUSER").arg("default").arg(rule);
        setting.exec(conn).unwrap();
    };
    let last = AtomicU64::new(0);
    let admin = Mutex::new(bench.server.connection().unwrap());
    bench.one_after_the_other(1, |_, lease| {
        last.store(fence(&lease), Ordering::SeqCst);
        ask(&mut admin.lock().unwrap(), "-del");
        assert!(lease.release().is_err());
    });
    ask(&mut bench.conn, "+del");
    assert!(comes_true(|| !bench.lock.inspect().unwrap().is_held()));
    let used = last.into_inner();
    assert_eq!((bench.stored("fence"), bench.stored("reserved")), (used, 0));
}

#[test]
fn no_more_is_reserved_than_the_clock_makes_good() {
    let mut bench = bench(handing(1_000_000).lease(20 * MS).renewal(false));
    let held = bench.lock.acquire(LONG).unwrap();
    assert_eq!(bench.stored("fence"), fence(&held) + 19_999);
    let () = bench.conn.del("lock:a").unwrap();
    assert!(matches!(held.release(), Err(Error::Lost { .. })));
    // The next one, whose lock it is now, has more than all that were reserved.
    let next = bench.lock.acquire(LONG).unwrap();
    assert!(fence(&next) + 19_999 <= bench.stored("fence"));
}

fn a_lease_lasts_through_all_turns() {
    let bench = bench(handing(100).lease(200 * MS));
    let signals = Mutex::new(Vec::new());
    bench.one_after_the_other(5, |_, lease| {
        thread::sleep(120 * MS);
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

fn a_loss_is_told_to_whose_turn_it_is() {
    // With one turn, the third of those who wait has it from one who has just been granted it.
    at_once([100, 1], |turns| {
        let told = Arc::new(Told::default());
        let events = Arc::clone(&told) as Arc<dyn Events>;
        let bench = bench(handing(turns).events(events));
        let others = Mutex::new(Vec::new());
        bench.one_after_the_other(4, |number, lease| {
            let signal = lease.lost();
            if number == 2 {
                thread::sleep(50 * MS); // armed
                let () = bench.server.connection().unwrap().del("lock:a").unwrap();
                let harmed = Instant::now();
                assert!(signal.wait_for(LONG));
                assert!(harmed.elapsed() < 300 * MS, "{:?}", harmed.elapsed());
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

/// The lock is taken away, the next one gets it from the server, and is handed what the holder believes to have.
#[test]
fn whoever_has_it_from_the_server_as_well_keeps_that_and_hands_nothing_on() {
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
        thread::sleep(50 * MS); // looked at
        // Those who ask now get their answers when the first has let go.
        let mut conn = bench.server.connection().unwrap();
        let mut late = redis::pipe();
        late.del("lock:a").ignore();
        late.cmd("CLIENT").arg("PAUSE").arg(200).ignore();
        late.exec(&mut conn).unwrap();
        thread::sleep(100 * MS);
        first.release().unwrap();

        let second = has_it.recv_timeout(LONG).unwrap();
        second.verify().unwrap();
        assert!(fence(&second) > believed + 100, "not what was handed over");
        assert!(has_it.recv_timeout(50 * MS).is_err(), "two have it");
        assert_eq!(told.acquired.load(Ordering::SeqCst), 2);
        assert_eq!(told.released.load(Ordering::SeqCst), 1, "of whom?");
        drop(second);
        drop(has_it.recv_timeout(LONG).unwrap());
    });
    assert!(bench.lock.try_acquire().unwrap().is_some());
}

#[test]
fn a_signal_of_an_earlier_turn_calls_nobody() {
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
    thread::sleep(50 * MS); // armed
    let () = bench.conn.del("lock:a").unwrap();
    assert!(last.lost().wait_for(LONG));
    thread::sleep(20 * MS);
    assert!(!called.load(Ordering::SeqCst));
}

#[test]
fn who_has_an_earlier_turns_token_cannot_release_the_next() {
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
            let (token, left) = lease.leave();
            assert!(left > LONG / 4);
            assert!(bench.lock.try_acquire().unwrap().is_none());
            let mut conn = bench.server.connection().unwrap();
            assert!(leasehold::release_lock(&mut conn, "a", &token).unwrap());
        }
    });
    assert!(!bench.lock.inspect().unwrap().is_held());
}

#[test]
fn a_panic_hands_it_over_and_so_does_a_drop() {
    let bench = bench(handing(100));
    let fences = Mutex::new(Vec::new());
    bench.one_after_the_other(4, |number, lease| {
        fences.lock().unwrap().push(fence(&lease));
        if number % 2 == 0 {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _lease = lease;
                std::panic::resume_unwind(Box::new("on purpose"));
            }));
            assert!(panicked.is_err());
        }
    });
    let fences = fences.into_inner().unwrap();
    assert!(
        fences.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "{fences:?}"
    );
}

#[test]
fn those_who_want_it_otherwise_get_it_from_the_server() {
    let bench = bench(handing(100).lease(LONG));
    let lengths = [LONG * 3, LONG * 3, LONG, LONG];
    let otherwise = [
        handing(100).lease(LONG * 3),
        handing(100).lease(LONG * 3),
        handing(100).lease(LONG),
        Options::new().lease(LONG),
    ]
    .map(|options| bench.lock.clone().with(options));
    let fences = Mutex::new(Vec::new());
    bench.those(&otherwise, |number, lease| {
        let left = lease.remaining();
        assert!(
            left > lengths[number] / 2 && left <= lengths[number],
            "{number}"
        );
        fences.lock().unwrap().push(fence(&lease));
    });
    let fences = fences.into_inner().unwrap();
    let handed: Vec<bool> = fences
        .windows(2)
        .map(|pair| pair[0] + 1 == pair[1])
        .collect();
    assert_eq!(handed, [true, false, false]);
}

fn each_is_renewed_as_it_wants() {
    let bench = bench(handing(100).lease(600 * MS));
    let wanted = [
        handing(100).lease(900 * MS),
        handing(100).lease(900 * MS).renewal(false),
    ];
    let locks = wanted.map(|options| bench.lock.clone().with(options));
    bench.those(&locks, |number, lease| {
        if number == 0 {
            // For longer than the one before.
            assert!(comes_true(|| lease.remaining() > 650 * MS));
        } else {
            let left = lease.remaining();
            assert!(lease.lost().wait_for(left + 250 * MS));
        }
    });
}

#[test]
fn a_time_without_an_end_is_no_bound() {
    let bench = bench(Options::new().hand_over(100, Duration::MAX));
    let fences = Mutex::new(Vec::new());
    bench.one_after_the_other(3, |_, lease| fences.lock().unwrap().push(fence(&lease)));
    let fences = fences.into_inner().unwrap();
    assert!(fences.windows(2).all(|pair| pair[0] + 1 == pair[1]));
}

#[test]
fn another_process_sees_the_first_turn_all_the_time() {
    let bench = bench(handing(100));
    let other = lock(&bench.server, Options::new());
    let seen = Mutex::new(Vec::new());
    bench.one_after_the_other(3, |_, lease| {
        let found = other.inspect().unwrap();
        let holder = &found.holders()[0];
        let known = (holder.fencing_token(), holder.since());
        seen.lock().unwrap().push((known, lease.fencing_token()));
    });
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().all(|(known, _)| *known == seen[0].0));
    assert!(seen.iter().all(|(known, own)| known.0 < *own));
}

/// It holds what it was handed, and dies; nobody tells of it.
fn a_turn_that_is_never_given_back_ends_with_its_lease() {
    let mut bench = bench(handing(100).lease(900 * MS).renewal(false));
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
    assert!(took < ended + 250 * MS, "{took:?}");
}

fn what_may_have_been_renewed_without_our_knowing_goes_to_the_server() {
    let bench = bench(handing(100).lease(900 * MS));
    let admin = Mutex::new(bench.server.connection().unwrap());
    let fences = Mutex::new(Vec::new());
    bench.one_after_the_other(2, |number, lease| {
        fences.lock().unwrap().push(fence(&lease));
        if number == 0 {
            // Of the scripts that are run here only the one that renews reads a single field.
            let mut refusing = redis::cmd("ACL");
            refusing.arg("SETUSER").arg("default").arg("-hget");
            refusing.exec(&mut admin.lock().unwrap()).unwrap();
            assert!(comes_true(|| lease.state() == RenewalState::Unknown));
            lease.release().unwrap();
        }
    });
    let fences = fences.into_inner().unwrap();
    assert!(fences[0] + 1 < fences[1], "{fences:?}");
}

fn each_has_its_own_longest_hold() {
    let bench = bench(handing(100).lease(LONG).max_hold(1_200 * MS));
    let longest = [1_200, 1_800, 200];
    let locks = longest
        .map(|longest| handing(100).lease(LONG).max_hold(longest * MS))
        .map(|options| bench.lock.clone().with(options));
    bench.those(&locks, |number, lease| {
        let left = lease.remaining();
        assert!(left <= longest[number] * MS, "{number}: {left:?}");
        // On the server as well: whoever dies keeps nobody out for longer.
        let left: i64 = bench.server.connection().unwrap().pttl("lock:a").unwrap();
        assert!(left <= i64::from(longest[number]) + 1, "{number}: {left}");
        if number == 1 {
            thread::sleep(1_240 * MS);
            assert!(lease.is_held(), "counted from its own beginning");
        }
    });
}

fn a_renewal_that_is_on_its_way_is_not_for_the_next() {
    let mut bench = bench(handing(100).lease(900 * MS));
    let short = handing(100).lease(900 * MS).max_hold(600 * MS);
    let next = bench.lock.clone().with(short);
    let first = bench.lock.acquire(LONG).unwrap();
    thread::scope(|scope| {
        let next = scope.spawn(|| next.acquire(LONG).unwrap());
        assert!(comes_true(
            || bench.lock.inspect().unwrap().waiting_here() == 1
        ));
        // Due at a third, and answered after a half.
        thread::sleep(first.remaining().saturating_sub(700 * MS));
        redis::cmd("CLIENT")
            .arg("PAUSE")
            .arg(250)
            .exec(&mut bench.conn)
            .unwrap();
        thread::sleep(first.remaining().saturating_sub(550 * MS));
        first.release().unwrap();
        let next = next.join().unwrap();
        assert!(next.is_held());
        let left: u32 = bench.conn.pttl("lock:a").unwrap();
        assert!(left <= 601, "it keeps others out for {left} ms");
    });
}

fn those_who_give_up_leave_nothing_behind() {
    let bench = bench(handing(50));
    let (inside, served) = (AtomicBool::new(false), AtomicU32::new(0));
    let until = Instant::now() + 400 * MS;
    thread::scope(|scope| {
        for number in 0..12 {
            let (lock, inside, served) = (&bench.lock, &inside, &served);
            scope.spawn(move || {
                let patience = Duration::from_micros(number * 40);
                while Instant::now() < until {
                    if let Ok(lease) = lock.acquire(patience) {
                        assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                        served.fetch_add(1, Ordering::SeqCst);
                        inside.store(false, Ordering::SeqCst);
                        drop(lease);
                    }
                }
            });
        }
    });
    assert!(served.load(Ordering::SeqCst) > 0);
    assert_eq!(bench.lock.inspect().unwrap().waiting_here(), 0);
    assert!(bench.lock.try_acquire().unwrap().is_some(), "free at once");
}

#[test]
fn another_process_gets_its_turns() {
    let bench = bench(Options::new().hand_over(20, LONG));
    let other = lock(&bench.server, Options::new().hand_over(20, LONG));
    let turns = [AtomicU32::new(0), AtomicU32::new(0)];
    let until = Instant::now() + 500 * MS;
    thread::scope(|scope| {
        for (lock, turns) in [&bench.lock, &other].into_iter().zip(&turns) {
            for _ in 0..4 {
                scope.spawn(move || {
                    while Instant::now() < until {
                        let lease = lock.acquire(LONG).unwrap();
                        turns.fetch_add(1, Ordering::SeqCst);
                        lease.release().unwrap();
                    }
                });
            }
        }
    });
    let [here, there] = turns.map(AtomicU32::into_inner);
    assert!(here.min(there) > (here + there) / 5, "{here} {there}");
}

#[test]
fn each_knows_the_lock_by_the_name_it_asked_for() {
    let server = Server::start().unwrap();
    let locks = Locks::connect(&server.url()).unwrap().with(handing(100));
    let first = locks.lock("a").acquire(LONG).unwrap();
    let same = locks.lock("lock:a").with(handing(100).prefix(""));
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(same.acquire(LONG).unwrap().name(), "lock:a"));
        assert!(comes_true(|| same.inspect().unwrap().waiting_here() == 1));
        first.release().unwrap();
    });
}

#[test]
fn locks_of_other_kinds_go_to_the_server() {
    let bench = bench(Options::new());
    let locks = Locks::connect(&bench.server.url())
        .unwrap()
        .with(handing(100));
    let kinds: [fn(&Locks, &str) -> Lock; 3] = [Locks::reentrant, Locks::read, Locks::write];
    for lock in kinds.map(|kind| kind(&locks, "other")) {
        let held = lock.acquire(LONG).unwrap();
        held.release().unwrap();
        assert!(!lock.inspect().unwrap().is_held(), "{lock:?}");
    }
}

#[test]
fn a_writer_in_line_behind_is_handed_nothing() {
    let bench = bench(handing(100));
    let locks = Locks::connect(&bench.server.url())
        .unwrap()
        .with(handing(100));
    let (lock, write) = (locks.lock("a"), locks.write("a"));
    let first = lock.acquire(LONG).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| lock.acquire(LONG).unwrap().release().unwrap());
        assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
        scope.spawn(|| match write.acquire(LONG) {
            Ok(lease) => {
                lease.verify().unwrap();
                let found = write.inspect().unwrap();
                assert_eq!(found.holders()[0].fencing_token(), lease.fencing_token());
            }
            // It has asked while the lock was still a mutex.
            Err(error) => assert!(matches!(error, Error::WrongKind { .. }), "{error}"),
        });
        assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 2));
        first.release().unwrap();
    });
}
