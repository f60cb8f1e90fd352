//! `commit_while_held`: all of it while the lock is ours, or none of it. What others do between its
//! two round trips is in `faults`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{Proxy, Server, start, wait};
use leasehold::{Error, Result, Token, acquire_lock_with_timeout, commit_while_held, release_lock};
use redis::{Commands, Connection, Pipeline};

const NO_WAIT: Duration = Duration::ZERO;
const LEASE: Duration = Duration::from_secs(10);

fn held_lock(conn: &mut Connection) -> Token {
    acquire_lock_with_timeout(conn, "a", NO_WAIT, LEASE)
        .unwrap()
        .unwrap()
}

fn count_up(pipeline: &mut Pipeline) {
    pipeline.incr("counter", 1);
}

fn counter(conn: &mut Connection) -> i64 {
    conn.get::<_, Option<i64>>("counter").unwrap().unwrap_or(0)
}

/// A write to the lock aborts no unrelated transaction. Leaves the lock as it is.
fn assert_nothing_is_watched(conn: &mut Connection, other: &mut Connection) {
    let () = other.persist("lock:a").unwrap();
    let () = other.pexpire("lock:a", 10_000).unwrap();
    let () = redis::cmd("MULTI").query(conn).unwrap();
    let () = redis::cmd("PING").query(conn).unwrap();
    let executed: Option<Vec<String>> = redis::cmd("EXEC").query(conn).unwrap();
    assert!(executed.is_some());
}

#[test]
fn it_writes_while_the_lock_is_held_and_does_not_release_it() {
    let (_server, mut conn) = start();
    let token = held_lock(&mut conn);

    for expected in 1..=3 {
        let (count,): (i64,) = commit_while_held(&mut conn, "a", &token, count_up).unwrap();
        assert_eq!(count, expected);
    }

    assert_eq!(conn.get("lock:a"), Ok(token.to_string()));
    let ttl: i64 = conn.pttl("lock:a").unwrap();
    assert!(
        (5_000..=10_000).contains(&ttl),
        "{ttl}: the expiry is unchanged"
    );
    assert!(release_lock(&mut conn, "a", &token).unwrap());
}

#[test]
fn nothing_is_written_without_the_lock() {
    let (server, mut conn) = start();
    let mut other = server.connection().unwrap();
    let theirs = held_lock(&mut conn);
    let ours = Token::random();

    let lost: Result<()> = commit_while_held(&mut conn, "a", &ours, count_up);
    assert!(
        matches!(&lost, Err(Error::Lost { context, .. }) if context.lock == "a"),
        "somebody else has it: {lost:?}"
    );
    assert_nothing_is_watched(&mut conn, &mut other);

    assert!(release_lock(&mut conn, "a", &theirs).unwrap());
    let lost: Result<()> = commit_while_held(&mut conn, "a", &theirs, count_up);
    assert!(
        matches!(lost, Err(Error::Lost { .. })),
        "released: {lost:?}"
    );
    assert_nothing_is_watched(&mut conn, &mut other);

    let lease = Duration::from_millis(1);
    let ended = acquire_lock_with_timeout(&mut conn, "a", NO_WAIT, lease).unwrap();
    assert!(wait::comes_true(|| !conn
        .exists::<_, bool>("lock:a")
        .unwrap()));
    let lost: Result<()> = commit_while_held(&mut conn, "a", &ended.unwrap(), count_up);
    assert!(matches!(lost, Err(Error::Lost { .. })), "ended: {lost:?}");
    assert_eq!(counter(&mut conn), 0);
}

#[test]
fn it_gives_up_if_the_lock_is_renewed_again_and_again() {
    let server = Server::start().unwrap();
    let [mut renewing, mut other] = [(); 2].map(|()| server.connection().unwrap());
    let token = held_lock(&mut other);
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    let tries = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&tries);
    proxy.at("MULTI").run_each_time(move || {
        counting.fetch_add(1, Ordering::SeqCst);
        let () = renewing.pexpire("lock:a", 20_000).unwrap();
    });
    let begun = Instant::now();
    let mut builds = 0;
    let contended: Result<()> = commit_while_held(&mut conn, "a", &token, |pipeline| {
        builds += 1;
        count_up(pipeline);
    });
    assert_eq!(builds, 1);
    assert_nothing_is_watched(&mut conn, &mut other);
    assert!(
        matches!(contended, Err(Error::Contended { .. })),
        "{contended:?}"
    );
    assert!(begun.elapsed() >= Duration::from_secs(5));
    let tries = tries.load(Ordering::SeqCst);
    assert!(tries > 100, "{tries}");
    assert_eq!(counter(&mut other), 0);
}

#[test]
fn a_panic_in_the_closure_leaves_nothing_behind() {
    let (server, mut conn) = start();
    let token = held_lock(&mut conn);

    let call = std::panic::AssertUnwindSafe(|| {
        commit_while_held::<()>(&mut conn, "a", &token, |pipeline| {
            count_up(pipeline);
            std::panic::resume_unwind(Box::new("no panic message, this one is meant"));
        })
    });
    assert!(std::panic::catch_unwind(call).is_err());
    assert_nothing_is_watched(&mut conn, &mut server.connection().unwrap());
    assert_eq!(counter(&mut conn), 0);
}

#[test]
fn the_transaction_itself_can_release_the_lock() {
    let (_server, mut conn) = start();
    let token = held_lock(&mut conn);

    let () = commit_while_held(&mut conn, "a", &token, |pipeline| {
        count_up(pipeline);
        pipeline.del("lock:a");
    })
    .unwrap();
    assert_eq!(counter(&mut conn), 1);
    assert!(!release_lock(&mut conn, "a", &token).unwrap());
}

#[test]
fn an_empty_commit_checks_that_the_lock_is_held() {
    let (_server, mut conn) = start();
    let token = held_lock(&mut conn);

    let () = commit_while_held(&mut conn, "a", &token, |_| {}).unwrap();
    let none: Vec<i64> = commit_while_held(&mut conn, "a", &token, |_| {}).unwrap();
    assert!(none.is_empty());

    assert!(release_lock(&mut conn, "a", &token).unwrap());
    let lost: Result<()> = commit_while_held(&mut conn, "a", &token, |_| {});
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
}
