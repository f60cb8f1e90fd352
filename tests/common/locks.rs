//! The way in which tests make `Locks`. What needs none of it takes the library's own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{env, time::Duration};

use leasehold::{Locks, Options, Pool, PoolBuilder};

use super::wait::comes_true;

/// The defaults. `LEASEHOLD_HAND_OVER=4` adds hand-over, four times for 20 ms: every test must pass
/// with it too.
pub fn options() -> Options {
    match env::var("LEASEHOLD_HAND_OVER") {
        Ok(turns) => {
            let longest = Duration::from_millis(20);
            Options::new().hand_over(turns.parse().unwrap(), longest)
        }
        Err(_) => Options::new(),
    }
}

pub fn connect(url: &str) -> Locks {
    connect_with(url, Pool::builder())
}

pub fn connect_with(url: &str, pool: PoolBuilder) -> Locks {
    Locks::connect_with(url, pool).unwrap().with(options())
}

/// A pool that waits no longer for anything.
pub fn within(limit: Duration) -> PoolBuilder {
    let pool = Pool::builder().io_timeout(limit);
    pool.connect_timeout(limit).get_timeout(limit)
}

/// Locks that wait no longer for an answer. On a busy machine a connect may exceed the limit, so
/// there is a connection already.
pub fn quick(url: &str, limit: Duration) -> Locks {
    let locks = connect_with(url, within(limit));
    assert!(comes_true(|| locks.lock("warm").inspect().is_ok()));
    locks
}
