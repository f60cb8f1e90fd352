//! Another client writes between two commands of a function, at each of its commands.

use leasehold::Error;
use redis::{Commands, Connection};

use crate::{
    common::world::{self, Kind},
    trial::{LONG, Trial, at_every_command},
};

const THEIRS: &str = "their token";

#[test]
fn the_lock_is_taken_over() {
    with_the_lock_gone(
        |conn, lock| conn.pset_ex(lock, THEIRS, 60_000).unwrap(),
        |trial| {
            let holder: String = trial.direct.get(lock_of(trial)).unwrap();
            assert_eq!(holder, THEIRS, "{}: their lock was touched", trial.what);
            let left: i64 = trial.direct.pttl(lock_of(trial)).unwrap();
            assert!(left > 20_000, "{}: their lock was shortened", trial.what);
        },
    );
}

#[test]
fn the_lock_is_deleted() {
    with_the_lock_gone(
        |conn, lock| conn.del(lock).unwrap(),
        |trial| {
            let held: bool = trial.direct.exists(lock_of(trial)).unwrap();
            assert!(!held, "{}: acquired again", trial.what);
        },
    );
}

/// A function whose lock is gone writes nothing and returns that it is lost.
fn with_the_lock_gone(take: fn(&mut Connection, &str), judge: fn(&mut Trial)) {
    at_every_command(|mut trial| {
        let needs_lock = trial.function.kind != Kind::Acquire && trial.function.has_lock();
        if !needs_lock || trial.is_acquiring() {
            return;
        }
        let (mut other, lock) = (trial.another_connection(), lock_of(&trial));
        trial.point().run(move || take(&mut other, &lock));
        let outcome = trial.call(LONG);
        if trial.function.name == "release_lock" {
            assert!(
                matches!(outcome.result, Ok(false)),
                "{}: {}",
                trial.what,
                outcome.text
            );
        } else {
            let lost = matches!(outcome.result, Err(Error::Lost { .. }));
            assert!(lost, "{}: {:?}", trial.what, outcome.result);
            assert!(!trial.is_done(), "{}: written after the loss", trial.what);
        }
        judge(&mut trial);
        trial.judge_text(&outcome);
        clean_afterwards(&mut trial);
    });
}

#[test]
fn the_lock_is_renewed() {
    at_every_command(|mut trial| {
        let (mut other, lock) = (trial.another_connection(), lock_of(&trial));
        trial.point().run(move || {
            let _: bool = other.pexpire(&lock, 20_000).unwrap();
        });
        succeeds(&mut trial);
    });
}

#[test]
fn something_else_is_written() {
    at_every_command(|mut trial| {
        let mut other = trial.another_connection();
        trial.point().run(move || {
            redis::pipe()
                .hset("users:99", "funds", 1)
                .zadd("market:", "other.99", 1)
                .hset("users:27", "name", "Bill")
                .sadd("inventory:17", "another")
                .sadd("inventory:27", "another")
                .exec(&mut other)
                .unwrap();
        });
        succeeds(&mut trial);
    });
}

fn succeeds(trial: &mut Trial) {
    let outcome = trial.call(LONG);
    assert!(
        matches!(outcome.result, Ok(true)),
        "{}: {:?}",
        trial.what,
        outcome.result
    );
    trial.judge(&outcome);
    clean_afterwards(trial);
}

#[test]
fn the_buyer_spends_the_money() {
    refused(
        |name| name.starts_with("purchase"),
        |conn| {
            redis::pipe()
                .atomic()
                .hincr("users:27", "funds", -100)
                .hincr("users:17", "funds", 100)
                .exec(conn)
                .unwrap();
        },
    );
}

/// A purchase under a lock assumes that all others trade under it too, and does not watch the
/// market.
#[test]
fn the_item_is_sold_to_another_buyer() {
    refused(
        |name| name == "purchase_item" || name.starts_with("list"),
        |conn| {
            redis::pipe()
                .atomic()
                .zrem("market:", "listed.17")
                .sadd("inventory:17", "listed")
                .srem("inventory:17", "stocked")
                .sadd("inventory:27", "stocked")
                .exec(conn)
                .unwrap();
        },
    );
}

/// A trade whose conditions no longer hold is refused, at any of its commands.
fn refused(concerns: fn(&str) -> bool, interfere: fn(&mut Connection)) {
    at_every_command(|mut trial| {
        if !concerns(trial.function.name) {
            return;
        }
        let mut other = trial.another_connection();
        trial.point().run(move || interfere(&mut other));
        let outcome = trial.call(LONG);
        assert!(
            matches!(outcome.result, Ok(false)),
            "{}: {:?}",
            trial.what,
            outcome.result
        );
        world::assert_conserved(&mut trial.direct, &trial.what);
        assert!(!trial.is_done(), "{}", trial.what);
        clean_afterwards(&mut trial);
    });
}

fn lock_of(trial: &Trial) -> String {
    format!("lock:{}", trial.function.lock)
}

/// There is no new lock, and no watched key.
fn clean_afterwards(trial: &mut Trial) {
    if trial.function.kind == Kind::UnderLock {
        let holder: Option<String> = trial.direct.get(lock_of(trial)).unwrap();
        assert!(
            holder.is_none_or(|holder| holder == THEIRS),
            "{}: left locked",
            trial.what
        );
    }
    world::assert_nothing_is_watched(&mut trial.conn, &mut trial.direct, &trial.what);
    trial.next_on_the_same_connection();
}
