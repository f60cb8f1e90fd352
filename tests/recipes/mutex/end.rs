//! A lock until a point in time, measured by the server's clock.

use std::{
    thread,
    time::{Duration, SystemTime},
};

use crate::common::{SLACK, State, monitor::Monitor, start, wait::comes_true};
use leasehold::{
    Error, Token,
    recipes::mutex::{self, End},
};
use redis::{Commands, Connection};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_hours(24);

/// The server's clock.
fn time(conn: &mut Connection) -> SystemTime {
    let (seconds, micros): (u64, u32) = redis::cmd("TIME").query(conn).unwrap();
    SystemTime::UNIX_EPOCH + Duration::new(seconds, micros * 1_000)
}

fn millis(moment: SystemTime) -> u128 {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since.as_nanos().div_ceil(1_000_000)
}

#[track_caller]
fn assert_refused(conn: &mut Connection, end: SystemTime) {
    let before = State::of(conn).unwrap();
    for wait in [None, Some(SECOND)] {
        let token = Token::random();
        let refused = match wait {
            None => mutex::try_acquire(conn, "a", &token, End::At(end)),
            Some(wait) => mutex::acquire(conn, "a", &token, wait, End::At(end)),
        };
        assert!(
            matches!(
                refused,
                Err(Error::Invalid {
                    argument: "end",
                    ..
                })
            ),
            "{refused:?}"
        );
    }
    assert_eq!(
        State::of(conn).unwrap(),
        before,
        "no lock, and nothing else"
    );
}

#[test]
fn a_lock_until_midnight() {
    let (_server, mut conn) = start();
    let now = time(&mut conn);
    let today = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs()
        / DAY.as_secs();
    let midnight = SystemTime::UNIX_EPOCH + (u32::try_from(today).unwrap() + 1) * DAY;
    // Just before midnight there is no time left to hold the lock: then use the next midnight.
    let midnight = match midnight.duration_since(now).unwrap() {
        rest if rest < 5 * SECOND => midnight + DAY - 10 * SECOND,
        _ => midnight,
    };
    let token = Token::random();
    let granted = mutex::try_acquire(&mut conn, "a", &token, End::At(midnight)).unwrap();
    assert!(granted.is_some());

    let left = Duration::from_millis(conn.pttl("lock:a").unwrap());
    let end = time(&mut conn) + left;
    let off = end
        .duration_since(midnight)
        .unwrap_or_else(|error| error.duration());
    assert!(off < SLACK, "{off:?} off");
    assert!(mutex::release(&mut conn, "a", &token).unwrap());
}

#[test]
fn an_end_in_the_past_or_too_far_ahead_is_an_error() {
    let (_server, mut conn) = start();
    let now = time(&mut conn);
    for past in [
        now - Duration::from_millis(1),
        now - 366 * DAY,
        SystemTime::UNIX_EPOCH + Duration::from_millis(1),
        SystemTime::UNIX_EPOCH,
        SystemTime::UNIX_EPOCH - SECOND,
    ] {
        assert_refused(&mut conn, past);
    }
    for ahead in [DAY + 5 * SECOND, 366 * DAY, 365 * 9_000 * DAY] {
        assert_refused(&mut conn, now + ahead);
    }
    let longest = End::At(now + DAY - SECOND);
    let granted = mutex::try_acquire(&mut conn, "a", &Token::random(), longest).unwrap();
    assert!(granted.is_some());
}

#[test]
fn it_is_an_error_whoever_holds_the_lock() {
    let (_server, mut conn) = start();
    let token = Token::random();
    let ours = End::After(10 * SECOND);
    mutex::try_acquire(&mut conn, "a", &token, ours)
        .unwrap()
        .unwrap();
    let past = time(&mut conn) - SECOND;
    assert_refused(&mut conn, past);
    let again = mutex::try_acquire(&mut conn, "a", &token, End::At(past));
    assert!(matches!(again, Err(Error::Invalid { .. })), "{again:?}");
}

#[test]
fn a_wait_ends_when_the_end_itself_has_passed() {
    let (server, mut conn) = start();
    let holder = Token::random();
    mutex::try_acquire(&mut conn, "a", &holder, End::After(60 * SECOND))
        .unwrap()
        .unwrap();
    let soon = End::At(time(&mut conn) + Duration::from_millis(300));
    let mut waiting = server.connection().unwrap();
    let waiter = thread::spawn(move || {
        mutex::acquire(&mut waiting, "a", &Token::random(), 60 * SECOND, soon)
    });
    assert!(comes_true(|| waiter.is_finished()));
    let ended = waiter.join().unwrap();
    assert!(matches!(ended, Err(Error::Invalid { .. })), "{ended:?}");
}

#[test]
fn the_moment_goes_to_the_server_as_it_is() {
    let (server, mut conn) = start();
    let mut monitor = Monitor::start(&server).unwrap();
    let end = time(&mut conn) + 5 * SECOND + Duration::from_nanos(1);
    mutex::try_acquire(&mut conn, "a", &Token::random(), End::At(end))
        .unwrap()
        .unwrap();
    let sent = format!(" 0 {}", millis(end));
    let commands = monitor.commands().unwrap();
    assert!(
        commands.iter().any(|command| command.ends_with(&sent)),
        "no client's clock comes in between, and it is rounded up: {commands:?}"
    );
}

#[test]
fn an_attempt_sent_twice_with_an_end_is_never_shortened() {
    let (_server, mut conn) = start();
    let token = Token::random();
    let now = time(&mut conn);
    let (near, far) = (End::At(now + 30 * SECOND), End::At(now + 60 * SECOND));
    let first = mutex::try_acquire(&mut conn, "a", &token, far).unwrap();
    assert_eq!(
        mutex::try_acquire(&mut conn, "a", &token, near).unwrap(),
        first
    );
    assert!(conn.pttl::<_, i64>("lock:a").unwrap() > 50_000);
}
