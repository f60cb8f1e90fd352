//! A `Locks` keeps no state for locks that are neither held nor waited for.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    error::Error,
    locks::{Lease, stack::Stack},
    testing::StandIn,
};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);
const NAMES: usize = 30;
const WAITERS: usize = 3;

fn all(locks: &Locks) -> Vec<Lock> {
    (0..NAMES)
        .map(|n| locks.lock(&format!("name {n}")))
        .collect()
}

fn handing(locks: &Locks, turns: u32) -> Locks {
    locks.with(Options::new().hand_over(turns, LONG))
}

fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let asked = Instant::now();
    while !condition() && asked.elapsed() < LONG {
        thread::sleep(MS);
    }
    condition()
}

fn wait_behind(lock: &Lock, number: usize) {
    let waiting = || lock.inspect().unwrap().waiting_here();
    assert!(comes_true(|| waiting() == number), "{}", waiting());
}

fn only(locks: &Locks) -> Arc<Stack<Lease>> {
    locks.stacks.per_server.all().remove(0)
}

fn assert_nothing_is_left(locks: &Locks) {
    let shared = &only(locks);
    assert!(shared.queues.is_empty(), "{:?}", shared.queues);
    assert_eq!(shared.keeper.remembered(), (0, 0, 0, false));
}

#[test]
fn no_state_remains_of_released_locks() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let ends: [fn(Lease); 3] = [
        |lease| lease.release().unwrap(),
        drop,
        |lease| drop(lease.detach()),
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let kinds: [fn(&Locks, &str) -> Lock; 4] =
            [Locks::lock, Locks::reentrant, Locks::read, Locks::write];
        let leases: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(kind, lock)| lock(&locks, &format!("{n} {kind}")))
            .chain(all(&locks))
            .map(|lock| lock.acquire(LONG).unwrap())
            .collect();
        let (keys, kept, ..) = only(&locks).keeper.remembered();
        assert_eq!((keys, kept), (NAMES + 4, NAMES + 4));
        leases.into_iter().for_each(end);
        assert_nothing_is_left(&locks);
        stand_in.advance(LONG);
    }
}

#[test]
fn no_state_remains_of_lost_locks() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    let harms: [fn(&StandIn, &Lease); 3] = [
        |stand_in, lease| assert!(stand_in.expire(lease.name())),
        |stand_in, lease| drop(stand_in.steal(lease.name())),
        |stand_in, _| stand_in.disconnect(),
    ];
    for harm in harms {
        let leases: Vec<_> = all(&locks)
            .iter()
            .map(|lock| lock.acquire(LONG).unwrap())
            .collect();
        for lease in leases {
            lease.lost().notify(drop).unwrap();
            harm(&stand_in, &lease);
            assert!(lease.release().is_err());
        }
        stand_in.reconnect();
        stand_in.advance(LONG);
        assert!(comes_true(|| only(&locks).keeper.remembered().2 == 0));
        assert_nothing_is_left(&locks);
    }
}

#[test]
fn no_state_remains_of_waits_that_timed_out() {
    let stand_in = StandIn::new();
    for turns in [0, 100] {
        let (here, there) = (stand_in.locks().unwrap(), stand_in.locks().unwrap());
        let held: Vec<_> = all(&here)
            .iter()
            .map(|lock| lock.acquire(LONG).unwrap())
            .collect();
        for locks in [handing(&here, turns), handing(&there, turns)] {
            thread::scope(|scope| {
                for lock in all(&locks) {
                    scope.spawn(move || {
                        let waited = lock.acquire(5 * MS);
                        assert!(matches!(waited, Err(Error::Contended { .. })));
                    });
                }
            });
            assert!(only(&locks).queues.is_empty());
        }
        assert_nothing_is_left(&there);
        drop(held);
        assert_nothing_is_left(&here);
    }
}

#[test]
fn no_state_remains_of_waiters_that_had_their_turns() {
    let stand_in = StandIn::new();
    for turns in [0, 2, 100] {
        let locks = handing(&stand_in.locks().unwrap(), turns);
        thread::scope(|scope| {
            for lock in all(&locks) {
                let first = lock.acquire(LONG).unwrap();
                for number in 1..=WAITERS {
                    let lock = lock.clone();
                    scope.spawn(move || lock.acquire(LONG).unwrap().release().unwrap());
                    wait_behind(&locks.lock(first.name()), number);
                }
                first.release().unwrap();
            }
        });
        assert_nothing_is_left(&locks);
    }
}
