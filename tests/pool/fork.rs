//! What a child of a fork can do with its parent's pool: nothing, and it is told so.

use std::{process, thread, time::Duration};

use crate::common::{Server, hold::comes_true, wait::unless_halted};
use fork::{Fork, fork, waitpid_nohang};
use leasehold::{Error, Locks, Pool};

const LONG: Duration = Duration::from_secs(20);

/// Runs something in a child, which ends with it. True: the child said yes, and neither hung nor panicked.
fn in_a_child(run: impl FnOnce() -> bool) -> bool {
    match fork().unwrap() {
        Fork::Child => {
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            process::exit(i32::from(!answer.unwrap_or(false)));
        }
        Fork::Parent(child) => {
            let mut status = None;
            let ended = comes_true(|| {
                status = waitpid_nohang(child).unwrap();
                status.is_some()
            });
            if !ended {
                let _ = process::Command::new("kill")
                    .args(["-9", &child.to_string()])
                    .status();
                let _ = fork::waitpid(child);
            }
            status == Some(0)
        }
    }
}

#[test]
fn a_child_is_refused_every_connection_of_its_parent() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let pool = Pool::connect(&server.url()).unwrap();
        let locks = Locks::new(&pool).unwrap();
        let idle = pool.get().unwrap();
        drop(idle);
        let lease = locks.lock("held").acquire(LONG).unwrap();
        // The waiters' connection is open as well.
        assert!(matches!(
            locks.lock("held").acquire(Duration::from_millis(50)),
            Err(Error::Contended { .. })
        ));
        assert!(in_a_child(|| matches!(pool.get(), Err(Error::Forked))));
        assert!(in_a_child(|| matches!(
            locks.lock("a").try_acquire(),
            Err(Error::Forked)
        )));
        assert!(in_a_child(|| matches!(
            locks.lock("held").acquire(LONG),
            Err(Error::Forked)
        )));
        assert!(in_a_child(|| matches!(
            locks.lock("a").inspect(),
            Err(Error::Forked)
        )));
        assert!(in_a_child(|| matches!(
            locks.lock("a").force_release(),
            Err(Error::Forked)
        )));
        assert!(in_a_child(|| matches!(lease.verify(), Err(Error::Forked))));
        assert!(in_a_child(|| matches!(
            lease.renew(LONG),
            Err(Error::Forked)
        )));
        // One of its own works.
        let url = server.url();
        assert!(in_a_child(move || Pool::connect(&url)
            .unwrap()
            .get()
            .is_ok()));
        lease.verify().unwrap();
        lease.release().unwrap();
    });
}

/// Whoever shares a socket takes the answers of the other: a lock that a third has would be granted.
#[test]
fn the_answers_to_a_parent_are_not_garbled_by_its_child() {
    unless_halted(|| {
        let server = Server::start().unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let pool = Pool::builder().max_size(1).build(&client).unwrap();
        let locks = Locks::new(&pool).unwrap();
        drop(locks.lock("warm").acquire(LONG).unwrap());
        let third = Locks::connect(&server.url()).unwrap();
        let _theirs = third.lock("theirs").acquire(LONG).unwrap();
        match fork().unwrap() {
            Fork::Child => {
                for _ in 0..2_000 {
                    if let Ok(Some(lease)) = locks.lock("free").try_acquire() {
                        std::mem::forget(lease);
                    }
                }
                process::exit(0);
            }
            Fork::Parent(child) => {
                let (mut answers, mut is_over) = (0, false);
                while !is_over || answers < 200 {
                    is_over = is_over || waitpid_nohang(child).unwrap().is_some();
                    assert!(locks.lock("theirs").try_acquire().unwrap().is_none());
                    answers += 1;
                    thread::yield_now();
                }
            }
        }
    });
}
