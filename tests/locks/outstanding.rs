//! Commands that the server may execute after the client has given up waiting for the answer.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    Error, Locks, Options, Pool, RenewalState,
    recipes::mutex::{self, End},
};
use redis::{Commands, Connection};

use crate::common::{
    LONG, MS, Proxy, Server, clients,
    hold::{comes_true, every_kind},
    locks::quick,
    wait::{at_once, calls, tracked_keys, unless_halted},
};

const HOUR: Duration = Duration::from_hours(1);
/// The milliseconds in a renewal by the holder; the watchdog's renewals are shorter.
const AN_HOUR: &str = "3600000";

/// Locks that wait for an answer no longer than `answer`, without hand-over.
fn impatient(url: &str, answer: Duration) -> Locks {
    let locks = quick(url, answer).with(Options::new().hand_over(0, Duration::ZERO));
    drop(locks.lock("warm").acquire(LONG).unwrap());
    locks
}

/// Allows or forbids the locks' scripts on the server.
fn allow_scripts(conn: &mut Connection, allowed: bool) {
    let rule = if allowed {
        "+@scripting"
    } else {
        "-@scripting"
    };
    redis::cmd("ACL")
        .arg(&["SETUSER", "default", rule])
        .exec(conn)
        .unwrap();
}

/// Without an earlier hold there are no fencing tokens for hand-overs.
fn earlier_hold(server: &Server) {
    let mut conn = server.connection().unwrap();
    let () = conn.hset("{lock:a}:lease", "fence", 1).unwrap();
}

/// Runs concurrently: each mostly waits.
#[test]
fn requests_without_an_answer_in_time() {
    let cases: [fn(); 6] = [
        a_commit_without_an_answer_never_runs_in_the_next_turn,
        a_renewal_without_an_answer_is_in_doubt_and_its_lock_is_not_handed_over,
        a_renewal_without_an_answer_leaves_no_lock_behind,
        what_a_server_takes_for_us_after_a_halt_longer_than_the_lease_is_given_back,
        an_acquire_that_is_delivered_after_the_wait_is_given_back,
        a_release_that_is_sent_again_together_with_others_is_unknown,
    ];
    at_once(cases, |case| case());
}

fn a_commit_without_an_answer_never_runs_in_the_next_turn() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    earlier_hold(&server);
    let options = Options::new().hand_over(100, LONG);
    let locks = impatient(&proxy.url(), 1_700 * MS);
    let lock = locks.lock("a").with(options);
    let first = lock.acquire(LONG).unwrap();
    // The network delays the first holder's EXEC until the second has the lock.
    let (second_in, is_in) = mpsc::channel::<()>();
    let (delivered, is_delivered) = mpsc::channel::<()>();
    proxy.at("EXEC").run(move || {
        let _ = is_in.recv_timeout(Duration::from_secs(4));
        delivered.send(()).unwrap();
    });
    thread::scope(|scope| {
        let (lock, server) = (&lock, &server);
        let waiter = scope.spawn(move || {
            let second = lock.acquire(LONG).unwrap();
            second_in.send(()).unwrap();
            is_delivered.recv_timeout(Duration::from_secs(5)).unwrap();
            thread::sleep(100 * MS);
            let mut conn = server.connection().unwrap();
            let written: Option<String> = conn.get("value").unwrap();
            second.verify().unwrap();
            assert_eq!(written, None, "written while the second one held the lock");
        });
        assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
        let written = first.commit(|pipe| {
            pipe.set("value", "by the first");
        });
        assert!(matches!(written, Err(Error::Unknown { .. })), "{written:?}");
        first.release().unwrap();
        waiter.join().unwrap();
    });
}

fn a_renewal_without_an_answer_is_in_doubt_and_its_lock_is_not_handed_over() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = server.connection().unwrap();
    let locks = impatient(&proxy.url(), 1_500 * MS);
    // The watchdog renews it only after the holder has given up on the answer.
    let lease = Duration::from_secs(10);
    earlier_hold(&server);
    let options = Options::new().lease(lease).hand_over(100, LONG);
    let lock = locks.lock("a").with(options);
    let first = lock.acquire(LONG).unwrap();
    // The watchdog has read it, so the server knows the script.
    assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
    proxy.at("EVALSHA").about(AN_HOUR).swallow();
    let renewed = first.renew(HOUR);
    assert!(matches!(renewed, Err(Error::Unknown { .. })), "{renewed:?}");
    assert_eq!(first.state(), RenewalState::Unknown);
    assert!(matches!(first.failure(), Some(Error::Unknown { .. })));
    assert!(first.is_held());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire(LONG).unwrap());
        assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
        // The watchdog's next renewal removes the doubt, but not a possible hour on the
        // server.
        assert!(comes_true(|| first.state() == RenewalState::Held));
        first.release().unwrap();
        let second = waiter.join().unwrap();
        let left: i64 = conn.pttl("lock:a").unwrap();
        assert!(left <= 10_000, "{left} ms");
        drop(second);
    });
}

fn a_renewal_without_an_answer_leaves_no_lock_behind() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = server.connection().unwrap();
    let locks = impatient(&proxy.url(), 300 * MS);
    let options = Options::new().lease(1_500 * MS).drop_timeout(100 * MS);
    let lease = locks.lock("a").with(options).acquire(LONG).unwrap();
    // The watchdog has read it, so the server knows the script.
    assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
    proxy.at("EVALSHA").about(AN_HOUR).swallow();
    let renewed = lease.renew(HOUR);
    assert!(matches!(renewed, Err(Error::Unknown { .. })), "{renewed:?}");
    allow_scripts(&mut conn, false);
    drop(lease);
    // Longer than any expiry that we know of.
    thread::sleep(2_000 * MS);
    assert!(conn.exists::<_, bool>("lock:a").unwrap());
    allow_scripts(&mut conn, true);
    assert!(comes_true(|| !conn.exists::<_, bool>("lock:a").unwrap()));
}

fn what_a_server_takes_for_us_after_a_halt_longer_than_the_lease_is_given_back() {
    let server = Server::start().unwrap();
    let lease = Duration::from_millis(2_500);
    let locks = impatient(&server.url(), 400 * MS).with(Options::new().lease(lease));
    for lock in every_kind(&locks) {
        drop(lock.acquire(LONG).unwrap());
    }
    server.freeze().unwrap();
    at_once(every_kind(&locks), |lock| {
        let acquired = lock.try_acquire();
        assert!(acquired.is_err(), "{acquired:?}");
    });
    thread::sleep(lease + 700 * MS);
    server.thaw().unwrap();
    let thawed = Instant::now();
    let mut conn = server.connection().unwrap();
    let free = || conn.keys::<_, Vec<String>>("lock:*").unwrap().is_empty();
    assert!(comes_true(free));
    let took = thawed.elapsed();
    assert!(took + 500 * MS < lease, "it expired: {took:?}");
}

/// The network delivers the first attempt after the client stopped waiting for its answer, and
/// after the lock became free.
fn an_acquire_that_is_delivered_after_the_wait_is_given_back() {
    at_once([false, true], |is_refused| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let others = crate::connect(&server.url()).lock("a");
        // Longer than the test.
        let options = Options::new().lease(6 * LONG);
        let lock = impatient(&proxy.url(), 1_500 * MS).lock("a").with(options);
        let held = is_refused.then(|| others.acquire(LONG).unwrap());
        let (deliver, is_due) = mpsc::channel::<()>();
        let attempt = proxy.at("EVALSHA").about("lock:a");
        attempt.run(move || _ = is_due.recv_timeout(2 * LONG));
        let patience = if is_refused { 6_000 * MS } else { LONG };
        match (lock.acquire(patience), held) {
            (Ok(lease), None) => {
                lease.verify().unwrap();
                lease.release().unwrap();
            }
            (Err(Error::Contended { .. }), Some(held)) => held.release().unwrap(),
            (acquired, _) => panic!("{is_refused}: {acquired:?}"),
        }
        // The lock itself may be gone before a test can read it.
        let taken = calls(&mut conn, "set").unwrap();
        deliver.send(()).unwrap();
        assert!(
            comes_true(|| calls(&mut conn, "set").unwrap() > taken),
            "not delivered"
        );
        let is_free = comes_true(|| !conn.exists::<_, bool>("lock:a").unwrap());
        assert!(is_free, "{is_refused}: a lock of no one is left");
    });
}

/// Many calls are under way, so the release is sent together with others, and again on another
/// connection.
fn a_release_that_is_sent_again_together_with_others_is_unknown() {
    let server = Server::start().unwrap();
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = server.connection().unwrap();
    let pool = Pool::builder().max_size(16).connect(&proxy.url()).unwrap();
    let locks = Locks::new(&pool).unwrap();
    drop(locks.lock("warm").acquire(LONG).unwrap());
    let lease = locks.lock("a").acquire(LONG).unwrap();
    // The watchdog has read it on its own connection.
    assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
    proxy.leave_alone(&clients::told_of_changes(&mut conn));
    for nth in 1..=6 {
        let attempt = proxy.at("EVALSHA").about("slow").nth(nth);
        attempt.delay(1_500 * MS);
    }
    thread::scope(|scope| {
        for number in 0..6 {
            let lock = locks.lock(&format!("slow{number}"));
            scope.spawn(move || drop(lock.try_acquire()));
        }
        let are_under_way = || conn.keys::<_, Vec<String>>("lock:slow*").unwrap().len() == 6;
        assert!(comes_true(are_under_way));
        proxy.at("EVALSHA").about("lock:a").cut_after();
        let released = lease.release();
        assert!(
            matches!(released, Err(Error::Unknown { .. })),
            "{released:?}"
        );
    });
}

#[test]
fn a_resent_acquire_delivered_after_the_release_is_released() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let locks = impatient(&proxy.url(), LONG);
        // The connection is closed, and the acquire is sent again on another.
        proxy.at("EVALSHA").about("lock:a").cut_before();
        let lease = locks.lock("a").try_acquire().unwrap().unwrap();
        assert!(proxy.happened());
        let token: String = conn.get("lock:a").unwrap();
        lease.release().unwrap();
        // Now the delayed command arrives.
        let (token, end) = (token.parse().unwrap(), End::After(HOUR));
        let late = mutex::try_acquire(&mut conn, "a", &token, end).unwrap();
        assert!(late.is_some());
        assert!(comes_true(|| !conn.exists::<_, bool>("lock:a").unwrap()));
    });
}

#[test]
fn a_resent_renewal_prevents_a_hand_over() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let proxy = Proxy::in_front_of(&server).unwrap();
        let mut conn = server.connection().unwrap();
        let locks = impatient(&proxy.url(), LONG);
        earlier_hold(&server);
        let options = Options::new().lease(LONG).hand_over(100, LONG);
        let lock = locks.lock("a").with(options);
        let first = lock.acquire(LONG).unwrap();
        // The watchdog has read it on its own connection: the next other `EVALSHA` is the holder's
        // renewal.
        assert!(comes_true(|| tracked_keys(&mut conn).unwrap() > 0));
        proxy.leave_alone(&clients::told_of_changes(&mut conn));
        proxy.at("EVALSHA").cut_before();
        first.renew(LONG).unwrap();
        assert!(proxy.happened() && first.state() == RenewalState::Held);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.acquire(LONG).unwrap());
            assert!(comes_true(|| lock.inspect().unwrap().waiting_here() == 1));
            let before = calls(&mut conn, "del").unwrap();
            first.release().unwrap();
            let second = waiter.join().unwrap();
            assert_eq!(calls(&mut conn, "del").unwrap(), before + 1);
            drop(second);
        });
    });
}
