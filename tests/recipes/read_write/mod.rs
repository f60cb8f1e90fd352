//! Many readers or one writer, each with its own lease.

mod intent;
mod races;

use std::time::Duration;

use crate::common::{clock::millis, start};
use leasehold::{
    Error, Token,
    recipes::read_write::{
        acquire_read, acquire_write, release_read, release_write, renew_write, try_acquire_read,
        try_acquire_write,
    },
};
use redis::{Commands, Connection};

const LEASE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(60);

fn reads(conn: &mut Connection, token: &Token, lease: Duration) -> bool {
    try_acquire_read(conn, "a", token, lease).unwrap()
}

fn writes_alone(conn: &mut Connection, token: &Token, lease: Duration) -> bool {
    let grant = try_acquire_write(conn, "a", token, lease).unwrap();
    grant.is_some()
}

fn end_of(conn: &mut Connection, field: &str) -> Option<i64> {
    conn.hget("lock:a", field).unwrap()
}

fn is_free(conn: &mut Connection) -> bool {
    !conn.exists::<_, bool>("lock:a").unwrap()
}

/// The rows of the article's table: 读锁可重入, 锁只能被当前线程删除, 超时自动释放, 写锁当前线程可重入.
#[test]
fn the_table_of_the_article() {
    let (_server, mut conn) = start();
    let [first, again, other] = [(); 3].map(|()| Token::random());

    assert!(reads(&mut conn, &first, LEASE) && reads(&mut conn, &again, LEASE));
    assert!(!release_read(&mut conn, "a", &other).unwrap());
    assert!(!release_write(&mut conn, "a", &first).unwrap());
    assert!(!writes_alone(&mut conn, &other, LEASE));
    assert!(release_read(&mut conn, "a", &first).unwrap());
    assert!(release_read(&mut conn, "a", &again).unwrap());

    assert!(writes_alone(&mut conn, &first, LEASE));
    assert!(!writes_alone(&mut conn, &again, LEASE), "entered twice");
    assert!(!release_write(&mut conn, "a", &other).unwrap());
    assert!(!release_read(&mut conn, "a", &first).unwrap());
    assert!(release_write(&mut conn, "a", &first).unwrap());

    assert!(writes_alone(&mut conn, &first, SHORT));
    let wait = Duration::from_secs(5);
    assert!(
        acquire_write(&mut conn, "a", &other, wait, LEASE)
            .unwrap()
            .is_some()
    );
    assert!(!release_write(&mut conn, "a", &first).unwrap());
    assert!(release_write(&mut conn, "a", &other).unwrap());
}

#[test]
fn the_key_expires_with_the_last_hold() {
    let (_server, mut conn) = start();
    let [long, short] = [(); 2].map(|()| Token::random());
    assert!(reads(&mut conn, &short, LEASE));
    assert!(reads(&mut conn, &long, LEASE * 6));
    for (token, longest) in [(&long, 60_000), (&short, 10_000)] {
        let before = millis(&mut conn);
        let left: i64 = conn.pttl("lock:a").unwrap();
        let after = millis(&mut conn);
        assert!((longest - 5_000..=longest + 1).contains(&left), "{left}");
        let ends = end_of(&mut conn, &format!("r:{token}")).unwrap();
        // The server may pause between reading its clock and setting the key's expiry.
        let (first, last) = (before + left - 250, after + left + 1);
        assert!((first..=last).contains(&ends), "{ends}: {first} to {last}");
        assert!(release_read(&mut conn, "a", token).unwrap());
    }
    assert!(is_free(&mut conn));
}

/// Repeated if the machine is so slow that the hold is over before the answer.
#[test]
fn a_hold_lasts_to_its_last_millisecond() {
    let (_server, mut conn) = start();
    let writer = Token::random();
    assert!((0..100).any(|_| {
        let end = millis(&mut conn) + 40;
        let holder = [("kind", "rw".to_owned()), ("r:somebody", end.to_string())];
        let () = conn.hset_multiple("lock:a", &holder).unwrap();
        let granted = writes_alone(&mut conn, &writer, LEASE);
        assert!(!granted || millis(&mut conn) > end);
        let () = conn.del("lock:a").unwrap();
        !granted
    }));
}

#[test]
fn a_hold_has_one_mode() {
    let (_server, mut conn) = start();
    let [reader, writer] = [(); 2].map(|()| Token::random());
    let is_refused = |error| {
        matches!(
            error,
            Error::Invalid {
                argument: "token",
                ..
            }
        )
    };

    assert!(reads(&mut conn, &reader, LEASE));
    let upgrade = acquire_write(&mut conn, "a", &reader, LEASE, LEASE);
    assert!(is_refused(upgrade.unwrap_err()));
    assert!(release_read(&mut conn, "a", &reader).unwrap());
    assert!(writes_alone(&mut conn, &writer, LEASE));
    let downgrade = acquire_read(&mut conn, "a", &writer, LEASE, LEASE);
    assert!(is_refused(downgrade.unwrap_err()));
    assert!(release_write(&mut conn, "a", &writer).unwrap());
    assert!(is_free(&mut conn));
}

#[test]
fn the_companion_lives_longer_than_the_lock() {
    let (_server, mut conn) = start();
    let (writer, day) = (Token::random(), Duration::from_hours(24));
    let longest =
        |conn: &mut Connection| conn.pttl::<_, i64>("{lock:a}:lease").unwrap() > 9 * 86_400_000;
    assert!(writes_alone(&mut conn, &writer, LEASE) && !longest(&mut conn));
    assert!(renew_write(&mut conn, "a", &writer, day).unwrap() && longest(&mut conn));
    // Neither a shorter renewal nor a repeated attempt shortens it.
    assert!(renew_write(&mut conn, "a", &writer, LEASE).unwrap() && longest(&mut conn));
    assert!(writes_alone(&mut conn, &writer, LEASE) && longest(&mut conn));

    // Another hold's value stays.
    conn.hset::<_, _, _, ()>("{lock:a}:lease", "token", "somebody")
        .unwrap();
    conn.persist::<_, ()>("{lock:a}:lease").unwrap();
    assert!(renew_write(&mut conn, "a", &writer, day).unwrap());
    assert_eq!(conn.pttl("{lock:a}:lease"), Ok(-1));
}
