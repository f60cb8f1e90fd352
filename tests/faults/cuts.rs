//! The connection is cut before or after a command, or the reply is lost or late.

use std::time::Duration;

use redis::Commands;

use crate::{
    common::{
        proxy::Point,
        world::{self, Kind},
    },
    trial::{LONG, Trial, at_every_command},
};

/// The read time-out for replies that do not come in time.
const SHORT: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_millis(800);

#[test]
fn cut_before_any_command() {
    at_every_command(|mut trial| {
        trial.point().cut_before();
        let outcome = trial.call(LONG);
        trial.judge(&outcome);
        assert!(
            !trial.is_done(),
            "{}: happened although it was not sent",
            trial.what
        );
        assert!(outcome.result.is_err(), "{}", trial.what);
        trial.next_on_a_fresh_connection(&outcome);
    });
}

#[test]
fn cut_after_any_command() {
    at_every_command(|mut trial| {
        trial.point().cut_after();
        let outcome = trial.call(LONG);
        trial.judge(&outcome);
        let was_last = trial.at == trial.commands.len();
        assert_eq!(trial.is_done(), was_last, "{}", trial.what);
        assert!(outcome.result.is_err(), "{}", trial.what);
        trial.next_on_a_fresh_connection(&outcome);
    });
}

#[test]
fn cut_in_the_middle_of_any_reply() {
    at_every_command(|mut trial| {
        trial.point().half_way().cut_after();
        let outcome = trial.call(LONG);
        trial.judge(&outcome);
        assert!(outcome.result.is_err(), "{}", trial.what);
        trial.next_on_a_fresh_connection(&outcome);
    });
}

#[test]
fn no_reply_to_any_command() {
    at_every_command(|mut trial| {
        trial.point().swallow();
        if trial.is_acquiring() && trial.function.kind == Kind::UnderLock {
            // These would retry for ten seconds.
            trial.proxy.at("EVALSHA").cut_before();
        }
        let outcome = trial.call(SHORT);
        trial.judge(&outcome);
        assert!(outcome.result.is_err(), "{}", trial.what);
        assert!(
            trial.conn.get::<_, String>("mine").is_err(),
            "{}",
            trial.what
        );
        let (once, took) = (trial.silent_conversations() * SHORT, outcome.took);
        let missing = trial.missing_replies();
        // Less than a wait for each reply would take.
        let limit = once + SHORT * u32::try_from(missing - 1).unwrap();
        assert!(missing < 6 || took < limit, "{}: {took:?}", trial.what);
        trial.next_on_a_fresh_connection(&outcome);
    });
}

#[test]
fn a_late_reply_to_any_command() {
    at_every_command(|trial| late(trial, |point| point.delay(LATE)));
}

#[test]
fn half_a_reply_is_late_to_any_command() {
    at_every_command(|trial| late(trial, |point| point.half_way().delay(LATE)));
}

fn late(mut trial: Trial, delay: fn(Point<'_>)) {
    delay(trial.point());
    let outcome = trial.call(SHORT);
    // At once, while replies are still outstanding on it.
    trial.next_on_the_same_connection();
    trial.judge(&outcome);
    if trial.is_acquiring() {
        // Unless the machine was so busy that the wait ended first. Trades wait longer.
        let waits = trial.function.kind == Kind::Acquire || !trial.function.name.contains("item");
        let is_over = waits && outcome.took >= world::WAIT;
        assert!(
            is_over || matches!(outcome.result, Ok(true)),
            "{}: asked again",
            trial.what
        );
    }
    trial.next_on_a_fresh_connection(&outcome);
}

#[test]
fn a_slow_reply_changes_nothing() {
    at_every_command(|mut trial| {
        trial.point().delay(Duration::from_millis(20));
        let outcome = trial.call(LONG);
        trial.judge(&outcome);
        assert!(matches!(outcome.result, Ok(true)), "{}", trial.what);
        world::assert_nothing_is_watched(&mut trial.conn, &mut trial.direct, &trial.what);
    });
}
