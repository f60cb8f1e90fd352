//! The lock with a fencing token on a real server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, SystemTime};

use common::Server;
use leasehold::{
    Error, Token,
    recipes::mutex::{self, End},
};

const LEASE: End = End::After(Duration::from_secs(10));

#[test]
fn a_lock_excludes_and_its_fencing_token_grows() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let (first, second) = (Token::random(), Token::random());

    let granted = mutex::try_acquire(&mut conn, "a", &first, LEASE)
        .unwrap()
        .unwrap();
    assert_eq!(
        mutex::try_acquire(&mut conn, "a", &second, LEASE).unwrap(),
        None
    );
    let again = mutex::try_acquire(&mut conn, "a", &first, LEASE)
        .unwrap()
        .unwrap();
    assert_eq!(granted, again);
    assert!(mutex::renew(&mut conn, "a", &first, Duration::from_secs(20)).unwrap());
    assert!(mutex::release(&mut conn, "a", &first).unwrap());
    assert!(!mutex::release(&mut conn, "a", &first).unwrap());
    let next = mutex::try_acquire(&mut conn, "a", &second, LEASE)
        .unwrap()
        .unwrap();
    assert!(next.fencing_token() > granted.fencing_token());
}

#[test]
fn an_end_in_the_past_is_an_error_and_no_lock() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let past = End::At(SystemTime::now() - Duration::from_secs(60));
    let refused = mutex::try_acquire(&mut conn, "a", &Token::random(), past).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Invalid {
                argument: "end",
                ..
            }
        ),
        "{refused}"
    );
    let soon = End::At(SystemTime::now() + Duration::from_secs(60));
    assert!(
        mutex::try_acquire(&mut conn, "a", &Token::random(), soon)
            .unwrap()
            .is_some()
    );
}
