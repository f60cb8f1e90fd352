//! One watchdog renews locks of every kind, each until it is deleted.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::common::{Server, hold::comes_true, start, wait::at_once};
use leasehold::{
    Error, LostReason, Owner, Pool, Renewal, RenewalState, Token, Watchdog,
    acquire_lock_with_timeout,
    recipes::{Hold, mutex, read_write, reentrant, semaphore},
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_millis(1_800);
const NAMES: [&str; 6] = ["simple", "mutex", "reentrant", "read", "write", "semaphore"];

/// Runs concurrently: each mostly waits.
#[test]
fn each_kind() {
    let cases: [fn(); 3] = [
        every_kind_is_kept_and_its_loss_told,
        a_companion_of_another_type_refuses_renewals_and_is_no_loss,
        a_lock_that_became_another_kind_is_lost_at_once,
    ];
    at_once(cases, |case| case());
}

fn every_kind_is_kept_and_its_loss_told() {
    let (server, mut conn) = start();
    let watchdog = Watchdog::new(&Pool::connect(&server.url()).unwrap()).unwrap();
    let (token, owner) = (Token::random(), Owner::current_thread());
    let book = take_all(&mut conn, &token, &owner);

    let renewals = [
        watchdog.keep(&Hold::mutex("simple", &book).unwrap(), LEASE),
        watchdog.keep(&Hold::mutex("mutex", &token).unwrap(), LEASE),
        watchdog.keep(
            &Hold::reentrant("reentrant", &owner, &token).unwrap(),
            LEASE,
        ),
        watchdog.keep(&Hold::read("read", &token).unwrap(), LEASE),
        watchdog.keep(&Hold::write("write", &token).unwrap(), LEASE),
        watchdog.keep(&Hold::semaphore("semaphore", &token).unwrap(), LEASE),
    ]
    .map(Result::unwrap);

    let kept_until = Instant::now() + 2 * LEASE;
    while Instant::now() < kept_until {
        for (renewal, name) in renewals.iter().zip(NAMES) {
            assert_eq!(renewal.state(), RenewalState::Held, "{name}");
        }
        thread::sleep(LEASE / 10);
    }
    let () = conn.del(&NAMES.map(|name| format!("lock:{name}"))).unwrap();
    for (renewal, name) in renewals.iter().zip(NAMES) {
        assert!(comes_true(|| renewal.lost().is_lost()), "{name}");
        assert_eq!(
            renewal.lost().reason(),
            Some(LostReason::TakenAway),
            "{name}"
        );
    }
}

fn take_all(conn: &mut Connection, token: &Token, owner: &Owner) -> Token {
    let wait = Duration::ZERO;
    let end = mutex::End::After(LEASE);
    assert!(
        mutex::try_acquire(conn, "mutex", token, end)
            .unwrap()
            .is_some()
    );
    assert!(
        reentrant::try_acquire(conn, "reentrant", owner, token, LEASE)
            .unwrap()
            .is_some()
    );
    assert!(read_write::try_acquire_read(conn, "read", token, LEASE).unwrap());
    assert!(semaphore::try_acquire(conn, "semaphore", 2, token, LEASE).unwrap());
    assert!(
        read_write::try_acquire_write(conn, "write", token, LEASE)
            .unwrap()
            .is_some()
    );
    acquire_lock_with_timeout(conn, "simple", wait, LEASE)
        .unwrap()
        .unwrap()
}

const WITH_COMPANION: [&str; 3] = ["mutex", "reentrant", "write"];
/// Two thirds of it are longer than any pause of a busy machine that a test has to tolerate.
const LONGER: Duration = Duration::from_secs(2);

fn keep_those_with_a_companion(server: &Server, watchdog: &Watchdog) -> [Renewal; 3] {
    let (token, owner) = (Token::random(), Owner::current_thread());
    take_all(&mut server.connection().unwrap(), &token, &owner);
    let entered = Hold::reentrant("reentrant", &owner, &token).unwrap();
    let writes = Hold::write("write", &token).unwrap();
    [
        watchdog.keep(&Hold::mutex("mutex", &token).unwrap(), LONGER),
        watchdog.keep(&entered, LONGER),
        watchdog.keep(&writes, LONGER),
    ]
    .map(Result::unwrap)
}

/// The lock is still ours: no loss before the lease ends on our clock, and none at all if the
/// companion is repaired before.
fn a_companion_of_another_type_refuses_renewals_and_is_no_loss() {
    let (server, mut conn) = start();
    let watchdog = Watchdog::new(&Pool::connect(&server.url()).unwrap()).unwrap();
    let renewals = keep_those_with_a_companion(&server, &watchdog);
    let companions = WITH_COMPANION.map(|name| format!("{{lock:{name}}}:lease"));
    for companion in &companions {
        conn.set::<_, _, ()>(companion, "foreign").unwrap();
    }
    for (renewal, name) in renewals.iter().zip(WITH_COMPANION) {
        let doubtful = || renewal.state() == RenewalState::Unknown;
        assert!(comes_true(doubtful), "{name}: {renewal:?}");
        let why = renewal.failure().unwrap();
        assert!(matches!(why, Error::WrongKind { .. }), "{name}: {why}");
    }

    let [mended, not_mended, mended_too] = &renewals;
    conn.del::<_, ()>(&[&companions[0], &companions[2]])
        .unwrap();
    assert!(comes_true(|| not_mended.lost().is_lost()));
    assert_eq!(not_mended.lost().reason(), Some(LostReason::Ended));
    for renewal in [mended, mended_too] {
        assert_eq!(renewal.state(), RenewalState::Held, "{renewal:?}");
    }
}

fn a_lock_that_became_another_kind_is_lost_at_once() {
    let (server, mut conn) = start();
    let watchdog = Watchdog::new(&Pool::connect(&server.url()).unwrap()).unwrap();
    for other in [["ZADD", "1", "a"], ["HSET", "a", "b"]] {
        redis::cmd("FLUSHALL").exec(&mut conn).unwrap();
        let renewals = keep_those_with_a_companion(&server, &watchdog);
        for name in WITH_COMPANION {
            let key = format!("lock:{name}");
            let mut replace = redis::pipe();
            replace.atomic().del(&key);
            replace.cmd(other[0]).arg(&key).arg(&other[1..]);
            replace.exec(&mut conn).unwrap();
        }
        for (renewal, name) in renewals.iter().zip(WITH_COMPANION) {
            assert!(comes_true(|| renewal.lost().is_lost()), "{name}");
            let reason = renewal.lost().reason();
            assert_eq!(reason, Some(LostReason::TakenAway), "{name}: {other:?}");
        }
    }
}
