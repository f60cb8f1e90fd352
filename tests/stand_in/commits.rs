//! The stand-in records the writes of a job.

use std::time::{Duration, Instant};

use leasehold::{
    Committed, Error, Lease, Locks, LostReason, Options, Owner,
    testing::{Action, Failure, StandIn},
};
use redis::{Commands, Value, parse_redis_value};

use crate::{
    common::hold::{comes_true, every_kind},
    world::{on_both, told},
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_hours(1);

fn held(stand_in: &StandIn) -> Lease {
    stand_in.locks().unwrap().lock("a").acquire(SECOND).unwrap()
}

fn commit(lease: &Lease, value: u32) -> Result<(), Error> {
    lease.commit(|pipe| {
        pipe.set("b", value);
    })
}

/// The values written by [`commit`].
fn written(stand_in: &StandIn) -> Vec<String> {
    let commits = stand_in.commits().into_iter();
    commits
        .map(|commit| commit.commands[0][2].clone())
        .collect()
}

#[test]
fn a_commit_behaves_as_on_a_server() {
    on_both(|world| {
        let locks = world.locks();
        every_kind(&locks).map(|lock| {
            let write = |pipe: &mut redis::Pipeline| {
                pipe.set("b", 1);
            };
            let lease = lock.acquire(SECOND).unwrap();
            let committed = told(&lease.commit(write));
            let both =
                [(); 2].map(|()| lease.commit_once("id", HOUR, write).unwrap() == Committed::Now);
            let answers: (String,) = lease.commit_returning(write).unwrap();
            let stands = lease.is_held();
            let released = told(&lease.commit_and_release(write));
            let is_free = !lock.inspect().unwrap().is_held();

            let lease = lock.acquire(SECOND).unwrap();
            let again = lease.commit_once("id", HOUR, write).unwrap() == Committed::Now;
            let refused = told(&lease.commit(|pipe| {
                pipe.cmd("SUBSCRIBE").arg("b");
            }));
            world.steal(&lock);
            let lost = told(&lease.commit(write));
            let lost = (lost, told(&lease.commit_and_release(write)));
            let ends = (stands, released, is_free);
            ((committed, both, answers), ends, (again, refused, lost))
        })
    });
}

/// The reply to the transaction counts, although the question that follows it gets none.
#[test]
fn a_lease_whose_commit_finds_it_lost_is_not_held_if_the_server_is_silent_after_that() {
    let stand_in = StandIn::new();
    let lease = held(&stand_in);
    stand_in.fail(|action, _| (action == Action::Renew).then_some(Failure::LostReply));
    stand_in.steal("a");
    assert!(lease.is_held(), "no reply, no loss");
    let lost = commit(&lease, 1);
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    assert!(!lease.is_held() && written(&stand_in).is_empty());
    lease.release().unwrap_err();
}

#[test]
fn nothing_is_written_after_the_end_of_a_hold_although_another_keeps_the_lock() {
    on_both(|world| {
        let (locks, others) = (world.locks(), world.locks());
        let owner = Owner::new("job").unwrap();
        let all = |locks: &Locks| {
            let level = locks.reentrant("level");
            let level = level.with(Options::new().owner(owner.clone()));
            [level, locks.read("read"), locks.semaphore("permit", 2)]
        };
        let lease = SECOND / 2;
        let short = || Options::new().lease(lease).renewal(false);
        let of_both = all(&locks).into_iter().zip(all(&others));
        let told = of_both.map(|(ours, theirs)| {
            let _theirs = theirs.acquire(SECOND).unwrap();
            let ours = ours.with(short()).acquire(SECOND).unwrap();
            let write = |passes: Duration| {
                told(&ours.transaction(&[], |conn, pipe| {
                    let _: Option<u32> = conn.get("b")?;
                    world.pass(passes);
                    pipe.incr("b", 1);
                    Ok(())
                }))
            };
            let told = (write(Duration::ZERO), write(lease + lease / 10));
            let written: u32 = world.pool().get().unwrap().get("b").unwrap();
            (told, written)
        });
        told.collect::<Vec<_>>()
    });
}

#[test]
fn commits_are_recorded_under_their_lock() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    for lock in every_kind(&locks) {
        let lease = lock.acquire(SECOND).unwrap();
        lease
            .commit(|pipe| {
                pipe.set("report:text", "all is well").ignore();
                pipe.incr("report:editions", 1);
            })
            .unwrap();
        let last = stand_in.commits().pop().unwrap();
        assert_eq!(last.lock, lock.name());
        let commands = [
            vec!["SET", "report:text", "all is well"],
            vec!["INCRBY", "report:editions", "1"],
        ];
        assert_eq!(last.commands, commands);
        lease.release().unwrap();
    }
    assert_eq!(stand_in.commits().len(), 6);
}

#[test]
fn a_command_returns_the_tests_answer_or_its_own() {
    let stand_in = StandIn::new();
    let lease = held(&stand_in);
    let editions = |lease: &Lease| -> Result<(u64,), Error> {
        lease.commit_returning(|pipe| {
            pipe.set("b", 1).ignore();
            pipe.incr("c", 1);
        })
    };
    let mut answers = [Some(Value::Int(7)), None, Some(Value::Okay)].into_iter();
    // Commands on the lock and on the mark of a `commit_once` are not passed to the test.
    stand_in.answer(move |command| match command {
        ["INCRBY", ..] => answers.next().flatten(),
        ["SET", "b", "1"] | ["GET", "b"] => None,
        other => panic!("{other:?}"),
    });
    assert_eq!(editions(&lease).unwrap(), (7,));
    assert_eq!(editions(&lease).unwrap(), (1,));
    assert!(matches!(editions(&lease), Err(Error::Reply { .. })));
    let once = lease.commit_once("id", HOUR, |pipe| _ = pipe.set("b", 1));
    assert_eq!(once.unwrap(), Committed::Now);
    lease
        .commit_and_release(|pipe| _ = pipe.set("b", 1))
        .unwrap();
    // Without the mark and the release.
    let [.., once, last] = &stand_in.commits()[..] else {
        panic!("five were executed");
    };
    assert_eq!((&once.commands, last.commands.len()), (&last.commands, 1));
}

#[test]
fn an_unknown_command_is_refused_with_advice() {
    let stand_in = StandIn::new();
    let lease = held(&stand_in);
    let refused = lease.commit(|pipe| _ = pipe.lpush("b", 1));
    let refused = format!("{:#}", anyhow::Error::from(refused.unwrap_err()));
    assert!(
        refused.contains("does not execute `LPUSH`") && refused.contains("StandIn::answer"),
        "{refused}"
    );
}

#[test]
fn a_refusal_set_by_a_test_looks_like_the_servers() {
    let stand_in = StandIn::new();
    let lease = held(&stand_in);
    let refusal = parse_redis_value(b"-OOM no memory\r\n").unwrap();
    stand_in.answer(move |command| (command[1] == "b").then(|| refusal.clone()));
    assert!(matches!(commit(&lease, 1), Err(Error::Redis { .. })));
    // The mark and the release have been executed.
    let write = |pipe: &mut redis::Pipeline| {
        pipe.set("b", 1);
    };
    let marked = lease.commit_once("id", HOUR, write);
    assert!(matches!(marked, Err(Error::Partial { .. })), "{marked:?}");
    let partly = lease.commit(|pipe| {
        pipe.set("b", 1).set("c", 1);
    });
    assert!(matches!(partly, Err(Error::Partial { .. })), "{partly:?}");
    let released = lease.commit_and_release(write);
    assert!(
        matches!(released, Err(Error::Partial { .. })),
        "{released:?}"
    );
}

#[test]
fn a_commit_under_a_stolen_lock_is_lost_and_not_recorded() {
    let stand_in = StandIn::new();
    let locks = stand_in.locks().unwrap();
    for lock in every_kind(&locks) {
        let lease = lock.acquire(SECOND).unwrap();
        stand_in.steal(lock.name());
        assert!(matches!(commit(&lease, 1), Err(Error::Lost { .. })));
        // Without the holder's knowledge.
        stand_in.expire(lock.name());
        let lease = lock.acquire(SECOND).unwrap();
        stand_in.disconnect();
        stand_in.steal(lock.name());
        assert!(matches!(commit(&lease, 1), Err(Error::Pool { .. })));
        stand_in.reconnect();
        assert!(matches!(commit(&lease, 1), Err(Error::Lost { .. })));
        assert_eq!(lease.lost().reason(), Some(LostReason::TakenAway));
    }
    assert!(stand_in.commits().is_empty());
}

#[test]
fn a_commit_without_an_answer_is_unknown_and_executed() {
    let stand_in = StandIn::new();
    let lease = held(&stand_in);
    stand_in.fail_next(Action::Commit, Failure::LostReply);
    assert!(matches!(commit(&lease, 1), Err(Error::Unknown { .. })));
    assert!(lease.is_held());
    commit(&lease, 2).unwrap();
    assert_eq!(written(&stand_in), ["1", "2"]);

    let lock = stand_in.locks().unwrap().lock("a");
    stand_in.fail_next(Action::Commit, Failure::LostReply);
    let released = lease.commit_and_release(|pipe| {
        pipe.set("b", 3);
    });
    assert!(matches!(released, Err(Error::Unknown { .. })));
    assert_eq!(written(&stand_in), ["1", "2", "3"]);
    assert!(comes_true(|| !lock.inspect().unwrap().is_held()));
}

#[test]
fn a_commit_repeated_by_its_id_is_recorded_once_while_its_mark_lasts() {
    let stand_in = StandIn::new();
    let lock = stand_in.locks().unwrap().lock("a");
    let once_under = |lease: &Lease, id: &str| {
        lease.commit_once(id, HOUR, |pipe| {
            pipe.set("b", id);
        })
    };
    let once = |id: &str| once_under(&lock.acquire(SECOND).unwrap(), id);
    let first = lock
        .clone()
        .with(Options::new().owner(Owner::new("host a").unwrap()));
    let lease = first.acquire(SECOND).unwrap();
    stand_in.fail_next(Action::Commit, Failure::LostReply);
    let unknown = once_under(&lease, "1");
    assert!(matches!(unknown, Err(Error::Unknown { .. })));
    lease.release().unwrap();
    stand_in.advance(60 * SECOND);
    let Committed::Before(run) = once("1").unwrap() else {
        panic!("it was written twice");
    };
    assert_eq!(run.by().map(Owner::as_str), Some("host a"));
    assert!(
        run.ago() >= 60 * SECOND && run.ago() < 2 * 60 * SECOND,
        "{run:?}"
    );
    assert_eq!(once("2").unwrap(), Committed::Now);
    assert_eq!(written(&stand_in), ["1", "2"]);
    stand_in.advance(HOUR);
    assert_eq!(once("1").unwrap(), Committed::Now);
    assert_eq!(written(&stand_in), ["1", "2", "1"]);
}

#[test]
fn a_releasing_commit_wakes_a_waiter() {
    let stand_in = StandIn::new();
    let other = stand_in.locks().unwrap().lock("a");
    let mut took = Duration::ZERO;
    for _ in 0..5 {
        let lease = held(&stand_in);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| other.acquire(60 * SECOND)?.release());
            assert!(comes_true(|| other.inspect().unwrap().waiting_here() == 1));
            let asked = Instant::now();
            lease
                .commit_and_release(|pipe| _ = pipe.set("b", 1))
                .unwrap();
            waiting.join().unwrap().unwrap();
            took += asked.elapsed();
        });
    }
    // On its own it asks once a second.
    assert!(took < 5 * SECOND / 2, "{took:?}");
    assert_eq!(written(&stand_in), ["1"; 5]);
}
