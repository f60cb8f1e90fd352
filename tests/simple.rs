//! The book's plain functions on a real server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::Server;
use leasehold::{acquire_lock_with_timeout, release_lock};

const LEASE: Duration = Duration::from_secs(10);

#[test]
fn a_lock_excludes_until_it_is_released() {
    let server = Server::start().unwrap();
    let mut conn = server.connection().unwrap();
    let wait = Duration::from_millis(10);

    let token = acquire_lock_with_timeout(&mut conn, "a", wait, LEASE)
        .unwrap()
        .unwrap();
    assert_eq!(
        acquire_lock_with_timeout(&mut conn, "a", wait, LEASE).unwrap(),
        None
    );
    assert!(release_lock(&mut conn, "a", &token).unwrap());
    assert!(
        acquire_lock_with_timeout(&mut conn, "a", wait, LEASE)
            .unwrap()
            .is_some()
    );
}
