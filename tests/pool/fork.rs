//! A forked child cannot use its parent's pool, and gets an error.

use std::thread;

use crate::common::{
    LONG, Server,
    child::{Forked, said_by_a_child},
    wait::unless_halted,
};
use leasehold::{Error, Locks, Pool};

/// Runs a closure in a child, which then exits. True if it returned true, without a hang or a
/// panic.
fn in_a_child(run: impl FnOnce() -> bool) -> bool {
    said_by_a_child(|| run().to_string()).as_deref() == Some("true")
}

#[test]
fn a_child_is_refused_its_parents_connections() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let pool = Pool::connect(&server.url()).unwrap();
        drop(pool.get().unwrap());
        // The message does not advise the child to make its own pool, which may hang.
        let advice = "fork before creating a pool";
        let says = |error: Error| {
            matches!(error, Error::Forked { .. }) && error.to_string().contains(advice)
        };
        assert!(in_a_child(|| pool.get().is_err_and(says)));
    });
}

/// Processes that share a socket read each other's answers: a lock held by a third would look
/// granted.
#[test]
fn a_child_does_not_garble_its_parents_answers() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let pool = Pool::builder().max_size(1).build(&client).unwrap();
        let locks = Locks::new(&pool).unwrap();
        drop(locks.lock("warm").acquire(LONG).unwrap());
        let third = Locks::connect(&server.url()).unwrap();
        let _theirs = third.lock("theirs").acquire(LONG).unwrap();
        let mut child = Forked::start(|| {
            for _ in 0..2_000 {
                if let Ok(Some(lease)) = locks.lock("free").try_acquire() {
                    std::mem::forget(lease);
                }
            }
            String::new()
        });
        let mut answers = 0;
        while !child.has_ended() || answers < 200 {
            assert!(locks.lock("theirs").try_acquire().unwrap().is_none());
            answers += 1;
            thread::yield_now();
        }
    });
}
