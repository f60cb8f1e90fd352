//! The guard of a set does what the guard of one lock does.

use std::time::Duration;

use leasehold::{
    Committed, Error, LockSet, Locks, LostReason, Options,
    testing::{Action, Failure, StandIn},
};
use redis::Commands;

use crate::{
    common::{
        LONG, MS,
        hold::{comes_true, every_kind},
    },
    world::{World, on_both, told},
};

const HOUR: Duration = Duration::from_hours(1);

fn set(locks: &Locks) -> LockSet {
    LockSet::of(every_kind(locks))
}

/// The names of the locks that are held.
fn held(locks: &Locks) -> Vec<String> {
    let kinds = every_kind(locks);
    let held = kinds
        .iter()
        .filter(|lock| lock.inspect().unwrap().is_held());
    held.map(|lock| lock.name().to_owned()).collect()
}

fn count(world: &dyn World) -> u64 {
    let mut conn = world.pool().get().unwrap();
    conn.get::<_, Option<u64>>("count").unwrap().unwrap_or(0)
}

#[test]
fn a_set_is_looked_at_extended_and_gone_through() {
    on_both(|world| {
        let once = Options::new().lease(1_500 * MS).renewal(false);
        let leases = set(&world.locks().with(once)).acquire(LONG).unwrap();
        let names: Vec<&str> = (&leases).into_iter().map(leasehold::Lease::name).collect();
        assert_eq!(
            names,
            ["bare", "mutex", "read", "reentrant", "semaphore", "write"]
        );
        assert_eq!(leases.iter().len(), 6);
        leases.verify().unwrap();
        leases.renew(LONG).unwrap();
        world.pass(1_600 * MS);
        leases.verify().unwrap();
        assert!(leases.iter().all(|lease| lease.remaining() > 3_000 * MS));
        assert!(matches!(
            leases.renew(Duration::ZERO),
            Err(Error::Invalid { .. })
        ));
        leases.release().unwrap();
    });
}

/// Returns the lock and the reason of the error of a set that has lost two locks, and all locks
/// that it counts as lost.
fn answer_after_losses(
    world: &dyn World,
    extends: bool,
) -> (String, Option<LostReason>, Vec<String>) {
    let locks = world.locks();
    let leases = set(&locks).acquire(LONG).unwrap();
    assert!(world.expire("mutex") && world.expire("write"));
    let answer = if extends {
        leases.renew(LONG)
    } else {
        leases.verify()
    };
    let Err(Error::Lost {
        context, reason, ..
    }) = answer
    else {
        panic!("{answer:?}");
    };
    let lost = leases.iter().filter(|lease| !lease.is_held());
    let lost = lost.map(|lease| lease.name().to_owned()).collect();
    (context.lock.clone(), reason, lost)
}

#[test]
fn a_look_and_an_extension_find_the_lost_lock_and_judge_the_others_too() {
    on_both(|world| {
        let all = vec!["mutex".to_owned(), "write".to_owned()];
        let first = ("mutex".to_owned(), Some(LostReason::TakenAway), all);
        for extends in [false, true] {
            let mut answers = Vec::new();
            // A watchdog that finds the first loss before the call ends the call at once.
            while answers.len() < 5 && !answers.contains(&first) {
                answers.push(answer_after_losses(world, extends));
            }
            assert!(answers.contains(&first), "{answers:?}");
        }
    });
}

#[test]
fn a_set_commits_once_returns_the_results_and_releases() {
    on_both(|world| {
        let locks = world.locks();
        let leases = set(&locks).acquire(LONG).unwrap();
        let (written,): (u64,) = leases
            .commit_returning(|pipe| _ = pipe.incr("count", 1))
            .unwrap();
        let misfit = leases.commit_returning::<(Vec<String>,)>(|pipe| _ = pipe.incr("count", 1));
        assert!(written == 1 && matches!(misfit, Err(Error::Reply { .. })));
        let once = || leases.commit_once("id", HOUR, |pipe| _ = pipe.incr("count", 1));
        assert_eq!(once().unwrap(), Committed::Now);
        assert!(matches!(once().unwrap(), Committed::Before(_)));
        assert_eq!((count(world), held(&locks).len()), (3, 6));
        leases
            .commit_and_release(|pipe| _ = pipe.incr("count", 1))
            .unwrap();
        assert_eq!((count(world), held(&locks).len()), (4, 0));
    });
}

#[test]
fn the_last_commit_of_a_set_with_a_lost_lock_writes_nothing_and_releases_the_others() {
    on_both(|world| {
        for lost in ["mutex", "read", "reentrant", "semaphore", "write", "bare"] {
            let locks = world.locks();
            let leases = set(&locks).acquire(LONG).unwrap();
            assert!(world.expire(lost));
            let done = leases.commit_and_release(|pipe| _ = pipe.incr("count", 1));
            let Err(Error::Lost {
                context, reason, ..
            }) = done
            else {
                panic!("{lost}: {done:?}");
            };
            assert_eq!(
                (&*context.lock, reason),
                (lost, Some(LostReason::TakenAway))
            );
            assert_eq!(context.operation, "Leases::commit_and_release");
            assert_eq!((count(world), held(&locks).len()), (0, 0), "{lost}");
        }
    });
}

/// The locks are released in the background at the latest.
#[test]
fn the_last_commit_of_a_set_releases_whatever_the_server_says() {
    for (failure, expected, written) in [
        (Failure::LostReply, "unknown", 1),
        (Failure::LostRequest, "unknown", 0),
        (Failure::Refused("OOM no memory"), "another error", 0),
    ] {
        let stand_in = StandIn::new();
        // Its end is not what frees a lock here.
        let locks = stand_in
            .locks()
            .unwrap()
            .with(Options::new().lease(60 * LONG));
        let leases = set(&locks).acquire(LONG).unwrap();
        stand_in.fail_next(Action::Commit, failure);
        let done = leases.commit_and_release(|pipe| _ = pipe.incr("count", 1));
        assert_eq!(told(&done), expected);
        assert!(comes_true(|| held(&locks).is_empty()), "{expected}");
        assert_eq!(count(&stand_in), written, "{expected}");
    }
}
