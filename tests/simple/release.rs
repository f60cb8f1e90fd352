//! `release_lock` never releases another holder's lock, and leaves no `WATCH`. What others do
//! between its two round trips is in `faults`.

use std::time::Duration;

use crate::common::{Proxy, Server, start, wait};
use leasehold::{Error, Token, acquire_lock, acquire_lock_with_timeout, release_lock};
use redis::{Commands, Connection};

const NO_WAIT: Duration = Duration::ZERO;
const LEASE: Duration = Duration::from_secs(10);

fn held_lock(conn: &mut Connection) -> Token {
    acquire_lock_with_timeout(conn, "a", NO_WAIT, LEASE)
        .unwrap()
        .unwrap()
}

/// A write to the lock aborts no unrelated transaction.
fn assert_nothing_is_watched(conn: &mut Connection, other: &mut Connection) {
    let () = other.set("lock:a", "written from elsewhere").unwrap();
    let () = redis::cmd("MULTI").query(conn).unwrap();
    let () = redis::cmd("PING").query(conn).unwrap();
    let executed: Option<Vec<String>> = redis::cmd("EXEC").query(conn).unwrap();
    assert_eq!(executed, Some(vec!["PONG".to_owned()]));
}

#[test]
fn a_lock_is_released_once() {
    let (_server, mut conn) = start();
    let timed = held_lock(&mut conn);
    assert!(release_lock(&mut conn, "a", &timed).unwrap());
    assert_eq!(conn.exists("lock:a"), Ok(false));
    assert!(!release_lock(&mut conn, "a", &timed).unwrap());

    let untimed = acquire_lock(&mut conn, "a", NO_WAIT).unwrap().unwrap();
    assert!(release_lock(&mut conn, "a", &untimed).unwrap());
    assert_eq!(conn.exists("lock:a"), Ok(false));
}

#[test]
fn a_lock_held_by_someone_else_is_not_released() {
    let (_server, mut conn) = start();
    let theirs = held_lock(&mut conn);
    let prefix = theirs.to_string()[..35].parse().unwrap();
    let longer = format!("{theirs} ").parse().unwrap();

    for ours in [Token::random(), prefix, longer] {
        assert!(!release_lock(&mut conn, "a", &ours).unwrap());
    }

    assert_eq!(conn.get("lock:a"), Ok(theirs.to_string()));
    let ttl: i64 = conn.pttl("lock:a").unwrap();
    assert!((5_000..=10_000).contains(&ttl), "{ttl}");
}

#[test]
fn an_expired_lock_is_not_released() {
    let (_server, mut conn) = start();
    let lease = Duration::from_millis(1);
    let token = acquire_lock_with_timeout(&mut conn, "a", NO_WAIT, lease).unwrap();
    let token = token.unwrap();
    assert!(wait::comes_true(|| !conn
        .exists::<_, bool>("lock:a")
        .unwrap()));
    assert!(!release_lock(&mut conn, "a", &token).unwrap());

    let next = held_lock(&mut conn);
    assert!(!release_lock(&mut conn, "a", &token).unwrap());
    assert_eq!(conn.get("lock:a"), Ok(next.to_string()));
}

#[test]
fn a_delete_that_finds_no_key_releases_nothing() {
    // The answer of a server before 6.0.9 if the lock expires after the WATCH.
    let server = Server::start().unwrap();
    let token = held_lock(&mut server.connection().unwrap());
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    proxy.at("EXEC").reply("*1\r\n:0\r\n");
    assert!(!release_lock(&mut conn, "a", &token).unwrap());
    assert!(proxy.happened());
}

#[test]
fn it_gives_up_if_the_lock_changes_again_and_again() {
    let server = Server::start().unwrap();
    let [mut between, mut other] = [(); 2].map(|()| server.connection().unwrap());
    let token = held_lock(&mut other);
    let proxy = Proxy::in_front_of(&server).unwrap();
    let mut conn = proxy.connection().unwrap();
    proxy.at("MULTI").run_each_time(move || {
        let () = between.expire("lock:a", 10).unwrap();
    });
    let released = release_lock(&mut conn, "a", &token);
    assert!(
        matches!(released, Err(Error::Contended { .. })),
        "{released:?}"
    );
    assert_eq!(conn.exists("lock:a"), Ok(true));
    assert_nothing_is_watched(&mut conn, &mut other);
}

#[test]
fn nothing_is_watched_after_any_outcome() {
    let server = Server::start().unwrap();
    let mut other = server.connection().unwrap();
    let mut conn = server.connection().unwrap();
    let token = Token::random();

    let released = held_lock(&mut conn);
    assert!(release_lock(&mut conn, "a", &released).unwrap());
    assert_nothing_is_watched(&mut conn, &mut other);

    assert!(!release_lock(&mut conn, "a", &token).unwrap());
    assert_nothing_is_watched(&mut conn, &mut other);

    let () = other.del("lock:a").unwrap();
    assert!(!release_lock(&mut conn, "a", &token).unwrap());
    assert_nothing_is_watched(&mut conn, &mut other);

    let () = other.del("lock:a").unwrap();
    let () = other.rpush("lock:a", "x").unwrap();
    let refused = release_lock(&mut conn, "a", &token);
    assert!(
        matches!(&refused, Err(Error::WrongKind { context, .. }) if context.lock == "a"),
        "{refused:?}"
    );
    assert_eq!(other.llen("lock:a"), Ok(1));
    assert_nothing_is_watched(&mut conn, &mut other);
}

#[test]
fn another_librarys_lock_can_be_released_by_its_value() {
    let (_server, mut conn) = start();
    let longest = "x".repeat(512);
    for text in ["worker 7:3", "1", "名前\r\n\0", &longest] {
        let () = conn.set("lock:a", text).unwrap();
        assert!(release_lock(&mut conn, "a", &text.parse().unwrap()).unwrap());
    }
}
