//! Invalid arguments of the lock functions are refused before anything is sent; all others are
//! accepted.

use std::{cell::RefCell, time::Duration};

use crate::common::Server;
use leasehold::{
    Error, Result, Token, acquire_lock, acquire_lock_with_timeout, commit_while_held, release_lock,
};
use proptest::{prelude::*, test_runner::TestRunner};
use redis::{Commands, Connection};

const NO_WAIT: Duration = Duration::ZERO;
const LEASE: Duration = Duration::from_secs(10);
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_hours(24);

/// A connection that the server has closed: every command fails.
pub(super) fn dead_connection(server: &Server) -> Connection {
    let mut conn = server.connection().unwrap();
    let id: i64 = redis::cmd("CLIENT").arg("ID").query(&mut conn).unwrap();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("ID").arg(id);
    let killed: i64 = kill.query(&mut server.connection().unwrap()).unwrap();
    assert_eq!(killed, 1);
    conn
}

/// On the dead connection this also means that nothing was sent.
pub(super) fn is_invalid<T>(result: &Result<T>, argument: &str) -> bool {
    match result {
        Err(Error::Invalid {
            argument: found, ..
        }) => *found == argument,
        _ => false,
    }
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

/// The rules for a name, in another form than the library's.
fn may_be_a_name(name: &str) -> bool {
    let braces: String = name.chars().filter(|c| "{}".contains(*c)).collect();
    let tag = (braces == "{}" && !name.contains("{}")) || braces.is_empty();
    (1..=512).contains(&name.len()) && !name.ends_with(":lease") && tag
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab{}:.]{0,6}(:lease)?",
        any::<String>(),
        (500_usize..530).prop_map(|bytes| "x".repeat(bytes)),
        (160_usize..180).prop_map(|characters| "名".repeat(characters)),
    ]
}

fn durations() -> impl Strategy<Value = Duration> {
    let nanosecond = Duration::from_nanos(1);
    prop_oneof![
        Just(Duration::ZERO),
        Just(nanosecond),
        Just(SHORTEST.saturating_sub(nanosecond)),
        Just(SHORTEST),
        Just(LONGEST),
        Just(LONGEST.saturating_add(nanosecond)),
        Just(Duration::MAX),
        (0_u64..5_000_000).prop_map(Duration::from_nanos),
        (0_u64..90_000_000).prop_map(Duration::from_millis),
        (any::<u64>(), 0_u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n)),
    ]
}

#[test]
fn an_error_names_the_argument_and_shows_no_token() {
    let secret = "s3cr3t".repeat(100);
    let error = secret.parse::<Token>().unwrap_err();
    assert!(error.to_string().starts_with("invalid token: "), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cr3t"));
}

#[test]
fn any_text_works_as_a_name_or_is_refused() {
    let server = Server::start().unwrap();
    let dead = RefCell::new(dead_connection(&server));
    let alive = RefCell::new(server.connection().unwrap());
    let takes_or_refuses = |name: String| {
        if !may_be_a_name(&name) {
            let refused = acquire_lock(&mut dead.borrow_mut(), &name, NO_WAIT);
            prop_assert!(is_invalid(&refused, "lock name"));
            return Ok(());
        }
        let conn = &mut *alive.borrow_mut();
        let token = acquire_lock_with_timeout(conn, &name, NO_WAIT, LEASE)
            .unwrap()
            .unwrap();
        prop_assert_eq!(conn.get(format!("lock:{name}")), Ok(token.to_string()));
        let () = commit_while_held(conn, &name, &token, |_| {}).unwrap();
        prop_assert!(release_lock(conn, &name, &token).unwrap());
        prop_assert_eq!(conn.exists(format!("lock:{name}")), Ok(false));
        Ok(())
    };
    runner(400).run(&names(), takes_or_refuses).unwrap();
}

#[test]
fn any_duration_works_as_a_lease_or_is_refused() {
    let server = Server::start().unwrap();
    let dead = RefCell::new(dead_connection(&server));
    let alive = RefCell::new(server.connection().unwrap());
    let takes_or_refuses = |lease: Duration| {
        if lease < SHORTEST || lease > LONGEST {
            let refused = acquire_lock_with_timeout(&mut dead.borrow_mut(), "a", NO_WAIT, lease);
            prop_assert!(is_invalid(&refused, "lock_timeout"));
            return Ok(());
        }
        let conn = &mut *alive.borrow_mut();
        let token = acquire_lock_with_timeout(conn, "a", NO_WAIT, lease).unwrap();
        prop_assert!(token.is_some());
        let left: i128 = conn.pttl::<_, i64>("lock:a").unwrap().into();
        let most = i128::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap();
        prop_assert!(left <= most, "{left} ms of {lease:?}");
        // -2: already expired. -1, an endless key, must never occur.
        prop_assert!(left != -1);
        prop_assert!(left >= most - 5_000, "{left} ms of {lease:?}");
        let () = conn.del("lock:a").unwrap();
        Ok(())
    };
    runner(400).run(&durations(), takes_or_refuses).unwrap();
}

#[test]
fn any_duration_works_as_a_wait_and_a_free_lock_is_granted_at_once() {
    let server = Server::start().unwrap();
    let conn = RefCell::new(server.connection().unwrap());
    let takes_it = |wait: Duration| {
        let conn = &mut *conn.borrow_mut();
        for token in [
            acquire_lock(conn, "a", wait).unwrap(),
            acquire_lock_with_timeout(conn, "b", wait, LEASE).unwrap(),
        ] {
            prop_assert!(token.is_some());
        }
        let () = conn.del(&["lock:a", "lock:b"]).unwrap();
        Ok(())
    };
    runner(200).run(&durations(), takes_it).unwrap();
}

#[test]
fn any_token_text_is_kept_unchanged_or_refused() {
    let server = Server::start().unwrap();
    let conn = RefCell::new(server.connection().unwrap());
    let keeps_it = |text: String| {
        let Ok(token) = text.parse::<Token>() else {
            prop_assert!(text.is_empty() || text.len() > 512);
            return Ok(());
        };
        prop_assert_eq!(token.to_string(), text.clone());
        prop_assert_eq!(format!("{token:?}"), "Token(..)");
        let conn = &mut *conn.borrow_mut();
        let () = conn.set("lock:a", &text).unwrap();
        prop_assert!(release_lock(conn, "a", &token).unwrap());
        Ok(())
    };
    runner(200).run(&names(), keeps_it).unwrap();
}
