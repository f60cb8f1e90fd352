//! A slot that stays open while one key of a lock has gone and the other has not. The server says `TRYAGAIN` then, and what is done
//! with a lock that is held waits until its keys are in one place again.

use std::{fmt::Debug, thread};

use leasehold::{Lease, Locks, Nodes, Options, Result};
use redis::Value;

use super::Open;
use crate::common::{LONG, MS, hold::comes_true};

/// Mutexes with a companion each, of which the locks themselves have gone.
struct Apart {
    open: Open,
    locks: Locks,
    held: Vec<Lease>,
}

impl Apart {
    fn new(begins: &str, names: &[&str]) -> Self {
        let mut open = Open::closed_yet(begins);
        // What waits is not to end for want of time, while slots of other tests arrive before this one.
        let builder = Nodes::builder().get_timeout(LONG).io_timeout(LONG);
        let nodes = builder.connect(&open.cluster.url()).unwrap();
        let locks = Locks::on_nodes(&nodes).with(Options::new().renewal(false).lease(LONG));
        let names: Vec<_> = names.iter().map(|name| open.named(name)).collect();
        let held = names.iter().map(|name| locks.lock(name).acquire(LONG));
        let held = held.map(Result::unwrap).collect();
        open.open();
        for name in &names {
            assert_eq!(open.migrate(&format!("lock:{name}")).unwrap(), Value::Okay);
        }
        Self { open, locks, held }
    }

    /// It is done when the keys are in one place, and not before.
    fn waits<T: Debug + Send>(&self, call: impl FnOnce() -> Result<T> + Send) -> T {
        thread::scope(|scope| {
            let waiting = scope.spawn(call);
            thread::sleep(300 * MS);
            let is_over = waiting.is_finished();
            self.open.close();
            let answer = waiting.join().unwrap();
            assert!(!is_over, "{answer:?}");
            answer.unwrap()
        })
    }
}

#[test]
fn a_renewal_waits_until_the_keys_of_its_lock_are_in_one_place() {
    let apart = Apart::new("apart-renewed", &["lock"]);
    let lease = &apart.held[0];
    apart.waits(|| lease.renew(2 * LONG));
    assert!(lease.remaining() > LONG);
}

#[test]
fn who_takes_a_lock_from_its_holder_waits_until_its_keys_are_in_one_place() {
    let apart = Apart::new("apart-taken", &["lock"]);
    let lease = &apart.held[0];
    let lock = apart.locks.lock(lease.name());
    assert!(apart.waits(|| lock.force_release()).is_held());
    assert!(lock.try_acquire().unwrap().is_some());
    assert!(comes_true(|| lease.verify().is_err()));
}

#[test]
fn a_release_is_done_where_the_lock_is_and_leaves_it_free() {
    let mut apart = Apart::new("apart-released", &["lock"]);
    let lease = apart.held.remove(0);
    let lock = apart.locks.lock(lease.name());
    lease.release().unwrap();
    // It is free, and nobody can have it yet; nobody is told that somebody has it.
    let refused = lock.try_acquire();
    assert!(
        matches!(&refused, Err(error) if !error.is_contended()),
        "{refused:?}"
    );
    apart.open.close();
    assert!(lock.try_acquire().unwrap().is_some());
}
